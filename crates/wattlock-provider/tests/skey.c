/*
 * Keys as objects (EVP_SKEY, OpenSSL 3.5): a program that names no provider imports an AES key and uses it, with whatever
 * the configuration prefers. Every result is compared with that of the default provider under the same bytes. And
 * signatures with message and digest under one name (EVP_PKEY_sign_message_init, 3.4), which stay with OpenSSL.
 *
 *     skey PROVIDER
 *
 * PROVIDER is whose AES-GCM, -CBC and -CTR are expected. Exit status 0 if all was right, 77 if libcrypto knows no such
 * keys.
 */
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/opensslv.h>
#include <openssl/provider.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if OPENSSL_VERSION_NUMBER < 0x30500000L

int
main(void)
{
    return 77;
}

#else

#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)
#define MOST 256
#define THEIRS "provider=default"

static const char  *now = "";

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d, %s: %s\n", line, now, what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static unsigned char  bytes[64], iv[16], text[MOST];

/* Encrypts the text, or decrypts it, in two pieces; what comes out has a tag at its end if it is sealed. 0 if the cipher
 * does not take the key, -1 if what it opened is forged. */
static int
crypt(const EVP_CIPHER *cipher, EVP_SKEY *skey, int encrypt, const unsigned char *in, int len, unsigned char *out)
{
    EVP_CIPHER_CTX  *ctx = EVP_CIPHER_CTX_new();
    int              aead = EVP_CIPHER_get_flags(cipher) & EVP_CIPH_FLAG_AEAD_CIPHER, all, more, good;
    size_t           iv_len = EVP_CIPHER_get_iv_length(cipher);

    MUST(ctx != NULL);

    if (skey != NULL) {
        good = EVP_CipherInit_SKEY(ctx, cipher, skey, iv, iv_len, encrypt, NULL);
    } else {
        good = EVP_CipherInit_ex2(ctx, cipher, bytes, iv, encrypt, NULL);
    }

    if (!good) {
        EVP_CIPHER_CTX_free(ctx);
        return 0;
    }

    if (aead && !encrypt) {
        len -= 16;
        MUST(EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, 16, (void *) (in + len)) == 1);
    }

    MUST(EVP_CipherUpdate(ctx, out, &all, in, 7) == 1);
    MUST(EVP_CipherUpdate(ctx, out + all, &more, in + 7, len - 7) == 1);
    all += more;

    if (EVP_CipherFinal_ex(ctx, out + all, &more) != 1) {
        EVP_CIPHER_CTX_free(ctx);
        return -1;
    }

    all += more;

    if (aead && encrypt) {
        MUST(EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, 16, out + all) == 1);
        all += 16;
    }

    EVP_CIPHER_CTX_free(ctx);
    return all;
}

static EVP_SKEY *
import(size_t len, const char *properties)
{
    return EVP_SKEY_import_raw_key(NULL, "AES", bytes, len, properties);
}

/* The cipher that the configuration prefers takes a key that it prefers, both ways, and gives what the default provider
 * gives. */
static void
works(const char *name, size_t len, const char *expected)
{
    EVP_CIPHER     *cipher, *theirs;
    EVP_SKEY       *skey;
    unsigned char   sealed[MOST + 32], plain[MOST + 32], opened[MOST + 32];
    int             made;

    now = name;
    MUST((skey = import(len, NULL)) != NULL);
    MUST(EVP_SKEY_is_a(skey, "AES"));
    MUST((cipher = EVP_CIPHER_fetch(NULL, name, NULL)) != NULL);
    MUST((theirs = EVP_CIPHER_fetch(NULL, name, THEIRS)) != NULL);
    MUST(strcmp(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(cipher)), expected) == 0);
    MUST(strcmp(EVP_SKEY_get0_provider_name(skey), expected) == 0);
    MUST((made = crypt(cipher, skey, 1, text, MOST, sealed)) >= MOST);
    MUST(crypt(theirs, NULL, 1, text, MOST, plain) == made);
    MUST(memcmp(sealed, plain, made) == 0);
    MUST(crypt(cipher, skey, 0, sealed, made, opened) == MOST);
    MUST(memcmp(opened, text, MOST) == 0);

    if (made == MOST + 16 && EVP_CIPHER_get_mode(cipher) == EVP_CIPH_GCM_MODE) {
        sealed[9] ^= 1;
        MUST(crypt(cipher, skey, 0, sealed, made, opened) == -1);
    }

    EVP_SKEY_free(skey);
    EVP_CIPHER_free(cipher);
    EVP_CIPHER_free(theirs);
}

/* A context that got its key first, or its vector later. */
static void
works_in_steps(void)
{
    EVP_CIPHER      *cipher;
    EVP_SKEY        *skey;
    EVP_CIPHER_CTX  *ctx = EVP_CIPHER_CTX_new();
    unsigned char    out[MOST + 32], expected[MOST + 32];
    int              len, more;

    now = "in steps";
    MUST((skey = import(32, NULL)) != NULL);
    MUST((cipher = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL)) != NULL);
    MUST(crypt(cipher, NULL, 1, text, MOST, expected) == MOST + 16);
    MUST(EVP_CipherInit_SKEY(ctx, cipher, skey, NULL, 0, 1, NULL) == 1);
    /* The key is the context's from here on. */
    EVP_SKEY_free(skey);
    MUST(EVP_CipherInit_SKEY(ctx, NULL, NULL, iv, 12, -1, NULL) == 1);
    MUST(EVP_CipherUpdate(ctx, out, &len, text, MOST) == 1 && EVP_CipherFinal_ex(ctx, out + len, &more) == 1);
    MUST(len + more == MOST && memcmp(out, expected, MOST) == 0);
    EVP_CIPHER_CTX_free(ctx);
    EVP_CIPHER_free(cipher);
}

/* What a key manager owes its callers. */
static void
keys_are_as_openssls(void)
{
    static const size_t    lens[] = { 0, 1, 15, 16, 17, 24, 31, 32, 33, 64 };
    const unsigned char   *raw;
    size_t                 i, len;

    now = "keys";

    for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        EVP_SKEY  *ours = import(lens[i], NULL), *theirs = import(lens[i], THEIRS);

        MUST((ours == NULL) == (theirs == NULL));
        MUST((ours != NULL) == (lens[i] == 16 || lens[i] == 24 || lens[i] == 32));

        if (ours != NULL) {
            MUST(EVP_SKEY_get0_raw_key(ours, &raw, &len) == 1);
            MUST(len == lens[i] && raw != bytes && memcmp(raw, bytes, len) == 0);
            MUST(EVP_SKEY_up_ref(ours) == 1);
            EVP_SKEY_free(ours);
            MUST(EVP_SKEY_get0_raw_key(ours, &raw, &len) == 1 && len == lens[i]);
        }

        EVP_SKEY_free(ours);
        EVP_SKEY_free(theirs);
    }

    MUST(EVP_SKEY_import(NULL, "AES", NULL, 0, (OSSL_PARAM[]) { OSSL_PARAM_END }) == NULL);
    MUST(EVP_SKEY_import(NULL, "AES", NULL, OSSL_SKEYMGMT_SELECT_ALL, (OSSL_PARAM[]) { OSSL_PARAM_END }) == NULL);
    ERR_clear_error();
}

static EVP_SKEY *
to_provider_of(const EVP_CIPHER *cipher, EVP_SKEY *skey)
{
    return EVP_SKEY_to_provider(skey, NULL, (OSSL_PROVIDER *) EVP_CIPHER_get0_provider(cipher), NULL);
}

/* A cipher that stays with the default provider: by the remedies of docs/use/openssl.md, and, unless both are its own, not
 * without them. OpenSSL 3.5.5 frees a key manager once too often if a key is to go where it is already, so that is not
 * tried. */
static void
remedies_work(int ours)
{
    EVP_CIPHER     *cipher;
    EVP_SKEY       *skey, *moved, *back;
    unsigned char   out[MOST + 32], expected[MOST + 32];

    now = "AES-256-ECB";
    MUST((cipher = EVP_CIPHER_fetch(NULL, now, NULL)) != NULL);
    MUST(strcmp(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(cipher)), "default") == 0);
    MUST(crypt(cipher, NULL, 1, text, MOST, expected) == MOST + 16);
    MUST((skey = import(32, NULL)) != NULL);
    MUST(crypt(cipher, skey, 1, text, MOST, out) == (ours ? 0 : MOST + 16));
    ERR_clear_error();
    moved = ours ? to_provider_of(cipher, skey) : import(32, NULL);
    MUST(moved != NULL && crypt(cipher, moved, 1, text, MOST, out) == MOST + 16);
    MUST(memcmp(out, expected, MOST + 16) == 0);
    EVP_SKEY_free(skey);
    MUST((skey = import(32, "provider!=wattlock")) != NULL);
    MUST(crypt(cipher, skey, 1, text, MOST, out) == MOST + 16);
    EVP_SKEY_free(skey);
    EVP_CIPHER_free(cipher);
    /* And back: a key of the default provider's to the preferred cipher's. */
    MUST((cipher = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL)) != NULL);
    back = ours ? to_provider_of(cipher, moved) : import(32, NULL);
    MUST(back != NULL && crypt(cipher, back, 1, text, MOST, out) == MOST + 16);
    EVP_CIPHER_free(cipher);
    EVP_SKEY_free(back);
    EVP_SKEY_free(moved);
}

/* What has no part in it goes on as before: other secrets with a cipher and a MAC of the default provider's. */
static void
other_secrets_stay(void)
{
    EVP_SKEY       *skey;
    EVP_CIPHER     *cipher;
    EVP_MAC        *mac;
    EVP_MAC_CTX    *ctx;
    unsigned char   out[MOST + 32];
    OSSL_PARAM      params[] = { OSSL_PARAM_utf8_string(OSSL_MAC_PARAM_DIGEST, "SHA256", 0), OSSL_PARAM_END };
    int             alone, here;

    now = "GENERIC-SECRET";
    MUST((skey = EVP_SKEY_import_raw_key(NULL, now, bytes, 32, NULL)) != NULL);
    MUST(strcmp(EVP_SKEY_get0_provider_name(skey), "default") == 0);
    MUST((cipher = EVP_CIPHER_fetch(NULL, "ChaCha20-Poly1305", NULL)) != NULL);
    MUST(crypt(cipher, skey, 1, text, MOST, out) == MOST + 16);
    EVP_CIPHER_free(cipher);
    MUST((mac = EVP_MAC_fetch(NULL, "HMAC", NULL)) != NULL && (ctx = EVP_MAC_CTX_new(mac)) != NULL);
    here = EVP_MAC_init_SKEY(ctx, skey, params);
    EVP_SKEY_free(skey);
    MUST((skey = EVP_SKEY_import_raw_key(NULL, now, bytes, 32, THEIRS)) != NULL);
    alone = EVP_MAC_init_SKEY(ctx, skey, params);
    MUST(here == alone);
    ERR_clear_error();
    EVP_MAC_CTX_free(ctx);
    EVP_MAC_free(mac);
    EVP_SKEY_free(skey);
}

/* Keys of the preferred provider's sign messages by algorithms that the default provider alone has, in one piece and in
 * several. */
static void
messages_are_signed(const char *algorithm, EVP_PKEY *key, const char *keeper)
{
    EVP_SIGNATURE  *signature;
    EVP_PKEY_CTX   *ctx;
    unsigned char   out[512];
    size_t          len;
    int             pieces;

    now = algorithm;
    MUST(key != NULL && strcmp(OSSL_PROVIDER_get0_name(EVP_PKEY_get0_provider(key)), keeper) == 0);
    MUST((signature = EVP_SIGNATURE_fetch(NULL, algorithm, NULL)) != NULL);
    MUST(strcmp(OSSL_PROVIDER_get0_name(EVP_SIGNATURE_get0_provider(signature)), "default") == 0);

    for (pieces = 0; pieces < 2; pieces++) {
        len = sizeof(out);
        MUST((ctx = EVP_PKEY_CTX_new_from_pkey(NULL, key, NULL)) != NULL);
        MUST(EVP_PKEY_sign_message_init(ctx, signature, NULL) == 1);

        if (pieces) {
            MUST(EVP_PKEY_sign_message_update(ctx, text, 9) == 1);
            MUST(EVP_PKEY_sign_message_update(ctx, text + 9, MOST - 9) == 1);
            MUST(EVP_PKEY_sign_message_final(ctx, out, &len) == 1);
        } else {
            MUST(EVP_PKEY_sign(ctx, out, &len, text, MOST) == 1);
        }

        EVP_PKEY_CTX_free(ctx);
        MUST((ctx = EVP_PKEY_CTX_new_from_pkey(NULL, key, NULL)) != NULL);
        MUST(EVP_PKEY_verify_message_init(ctx, signature, NULL) == 1);
        MUST(EVP_PKEY_verify(ctx, out, len, text, MOST) == 1);
        MUST(EVP_PKEY_verify(ctx, out, len, text, MOST - 1) != 1);
        ERR_clear_error();
        EVP_PKEY_CTX_free(ctx);
    }

    EVP_SIGNATURE_free(signature);
    EVP_PKEY_free(key);
}

int
main(int argc, char **argv)
{
    static const char *const  modes[] = { "GCM", "CBC", "CTR" };
    char                      name[32];
    size_t                    i;
    int                       bits, ours;

    if (OPENSSL_version_major() == 3 && OPENSSL_version_minor() < 5) {
        return 77;
    }

    MUST(argc == 2);
    ours = strcmp(argv[1], "wattlock") == 0;

    for (i = 0; i < sizeof(bytes); i++) {
        bytes[i] = 3 * i + 1;
    }

    for (i = 0; i < sizeof(text); i++) {
        text[i] = 7 * i;
    }

    memset(iv, 9, sizeof(iv));

    for (bits = 128; bits <= 256; bits += 64) {
        for (i = 0; i < 3; i++) {
            snprintf(name, sizeof(name), "AES-%d-%s", bits, modes[i]);
            works(name, bits / 8, argv[1]);
        }
    }

    works_in_steps();
    keys_are_as_openssls();
    remedies_work(ours);
    other_secrets_stay();
    messages_are_signed("ECDSA-SHA256", EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256"), argv[1]);
    messages_are_signed("RSA-SHA256", EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t) 2048), argv[1]);

    return 0;
}

#endif
