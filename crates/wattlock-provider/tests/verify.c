/*
 * Signs with P-256 and P-384, one by one and in jobs side by side, and prints how many signatures the provider says that it
 * verified: on the first line with the settings of the configuration, on the second after `verify` was changed to the
 * argument. Each signature is verified by OpenSSL's own provider. Exit status 0 if all were right.
 */
#include <openssl/async.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "wattlock.h"

#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)
#define JOBS 16

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static int
sign(EVP_PKEY *key)
{
    static const unsigned char  text[] = "text";
    unsigned char               signature[256];
    size_t                      len = sizeof(signature);
    EVP_MD_CTX                 *md = EVP_MD_CTX_new();

    MUST(EVP_DigestSignInit_ex(md, NULL, "SHA256", NULL, "provider=wattlock", key, NULL) == 1);
    MUST(EVP_DigestSign(md, signature, &len, text, sizeof(text)) == 1);
    EVP_MD_CTX_free(md);
    md = EVP_MD_CTX_new();
    MUST(EVP_DigestVerifyInit_ex(md, NULL, "SHA256", NULL, "provider=default", key, NULL) == 1);
    MUST(EVP_DigestVerify(md, signature, len, text, sizeof(text)) == 1);
    EVP_MD_CTX_free(md);

    return 1;
}

static int
job(void *key)
{
    return sign(*(EVP_PKEY **) key);
}

static void
sign_side_by_side(EVP_PKEY *key)
{
    ASYNC_JOB       *jobs[JOBS] = { NULL };
    ASYNC_WAIT_CTX  *waits[JOBS];
    int              i, done[JOBS] = { 0 }, left = JOBS, result;

    for (i = 0; i < JOBS; i++) {
        MUST((waits[i] = ASYNC_WAIT_CTX_new()) != NULL);
    }

    while (left > 0) {
        for (i = 0; i < JOBS; i++) {
            if (done[i]) {
                continue;
            }

            switch (ASYNC_start_job(&jobs[i], waits[i], &result, job, &key, sizeof(key))) {
            case ASYNC_PAUSE:
                break;
            case ASYNC_FINISH:
                MUST(result == 1);
                done[i] = 1;
                left--;
                break;
            default:
                die("a job that does not start", i);
            }
        }
    }

    for (i = 0; i < JOBS; i++) {
        ASYNC_WAIT_CTX_free(waits[i]);
    }
}

/* The sum of what the engines' counters say. */
static unsigned
verified(const struct wattlock_table *table)
{
    static const char  name[] = "\"verified\":";
    size_t             room = table->status(table->provider, WATTLOCK_JSON, NULL, 0) + 4096;
    char              *text = malloc(room), *at;
    unsigned           sum = 0, engines = 0;

    MUST(text != NULL && table->status(table->provider, WATTLOCK_JSON, text, room) <= room);

    for (at = text; (at = strstr(at, name)) != NULL; engines++) {
        at += sizeof(name) - 1;
        sum += strtoul(at, NULL, 10);
    }

    MUST(engines > 0);
    free(text);
    return sum;
}

int
main(int argc, char **argv)
{
    const struct wattlock_table  *table = NULL;
    OSSL_PARAM                    asked[] = { OSSL_PARAM_octet_ptr(WATTLOCK_TABLE, (void **) &table, 0),
                                              OSSL_PARAM_END };
    OSSL_PROVIDER                *ours = OSSL_PROVIDER_load(NULL, "wattlock");
    struct wattlock_setting       setting = { "verify", argc > 1 ? argv[1] : "" };
    EVP_PKEY                     *keys[2];
    char                          words[256];
    int                           round, i;

    MUST(ours != NULL && OSSL_PROVIDER_get_params(ours, asked) == 1 && table != NULL);
    MUST((keys[0] = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256")) != NULL);
    MUST((keys[1] = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-384")) != NULL);

    for (round = 0; round < 2; round++) {
        unsigned  before = verified(table);

        for (i = 0; i < 20; i++) {
            sign(keys[i % 2]);
        }

        sign_side_by_side(keys[0]);
        printf("%u\n", verified(table) - before);
        MUST(round == 1 || table->set(table->provider, &setting, 1, words, sizeof(words)) == 1);
    }

    EVP_PKEY_free(keys[0]);
    EVP_PKEY_free(keys[1]);
    OSSL_PROVIDER_unload(ours);

    return 0;
}
