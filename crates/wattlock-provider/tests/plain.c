/*
 * AES-CTR and AES-XTS by the provider and by OpenSSL's own, call for call the same: what returns, how many bytes, which
 * bytes, and which errors are first and last on the queue. Public libcrypto calls only.
 *
 *     plain CONFIGURATION
 */
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/proverr.h>
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

/* What one of them said of a call: the first error on the queue, and the last. */
typedef struct {
    int            good;
    unsigned long  first, last;
} Said;

static Said
said(int good)
{
    Said  it = { good, ERR_peek_error(), ERR_peek_last_error() };

    ERR_clear_error();
    return it;
}

/* Both did it, or neither, for the same reasons. */
static int
outcome(const Said *one)
{
    MUST(one[0].good == one[1].good);
    MUST(ERR_GET_LIB(one[0].first) == ERR_GET_LIB(one[1].first));
    MUST(ERR_GET_REASON(one[0].first) == ERR_GET_REASON(one[1].first));
    MUST(ERR_GET_LIB(one[0].last) == ERR_GET_LIB(one[1].last));
    MUST(ERR_GET_REASON(one[0].last) == ERR_GET_REASON(one[1].last));
    MUST((one[0].good == 1) == (one[0].first == 0));
    return one[0].good == 1;
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
    int                   place = (int) any(2), n[2];
    Said                  each[2];

    fill(in, (size_t) len);

    for BOTH(i) {
        memset(out[i], 0xaa, sizeof(out[i]));

        if (place) {
            memcpy(out[i], in, (size_t) len);
        }

        n[i] = -1;
        each[i] = said(EVP_CipherUpdate(c[i], out[i], &n[i], place ? out[i] : in, len));
    }

    MUST(!outcome(each) || (n[0] == n[1] && memcmp(out[0], out[1], sizeof(out[0])) == 0));
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

/* A message without a key, an empty piece of it, and its end. */
static void
nothing_to_begin_with(int k)
{
    EVP_CIPHER_CTX  *c[2];
    unsigned char    out[16];
    Said             each[2];
    int              n;

    for BOTH(i) c[i] = EVP_CIPHER_CTX_new();
    for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], NULL, NULL, NULL) == 1);
    piece(c, 32);
    piece(c, 0);
    for BOTH(i) each[i] = said(EVP_EncryptFinal_ex(c[i], out, &n));
    (void) outcome(each);
    for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
}

/* Parameters of the wrong length or sort. */
static void
parameters(int k)
{
    static char      text[] = "7";
    OSSL_PARAM       num[] = { OSSL_PARAM_utf8_string("num", text, 1), OSSL_PARAM_END };
    EVP_CIPHER_CTX  *c[2];
    Said             each[2];

    for BOTH(i) c[i] = EVP_CIPHER_CTX_new();
    for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], NULL, NULL, NULL) == 1);
    for BOTH(i) each[i] = said(EVP_CIPHER_CTX_set_key_length(c[i], EVP_CIPHER_get_key_length(ciphers[k][i])));
    MUST(outcome(each));
    for BOTH(i) each[i] = said(EVP_CIPHER_CTX_set_key_length(c[i], 7));
    /* For XTS OpenSSL's own says 0 and nothing else. */
    MUST(k < 3 ? !outcome(each) : !each[0].good && !each[1].good && each[0].first == 0 && each[1].first == 0);
    for BOTH(i) each[i] = said(EVP_CIPHER_CTX_set_params(c[i], num));
    /* From 3.5 on the sort of parameter is an error of its own before the cipher's. */
    each[0].first = each[0].last;
    (void) outcome(each);
    for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
}

/* A data unit without a key, without a nonce, shorter than a block, too long; two keys that are one. */
static void
refusals(void)
{
    static unsigned char  many[(16 << 20) + 1];
    EVP_CIPHER_CTX  *c[2];
    unsigned char    key[64] = { 1 }, nonce[16] = { 2 }, twice[64] = { 0 };
    Said             each[2];
    int              k, n;

    for (k = 0; k < CIPHERS; k++) {
        nothing_to_begin_with(k);
        parameters(k);
    }

    for (k = 3; k < CIPHERS; k++) {
        for BOTH(i) c[i] = EVP_CIPHER_CTX_new();
        for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], NULL, nonce, NULL) == 1);
        piece(c, 32);
        for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], NULL, key, NULL, NULL) == 1);
        piece(c, 0);
        piece(c, 15);
        piece(c, 32);
        for BOTH(i) each[i] = said(EVP_EncryptUpdate(c[i], many, &n, many, sizeof(many)));
        MUST(!outcome(each));
        for BOTH(i) each[i] = said(EVP_EncryptInit_ex2(c[i], NULL, twice, nonce, NULL));
        MUST(!outcome(each));
        /* What was encrypted with such a key must stay readable. */
        for BOTH(i) each[i] = said(EVP_DecryptInit_ex2(c[i], NULL, twice, nonce, NULL));
        MUST(outcome(each));
        piece(c, 32);
        piece(c, 45);
        for BOTH(i) each[i] = said(EVP_DecryptInit_ex2(c[i], NULL, twice, nonce, NULL));
        MUST(outcome(each));
        piece(c, 1000);
        for BOTH(i) each[i] = said(EVP_EncryptInit_ex2(c[i], NULL, twice, nonce, NULL));
        MUST(!outcome(each));
        for BOTH(i) each[i] = said(EVP_DecryptInit_ex2(c[i], NULL, twice, nonce, NULL));
        MUST(outcome(each));
        piece(c, 47);
        for BOTH(i) EVP_CIPHER_CTX_free(c[i]);

        for BOTH(i) c[i] = EVP_CIPHER_CTX_new();
        for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], key, NULL, NULL) == 1);
        piece(c, 32);
        for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
    }
}

/* Bytes used of a counter's block, set at every place. OpenSSL from 3.0.20 on takes the end of a block only, and ours with any:
 * elsewhere key stream is given out twice, or (before any data) none (docs/use/openssl.md). */
static void
numbers(void)
{
    EVP_CIPHER_CTX  *c[2];
    unsigned char    key[64], nonce[16];
    Said             each[2];
    int              k, used, num;

    for (k = 0; k < 3; k++) {
        for (used = 0; used <= 48; used++) {
            for (num = 0; num < 16; num++) {
                int  at = used % 16;

                turn = (unsigned) (100 * used + num);
                fill(key, sizeof(key));
                fill(nonce, sizeof(nonce));
                for BOTH(i) MUST((c[i] = EVP_CIPHER_CTX_new()) != NULL);
                for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], key, nonce, NULL) == 1);
                piece(c, used);
                for BOTH(i) each[i] = said(EVP_CIPHER_CTX_set_num(c[i], num));

                if (num == 0) {
                    MUST(outcome(each));
                    for BOTH(i) MUST(EVP_CIPHER_CTX_get_num(c[i]) == 0);
                    piece(c, 5);
                    piece(c, 300);

                } else {
                    MUST(each[0].good || each[0].first == each[1].first);
                    MUST(!each[1].good && EVP_CIPHER_CTX_get_num(c[1]) == at);
                }

                for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
            }
        }
    }

    for (k = 3; k < CIPHERS; k++) {
        for BOTH(i) MUST((c[i] = EVP_CIPHER_CTX_new()) != NULL);
        for BOTH(i) MUST(EVP_EncryptInit_ex2(c[i], ciphers[k][i], key, nonce, NULL) == 1);
        piece(c, 45);
        MUST(EVP_CIPHER_CTX_get_num(c[0]) == EVP_CIPHER_CTX_get_num(c[1]));
        for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
    }
}

/* AES-GCM that is to draw its nonce, of every length, by associated data, by text and at the end; and a tag without bytes. */
static void
drawn(OSSL_LIB_CTX *ctx)
{
    static const char *const  gcm[] = { "AES-128-GCM", "AES-192-GCM", "AES-256-GCM" };
    unsigned char             key[32] = { 1 }, text[32] = { 2 }, out[64];
    int                       n, way, len, seal;
    size_t                    k;

    for (k = 0; k < sizeof(gcm) / sizeof(gcm[0]); k++) {
        EVP_CIPHER  *both[2];

        MUST((both[0] = EVP_CIPHER_fetch(ctx, gcm[k], "provider=default")) != NULL);
        MUST((both[1] = EVP_CIPHER_fetch(ctx, gcm[k], "provider=wattlock")) != NULL);

        for (len = 1; len <= 32; len++) {
            for (way = 0; way < 3; way++) {
                Said  each[2];

                turn = (unsigned) (10 * len + way);

                for BOTH(i) {
                    EVP_CIPHER_CTX  *c = EVP_CIPHER_CTX_new();

                    MUST(c != NULL && EVP_EncryptInit_ex2(c, both[i], key, NULL, NULL) == 1);
                    MUST(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_IVLEN, len, NULL) == 1);
                    each[i] = said(way == 0 ? EVP_EncryptUpdate(c, out, &n, text, sizeof(text))
                                   : way == 1 ? EVP_EncryptUpdate(c, NULL, &n, text, sizeof(text))
                                   : EVP_EncryptFinal_ex(c, out, &n));
                    EVP_CIPHER_CTX_free(c);
                }

                MUST(each[0].good == each[1].good && each[0].good == (len >= 12));
            }
        }

        for (seal = 0; seal < 2; seal++) {
            for (len = 0; len <= 17; len++) {
                Said  each[2];

                turn = (unsigned) (1000 + 100 * seal + len);

                for BOTH(i) {
                    EVP_CIPHER_CTX  *c = EVP_CIPHER_CTX_new();

                    MUST(c != NULL && EVP_CipherInit_ex2(c, both[i], key, text, seal, NULL) == 1);
                    each[i] = said(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, len, NULL) == 1);
                    EVP_CIPHER_CTX_free(c);
                }

                MUST(each[0].good == each[1].good);
            }
        }

        for BOTH(i) EVP_CIPHER_free(both[i]);
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
    numbers();
    drawn(ctx);

    for (k = 0; k < CIPHERS; k++) {
        for BOTH(i) EVP_CIPHER_free(ciphers[k][i]);
    }

    OSSL_LIB_CTX_free(ctx);
    return 0;
}
