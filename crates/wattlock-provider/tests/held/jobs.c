/*
 * Keys of another provider (`held.c`) in many asynchronous jobs at a time, with a key agreement in each, for which the
 * job pauses where Wattlock is there:
 *
 *     jobs CONFIG pauses|goes-on N RSA-KEY RSA-CERTIFICATE EC-KEY EC-CERTIFICATE
 *
 * Every result is checked in a context that has OpenSSL's own provider alone. Prints the RSA key's signature, which has
 * no randomness in it. Exit status 0 if all was right; else a line says what was not.
 */
#include <openssl/async.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/provider.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 64
#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static OSSL_LIB_CTX  *ctx, *plain;
static EVP_PKEY      *keys[2], *publics[2];     /* held keys, and the other halves in `plain` */

static const unsigned char  text[] = "a text";

/* Signs with a held key and verifies in the other context, with PSS where it is asked for. */
static size_t
sign(int rsa, int pss, unsigned char *signature, size_t room)
{
    EVP_PKEY      *key = keys[!rsa], *public = publics[!rsa];
    EVP_MD_CTX    *md = EVP_MD_CTX_new();
    EVP_PKEY_CTX  *operation;
    size_t         len = room;

    MUST(EVP_DigestSignInit_ex(md, &operation, "SHA256", ctx, NULL, key, NULL) == 1);
    MUST(!pss || EVP_PKEY_CTX_set_rsa_padding(operation, RSA_PKCS1_PSS_PADDING) == 1);
    MUST(EVP_DigestSignUpdate(md, text, 3) == 1 && EVP_DigestSignUpdate(md, text + 3, sizeof(text) - 3) == 1);
    MUST(EVP_DigestSignFinal(md, signature, &len) == 1);
    EVP_MD_CTX_free(md);

    md = EVP_MD_CTX_new();
    MUST(EVP_DigestVerifyInit_ex(md, &operation, "SHA256", plain, NULL, public, NULL) == 1);
    MUST(!pss || EVP_PKEY_CTX_set_rsa_padding(operation, RSA_PKCS1_PSS_PADDING) == 1);
    MUST(EVP_DigestVerify(md, signature, len, text, sizeof(text)) == 1);
    EVP_MD_CTX_free(md);

    return len;
}

static void
open_sealed(int padding)
{
    EVP_PKEY_CTX   *operation = EVP_PKEY_CTX_new_from_pkey(plain, publics[0], NULL);
    unsigned char   sealed[512], opened[512];
    size_t          len = sizeof(sealed), opened_len = sizeof(opened);

    MUST(EVP_PKEY_encrypt_init(operation) == 1 && EVP_PKEY_CTX_set_rsa_padding(operation, padding) == 1);
    MUST(EVP_PKEY_encrypt(operation, sealed, &len, text, sizeof(text)) == 1);
    EVP_PKEY_CTX_free(operation);

    operation = EVP_PKEY_CTX_new_from_pkey(ctx, keys[0], NULL);
    MUST(EVP_PKEY_decrypt_init(operation) == 1 && EVP_PKEY_CTX_set_rsa_padding(operation, padding) == 1);
    MUST(EVP_PKEY_decrypt(operation, opened, &opened_len, sealed, len) == 1);
    MUST(opened_len == sizeof(text) && memcmp(opened, text, sizeof(text)) == 0);
    EVP_PKEY_CTX_free(operation);
}

/* What a handshake does beside: whoever is preferred does it. */
static void
agree(void)
{
    EVP_PKEY       *one = EVP_PKEY_Q_keygen(ctx, NULL, "X25519"), *two = EVP_PKEY_Q_keygen(ctx, NULL, "X25519");
    EVP_PKEY_CTX   *operation = EVP_PKEY_CTX_new_from_pkey(ctx, one, NULL);
    unsigned char   secret[32];
    size_t          len = sizeof(secret);

    MUST(EVP_PKEY_derive_init(operation) == 1 && EVP_PKEY_derive_set_peer(operation, two) == 1);
    MUST(EVP_PKEY_derive(operation, secret, &len) == 1);
    EVP_PKEY_CTX_free(operation);
    EVP_PKEY_free(one);
    EVP_PKEY_free(two);
}

static int
work(void *argument)
{
    unsigned char  signature[512];

    (void) argument;
    sign(1, 0, signature, sizeof(signature));
    sign(0, 0, signature, sizeof(signature));
    agree();
    sign(1, 1, signature, sizeof(signature));
    open_sealed(RSA_PKCS1_PADDING);
    open_sealed(RSA_PKCS1_OAEP_PADDING);
    agree();
    sign(0, 0, signature, sizeof(signature));

    return 1;
}

/* As many jobs as may be, each resumed in its turn; how often one paused. */
static int
jobs(int n)
{
    ASYNC_WAIT_CTX  *waits[WIDTH];
    ASYNC_JOB       *running[WIDTH] = { NULL };
    int              i, begun = 0, done = 0, paused = 0, state, result;

    MUST(ASYNC_init_thread(0, 0));

    for (i = 0; i < WIDTH; i++) {
        MUST((waits[i] = ASYNC_WAIT_CTX_new()) != NULL);
    }

    while (done < n) {
        for (i = 0; i < WIDTH; i++) {
            if (running[i] == NULL && begun++ >= n) {
                continue;
            }

            state = ASYNC_start_job(&running[i], waits[i], &result, work, NULL, 0);
            MUST(state == ASYNC_PAUSE || (state == ASYNC_FINISH && result == 1));
            paused += state == ASYNC_PAUSE;
            done += state == ASYNC_FINISH;

            if (state == ASYNC_FINISH) {
                running[i] = NULL;
            }
        }
    }

    for (i = 0; i < WIDTH; i++) {
        ASYNC_WAIT_CTX_free(waits[i]);
    }

    ASYNC_cleanup_thread();
    return paused;
}

/* A key that stays with its holder, and its certificate's. */
static void
enter(int i, const char *key, const char *certificate)
{
    BIO         *file = BIO_new_file(key, "r");
    OSSL_PARAM  *params = NULL;
    X509        *leaf = X509_new_ex(plain, NULL), *same = X509_new_ex(ctx, NULL);

    MUST(file != NULL && (keys[i] = PEM_read_bio_PrivateKey_ex(file, NULL, NULL, NULL, ctx, NULL)) != NULL);
    BIO_free(file);
    MUST(strcmp(OSSL_PROVIDER_get0_name(EVP_PKEY_get0_provider(keys[i])), "held") == 0);
    MUST(EVP_PKEY_todata(keys[i], EVP_PKEY_KEYPAIR, &params) != 1);
    MUST(EVP_PKEY_todata(keys[i], EVP_PKEY_PUBLIC_KEY, &params) == 1);
    OSSL_PARAM_free(params);
    ERR_clear_error();

    MUST((file = BIO_new_file(certificate, "r")) != NULL && PEM_read_bio_X509(file, &leaf, NULL, NULL) != NULL);
    MUST((publics[i] = X509_get_pubkey(leaf)) != NULL);
    MUST(BIO_reset(file) == 0 && PEM_read_bio_X509(file, &same, NULL, NULL) != NULL);
    BIO_free(file);
    /* The certificate's key is of whoever is preferred: it and the held one are compared across providers. */
    MUST(X509_check_private_key(same, keys[i]) == 1);
    X509_free(leaf);
    X509_free(same);
}

int
main(int argc, char **argv)
{
    OSSL_PROVIDER  *theirs;
    unsigned char   signature[512];
    size_t          i, len;
    int             paused;

    MUST(argc == 8);
    MUST((ctx = OSSL_LIB_CTX_new()) != NULL && OSSL_LIB_CTX_load_config(ctx, argv[1]) == 1);
    MUST((plain = OSSL_LIB_CTX_new()) != NULL && (theirs = OSSL_PROVIDER_load(plain, "default")) != NULL);
    enter(0, argv[4], argv[5]);
    enter(1, argv[6], argv[7]);

    MUST(work(NULL) == 1);
    paused = jobs(atoi(argv[3]));
    MUST((paused > 0) == (strcmp(argv[2], "pauses") == 0));
    len = sign(1, 0, signature, sizeof(signature));

    for (i = 0; i < len; i++) {
        printf("%02x", signature[i]);
    }

    printf("\n");

    for (i = 0; i < 2; i++) {
        EVP_PKEY_free(keys[i]);
        EVP_PKEY_free(publics[i]);
    }

    MUST(OSSL_PROVIDER_unload(theirs));
    OSSL_LIB_CTX_free(plain);
    OSSL_LIB_CTX_free(ctx);

    return 0;
}
