/*
 * A TLS server in asynchronous mode with many connections in one thread, and its clients, in one process without
 * sockets; public calls of libssl only, one scenario a run:
 *
 *     tls SCENARIO openssl.cnf [N]
 *
 * The server's library context is configured by the file; the clients have OpenSSL's own provider alone. Clients differ
 * in version, group and certificate, and one in four goes away at some point, also while the server waits. Exit status 0
 * if every other one got its handshake and an answer; else a line says what was wrong.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <openssl/async.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "wattlock.h"

#define WIDTH 48
#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)

static const char *config;

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    ERR_print_errors_fp(stderr);
    _exit(1);
}

typedef struct {
    OSSL_LIB_CTX                 *ours, *theirs;
    OSSL_PROVIDER                *plain;
    SSL_CTX                      *servers[3], *client;
    const struct wattlock_table  *table;
} World;

typedef struct {
    SSL  *server, *client;
    int   polling;  /* told by callback, not by descriptor */
    int   steps;    /* until the client goes away; negative: it stays */
    int   paused;   /* the server's job waits */
    int   ready;    /* and it was told that it need not any more */
} Pair;

typedef struct {
    long  whole, aborted, paused, in_pause;
} Sums;

static unsigned
roll(unsigned sides)
{
    static unsigned long  state = 1;

    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned) (state >> 33) % sides;
}

/* A key of the server's context with a certificate signed by itself, and a server with both. */
static SSL_CTX *
server_of(OSSL_LIB_CTX *ctx, EVP_PKEY *key)
{
    SSL_CTX  *server = SSL_CTX_new_ex(ctx, NULL, TLS_server_method());
    X509     *leaf = X509_new_ex(ctx, NULL);

    MUST(key != NULL && server != NULL && leaf != NULL && X509_set_version(leaf, X509_VERSION_3));
    MUST(ASN1_INTEGER_set(X509_get_serialNumber(leaf), 1) && X509_set_pubkey(leaf, key));
    MUST(X509_gmtime_adj(X509_getm_notBefore(leaf), -60) && X509_gmtime_adj(X509_getm_notAfter(leaf), 86400));
    MUST(X509_sign(leaf, key, EVP_sha256()) > 0);
    MUST(SSL_CTX_use_certificate(server, leaf) == 1 && SSL_CTX_use_PrivateKey(server, key) == 1);
    SSL_CTX_set_mode(server, SSL_MODE_ASYNC);
    SSL_CTX_set_session_cache_mode(server, SSL_SESS_CACHE_OFF);
    X509_free(leaf);
    EVP_PKEY_free(key);

    return server;
}

static int
look(OSSL_PROVIDER *provider, void *found)
{
    OSSL_PARAM  params[] = { OSSL_PARAM_octet_ptr(WATTLOCK_TABLE, found, 0), OSSL_PARAM_END };

    if (strcmp(OSSL_PROVIDER_get0_name(provider), "wattlock") == 0) {
        MUST(OSSL_PROVIDER_get_params(provider, params) == 1);
    }

    return 1;
}

/* Loads everything; then `confine`, if there is one; then the first use. */
static World
enter(void (*confine)(void))
{
    World  w = { OSSL_LIB_CTX_new(), OSSL_LIB_CTX_new(), NULL, { NULL }, NULL, NULL };

    MUST(OSSL_LIB_CTX_load_config(w.ours, config) == 1);
    MUST((w.plain = OSSL_PROVIDER_load(w.theirs, "default")) != NULL);
    MUST(OSSL_PROVIDER_do_all(w.ours, look, &w.table) == 1);

    if (confine != NULL) {
        confine();
    }

    MUST(w.table != NULL && w.table->version == WATTLOCK_TABLE_VERSION && w.table->size >= sizeof(*w.table));
    w.servers[0] = server_of(w.ours, EVP_PKEY_Q_keygen(w.ours, NULL, "RSA", (size_t) 2048));
    w.servers[1] = server_of(w.ours, EVP_PKEY_Q_keygen(w.ours, NULL, "EC", "P-256"));
    w.servers[2] = server_of(w.ours, EVP_PKEY_Q_keygen(w.ours, NULL, "EC", "P-384"));
    MUST((w.client = SSL_CTX_new_ex(w.theirs, NULL, TLS_client_method())) != NULL);

    return w;
}

static void
leave(World *w)
{
    int  i;

    for (i = 0; i < 3; i++) {
        SSL_CTX_free(w->servers[i]);
    }

    SSL_CTX_free(w->client);
    ASYNC_cleanup_thread();
    MUST(OSSL_PROVIDER_unload(w->plain));
    OSSL_LIB_CTX_free(w->theirs);
    OSSL_LIB_CTX_free(w->ours);
}

static int
told(SSL *server, void *pair)
{
    (void) server;
    ((Pair *) pair)->ready = 1;
    return 1;
}

static void
begin(World *w, Pair *p, int polling)
{
    static const char  *groups[] = { "X25519:P-256:P-384", "P-256:P-384", "P-384:P-256" };
    BIO                *ends[2];

    MUST((p->server = SSL_new(w->servers[roll(3)])) != NULL && (p->client = SSL_new(w->client)) != NULL);
    MUST(BIO_new_bio_pair(&ends[0], 0, &ends[1], 0) == 1);
    SSL_set_bio(p->server, ends[0], ends[0]);
    SSL_set_bio(p->client, ends[1], ends[1]);
    SSL_set_accept_state(p->server);
    SSL_set_connect_state(p->client);
    MUST(SSL_set1_groups_list(p->client, groups[roll(3)]) == 1);
    MUST(SSL_set_max_proto_version(p->client, roll(2) ? TLS1_3_VERSION : TLS1_2_VERSION) == 1);

    if (polling) {
        MUST(SSL_set_async_callback(p->server, told) == 1 && SSL_set_async_callback_arg(p->server, p) == 1);
    }

    p->steps = roll(4) == 0 ? (int) roll(12) : -1;
    p->polling = polling;
    p->paused = p->ready = 0;
}

/* Something is said and answered; none of it pauses. */
static void
talk(Pair *p)
{
    char  text[16];

    MUST(SSL_write(p->client, "a question", 10) == 10 && SSL_read(p->server, text, 16) == 10);
    MUST(SSL_write(p->server, "an answer", 9) == 9 && SSL_read(p->client, text, 16) == 9);
    MUST(memcmp(text, "an answer", 9) == 0);
}

static void
end(Pair *p)
{
    SSL_free(p->server);
    SSL_free(p->client);
    p->server = p->client = NULL;
}

/* One step of one connection. Returns whether it came further. */
static int
step(World *w, Pair *p, Sums *sums)
{
    int  good, error, waited = p->paused;

    if (p->client != NULL) {
        good = SSL_do_handshake(p->client);
        MUST(good == 1 || SSL_get_error(p->client, good) == SSL_ERROR_WANT_READ);

        if (p->steps >= 0 && p->steps-- == 0) {
            SSL_free(p->client);
            p->client = NULL;
            sums->in_pause += p->paused;

            /* Who knows of the table takes the request back; who does not waits for it. */
            if (p->paused && p->polling) {
                p->ready |= w->table->cancel_for(w->table->provider, p->server);
            }
        }
    }

    if (p->paused && !p->ready && roll(16) != 0) {
        return 0;
    }

    p->ready = 0;
    good = SSL_do_handshake(p->server);
    error = SSL_get_error(p->server, good);
    p->paused = error == SSL_ERROR_WANT_ASYNC;
    sums->paused += p->paused && !waited;

    if (p->client == NULL) {
        /* The fiber must come to its end before the connection may be freed. */
        if (!p->paused) {
            ERR_clear_error();
            sums->aborted++;
            end(p);
        }

        return !p->paused;
    }

    MUST(good == 1 || error == SSL_ERROR_WANT_ASYNC || error == SSL_ERROR_WANT_READ);

    if (good == 1 && SSL_do_handshake(p->client) == 1) {
        talk(p);
        sums->whole++;
        end(p);
    }

    return !p->paused;
}

/* Sleeps until a descriptor of a connection that waits says that it can go on. */
static void
wait_for_descriptors(Pair *pairs)
{
    struct pollfd  polled[WIDTH];
    Pair          *whose[WIDTH];
    OSSL_ASYNC_FD  fds[4];
    size_t         n;
    int            i, waiting = 0;

    for (i = 0; i < WIDTH; i++) {
        if (pairs[i].server != NULL && pairs[i].paused) {
            MUST(SSL_get_all_async_fds(pairs[i].server, NULL, &n) == 1 && n == 1);
            MUST(SSL_get_all_async_fds(pairs[i].server, fds, &n) == 1);
            whose[waiting] = &pairs[i];
            polled[waiting++] = (struct pollfd) { fds[0], POLLIN, 0 };
        }
    }

    MUST(waiting > 0 && poll(polled, waiting, 20000) > 0);

    for (i = 0; i < waiting; i++) {
        whose[i]->ready |= polled[i].revents != 0;
    }
}

static Sums
handshakes(World *w, long n, int polling)
{
    Pair  pairs[WIDTH] = { 0 };
    Sums  sums = { 0, 0, 0, 0 };
    long  begun = 0;
    int   i, further;

    w->table->claim(w->table->provider, polling);

    while (sums.whole + sums.aborted < n) {
        further = 0;

        for (i = 0; i < WIDTH; i++) {
            if (pairs[i].server == NULL && begun < n) {
                begin(w, &pairs[i], polling);
                begun++;
            }

            if (pairs[i].server != NULL) {
                further |= step(w, &pairs[i], &sums);
            }
        }

        if (further || sums.whole + sums.aborted == n) {
            continue;
        }

        if (polling) {
            (void) w->table->flush(w->table->provider);
            (void) w->table->poll(w->table->provider);

        } else {
            wait_for_descriptors(pairs);
        }
    }

    MUST(w->table->in_flight(w->table->provider) == 0);
    w->table->claim(w->table->provider, 0);

    return sums;
}

/* Some handshakes in both ways; they pause, and some clients go while they do. */
static void
both(World *w, long n)
{
    int  polling;

    for (polling = 0; polling < 2; polling++) {
        Sums  sums = handshakes(w, n, polling);

        MUST(sums.aborted > 0 && sums.paused > 0 && (n < 400 || sums.in_pause > 0));
    }
}

static void
plainly(long n)
{
    World  w = enter(NULL);

    both(&w, n);
    leave(&w);
}

/* An empty folder is all there is, and nobody owns the process. */
static void
into_a_chroot(void)
{
    int  root = geteuid() == 0;

    MUST(mkdir("empty", 0755) == 0);
    MUST(root || unshare(CLONE_NEWUSER) == 0);
    MUST(chroot("empty") == 0 && chdir("/") == 0);
    MUST(!root || (setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0));
    MUST(access("/proc", F_OK) != 0 && access("/dev", F_OK) != 0);
}

static void
in_a_chroot(long n)
{
    World  w = enter(into_a_chroot);

    both(&w, n);
    leave(&w);
}

/* What the provider and libcrypto need once they are loaded: docs/use/openssl.md has the list, too. */
static const int  needed[] = {
    /* memory, for libcrypto's fibers and our stack, too */
    SYS_brk, SYS_mmap, SYS_mremap, SYS_munmap, SYS_mprotect, SYS_madvise,
    /* randomness, and whether this is a child */
    SYS_getrandom, SYS_getpid,
    /* telling a job's owner */
    SYS_eventfd2, SYS_read, SYS_write, SYS_close,
    /* the helper thread */
    SYS_clone3, SYS_clone, SYS_set_robust_list, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_futex,
    SYS_clock_nanosleep, SYS_exit,
    /* this program's own */
    SYS_poll, SYS_exit_group,
};

/* What is tried and may be refused: files, the thread's name and alternate stack, how many processors there are. */
static const int  refused[] = {
#ifdef SYS_mkdir
    SYS_mkdir,
#endif
    SYS_mkdirat, SYS_openat, SYS_statx, SYS_newfstatat, SYS_sysinfo, SYS_prctl, SYS_sigaltstack, SYS_sched_getaffinity,
};

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define MACHINE AUDIT_ARCH_AARCH64
#endif

/* Everything else ends the process: seccomp(2). */
static void
into_a_sandbox(void)
{
    enum { NEEDED = sizeof(needed) / sizeof(needed[0]), REFUSED = sizeof(refused) / sizeof(refused[0]) };
    struct sock_filter  code[4 + 2 * (NEEDED + REFUSED) + 1];
    struct sock_fprog   program = { 0, code };
    int                 i;

    code[program.len++] = (struct sock_filter) BPF_STMT(BPF_LD|BPF_W|BPF_ABS, offsetof(struct seccomp_data, arch));
    code[program.len++] = (struct sock_filter) BPF_JUMP(BPF_JMP|BPF_JEQ|BPF_K, MACHINE, 1, 0);
    code[program.len++] = (struct sock_filter) BPF_STMT(BPF_RET|BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[program.len++] = (struct sock_filter) BPF_STMT(BPF_LD|BPF_W|BPF_ABS, offsetof(struct seccomp_data, nr));

    for (i = 0; i < NEEDED + REFUSED; i++) {
        int       number = i < NEEDED ? needed[i] : refused[i - NEEDED];
        unsigned  action = i < NEEDED ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | EPERM;

        code[program.len++] = (struct sock_filter) BPF_JUMP(BPF_JMP|BPF_JEQ|BPF_K, (unsigned) number, 0, 1);
        code[program.len++] = (struct sock_filter) BPF_STMT(BPF_RET|BPF_K, action);
    }

    code[program.len++] = (struct sock_filter) BPF_STMT(BPF_RET|BPF_K, SECCOMP_RET_KILL_PROCESS);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    MUST(fopen(config, "r") == NULL && errno == EPERM);
}

static void
in_a_sandbox(long n)
{
    World  w = enter(into_a_sandbox);

    both(&w, n);
    leave(&w);
}

static long
resident(void)
{
    long   pages = 0;
    FILE  *statm = fopen("/proc/self/statm", "r");

    MUST(statm != NULL && fscanf(statm, "%*d %ld", &pages) == 1);
    fclose(statm);

    return pages * sysconf(_SC_PAGESIZE);
}

static int
entries(const char *path)
{
    DIR  *dir = opendir(path);
    int   n = -2;

    while (readdir(dir) != NULL) {
        n++;
    }

    closedir(dir);
    return n;
}

/* After a warm-up neither memory nor descriptors grow with the number of handshakes. */
static void
flat(long n)
{
    World  w = enter(NULL);
    long   before, after, warm = n / 10 > 500 ? n / 10 : 500;
    int    polling, fds;

    for (polling = 0; polling < 2; polling++) {
        Sums  sums;

        (void) handshakes(&w, warm, polling);
        before = resident();
        fds = entries("/proc/self/fd");
        sums = handshakes(&w, n / 2, polling);
        after = resident();
        printf("%s: %ld handshakes whole, %ld aborted, %ld of them in a pause, %ld pauses; resident %ld to %ld bytes, "
               "descriptors %d to %d\n", polling ? "polling" : "descriptors", sums.whole, sums.aborted, sums.in_pause,
               sums.paused, before, after, fds, entries("/proc/self/fd"));
        MUST(sums.in_pause > 0 && sums.paused > 0);
        MUST(after - before < 4 << 20);
        MUST(entries("/proc/self/fd") == fds);
    }

    leave(&w);
}

/* Loaded, used and unloaded again and again; the helper thread goes with the provider. */
static void
reload(long n)
{
    int  fds = entries("/proc/self/fd");

    while (n-- > 0) {
        plainly(60);
        MUST(entries("/proc/self/task") == 1);
        MUST(entries("/proc/self/fd") == fds);
    }
}

int
main(int argc, char **argv)
{
    static const struct {
        const char  *name;
        void       (*run)(long);
    } scenarios[] = {
        { "handshakes", plainly }, { "flat", flat }, { "reload", reload }, { "chroot", in_a_chroot },
        { "seccomp", in_a_sandbox },
    };
    size_t  i;

    MUST(argc >= 3);
    config = argv[2];

    for (i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run(argc > 3 ? atol(argv[3]) : 100);
            return 0;
        }
    }

    fprintf(stderr, "no scenario %s\n", argv[1]);
    return 2;
}
