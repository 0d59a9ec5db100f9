/*
 * AES-CTR and AES-XTS by the provider and by OpenSSL's own, call for call the same: what returns, how many bytes, which
 * bytes. Public libcrypto calls only.
 *
 *     plain CONFIGURATION
 */
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)
#define BOTH(i) (int i = 0; i < 2; i++)
#define ROOM 4096
#define CIPHERS 5

static const char *const names[CIPHERS] = { "AES-128-CTR", "AES-192-CTR", "AES-256-CTR", "AES-128-XTS", "AES-256-XTS" };

/* The same cipher twice: theirs and ours. */
static EVP_CIPHER *ciphers[CIPHERS][2];

static unsigned turn;

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s (turn %u)\n", line, what, turn);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static uint64_t state = 1;

/* Marsaglia, "Xorshift RNGs" (2003). */
static unsigned
any(unsigned below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned) (state >> 33) % below;
}

static void
fill(unsigned char *at, size_t len)
{
    while (len-- > 0) {
        *at++ = (unsigned char) any(256);
    }
}

/* Both did it, or neither; why not, each says in its own words. */
static int
outcome(const int *good)
{
    MUST(good[0] == good[1]);
    MUST((good[0] == 1) == (ERR_peek_error() == 0));
    ERR_clear_error();
    return good[0] == 1;
}

/* Lengths around those at which kernels change registers, and some of any. */
static int
length(int xts)
{
    unsigned  len = any(2) ? any(ROOM) : any(2) ? 16 * any(40) : any(300);

    return (int) (xts && len < 16 ? len + 16 : len);
}

/* The same data in place or to somewhere else, by both. */
static void
piece(EVP_CIPHER_CTX *const *c, int len)
{
    static unsigned char  in[ROOM], out[2][ROOM + 32];
    int                   place = (int) any(2), n[2], good[2];

    fill(in, (size_t) len);

    for BOTH(i) {
        memset(out[i], 0xaa, sizeof(out[i]));

        if (place) {
            memcpy(out[i], in, (size_t) len);
        }

        n[i] = -1;
        good[i] = EVP_CipherUpdate(c[i], out[i], &n[i], place ? out[i] : in, len);
    }

    MUST(!outcome(good) || (n[0] == n[1] && memcmp(out[0], out[1], sizeof(out[0])) == 0));
}

/* Messages begun with a key, a nonce, both or neither, in both directions, in pieces (data units under one nonce), begun
 * twice before any data, copied in the midst. */
static void
messages(void)
{
    EVP_CIPHER_CTX  *c[2];
    unsigned char    key[64], nonce[16], kept[64];
    int              k, step, begin, direction = 1, known = 0;

    for BOTH(i) c[i] = EVP_CIPHER_CTX_new();

    for (k = 0; k < CIPHERS; k++) {
        int  xts = k > 2;

        for (turn = 0; turn < 4000; turn++) {
            for (begin = 1 + (any(8) == 0); begin > 0; begin--) {
                int  fresh = turn == 0 || any(4) == 0, given = turn == 0 || any(3) > 0, again = known && any(4) == 0;

                fill(nonce, 16);
                /* A counter about to wrap. */
                memset(nonce + 4, 0xff, any(4) == 0 ? 11 : 0);

                if (fresh && !again) {
                    fill(key, 64);
                } else if (again) {
                    memcpy(key, kept, 64);
                }

                memcpy(kept, key, 64);
                known = 1;
                /* OpenSSL's own keeps the round keys of the direction before if it gets no key. */
                direction = fresh || again ? (int) any(2) : direction;

                for BOTH(i) {
                    MUST(EVP_CipherInit_ex2(c[i], turn == 0 ? ciphers[k][i] : NULL, fresh || again ? key : NULL,
                                            given ? nonce : NULL, direction, NULL) == 1);
                }
            }

            for (step = (int) any(5); step > 0; step--) {
                piece(c, length(xts));

                if (any(10) == 0) {
                    for BOTH(i) {
                        EVP_CIPHER_CTX  *copy = EVP_CIPHER_CTX_new();

                        MUST(EVP_CIPHER_CTX_copy(copy, c[i]) == 1);
                        EVP_CIPHER_CTX_free(c[i]);
                        c[i] = copy;
                    }
                }
            }
        }

        for BOTH(i) MUST(EVP_CIPHER_CTX_reset(c[i]) == 1);
        known = 0;
    }

    for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
}

/* A data unit without a key, without a nonce, shorter than a block; two keys that are one. */
static void
refusals(void)
{
    EVP_CIPHER_CTX  *c[2];
    unsigned char    key[64] = { 1 }, nonce[16] = { 2 }, twice[64] = { 0 };
    int              k, good[2];

    for (k = 3; k < CIPHERS; k++) {
        for BOTH(i) c[i] = EVP_CIPHER_CTX_new();
        for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], NULL, nonce, NULL) == 1);
        piece(c, 32);
        for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], NULL, key, NULL, NULL) == 1);
        piece(c, 15);
        piece(c, 32);
        for BOTH(i) good[i] = EVP_EncryptInit_ex2(c[i], NULL, twice, nonce, NULL);
        MUST(!outcome(good));
        for BOTH(i) EVP_CIPHER_CTX_free(c[i]);

        for BOTH(i) c[i] = EVP_CIPHER_CTX_new();
        for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], key, NULL, NULL) == 1);
        piece(c, 32);
        for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
    }
}

int
main(int argc, char **argv)
{
    OSSL_LIB_CTX  *ctx = OSSL_LIB_CTX_new();
    int            k;

    MUST(argc == 2 && OSSL_LIB_CTX_load_config(ctx, argv[1]) == 1);

    for (k = 0; k < CIPHERS; k++) {
        MUST((ciphers[k][0] = EVP_CIPHER_fetch(ctx, names[k], "provider=default")) != NULL);
        MUST((ciphers[k][1] = EVP_CIPHER_fetch(ctx, names[k], "provider=wattlock")) != NULL);
    }

    messages();
    refusals();

    for (k = 0; k < CIPHERS; k++) {
        for BOTH(i) EVP_CIPHER_free(ciphers[k][i]);
    }

    OSSL_LIB_CTX_free(ctx);
    return 0;
}
