/*
 * A program that uses the provider through public libcrypto calls only, one scenario a run:
 *
 *     host SCENARIO FOLDER-OF-THE-MODULE [N]
 *
 * Every result is checked by OpenSSL's own provider. Exit status 0 if all was right; else a line says what was not.
 */
#include <dirent.h>
#include <fcntl.h>
#include <openssl/async.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>
#include <openssl/rsa.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "wattlock.h"

#define OURS "provider=wattlock"
#define THEIRS "provider=default"
#define MOST 64

static const char *folder;

#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

typedef struct {
    OSSL_LIB_CTX   *ctx;
    OSSL_PROVIDER  *theirs, *ours;
} Home;

/* Everything is offered here, whatever this CPU and this OpenSSL are faster at. A section that activates nothing says
 * how a provider is loaded later. */
static const char settings[] =
    "openssl_conf = init\n[init]\nproviders = providers\n"
    "[providers]\nlibwattlock_provider = ours\n"
    "[ours]\nalgorithms = gcm,cbc,ctr,xts,rsa,ec,x25519,kdf\n";

static Home
enter_with(const char *more)
{
    Home  home = { OSSL_LIB_CTX_new(), NULL, NULL };
    char  name[] = "/tmp/wattlock-host-XXXXXX";
    int   file = mkstemp(name);

    MUST(home.ctx != NULL && file >= 0);
    MUST(dprintf(file, "%s%s", settings, more) > 0);
    MUST(OSSL_LIB_CTX_load_config(home.ctx, name) == 1);
    close(file);
    unlink(name);
    MUST(OSSL_PROVIDER_set_default_search_path(home.ctx, folder));
    MUST((home.theirs = OSSL_PROVIDER_load(home.ctx, "default")) != NULL);
    MUST((home.ours = OSSL_PROVIDER_load(home.ctx, "libwattlock_provider")) != NULL);

    return home;
}

static Home
enter(void)
{
    return enter_with("pause = always\n");
}

static void
leave(Home *home)
{
    MUST(OSSL_PROVIDER_unload(home->ours));
    MUST(OSSL_PROVIDER_unload(home->theirs));
    OSSL_LIB_CTX_free(home->ctx);
}

static EVP_PKEY *
rsa_key(OSSL_LIB_CTX *ctx)
{
    EVP_PKEY  *key = EVP_PKEY_Q_keygen(ctx, OURS, "RSA", (size_t) 2048);

    MUST(key != NULL);
    return key;
}

/* Signs by us, and has the other provider verify. */
static int
sign(OSSL_LIB_CTX *ctx, EVP_PKEY *key, const char *text)
{
    unsigned char  signature[512];
    size_t         len = sizeof(signature);
    EVP_MD_CTX    *md = EVP_MD_CTX_new();
    int            good;

    good = EVP_DigestSignInit_ex(md, NULL, "SHA256", ctx, OURS, key, NULL) == 1
        && EVP_DigestSign(md, signature, &len, (const unsigned char *) text, strlen(text)) == 1;
    EVP_MD_CTX_free(md);

    if (!good) {
        return 0;
    }

    md = EVP_MD_CTX_new();
    good = EVP_DigestVerifyInit_ex(md, NULL, "SHA256", ctx, THEIRS, key, NULL) == 1
        && EVP_DigestVerify(md, signature, len, (const unsigned char *) text, strlen(text)) == 1;
    EVP_MD_CTX_free(md);

    return good;
}

/* Two fresh keys of ours agree, whichever of the two derives. */
static int
agree(OSSL_LIB_CTX *ctx, const char *type, const char *group)
{
    unsigned char  secrets[2][64];
    size_t         lens[2] = { 64, 64 };
    EVP_PKEY      *keys[2];
    int            i, good = 1;

    for (i = 0; i < 2; i++) {
        keys[i] = group ? EVP_PKEY_Q_keygen(ctx, OURS, type, group) : EVP_PKEY_Q_keygen(ctx, OURS, type);
        MUST(keys[i] != NULL);
    }

    for (i = 0; i < 2; i++) {
        EVP_PKEY_CTX  *derive = EVP_PKEY_CTX_new_from_pkey(ctx, keys[i], i ? THEIRS : OURS);

        good = good && derive != NULL && EVP_PKEY_derive_init(derive) == 1
            && EVP_PKEY_derive_set_peer(derive, keys[1 - i]) == 1
            && EVP_PKEY_derive(derive, secrets[i], &lens[i]) == 1;
        EVP_PKEY_CTX_free(derive);
    }

    good = good && lens[0] == lens[1] && memcmp(secrets[0], secrets[1], lens[0]) == 0;
    EVP_PKEY_free(keys[0]);
    EVP_PKEY_free(keys[1]);

    return good;
}

/* Sealed by us in two pieces, opened by the other. */
static int
seal(OSSL_LIB_CTX *ctx, size_t len)
{
    unsigned char    key[32] = { 1 }, iv[12] = { 2 }, tag[16];
    unsigned char   *text = malloc(len + 1), *out = malloc(len + 16), *back = malloc(len + 16);
    EVP_CIPHER      *ours = EVP_CIPHER_fetch(ctx, "AES-256-GCM", OURS);
    EVP_CIPHER      *theirs = EVP_CIPHER_fetch(ctx, "AES-256-GCM", THEIRS);
    EVP_CIPHER_CTX  *c = EVP_CIPHER_CTX_new();
    int              n, m, good;

    memset(text, 7, len + 1);
    good = ours != NULL && EVP_EncryptInit_ex2(c, ours, key, iv, NULL) == 1
        && EVP_EncryptUpdate(c, NULL, &n, key, 5) == 1
        && EVP_EncryptUpdate(c, out, &n, text, (int) (len / 3)) == 1
        && EVP_EncryptUpdate(c, out + n, &m, text + n, (int) (len - len / 3)) == 1
        && EVP_EncryptFinal_ex(c, out + n + m, &n) == 1
        && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, 16, tag) == 1;
    EVP_CIPHER_CTX_reset(c);
    good = good && EVP_DecryptInit_ex2(c, theirs, key, iv, NULL) == 1
        && EVP_DecryptUpdate(c, NULL, &n, key, 5) == 1
        && EVP_DecryptUpdate(c, back, &n, out, (int) len) == 1
        && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, 16, tag) == 1
        && EVP_DecryptFinal_ex(c, back + n, &m) == 1 && memcmp(back, text, len) == 0;
    EVP_CIPHER_CTX_free(c);
    EVP_CIPHER_free(ours);
    EVP_CIPHER_free(theirs);
    free(text);
    free(out);
    free(back);

    return good;
}

static void
everything(OSSL_LIB_CTX *ctx, EVP_PKEY *key)
{
    MUST(sign(ctx, key, "a text"));
    MUST(agree(ctx, "X25519", NULL));
    MUST(agree(ctx, "EC", "P-256"));
    MUST(agree(ctx, "EC", "P-521"));
    MUST(seal(ctx, 100) && seal(ctx, 20000));
}

static int
count(const char *path)
{
    DIR  *dir = opendir(path);
    int   n = 0;

    while (readdir(dir) != NULL) {
        n++;
    }

    closedir(dir);
    return n - 2;
}

/* Threads */

static Home       shared;
static EVP_PKEY  *shared_key;

static void *
in_thread(void *argument)
{
    int  i;

    for (i = 0; i < *(int *) argument; i++) {
        everything(shared.ctx, shared_key);
    }

    return NULL;
}

static void
threads(int n)
{
    pthread_t  many[8];
    int        i, turn;

    shared = enter();
    shared_key = rsa_key(shared.ctx);

    for (turn = 0; turn < 3; turn++) {
        for (i = 0; i < 8; i++) {
            MUST(pthread_create(&many[i], NULL, in_thread, &n) == 0);
        }

        for (i = 0; i < 8; i++) {
            MUST(pthread_join(many[i], NULL) == 0);
        }
    }

    EVP_PKEY_free(shared_key);
    leave(&shared);
}

/* Forks: what was used before is used after, in the child, in its child, and in the parent. */

static void
forks(int n)
{
    Home       home = enter();
    EVP_PKEY  *key = rsa_key(home.ctx);
    int        depth, status = 0;
    pid_t      child = -1;

    (void) n;
    everything(home.ctx, key);

    for (depth = 0; depth < 2; depth++) {
        child = fork();
        MUST(child >= 0);
        everything(home.ctx, key);

        if (child > 0) {
            break;
        }
    }

    if (child > 0) {
        MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }

    EVP_PKEY_free(key);
    leave(&home);
}

/* Loaded, used and unloaded again and again; two contexts at a time. */

static void
reload(int n)
{
    int  i, before = 0, fds = 0;

    for (i = 0; i < n; i++) {
        Home       one = enter(), two = enter();
        EVP_PKEY  *key = EVP_PKEY_Q_keygen(one.ctx, OURS, "EC", "P-256");

        MUST(key != NULL && sign(one.ctx, key, "x"));
        MUST(agree(two.ctx, "X25519", NULL) && seal(two.ctx, 1000));
        EVP_PKEY_free(key);
        leave(&one);
        MUST(seal(two.ctx, 50));
        leave(&two);

        if (i == 0) {
            before = count("/proc/self/task");
            fds = count("/proc/self/fd");
        }
    }

    MUST(count("/proc/self/task") == before);
    MUST(count("/proc/self/fd") <= fds);
}

/* Jobs */

typedef struct {
    OSSL_LIB_CTX    *ctx;
    EVP_PKEY        *key;
    int              number;
    int              block;
} Work;

typedef struct {
    ASYNC_WAIT_CTX  *wait;
    ASYNC_JOB       *job;
    int              result;
    int              state;     /* what ASYNC_start_job said */
} Slot;

static int
work(void *argument)
{
    Work  *w = argument;
    char   text[32];
    int    good;

    snprintf(text, sizeof(text), "text %d", w->number);

    if (w->block) {
        ASYNC_block_pause();
    }

    good = sign(w->ctx, w->key, text) && agree(w->ctx, "X25519", NULL) && agree(w->ctx, "EC", "P-256");

    if (w->block) {
        ASYNC_unblock_pause();
    }

    return good;
}

static void
start(Slot *slot, Work *w)
{
    slot->state = ASYNC_start_job(&slot->job, slot->wait, &slot->result, work, w, sizeof(*w));
    MUST(slot->state == ASYNC_PAUSE || slot->state == ASYNC_FINISH);
    MUST(slot->state != ASYNC_FINISH || slot->result == 1);
}

static int
readable(Slot *slot)
{
    OSSL_ASYNC_FD  fds[4];
    size_t         n = 0;
    struct pollfd  one;

    MUST(ASYNC_WAIT_CTX_get_all_fds(slot->wait, NULL, &n) == 1 && n >= 1 && n <= 4);
    MUST(ASYNC_WAIT_CTX_get_all_fds(slot->wait, fds, &n) == 1);
    one.fd = fds[0];
    one.events = POLLIN;

    return poll(&one, 1, 0) == 1;
}

/* Jobs side by side, resumed when their descriptor says so and, every so often, when it does not. */
static void
jobs(int n)
{
    Home      home = enter();
    Slot      slots[MOST] = { 0 };
    Work      w = { home.ctx, rsa_key(home.ctx), 0, 0 };
    int       i, begun = 0, done = 0, paused = 0, fds = 0, width = n < MOST ? n : MOST;
    unsigned  random = 1;

    MUST(ASYNC_init_thread(0, 0));

    for (i = 0; i < width; i++) {
        MUST((slots[i].wait = ASYNC_WAIT_CTX_new()) != NULL);
        slots[i].state = ASYNC_FINISH;
    }

    while (done < n) {
        for (i = 0; i < width; i++) {
            if (slots[i].state == ASYNC_PAUSE) {
                random = random * 1103515245 + 12345;

                if (!readable(&slots[i]) && (random >> 16) % 8 != 0) {
                    continue;
                }

            } else if (begun == n) {
                continue;

            } else {
                begun++;
            }

            w.number = begun;
            start(&slots[i], &w);

            if (slots[i].state == ASYNC_FINISH) {
                done++;

            } else {
                paused++;
            }
        }

        if (fds == 0) {
            fds = count("/proc/self/fd");
        }
    }

    MUST(n < 8 || paused > 0);
    MUST(count("/proc/self/fd") <= fds + 1);

    for (i = 0; i < width; i++) {
        ASYNC_WAIT_CTX_free(slots[i].wait);
    }

    EVP_PKEY_free(w.key);
    ASYNC_cleanup_thread();
    leave(&home);
}

static size_t
descriptors(Slot *slot)
{
    size_t  n = 0;

    MUST(ASYNC_WAIT_CTX_get_all_fds(slot->wait, NULL, &n) == 1);
    return n;
}

/* Pausing is blocked: everything is done inside the call, and no descriptor is left that nobody was told of. */
static void
blocked(int n)
{
    Home  home = enter();
    Slot  slot = { 0 };
    Work  w = { home.ctx, rsa_key(home.ctx), 0, 1 };

    MUST(ASYNC_init_thread(0, 0) && (slot.wait = ASYNC_WAIT_CTX_new()) != NULL);

    while (n-- > 0) {
        start(&slot, &w);
        MUST(slot.state == ASYNC_FINISH);
        MUST(descriptors(&slot) == 0);
    }

    ASYNC_WAIT_CTX_free(slot.wait);
    EVP_PKEY_free(w.key);
    ASYNC_cleanup_thread();
    leave(&home);
}

static int
one_signature(void *argument)
{
    Work  *w = argument;

    return sign(w->ctx, w->key, "one text");
}

/*
 * Where nothing but the CPU, one by one inside the call, does a kind, a job pauses if it is told to, and only then.
 */
static void
inline_only(int n)
{
    static const char *const  told[] = {
        "engines = instruction,software\n",
        "engines = instruction,software\npause = auto\n",
        "engines = instruction,software\npause = always\n",
    };
    int  i, turn;

    for (i = 0; i < 3; i++) {
        Home  home = enter_with(told[i]);
        Slot  slot = { 0 };
        Work  w = { home.ctx, rsa_key(home.ctx), 0, 0 };

        MUST(ASYNC_init_thread(0, 0) && (slot.wait = ASYNC_WAIT_CTX_new()) != NULL);

        for (turn = 0; turn < n; turn++) {
            int  pauses = -1;

            do {
                start(&slot, &w);
                pauses++;
            } while (slot.state == ASYNC_PAUSE);

            /* Who is told to pauses at first; later it may have learned that nobody comes. */
            MUST(i == 2 ? turn > 0 || pauses > 0 : pauses == 0);
            MUST(i == 2 || descriptors(&slot) == 0);
        }

        ASYNC_WAIT_CTX_free(slot.wait);
        EVP_PKEY_free(w.key);
        ASYNC_cleanup_thread();
        leave(&home);
    }
}

/*
 * A job that fills a batch does it and finishes without a pause. OpenSSL reports a descriptor as new when a job pauses;
 * one that was set for such a job would be there at the connection's end and known to nobody.
 */
static void
untold(int n)
{
    Home  home = enter();
    Slot  slots[16] = { 0 };
    Work  w = { home.ctx, rsa_key(home.ctx), 0, 0 };
    int   i, filled = 0, width = sizeof(slots) / sizeof(slots[0]);

    MUST(ASYNC_init_thread(0, 0));

    for (i = 0; i < width; i++) {
        MUST((slots[i].wait = ASYNC_WAIT_CTX_new()) != NULL);
    }

    while (n-- > 0) {
        for (i = 0; i < width; i++) {
            slots[i].state = ASYNC_start_job(&slots[i].job, slots[i].wait, &slots[i].result, one_signature, &w,
                                             sizeof(w));
            MUST(slots[i].state == ASYNC_PAUSE || (slots[i].state == ASYNC_FINISH && slots[i].result == 1));

            if (slots[i].state == ASYNC_PAUSE) {
                MUST(descriptors(&slots[i]) == 1);

            } else {
                filled++;
                MUST(descriptors(&slots[i]) == 0);
            }
        }

        for (i = 0; i < width; i++) {
            while (slots[i].state == ASYNC_PAUSE) {
                slots[i].state = ASYNC_start_job(&slots[i].job, slots[i].wait, &slots[i].result, one_signature, &w,
                                                 sizeof(w));
            }

            MUST(slots[i].state == ASYNC_FINISH && slots[i].result == 1);
            ASYNC_WAIT_CTX_free(slots[i].wait);
            MUST((slots[i].wait = ASYNC_WAIT_CTX_new()) != NULL);
        }
    }

    /* Batches have a size only where there are lanes; there every eighth fills one. */
    printf("%d filled a batch\n", filled);

    for (i = 0; i < width; i++) {
        ASYNC_WAIT_CTX_free(slots[i].wait);
    }

    EVP_PKEY_free(w.key);
    ASYNC_cleanup_thread();
    leave(&home);
}

/*
 * The control by which TLS sets a nonce's fixed part sets all of it where the length is -1; the last eight bytes count
 * up from there. Lengths that leave no room for them are refused.
 */
static void
fixed_nonce(int n)
{
    static const int  wrong[] = { 0, 3, 5, 12 };
    Home              home = enter();
    int               ours, i, message, len;

    for (; n > 0; n--) {
        unsigned char  key[16] = { 3 }, nonce[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, (unsigned char) -n };
        unsigned char  out[2][3][12 + 16 + 16];

        for (ours = 0; ours < 2; ours++) {
            EVP_CIPHER      *gcm = EVP_CIPHER_fetch(home.ctx, "AES-128-GCM", ours ? OURS : THEIRS);
            EVP_CIPHER_CTX  *c = EVP_CIPHER_CTX_new();

            MUST(gcm != NULL && EVP_EncryptInit_ex2(c, gcm, key, NULL, NULL) == 1);

            for (i = 0; i < (int) (sizeof(wrong) / sizeof(wrong[0])); i++) {
                int  taken = EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_IV_FIXED, wrong[i], nonce);

                MUST(taken != 1);
            }

            MUST(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_IV_FIXED, -1, nonce) == 1);

            for (message = 0; message < 3; message++) {
                unsigned char  *to = out[ours][message];

                MUST(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_IV_GEN, 12, to) == 1);
                MUST(message > 0 || memcmp(to, nonce, 12) == 0);
                MUST(EVP_EncryptUpdate(c, to + 12, &len, key, 16) == 1 && len == 16);
                MUST(EVP_EncryptFinal_ex(c, to + 28, &len) == 1 && len == 0);
                MUST(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, 16, to + 28) == 1);
            }

            EVP_CIPHER_CTX_free(c);
            EVP_CIPHER_free(gcm);
        }

        MUST(memcmp(out[0], out[1], sizeof(out[0])) == 0);
    }

    leave(&home);
}

/*
 * Wait contexts go away under jobs that wait, and take their requests with them; those that are left finish. In every
 * other turn nobody but this program releases what has gathered, so that what is in flight is known.
 */
static void
abandon(int n)
{
    const struct wattlock_table  *table = NULL;
    OSSL_PARAM                    asked[] = { OSSL_PARAM_octet_ptr(WATTLOCK_TABLE, &table, 0), OSSL_PARAM_END };
    Home                          home = enter();
    Slot                          slots[8];
    Work                          w = { home.ctx, rsa_key(home.ctx), 0, 0 };
    int                           i, gone = 0, turn;
    Slot                         *slot;

    MUST(OSSL_PROVIDER_get_params(home.ours, asked) == 1 && table != NULL);
    MUST(ASYNC_init_thread(0, 0));

    for (turn = 0; turn < n; turn++) {
        int       polls = turn % 2;
        unsigned  waiting = 0;

        table->claim(table->provider, polls);

        for (i = 0; i < 7; i++) {
            slots[i] = (Slot) { ASYNC_WAIT_CTX_new(), NULL, 0, 0 };
            start(&slots[i], &w);
        }

        for (i = 0; i < 7; i++) {
            waiting += slots[i].state == ASYNC_PAUSE;
        }

        MUST(!polls || (waiting > 0 && table->in_flight(table->provider) == waiting));

        for (i = 0; i < 7; i++) {
            slot = &slots[i];

            if (slot->state == ASYNC_PAUSE && (i + turn) % 3 == 0) {
                ASYNC_WAIT_CTX_free(slot->wait);
                slot->wait = NULL;
                gone++;
                waiting--;
                MUST(!polls || table->in_flight(table->provider) == waiting);
            }
        }

        for (i = 0; i < 7; i++) {
            slot = &slots[i];

            while (slot->wait != NULL && slot->state == ASYNC_PAUSE) {
                if (polls) {
                    (void) table->flush(table->provider);
                }

                if (readable(slot)) {
                    start(slot, &w);
                }
            }

            ASYNC_WAIT_CTX_free(slot->wait);
        }
    }

    MUST(gone > 0);
    usleep(20000);
    EVP_PKEY_free(w.key);
    /* The fibers of the abandoned jobs, and what lies on them, are the application's to finish: it did not. */
    exit(0);
}

static atomic_int called;

static int
callback(void *argument)
{
    atomic_fetch_add(&called, 1);
    atomic_store((atomic_int *) argument, 1);

    return 1;
}

/* Told by callback instead of descriptor. */
static void
callbacks(int n)
{
    Home         home = enter();
    Slot         slots[MOST] = { 0 };
    atomic_int   ready[MOST] = { 0 };
    Work         w = { home.ctx, rsa_key(home.ctx), 0, 0 };
    int          i, left = n < MOST ? n : MOST, width = left;

    MUST(ASYNC_init_thread(0, 0));

    for (i = 0; i < width; i++) {
        MUST((slots[i].wait = ASYNC_WAIT_CTX_new()) != NULL);
        MUST(ASYNC_WAIT_CTX_set_callback(slots[i].wait, callback, &ready[i]));
        start(&slots[i], &w);
    }

    for (i = 0; i < width; i++) {
        left -= slots[i].state == ASYNC_FINISH;
    }

    while (left > 0) {
        for (i = 0; i < width; i++) {
            if (slots[i].state == ASYNC_PAUSE && atomic_exchange(&ready[i], 0)) {
                start(&slots[i], &w);
                left -= slots[i].state == ASYNC_FINISH;
            }
        }
    }

    MUST(width < 8 || atomic_load(&called) > 0);

    for (i = 0; i < width; i++) {
        ASYNC_WAIT_CTX_free(slots[i].wait);
    }

    EVP_PKEY_free(w.key);
    ASYNC_cleanup_thread();
    leave(&home);
}

/* Loading starts no thread and opens nothing that stays open. */
static void
quiet(int n)
{
    int   before = count("/proc/self/task"), fds = count("/proc/self/fd");
    Home  home = enter();

    (void) n;
    MUST(count("/proc/self/task") == before);
    MUST(count("/proc/self/fd") == fds);
    everything(home.ctx, shared_key = rsa_key(home.ctx));
    MUST(count("/proc/self/task") == before);
    EVP_PKEY_free(shared_key);
    leave(&home);
}

int
main(int argc, char **argv)
{
    static const struct {
        const char  *name;
        void       (*run)(int);
    } scenarios[] = {
        { "threads", threads }, { "forks", forks }, { "reload", reload }, { "jobs", jobs }, { "blocked", blocked },
        { "abandon", abandon }, { "callbacks", callbacks }, { "quiet", quiet }, { "untold", untold },
        { "fixed-nonce", fixed_nonce }, { "inline-only", inline_only },
    };
    size_t  i;

    MUST(argc >= 3);
    folder = argv[2];

    for (i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run(argc > 3 ? atoi(argv[3]) : 10);
            return 0;
        }
    }

    fprintf(stderr, "no scenario %s\n", argv[1]);
    return 2;
}
