/* OpenSSL's own calls in a loop of half a second of processor time; prints operations a second.
   peer (p256|p384|x25519) (derive|both); both: a fresh pair, then a shared secret with it. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/ec.h>
#include <openssl/ecdh.h>
#include <openssl/evp.h>
#include <openssl/obj_mac.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static unsigned char secret[64];

/* The low-level calls, without the provider layer. */
static int nist(EC_KEY *key, const EC_KEY *peer, int fresh) {
    return (!fresh || EC_KEY_generate_key(key)) &&
           ECDH_compute_key(secret, sizeof secret, EC_KEY_get0_public_key(peer), key, NULL) > 0;
}

/* X25519 has no lower public calls than these. */
static int x25519(EVP_PKEY_CTX *generate, EVP_PKEY *key, EVP_PKEY *peer, int fresh) {
    EVP_PKEY *made = NULL;
    size_t length = sizeof secret;
    if (fresh && EVP_PKEY_keygen(generate, &made) <= 0) return 0;
    EVP_PKEY_CTX *derive = EVP_PKEY_CTX_new(fresh ? made : key, NULL);
    int good = derive && EVP_PKEY_derive_init(derive) > 0 && EVP_PKEY_derive_set_peer(derive, peer) > 0 &&
               EVP_PKEY_derive(derive, secret, &length) > 0;
    EVP_PKEY_CTX_free(derive);
    EVP_PKEY_free(made);
    return good;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int fresh = !strcmp(words[2], "both"), nid = !strcmp(words[1], "p384") ? NID_secp384r1 : NID_X9_62_prime256v1;
    int montgomery = !strcmp(words[1], "x25519"), good = 1;
    EC_KEY *key = NULL, *peer = NULL;
    EVP_PKEY *x_key = NULL, *x_peer = NULL;
    EVP_PKEY_CTX *generate = NULL;
    if (montgomery) {
        generate = EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, NULL);
        good = generate && EVP_PKEY_keygen_init(generate) > 0 && EVP_PKEY_keygen(generate, &x_key) > 0 &&
               EVP_PKEY_keygen(generate, &x_peer) > 0;
    } else {
        key = EC_KEY_new_by_curve_name(nid);
        peer = EC_KEY_new_by_curve_name(nid);
        good = key && peer && EC_KEY_generate_key(key) && EC_KEY_generate_key(peer);
    }
    clock_t start = clock(), now = start;
    long done = 0;
    while (good && now - start < CLOCKS_PER_SEC / 2) {
        for (int i = 0; good && i < 16; i++, done++)
            good = montgomery ? x25519(generate, x_key, x_peer, fresh) : nist(key, peer, fresh);
        now = clock();
    }
    if (!good) return 1;
    printf("%.1f\n", done * (double)CLOCKS_PER_SEC / (now - start));
    return 0;
}
