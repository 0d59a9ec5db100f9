/*
 * AES-CBC by the provider and by OpenSSL's own, call for call the same: what returns, how many bytes, which bytes, which
 * reason. Public libcrypto calls only.
 *
 *     cbc CONFIGURATION           everything
 *     cbc CONFIGURATION TURNS     so many turns of those that take pieces
 */
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)
#define BOTH(i) (int i = 0; i < 2; i++)
#define ROOM 2048

static const char *doing = "";

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s (%s)\n", line, what, doing);
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

static const char *const names[] = { "AES-128-CBC", "AES-192-CBC", "AES-256-CBC" };

/* The same cipher twice: theirs and ours. */
static EVP_CIPHER  *ciphers[3][2];

static void
same_reason(void)
{
    /* Each caller left one call's reasons on the queue, theirs first. */
    unsigned long  theirs = ERR_get_error(), ours = ERR_get_error();

    MUST(ERR_GET_REASON(theirs) == ERR_GET_REASON(ours));
    MUST(ERR_peek_error() == 0);
}

static int
outcome(const int *good)
{
    MUST(good[0] == good[1]);

    if (good[0] == 1) {
        MUST(ERR_peek_error() == 0);
        return 1;
    }

    same_reason();
    return 0;
}

static void
same_nonces(EVP_CIPHER_CTX *const *c)
{
    unsigned char  first[2][16], next[2][16];

    MUST(ERR_peek_error() == 0);

    for BOTH(i) {
        MUST(EVP_CIPHER_CTX_get_original_iv(c[i], first[i], 16) == 1);
        MUST(EVP_CIPHER_CTX_get_updated_iv(c[i], next[i], 16) == 1);
        MUST(EVP_CIPHER_CTX_get_num(c[i]) == 0 && EVP_CIPHER_CTX_get_block_size(c[i]) == 16);
        MUST(EVP_CIPHER_CTX_get_iv_length(c[i]) == 16 && EVP_CIPHER_CTX_get_mode(c[i]) == EVP_CIPH_CBC_MODE);

        if (i == 0) {
            /* OpenSSL 3.5's own leaves a reason behind though it answers: it tries a pointer first. */
            ERR_clear_error();
        }
    }

    MUST(ERR_peek_error() == 0);

    MUST(memcmp(first[0], first[1], 16) == 0 && memcmp(next[0], next[1], 16) == 0);
}

/* Messages in pieces of any length, with and without padding, ended or begun anew, copied in the midst. */
static void
pieces(int turns)
{
    static unsigned char  in[ROOM], out[2][ROOM + 32];
    unsigned char         key[32], nonce[16];
    EVP_CIPHER_CTX       *c[2];
    int                   turn, step, n[2], good[2];

    doing = "pieces";
    for BOTH(i) c[i] = EVP_CIPHER_CTX_new();

    for (turn = 0; turn < turns; turn++) {
        EVP_CIPHER *const  *cipher = ciphers[any(3)];
        int                 fresh = turn == 0 || any(3) > 0, encrypt = (int) any(2), padded = (int) any(2);
        static int          direction;
        unsigned char      *given = any(4) == 0 ? NULL : nonce;

        /* OpenSSL's own keeps the round keys of the direction before if it gets no key. */
        encrypt = fresh ? encrypt : direction;
        direction = encrypt;
        fill(key, 32);
        fill(nonce, 16);

        for BOTH(i) {
            if (fresh) {
                MUST(EVP_CipherInit_ex2(c[i], cipher[i], key, given, encrypt, NULL) == 1);
            } else {
                MUST(EVP_CipherInit_ex2(c[i], NULL, NULL, given, encrypt, NULL) == 1);
            }

            MUST(EVP_CIPHER_CTX_set_padding(c[i], padded) == 1);
        }

        same_nonces(c);

        for (step = (int) any(6); step >= 0; step--) {
            int  len = (int) (any(2) ? any(50) : any(2) ? 16 * any(5) : any(ROOM)), place = (int) any(2);

            fill(in, (size_t) len);

            for BOTH(i) {
                memset(out[i], 0xaa, sizeof(out[i]));
                n[i] = -1;
                /* OpenSSL's own cannot work in place while it keeps bytes back: the other way is tried below. */
                good[i] = EVP_CipherUpdate(c[i], out[i], &n[i], in, len);
            }

            MUST(outcome(good) == 1 && n[0] == n[1]);
            MUST(memcmp(out[0], out[1], sizeof(out[0])) == 0);
            same_nonces(c);

            if (place && any(4) == 0) {
                for BOTH(i) {
                    EVP_CIPHER_CTX  *copy = EVP_CIPHER_CTX_new();

                    MUST(EVP_CIPHER_CTX_copy(copy, c[i]) == 1);
                    EVP_CIPHER_CTX_free(c[i]);
                    c[i] = copy;
                }
            }
        }

        if (any(4) > 0) {
            for BOTH(i) {
                memset(out[i], 0xaa, sizeof(out[i]));
                n[i] = 0;
                good[i] = EVP_CipherFinal_ex(c[i], out[i], &n[i]);
            }

            if (outcome(good)) {
                MUST(n[0] == n[1] && memcmp(out[0], out[1], sizeof(out[0])) == 0);
                same_nonces(c);
            }
        }
    }

    for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
}

/* What OpenSSL's own cannot do, against the same message in one piece: pieces in place, at any distance. */
static void
overlapping(int turns)
{
    static unsigned char  text[ROOM], right[ROOM + 16], buffer[ROOM + 256], got[ROOM + 256];
    unsigned char         key[32] = { 3 }, nonce[16] = { 4 };
    EVP_CIPHER_CTX       *c = EVP_CIPHER_CTX_new();
    int                   turn, n, whole, encrypt, len;

    doing = "overlapping";

    for (turn = 0; turn < turns; turn++) {
        EVP_CIPHER  *const *cipher = ciphers[turn % 3];
        int                 at = 0, total = 0;

        len = (int) any(600);
        encrypt = turn & 1;
        fill(text, (size_t) len);
        MUST(EVP_EncryptInit_ex2(c, cipher[0], key, nonce, NULL) == 1);
        MUST(EVP_EncryptUpdate(c, right, &n, text, len) == 1 && EVP_EncryptFinal_ex(c, right + n, &whole) == 1);
        whole += n;
        MUST(EVP_CipherInit_ex2(c, cipher[1], key, nonce, encrypt, NULL) == 1);

        while (at < (encrypt ? len : whole)) {
            int  piece = 1 + (int) any(100), from = 64 + (int) any(40), to = 64 + (int) any(40);

            if (any(3) == 0) {
                to = from;
            }

            piece = piece > (encrypt ? len : whole) - at ? (encrypt ? len : whole) - at : piece;
            memcpy(buffer + from, (encrypt ? text : right) + at, (size_t) piece);
            MUST(EVP_CipherUpdate(c, buffer + to, &n, buffer + from, piece) == 1);
            memcpy(got + total, buffer + to, (size_t) n);
            at += piece;
            total += n;
        }

        MUST(EVP_CipherFinal_ex(c, got + total, &n) == 1);
        total += n;
        MUST(total == (encrypt ? whole : len) && memcmp(got, encrypt ? right : text, (size_t) total) == 0);
    }

    EVP_CIPHER_CTX_free(c);
}

/* Every last block there can be, by its last bytes: which are padding, and why not. */
static void
endings(void)
{
    unsigned char    key[16] = { 1 }, nonce[16] = { 2 }, block[32], in[32], out[2][64];
    EVP_CIPHER_CTX  *c = EVP_CIPHER_CTX_new();
    int              told, spoilt, n[2], m[2], good[2];

    doing = "endings";

    for (told = 0; told < 256; told++) {
        for (spoilt = -1; spoilt < 32; spoilt++) {
            memset(block, told, 32);

            if (spoilt >= 0) {
                block[spoilt] ^= 0x10;
            }

            MUST(EVP_EncryptInit_ex2(c, ciphers[0][0], key, nonce, NULL) == 1 && EVP_CIPHER_CTX_set_padding(c, 0));
            MUST(EVP_EncryptUpdate(c, in, n, block, 32) == 1 && n[0] == 32);

            for BOTH(i) {
                memset(out[i], 0xaa, 64);
                m[i] = 0;
                MUST(EVP_DecryptInit_ex2(c, ciphers[0][i], key, nonce, NULL) == 1 && EVP_CIPHER_CTX_set_padding(c, 1));
                MUST(EVP_DecryptUpdate(c, out[i], &n[i], in, 32) == 1 && n[i] == 16);
                good[i] = EVP_DecryptFinal_ex(c, out[i] + 16, &m[i]);
            }

            if (outcome(good)) {
                MUST(m[0] == m[1] && memcmp(out[0], out[1], 64) == 0);
            }
        }
    }

    EVP_CIPHER_CTX_free(c);
}

/* Wrong calls fail with the reasons that programs know. */
static void
refusals(void)
{
    unsigned char    key[32] = { 1 }, nonce[16] = { 2 }, out[64], in[64] = { 0 };
    int              n = 0, good[2];
    size_t           big = 65;
    unsigned         version = 0x303;
    EVP_CIPHER_CTX  *c[2];
    OSSL_PARAM       params[2] = { OSSL_PARAM_END, OSSL_PARAM_END };

    doing = "refusals";
    for BOTH(i) c[i] = EVP_CIPHER_CTX_new();

    for BOTH(i) {
        MUST(EVP_EncryptInit_ex2(c[i], ciphers[2][i], NULL, nonce, NULL) == 1);
        good[i] = EVP_EncryptUpdate(c[i], out, &n, in, 16);
    }
    MUST(!outcome(good));

    for BOTH(i) good[i] = EVP_EncryptFinal_ex(c[i], out, &n);
    MUST(!outcome(good));

    for BOTH(i) good[i] = EVP_CIPHER_CTX_set_key_length(c[i], 16);
    MUST(!outcome(good));

    for BOTH(i) {
        MUST(EVP_EncryptInit_ex2(c[i], NULL, key, NULL, NULL) == 1 && EVP_CIPHER_CTX_set_padding(c[i], 0) == 1);
        MUST(EVP_EncryptUpdate(c[i], out, &n, in, 17) == 1 && n == 16);
        good[i] = EVP_EncryptFinal_ex(c[i], out, &n);
    }
    MUST(!outcome(good));

    for BOTH(i) {
        MUST(EVP_DecryptInit_ex2(c[i], NULL, key, nonce, NULL) == 1 && EVP_CIPHER_CTX_set_padding(c[i], 1) == 1);
        good[i] = EVP_DecryptFinal_ex(c[i], out, &n);
    }
    MUST(!outcome(good));

    /* A record not in place; a record's end; a MAC longer than any; a version nobody knows. */
    params[0] = OSSL_PARAM_construct_uint(OSSL_CIPHER_PARAM_TLS_VERSION, &version);
    for BOTH(i) {
        MUST(EVP_DecryptInit_ex2(c[i], NULL, key, nonce, params) == 1);
        good[i] = EVP_DecryptUpdate(c[i], out, &n, in, 48);
    }
    MUST(!outcome(good));

    for BOTH(i) good[i] = EVP_DecryptFinal_ex(c[i], out, &n);
    MUST(!outcome(good));

    version = 0x305;
    for BOTH(i) {
        MUST(EVP_DecryptInit_ex2(c[i], NULL, key, nonce, params) == 1);
        good[i] = EVP_DecryptUpdate(c[i], in, &n, in, 48);
    }
    MUST(!outcome(good));

    params[0] = OSSL_PARAM_construct_size_t(OSSL_CIPHER_PARAM_TLS_MAC_SIZE, &big);
    for BOTH(i) good[i] = EVP_CIPHER_CTX_set_params(c[i], params);
    MUST(outcome(good));
    params[0] = OSSL_PARAM_construct_uint(OSSL_CIPHER_PARAM_TLS_VERSION, &version);
    version = 0x303;
    for BOTH(i) {
        MUST(EVP_DecryptInit_ex2(c[i], NULL, key, nonce, params) == 1);
        good[i] = EVP_DecryptUpdate(c[i], in, &n, in, 48);
    }
    MUST(!outcome(good));
    for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
}

static const unsigned  versions[] = { 0x300, 0x301, 0x302, 0x303, 0xfeff, 0xfefd, 0x100 };
static const size_t    sizes[] = { 0, 16, 20, 32, 48, 64 };

/* Sets up both for records. */
static void
tls(EVP_CIPHER_CTX *const *c, EVP_CIPHER *const *cipher, int encrypt, unsigned version, size_t size,
    const unsigned char *key, const unsigned char *nonce)
{
    OSSL_PARAM  params[3];
    int         number = (int) version;

    params[0] = OSSL_PARAM_construct_int(OSSL_CIPHER_PARAM_TLS_VERSION, &number);
    params[1] = OSSL_PARAM_construct_size_t(OSSL_CIPHER_PARAM_TLS_MAC_SIZE, &size);
    params[2] = OSSL_PARAM_construct_end();

    for BOTH(i) {
        MUST(EVP_CIPHER_CTX_reset(c[i]) == 1);
        MUST(EVP_CipherInit_ex2(c[i], cipher[i], key, nonce, encrypt, NULL) == 1);
        MUST(EVP_CIPHER_CTX_set_params(c[i], params) == 1);
    }
}

static const unsigned char *
mac_of(EVP_CIPHER_CTX *c, size_t size)
{
    unsigned char  *mac = NULL;
    OSSL_PARAM      params[2] = { OSSL_PARAM_END, OSSL_PARAM_END };

    params[0] = OSSL_PARAM_construct_octet_ptr(OSSL_CIPHER_PARAM_TLS_MAC, (void **) &mac, size);
    MUST(EVP_CIPHER_CTX_get_params(c, params) == 1);
    return mac;
}

/* One record that both decrypt: text, MAC and padding as `record` has them. */
static void
open_record(EVP_CIPHER_CTX *const *c, EVP_CIPHER_CTX *raw, EVP_CIPHER *const *cipher, unsigned version, size_t size,
    const unsigned char *record, int len, const unsigned char *key, const unsigned char *nonce)
{
    static unsigned char  sealed[ROOM], out[2][ROOM];
    int                   n[2], good[2];

    MUST(EVP_EncryptInit_ex2(raw, cipher[0], key, nonce, NULL) == 1 && EVP_CIPHER_CTX_set_padding(raw, 0) == 1);
    MUST(EVP_EncryptUpdate(raw, sealed, n, record, len) == 1 && n[0] == len);
    tls(c, cipher, 0, version, size, key, nonce);

    for BOTH(i) {
        memcpy(out[i], sealed, (size_t) len);
        n[i] = -1;
        good[i] = EVP_DecryptUpdate(c[i], out[i], &n[i], out[i], len);
    }

    if (!outcome(good)) {
        return;
    }

    MUST(n[0] == n[1] && memcmp(out[0], out[1], (size_t) len) == 0 && memcmp(out[1], record, (size_t) len) == 0);

    if (size > 0) {
        const unsigned char  *theirs = mac_of(c[0], size), *ours = mac_of(c[1], size);
        int                   at = (version > 0x301 || version == 0x100) ? 16 : 0;
        int                   right = memcmp(theirs, record + at + n[0], size) == 0;

        /* Where the padding is wrong both are random, and of both the length is that of a record without padding. */
        MUST(right ? memcmp(theirs, ours, size) == 0 : memcmp(theirs, ours, size) != 0);
        MUST(right || n[0] == len - at - (int) size);
    }
}

static void
records(void)
{
    static unsigned char  record[ROOM], out[2][ROOM];
    unsigned char         key[32], nonce[16];
    EVP_CIPHER_CTX       *c[2], *raw = EVP_CIPHER_CTX_new();
    unsigned              v, s;
    int                   told, len, n[2], good[2];

    for BOTH(i) c[i] = EVP_CIPHER_CTX_new();
    fill(key, 32);
    fill(nonce, 16);

    for (v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
        doing = "records written";

        for (len = 0; len < 600; len += (len < 70 ? 1 : 37)) {
            tls(c, ciphers[v % 3], 1, versions[v], 20, key, nonce);
            fill(record, (size_t) len);

            for BOTH(i) {
                memset(out[i], 0xaa, ROOM);
                memcpy(out[i], record, (size_t) len);
                good[i] = EVP_EncryptUpdate(c[i], out[i], &n[i], out[i], len);
            }

            MUST(outcome(good) == 1 && n[0] == n[1] && memcmp(out[0], out[1], ROOM) == 0);
            same_nonces(c);
        }

        doing = "records read";

        for (s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            for (len = 16; len <= 640; len += (len < 128 || len > 270 ? 16 : 48)) {
                for (told = 0; told < 256; told += (s < 3 ? 1 : 5)) {
                    EVP_CIPHER *const  *cipher = ciphers[any(3)];
                    int                 start = told + 1 > len ? 0 : len - told - 1, wrong;

                    fill(record, (size_t) len);
                    memset(record + start, told, (size_t) (len - start));
                    open_record(c, raw, cipher, versions[v], sizes[s], record, len, key, nonce);
                    wrong = start + (int) any((unsigned) (len - start));
                    record[wrong] ^= (unsigned char) (1 << any(8));
                    open_record(c, raw, cipher, versions[v], sizes[s], record, len, key, nonce);
                }
            }
        }
    }

    /* Records follow each other, the nonce of TLS 1.0 too. */
    doing = "records in turn";

    for (v = 1; v < 4; v++) {
        tls(c, ciphers[2], 1, versions[v], 0, key, nonce);
        fill(record, 100);
        MUST(EVP_DecryptInit_ex2(raw, ciphers[2][1], key, nonce, NULL) == 1 && EVP_CIPHER_CTX_set_padding(raw, 0) == 1);

        for (len = 17; len < 100; len++) {
            for BOTH(i) {
                memcpy(out[i], record, (size_t) len);
                MUST(EVP_EncryptUpdate(c[i], out[i], &n[i], out[i], len) == 1);
            }

            MUST(n[0] == n[1] && memcmp(out[0], out[1], (size_t) n[0]) == 0);
            MUST(EVP_DecryptUpdate(raw, out[0], n, out[1], n[1]) == 1 && memcmp(out[0], record, (size_t) len) == 0);
        }
    }

    /* A bad padding's MAC is another one each time. */
    doing = "random MACs";
    tls(c, ciphers[0], 0, 0x301, 20, key, nonce);
    memset(out[1], 0, 64);
    MUST(EVP_DecryptUpdate(c[1], out[1], n, out[1], 64) == 1 && n[0] == 44);
    memcpy(record, mac_of(c[1], 20), 20);
    memset(out[1], 0, 64);
    MUST(EVP_DecryptUpdate(c[1], out[1], n, out[1], 64) == 1 && n[0] == 44);
    MUST(memcmp(record, mac_of(c[1], 20), 20) != 0);

    EVP_CIPHER_CTX_free(raw);
    for BOTH(i) EVP_CIPHER_CTX_free(c[i]);
}

/* EVP_Cipher(), which keeps nothing and pads nothing; and CMAC, which is made of it. */
static void
once(OSSL_LIB_CTX *ctx)
{
    unsigned char    key[32] = { 9 }, nonce[16] = { 8 }, in[96], out[2][96], macs[2][16];
    EVP_CIPHER_CTX  *c = EVP_CIPHER_CTX_new();
    int              k, len, n[2];
    size_t           mac_len;

    doing = "once";
    fill(in, sizeof(in));

    for (k = 0; k < 3; k++) {
        for (len = 16; len <= 96; len += 16) {
            for BOTH(i) {
                MUST(EVP_EncryptInit_ex2(c, ciphers[k][i], key, nonce, NULL) == 1);
                n[i] = EVP_Cipher(c, out[i], in, (unsigned) len);
                n[i] += EVP_Cipher(c, out[i], out[i], (unsigned) len);
            }

            MUST(n[0] == n[1] && memcmp(out[0], out[1], (size_t) len) == 0);
        }

        for (len = 0; len <= 96; len += 7) {
            for BOTH(i) {
                MUST(EVP_Q_mac(ctx, "CMAC", "provider=default", names[k], NULL, key, (size_t) (16 + 8 * k), in,
                               (size_t) len, macs[i], 16, &mac_len) != NULL && mac_len == 16);
                MUST(EVP_set_default_properties(ctx, i ? NULL : "?provider=wattlock") == 1);
            }

            MUST(memcmp(macs[0], macs[1], 16) == 0);
        }
    }

    EVP_CIPHER_CTX_free(c);
}

int
main(int argc, char **argv)
{
    OSSL_LIB_CTX  *ctx = OSSL_LIB_CTX_new();
    int            k;

    MUST((argc == 2 || argc == 3) && OSSL_LIB_CTX_load_config(ctx, argv[1]) == 1);

    for (k = 0; k < 3; k++) {
        MUST((ciphers[k][0] = EVP_CIPHER_fetch(ctx, names[k], "provider=default")) != NULL);
        MUST((ciphers[k][1] = EVP_CIPHER_fetch(ctx, names[k], "provider=wattlock")) != NULL);
    }

    pieces(argc == 3 ? atoi(argv[2]) : 6000);
    overlapping(argc == 3 ? atoi(argv[2]) : 4000);

    if (argc == 2) {
        endings();
        refusals();
        records();
        once(ctx);
    }

    for (k = 0; k < 3; k++) {
        for BOTH(i) EVP_CIPHER_free(ciphers[k][i]);
    }

    OSSL_LIB_CTX_free(ctx);
    return 0;
}
