/* OpenSSL's own calls in loops, for short turns beside ours. Reads lines and answers each with one:

     open OPERATION [BYTES]    ok, or no: from now on turns are of this
     go SECONDS                what was done in so many seconds of processor time: operations a second

   The first line it writes is the library's version. Operations:

     cipher NAME, aead NAME    one message: a nonce, the data, the tag; the key is expanded before
     digest NAME, hmac NAME    one message; HMAC's key is set before
     rsa BITS, ecdsa CURVE     a signature
     ecdh CURVE                a shared secret, as `openssl speed` takes it; CURVE may be x25519
     derive CURVE, both CURVE  a shared secret by the lowest public calls; both: with a fresh pair */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdh.h>
#include <openssl/evp.h>
#include <openssl/obj_mac.h>
#include <openssl/rsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static unsigned char key_bytes[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, nonce[16], tag[64], secret[1024];
static unsigned char *data, *out;
static int bytes, fresh;
static EVP_CIPHER_CTX *cipher;
static EVP_MD_CTX *digest_context;
static EVP_MD *digest;
static EVP_MAC_CTX *mac;
static EVP_PKEY_CTX *own, *generate;
static EVP_PKEY *x_key, *x_peer;
static EC_KEY *key, *peer;

static int do_cipher(void) {
    int length;
    return EVP_EncryptInit_ex(cipher, NULL, NULL, NULL, nonce) && EVP_EncryptUpdate(cipher, out, &length, data, bytes);
}

static int do_aead(void) {
    int length;
    return EVP_EncryptInit_ex(cipher, NULL, NULL, NULL, nonce) && EVP_EncryptUpdate(cipher, out, &length, data, bytes) &&
           EVP_EncryptFinal_ex(cipher, out + length, &length) &&
           EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, 16, tag);
}

static int do_digest(void) {
    return EVP_DigestInit_ex(digest_context, digest, NULL) && EVP_DigestUpdate(digest_context, data, bytes) &&
           EVP_DigestFinal_ex(digest_context, tag, NULL);
}

static int do_hmac(void) {
    size_t length;
    return EVP_MAC_init(mac, NULL, 0, NULL) && EVP_MAC_update(mac, data, bytes) &&
           EVP_MAC_final(mac, tag, &length, sizeof tag);
}

static int do_sign(void) {
    size_t length = sizeof secret;
    return EVP_PKEY_sign(own, secret, &length, key_bytes, bytes) > 0;
}

static int do_ecdh(void) {
    size_t length = sizeof secret;
    return EVP_PKEY_derive(own, secret, &length) > 0;
}

/* The low-level calls, without the provider layer. */
static int do_nist(void) {
    return (!fresh || EC_KEY_generate_key(key)) &&
           ECDH_compute_key(secret, sizeof secret, EC_KEY_get0_public_key(peer), key, NULL) > 0;
}

/* X25519 has no lower public calls than these. */
static int do_x25519(void) {
    EVP_PKEY *made = NULL;
    size_t length = sizeof secret;
    if (fresh && EVP_PKEY_keygen(generate, &made) <= 0) return 0;
    EVP_PKEY_CTX *derive = EVP_PKEY_CTX_new(fresh ? made : x_key, NULL);
    int good = derive && EVP_PKEY_derive_init(derive) > 0 && EVP_PKEY_derive_set_peer(derive, x_peer) > 0 &&
               EVP_PKEY_derive(derive, secret, &length) > 0;
    EVP_PKEY_CTX_free(derive);
    EVP_PKEY_free(made);
    return good;
}

static int (*operation)(void);

static int pair_of(const char *curve, EVP_PKEY **made) {
    *made = !strcmp(curve, "x25519") ? EVP_PKEY_Q_keygen(NULL, NULL, "X25519")
            : EVP_PKEY_Q_keygen(NULL, NULL, "EC", !strcmp(curve, "p384") ? "P-384" : "P-256");
    return *made != NULL;
}

/* Makes ready. What an earlier operation left is not given back: there are few. */
static int begin(const char *what, const char *name) {
    if (!strcmp(what, "cipher") || !strcmp(what, "aead")) {
        EVP_CIPHER *fetched = EVP_CIPHER_fetch(NULL, name, NULL);
        cipher = EVP_CIPHER_CTX_new();
        operation = !strcmp(what, "aead") ? do_aead : do_cipher;
        data = calloc(1, bytes + 64);
        out = malloc(bytes + 64);
        /* XTS refuses a key of two equal halves. */
        return fetched && data && out && EVP_EncryptInit_ex(cipher, fetched, NULL, key_bytes, nonce);
    }
    if (!strcmp(what, "digest")) {
        digest = EVP_MD_fetch(NULL, name, NULL);
        digest_context = EVP_MD_CTX_new();
        data = calloc(1, bytes + 1);
        operation = do_digest;
        return digest && data != NULL;
    }
    if (!strcmp(what, "hmac")) {
        EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
        OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)name, 0),
                                   OSSL_PARAM_construct_end()};
        mac = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
        data = calloc(1, bytes + 1);
        operation = do_hmac;
        return mac && data && EVP_MAC_init(mac, key_bytes, 32, parameters);
    }
    if (!strcmp(what, "rsa") || !strcmp(what, "ecdsa")) {
        EVP_PKEY *made = NULL;
        bytes = !strcmp(what, "rsa") ? 36 : 32;
        if (bytes == 36) made = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)atoi(name));
        else pair_of(name, &made);
        own = made ? EVP_PKEY_CTX_new(made, NULL) : NULL;
        operation = do_sign;
        return own && EVP_PKEY_sign_init(own) > 0;
    }
    if (!strcmp(what, "ecdh")) {
        operation = do_ecdh;
        if (!pair_of(name, &x_key) || !pair_of(name, &x_peer)) return 0;
        own = EVP_PKEY_CTX_new(x_key, NULL);
        return own && EVP_PKEY_derive_init(own) > 0 && EVP_PKEY_derive_set_peer(own, x_peer) > 0;
    }
    fresh = !strcmp(what, "both");
    if (!fresh && strcmp(what, "derive")) return 0;
    if (!strcmp(name, "x25519")) {
        operation = do_x25519;
        generate = EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, NULL);
        return generate && EVP_PKEY_keygen_init(generate) > 0 && pair_of(name, &x_key) && pair_of(name, &x_peer);
    }
    int nid = !strcmp(name, "p384") ? NID_secp384r1 : NID_X9_62_prime256v1;
    operation = do_nist;
    key = EC_KEY_new_by_curve_name(nid);
    peer = EC_KEY_new_by_curve_name(nid);
    return key && peer && EC_KEY_generate_key(key) && EC_KEY_generate_key(peer);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Operations a second; 0 if one failed. The clock is asked as seldom as is seldom enough. */
static double turn(double seconds) {
    double start = now(), last = start, time;
    long done = 0, between = 1;
    do {
        for (long i = 0; i < between; i++)
            if (!operation()) return 0;
        done += between;
        time = now();
        if (time - last < 50e-6) between *= 2;
        last = time;
    } while (time - start < seconds);
    return done / (time - start);
}

int main(void) {
    char line[256], what[64], name[64];
    double seconds;
    puts(OpenSSL_version(OPENSSL_VERSION));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "go %lf", &seconds) == 1 && operation) {
            printf("%.6f\n", turn(seconds));
        } else {
            bytes = 0;
            int read = sscanf(line, "open %63s %63s %d", what, name, &bytes);
            puts(read >= 2 && begin(what, name) && turn(0) > 0 ? "ok" : "no");
        }
        fflush(stdout);
    }
    return 0;
}
