/*
 * Wattlock's module for the stock nginx: what its files say to each other.
 *
 *   ngx_http_wattlock_module.c  directives, status page, life of the processes
 *   wattlock_openssl.c          the provider and the hybrid, while a configuration is read
 *   wattlock_bridge.c           the import slots of the nginx program that stand between it and libssl
 *   wattlock_loop.c             connections, their jobs, completions, and turns of the event loop
 *   wattlock_cork.c             segments that are not full wait for the rest of their turn
 *   wattlock_compress.c         a module of its own: compression in the place of nginx's gzip filter
 *
 * The module knows no engine and no policy: those are the provider's, which it reaches through the function table of
 * wattlock.h. It is active only if the table is there and the bridge is in force in this process; if not it says why,
 * once, and nginx works as if it were not loaded.
 */
#ifndef WATTLOCK_NGINX_H
#define WATTLOCK_NGINX_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <openssl/ssl.h>
#include <wattlock.h>

/* What a worker counts. */
typedef struct {
    ngx_uint_t  handshakes;  /* begun: each is under way, completed or aborted */
    ngx_uint_t  in_handshake;/* under way */
    ngx_uint_t  completed;   /* ended well */
    ngx_uint_t  aborted;     /* failed, or closed by either side before that */
    ngx_uint_t  paused;      /* of those begun, how many have waited for an operation */
    ngx_uint_t  polls;       /* turns in which the provider was asked */
    ngx_uint_t  flushes;     /* batches that went in them */
    ngx_uint_t  looks;       /* of those turns, how many looked for devices' answers */
    ngx_uint_t  writes_paused;/* calls that write and have waited for an operation */
    /* Of clients' handshakes that completed, each in one of these: the group that keys were agreed on with. */
    ngx_uint_t  group_x25519mlkem768;
    ngx_uint_t  group_x25519;
    ngx_uint_t  group_p256;
    ngx_uint_t  group_other;
    ngx_uint_t  group_none;  /* of a resumed session without a new agreement, or by RSA */
} wattlock_counts_t;

/* This worker's. */
extern wattlock_counts_t  *wattlock_counts;

/* The provider's function table; NULL and why, if there is none that this module can use. */
const struct wattlock_table *wattlock_find_table(const char **why);

/* Whether there is one, of whatever version. */
int wattlock_is_loaded(void);

/* Loads the provider that a file of `wattlock nginx enable` names, if none is loaded. NGX_DECLINED, and why, if there
 * is none then. */
ngx_int_t wattlock_load_provider(const char *file, char *why, size_t size);

/* The groups that openssl.cnf names for every context, or NULL; for OPENSSL_free. */
char *wattlock_system_groups(void);

/* Whether a command of SSL_CONF_cmd(3), as in `ssl_conf_command`, names groups. */
int wattlock_names_groups(const char *command);

/* Has a context offer X25519MLKEM768 before these groups, or before X25519 and the NIST curves if they are NULL. Groups
 * that name it stay. NGX_DECLINED if there is no such group. */
ngx_int_t wattlock_offer_hybrid(SSL_CTX *context, const char *groups);

/* Bridge. All of it is for the main thread of one process. */
ngx_int_t wattlock_bridge_raise(const char **why);
int wattlock_bridge_stands(void);
void wattlock_bridge_lower(void);

/* Loop. */
ngx_int_t wattlock_loop_prepare(const char **why);
ngx_int_t wattlock_loop_start(ngx_cycle_t *cycle, const struct wattlock_table *table,
    ngx_flag_t upstream);
void wattlock_loop_stop(void);
int wattlock_mark(SSL_CTX *context, int on);

/* Compression. Whether it has a connection of this worker, which is no client's. */
int wattlock_compress_listens(void);

/* One connection's socket. Zero at first. */
typedef struct {
    ngx_queue_t  with;      /* while `corked` */
    int          fd;        /* while `corked` */
    unsigned     corked:1;
    unsigned     whole:4;   /* whole records since one that was less */
} wattlock_cork_t;

/* Cork. */
void wattlock_cork_start(ngx_cycle_t *cycle, ngx_connection_t *connection);
void wattlock_cork_stop(void);
void wattlock_cork(wattlock_cork_t *cork, const SSL *ssl);
void wattlock_uncork(wattlock_cork_t *cork);
int wattlock_cork_write(wattlock_cork_t *cork, SSL *ssl, const void *data, int size);

/* What the bridge calls in place of libssl's. */
int wattlock_set_ex_data(SSL *ssl, int index, void *data);
void wattlock_free(SSL *ssl);
int wattlock_do_handshake(SSL *ssl);
int wattlock_read_early_data(SSL *ssl, void *data, size_t size, size_t *read);
int wattlock_read(SSL *ssl, void *data, int size);
int wattlock_write(SSL *ssl, const void *data, int size);
int wattlock_shutdown(SSL *ssl);
int wattlock_get_error(const SSL *ssl, int ret);

#endif
