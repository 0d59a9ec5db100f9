/*
 * Wattlock's function table for programs that poll their own cryptography.
 *
 * A provider that is loaded hands it out as the parameter "wattlock-table" (octet pointer) of
 * OSSL_PROVIDER_get_params(3); "wattlock-abi" (integer) is its version. No library needs to be linked.
 *
 *     const struct wattlock_table *t = NULL;
 *     OSSL_PARAM p[] = { OSSL_PARAM_octet_ptr(WATTLOCK_TABLE, (void **)&t, 0), OSSL_PARAM_END };
 *     if (OSSL_PROVIDER_get_params(provider, p) == 1 && t != NULL
 *         && t->version == WATTLOCK_TABLE_VERSION && t->size >= sizeof(*t))
 *         t->claim(t->provider, 1);
 *
 * Functions act on the requests of the calling thread. None blocks longer than the work it does. The table lives as
 * long as the provider is loaded.
 */
#ifndef WATTLOCK_H
#define WATTLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <openssl/async.h>

#define WATTLOCK_TABLE "wattlock-table"
#define WATTLOCK_ABI "wattlock-abi"
#ifndef WATTLOCK_TABLE_VERSION /* tests build a module that expects another one */
#define WATTLOCK_TABLE_VERSION 3
#endif

#define WATTLOCK_JSON       0
#define WATTLOCK_PROMETHEUS 1
#define WATTLOCK_HTML       2

/* Codings, and what follows a piece. */
#define WATTLOCK_GZIP  0
#define WATTLOCK_ZSTD  1
#define WATTLOCK_MORE  0
#define WATTLOCK_FLUSH 1
#define WATTLOCK_END   2

/* Where a loop is in its turn. */
#define WATTLOCK_AT_CALL  0 /* an operation has just begun; the turn goes on */
#define WATTLOCK_AT_BUSY  1 /* other events are left in this turn */
#define WATTLOCK_AT_QUIET 2 /* nothing else is to be done in this turn */

/* When a loop asks again. It also asks at the next operation and when the number of active connections changes. */
#define WATTLOCK_AGAIN_NEVER  0 /* nothing is in flight */
#define WATTLOCK_AGAIN_BEHIND 1 /* in this turn, behind all events that there are now */
#define WATTLOCK_AGAIN_NEXT   2 /* in the next turn, without sleeping before it */
#define WATTLOCK_AGAIN_LATER  3 /* after wait_ns; the loop may sleep */

/* What a loop is told after a turn. */
struct wattlock_turn {
    unsigned in_flight; /* requests still in flight, gathered ones included */
    unsigned again;     /* WATTLOCK_AGAIN_... */
    uint64_t wait_ns;
    unsigned went;      /* batches that went in this turn */
    unsigned looked;    /* looks for devices' answers in this turn: 0 or 1 */
};

/* A setting of openssl.cnf's provider section. */
struct wattlock_setting {
    const char *key;
    const char *value;
};

struct wattlock_table {
    uint32_t version; /* WATTLOCK_TABLE_VERSION; another number: do not use the rest */
    uint32_t size;    /* bytes of this structure; it grows at its end */
    void *provider;   /* first argument of every function */

    /* 1: this thread polls its own requests. 0: it no longer does. */
    void (*claim)(void *provider, int yes);
    /* Takes in what is done and calls the callbacks of waiting requests. Returns requests still in flight. */
    unsigned (*poll)(void *provider);
    /* Nobody else can join: what was gathered is done or sent to its engine now. Returns as poll. */
    unsigned (*flush)(void *provider);
    /* Requests of this thread in flight, gathered ones included. */
    unsigned (*in_flight)(void *provider);
    /* How many connections could be waiting at once; 0: not known. With 1 nothing is ever held back. */
    void (*set_active)(void *provider, unsigned active);
    /* Withdraws what a wait context has in flight; 1 if there was something. Its job fails when it is resumed. */
    int (*cancel)(void *provider, ASYNC_WAIT_CTX *context);
    /* The same for the argument of a wait context's callback, which for libssl is the SSL. */
    int (*cancel_for)(void *provider, const void *argument);
    /* This process's counters as text in one of the forms below. Returns the bytes it needs, terminator included;
     * writes nothing if `room` is less. */
    size_t (*status)(void *provider, int form, char *out, size_t room);
    /* Whether settings of openssl.cnf's provider section make sense together, in any order (1), else why not, in words.
     * Of one name the last counts, but that thresholds add up. `algorithms` never makes sense here: OpenSSL asks what is
     * offered once, when it loads the provider. */
    int (*check)(void *provider, const struct wattlock_setting *settings, size_t count, char *words, size_t room);
    /* Changes settings, all or none, for requests that begin from now on. As `check`. What OpenSSL has been offered
     * stays. */
    int (*set)(void *provider, const struct wattlock_setting *settings, size_t count, char *words, size_t room);
    /* A loop that calls this in each turn while anything is in flight leaves it to the provider when a batch goes (the
     * setting `poll`): nothing else need be called. `at` is WATTLOCK_AT_...; `progress` a number that the loop changes
     * whenever it brings a connection further. Does what is due and fills in when to ask again. */
    void (*turn)(void *provider, int at, unsigned progress, struct wattlock_turn *out);

    /* Compression of HTTP responses in pieces, inside the call, by the CPU. Not bound to a thread; one at a time uses a
     * compressor. */

    /* A compressor of a coding (WATTLOCK_GZIP, 1 to 9; WATTLOCK_ZSTD, 1 to 19) at a level; NULL if there is none. Its
     * state is up to half a MiB for gzip, 3 MiB for zstd. */
    void *(*compressor)(void *provider, int coding, int level);
    /* Begins a stream: a gzip member or a zstd frame. What was begun before is over; the state stays. 1, or 0. */
    int (*compress_start)(void *provider, void *compressor);
    /* Compresses `*from` bytes at `input` into `*to` bytes at `output`, at least 32; both become what was taken and
     * written. `then`: WATTLOCK_MORE, WATTLOCK_FLUSH (all so far can be decoded) or WATTLOCK_END. 1: all was taken, and what
     * `then` asks for has come out. 0: the output is full; again, with the rest and the same `then`. 2: only if it was
     * spread: other cores are at work; again, with the rest and the same `then`, when the descriptor is readable. -1: it
     * failed, and the stream is over. */
    int (*compress)(void *provider, void *compressor, const unsigned char *input, size_t *from, unsigned char *output,
                    size_t *to, int then);
    void (*compressor_free)(void *provider, void *compressor);
    /* A descriptor that becomes readable when other cores are done with something, the same for all members of this
     * process; it is the provider's, which closes it. -1: no other cores are to be used. */
    int (*compress_descriptor)(void *provider);
    /* For a gzip member that was begun at `level` and took `spent_ns` so far: what follows is compressed on other cores, in
     * chunks of `chunk` bytes, at most `most` bytes at once, if cores are idle (or a device is there) and that pays. 1: it
     * is so from now on; output then also comes of calls without input. 0: it goes on as before; a later call may be
     * answered otherwise. */
    int (*compress_spread)(void *provider, void *compressor, int level, uint64_t spent_ns, size_t chunk, size_t most);
    /* The descriptor was readable: to be called before members that are spread are asked for their output. */
    void (*compress_woken)(void *provider);

    /* Runs work(argument) on a stack as large as the process's first thread may have (RLIMIT_STACK, at least 2 and at most
     * 64 MiB; 8 MiB if it is unlimited), with inaccessible pages below, and returns 1 when it has returned, which it must.
     * Inside an ASYNC_JOB, whose own stack has 32 KiB, `work` is a handshake, or a call that writes to one connection, and
     * may pause the job. 0: no such stack was to
     * be had, and nothing was called. */
    int (*on_stack)(void *provider, void (*work)(void *argument), void *argument);
    /* As `status`, of this process and of those with these ids, if they are of the same user and publish their counters:
     * JSON and a page have sums, with the ids that are in them, Prometheus' text has all samples. `own`, if not NULL, is
     * HTML that a page begins with. */
    size_t (*status_of)(void *provider, int form, const uint32_t *pids, size_t count, const char *own, char *out,
                        size_t room);
    /* The setting `poll` that is in force, as text; returns as `status`. */
    size_t (*polling)(void *provider, char *out, size_t room);
    /* How many of this thread's connections are not idle, whatever they do: handshaking, reading, writing; 0: not known.
     * `heuristic` and `threshold` look for a device's answers when as many requests are in flight. To be said before
     * `turn`. */
    void (*set_busy)(void *provider, unsigned busy);
    /* For a gzip member that was begun at `level`, before its first piece: if the policy gives content of `size` bytes (as
     * far as it is known) to a device, all of it goes there, in chunks of `chunk` bytes, at most `most` bytes at once. 1: as
     * if it were spread. 0: it goes on as before. For no compressor (NULL): whether there is a device that compresses. */
    int (*compress_offload)(void *provider, void *compressor, int level, size_t size, size_t chunk, size_t most);
    /* Inside `on_stack` and a job: a call begins (1) or has ended (0) that must not pause the job, such as one on another
     * connection. ASYNC_block_pause(3) alone would be noticed when an operation has been submitted. */
    void (*nested)(void *provider, int begins);
    /* 1: the policy may give records that this thread writes to a device, so SSL_write may pause the ASYNC_JOB that it is in,
     * inside `on_stack`. 0: it would not. */
    int (*writes_wait)(void *provider);
    /* Takes what this thread has in flight for the argument of a callback back from devices and from batches, and does it at
     * once; returns 1 if there was something. Tells nobody: the job that waits for it is to be resumed. */
    int (*hurry_for)(void *provider, const void *argument);
};

#endif
