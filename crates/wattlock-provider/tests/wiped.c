/*
 * What keys of ML-KEM-768 and X25519MLKEM768 leave in memory: public calls only, one scenario a run:
 *
 *     wiped SCENARIO openssl.cnf JOB
 *
 * With JOB 1 the work is done in an ASYNC_JOB, whose stack lies in the heap. Secrets that the program brings are kept under
 * a mask and bare only while a call has them; then all writable memory is looked through for 16 bytes of one. Exit status 0
 * if there is nothing. Run it with LD_BIND_NOW=1: the loader saves registers on the stack when it binds a function late.
 */
#include <openssl/async.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define HYBRID "X25519MLKEM768"
#define PLAIN "ML-KEM-768"
#define PRIVATE 2400
#define CIPHERTEXT 1088
#define VECTOR 1152
#define MASK 0x5c
#define WINDOW 16
#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)

static OSSL_LIB_CTX   *ctx;
static EVP_PKEY       *key;
static unsigned char  masked[PRIVATE + 32], bare[PRIVATE + 32], text[CIPHERTEXT + 32];

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    ERR_print_errors_fp(stderr);
    _exit(1);
}

/* ---- all memory ---- */

typedef void  (*Visit)(const unsigned char *bytes, size_t len, const char *where);

/* All that can be written, in pieces that overlap by 64 bytes. */
static void
visit_all(Visit visit)
{
    static unsigned char  piece[1 << 16];
    char                  line[512], rights[8], name[256];
    unsigned long         at, end, buffer = (unsigned long) piece;
    int                   memory = open("/proc/self/mem", O_RDONLY);
    FILE                  *maps = fopen("/proc/self/maps", "r");

    MUST(memory >= 0 && maps != NULL);

    while (fgets(line, sizeof(line), maps) != NULL) {
        strcpy(name, "anonymous");

        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &at, &end, rights, name) < 3 || rights[1] != 'w') {
            continue;
        }

        while (at < end) {
            size_t   room = end - at < sizeof(piece) ? end - at : sizeof(piece);
            ssize_t  got = pread(memory, piece, room, (off_t) at);

            if (got <= 0) {
                break;
            }

            if (at + room <= buffer || at >= buffer + sizeof(piece)) {
                visit(piece, (size_t) got, name);
            }

            at += room < sizeof(piece) ? room : room - 64;
        }
    }

    OPENSSL_cleanse(piece, sizeof(piece));
    fclose(maps);
    close(memory);
}

static size_t  from, to, found;

/* Looks for any 16 bytes of the secret, of those at multiples of eight. */
static void
look(const unsigned char *bytes, size_t len, const char *where)
{
    size_t  window, at, same;

    for (window = from; window + WINDOW <= to; window += 8) {
        const unsigned char  first = masked[window] ^ MASK, *next = bytes;

        while ((next = memchr(next, first, len - (size_t) (next - bytes))) != NULL) {
            at = (size_t) (next++ - bytes);

            for (same = 1; same < WINDOW && at + same < len; same++) {
                if (bytes[at + same] != (masked[window + same] ^ MASK)) {
                    break;
                }
            }

            if (same == WINDOW) {
                fprintf(stderr, "%s: bytes %zu to %zu of the secret\n", where, window, window + WINDOW - 1);
                found++;
            }
        }
    }
}

static void
nothing_left(size_t begin, size_t end)
{
    from = begin;
    to = end;
    visit_all(look);
    MUST(found == 0);
}

/* ---- work ---- */

static void
unmask(size_t len)
{
    size_t  i;

    for (i = 0; i < len; i++) {
        bare[i] = masked[i] ^ MASK;
    }
}

static int
with_seed(int imports)
{
    EVP_PKEY_CTX  *making = EVP_PKEY_CTX_new_from_name(ctx, PLAIN, NULL);
    OSSL_PARAM    params[2] = { OSSL_PARAM_construct_octet_string("seed", bare, 64), OSSL_PARAM_END };
    int           done;

    if (imports) {
        done = EVP_PKEY_fromdata_init(making);
        unmask(64);
        done = done == 1 && EVP_PKEY_fromdata(making, &key, EVP_PKEY_KEYPAIR, params) == 1;
        OPENSSL_cleanse(bare, 64);
    } else {
        done = EVP_PKEY_keygen_init(making);
        unmask(64);
        done = done == 1 && EVP_PKEY_CTX_set_params(making, params) == 1;
        OPENSSL_cleanse(bare, 64);
        done = done && EVP_PKEY_generate(making, &key) == 1;
    }

    EVP_PKEY_CTX_free(making);
    return done;
}

static int
generated(void *unused)
{
    (void) unused;
    return with_seed(0);
}

static int
imported(void *unused)
{
    (void) unused;
    return with_seed(1);
}

static int
fresh(void *type)
{
    EVP_PKEY_CTX  *making = EVP_PKEY_CTX_new_from_name(ctx, *(const char **) type, NULL);
    int           done = EVP_PKEY_keygen_init(making) == 1 && EVP_PKEY_generate(making, &key) == 1;

    EVP_PKEY_CTX_free(making);
    return done;
}

static int
encapsulated(void *given)
{
    EVP_PKEY_CTX   *use = EVP_PKEY_CTX_new_from_pkey(ctx, key, NULL);
    OSSL_PARAM     params[2] = { OSSL_PARAM_construct_octet_string("ikme", bare, 32), OSSL_PARAM_END };
    unsigned char  secret[64];
    size_t         len = sizeof(text), secret_len = sizeof(secret);
    int            done;

    unmask(32);
    done = EVP_PKEY_encapsulate_init(use, *(int *) given ? params : NULL);
    OPENSSL_cleanse(bare, 32);
    done = done == 1 && EVP_PKEY_encapsulate(use, text, &len, secret, &secret_len) == 1;
    OPENSSL_cleanse(secret, sizeof(secret));
    EVP_PKEY_CTX_free(use);
    return done;
}

static void
forget(void)
{
    EVP_PKEY_free(key);
    key = NULL;
}

static void
work(int (*does)(void *), void *argument, size_t len, int in_job)
{
    ASYNC_JOB       *job = NULL;
    ASYNC_WAIT_CTX  *wait = ASYNC_WAIT_CTX_new();
    int             done = 0, state;

    if (!in_job) {
        MUST(does(argument) == 1);
    } else {
        while ((state = ASYNC_start_job(&job, wait, &done, does, argument, len)) == ASYNC_PAUSE) {}

        MUST(state == ASYNC_FINISH && done == 1);
    }

    ASYNC_WAIT_CTX_free(wait);
}

/* A child, which has the key, too, says what its private half is: this process never asks for it. */
static void
ask_a_child(size_t len)
{
    size_t  got = 0, i;
    int     pipes[2], status;
    pid_t   child;

    MUST(pipe(pipes) == 0 && (child = fork()) >= 0);

    if (child == 0) {
        MUST(EVP_PKEY_get_octet_string_param(key, "priv", bare, sizeof(bare), &got) == 1 && got == len);

        for (i = 0; i < len; i++) {
            masked[i] = bare[i] ^ MASK;
        }

        MUST(write(pipes[1], masked, len) == (ssize_t) len);
        _exit(0);
    }

    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(read(pipes[0], masked, len) == (ssize_t) len);
}

/* Whether any 32 bytes are the private half of the X25519 half of a ciphertext. */
static void
look_for_scalar(const unsigned char *bytes, size_t len, const char *where)
{
    unsigned char  public[32];
    size_t         at, i, zeros, public_len;

    for (at = 0; at + 32 <= len; at++) {
        const unsigned char  *scalar = bytes + at;

        if ((scalar[0] & 7) != 0 || (scalar[31] & 0xc0) != 0x40) {
            continue;
        }

        for (i = zeros = 0; i < 32; i++) {
            zeros += scalar[i] == 0;
        }

        if (zeros <= 4) {
            EVP_PKEY  *half = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, scalar, 32);

            public_len = 32;
            MUST(EVP_PKEY_get_raw_public_key(half, public, &public_len) == 1);
            EVP_PKEY_free(half);

            if (memcmp(public, text + CIPHERTEXT, 32) == 0) {
                fprintf(stderr, "%s: the scalar of an encapsulation\n", where);
                found++;
            }
        }
    }
}

int
main(int argc, char **argv)
{
    const char  *plain = PLAIN, *hybrid = HYBRID, *what = argc == 4 ? argv[1] : "";
    int         in_job, yes = 1, no = 0;

    MUST(argc == 4 && (ctx = OSSL_LIB_CTX_new()) != NULL && OSSL_LIB_CTX_load_config(ctx, argv[2]) == 1);
    MUST(getrandom(masked, 64, 0) == 64);
    in_job = atoi(argv[3]);

    if (strcmp(what, "planted") == 0) {
        /* What the search must find: a copy in the heap, and one on the stack. */
        unsigned char  *heap = malloc(64), stack[64];

        unmask(64);
        memcpy(heap, bare, 64);
        memcpy(stack, bare, 64);
        from = 0;
        to = WINDOW;
        visit_all(look);
        MUST(found >= 2 && memcmp(heap, stack, 64) == 0);
        free(heap);
    } else if (strcmp(what, "seed") == 0) {
        work(generated, NULL, 0, in_job);
        forget();
        nothing_left(0, 64);
        work(imported, NULL, 0, in_job);
        forget();
        nothing_left(0, 64);
    } else if (strcmp(what, "ikme") == 0) {
        work(fresh, &plain, sizeof(plain), 0);
        work(encapsulated, &yes, sizeof(yes), in_job);
        forget();
        nothing_left(0, 32);
    } else if (strcmp(what, "generated") == 0) {
        work(fresh, &plain, sizeof(plain), in_job);
        ask_a_child(PRIVATE);
        forget();
        nothing_left(0, VECTOR);
        nothing_left(PRIVATE - 32, PRIVATE);
    } else if (strcmp(what, "hybrid") == 0) {
        work(fresh, &hybrid, sizeof(hybrid), in_job);
        ask_a_child(PRIVATE + 32);
        forget();
        nothing_left(0, VECTOR);
        nothing_left(PRIVATE - 32, PRIVATE + 32);
    } else if (strcmp(what, "ephemeral") == 0) {
        work(fresh, &hybrid, sizeof(hybrid), 0);
        work(encapsulated, &no, sizeof(no), in_job);
        visit_all(look_for_scalar);
        MUST(found == 0);
        forget();
    } else {
        die("no such scenario", __LINE__);
    }

    ASYNC_cleanup_thread();
    OSSL_LIB_CTX_free(ctx);
    return 0;
}
