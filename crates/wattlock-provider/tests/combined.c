/*
 * Several TLS records at once, as libssl asks for them, and what libssl makes of it.
 *
 *     combined calls                                     the calls, by themselves
 *     combined talk                                      whole connections, in memory
 *     combined serve PORT SUITE FRAGMENT BYTES           a server that sends so many bytes in writes of 128 KiB
 *
 * What is made with the provider is taken apart with OpenSSL's own AES and HMAC.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/provider.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#define MUST(x)                                                                                                  \
    do {                                                                                                         \
        if (!(x)) {                                                                                              \
            fprintf(stderr, "combined.c:%d: %s\n", __LINE__, #x);                                                \
            ERR_print_errors_fp(stderr);                                                                         \
            exit(1);                                                                                             \
        }                                                                                                        \
    } while (0)

typedef struct {
    const char *name, *cbc, *digest;
    size_t      key, mac;
} Suite;

static const Suite suites[] = {
    { "AES-128-CBC-HMAC-SHA1", "AES-128-CBC", "SHA1", 16, 20 },
    { "AES-256-CBC-HMAC-SHA1", "AES-256-CBC", "SHA1", 32, 20 },
    { "AES-128-CBC-HMAC-SHA256", "AES-128-CBC", "SHA256", 16, 32 },
    { "AES-256-CBC-HMAC-SHA256", "AES-256-CBC", "SHA256", 32, 32 },
};

static unsigned char key[32], mac_key[32];

static EVP_CIPHER_CTX *
context(const Suite *s, int encrypt, const char *from)
{
    EVP_CIPHER     *cipher = EVP_CIPHER_fetch(NULL, s->name, from);
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    unsigned char   iv[16] = { 7 };

    MUST(cipher != NULL && c != NULL);
    MUST(EVP_CIPHER_get_flags(cipher) & EVP_CIPH_FLAG_TLS1_1_MULTIBLOCK);
    MUST(EVP_CIPHER_get_flags(cipher) & EVP_CIPH_FLAG_AEAD_CIPHER);
    MUST(EVP_CipherInit_ex(c, cipher, NULL, key, iv, encrypt) == 1);
    MUST(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_MAC_KEY, (int) s->mac, mac_key) == 1);
    EVP_CIPHER_free(cipher);

    return c;
}

static void
header(unsigned char *h, uint64_t number, unsigned version, size_t len)
{
    int i;

    for (i = 7; i >= 0; i--, number >>= 8) {
        h[i] = (unsigned char) number;
    }

    h[8] = 23;
    h[9] = (unsigned char) (version >> 8);
    h[10] = (unsigned char) version;
    h[11] = (unsigned char) (len >> 8);
    h[12] = (unsigned char) len;
}

/* Opens one record with OpenSSL's own parts; returns its length and the text's. */
static size_t
opened(const Suite *s, const unsigned char *record, uint64_t number, const unsigned char *text, size_t *len)
{
    EVP_CIPHER     *cbc = EVP_CIPHER_fetch(NULL, s->cbc, "provider=default");
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    size_t          body = (size_t) record[3] << 8 | record[4], cipher = body - 16, mac_len = s->mac, i;
    unsigned char  *all = malloc(13 + cipher), mac[64];
    int             done = 0;

    MUST(record[0] == 23 && record[1] == 3 && record[2] == 3 && body % 16 == 0 && body > 16);
    MUST(EVP_DecryptInit_ex(c, cbc, NULL, key, record + 5) == 1 && EVP_CIPHER_CTX_set_padding(c, 0) == 1);
    MUST(EVP_DecryptUpdate(c, all + 13, &done, record + 21, (int) cipher) == 1 && (size_t) done == cipher);

    for (i = 0; i <= all[13 + cipher - 1]; i++) {
        MUST(all[13 + cipher - 1 - i] == all[13 + cipher - 1]);
    }

    MUST(i <= 16);
    *len = cipher - i - mac_len;
    MUST(memcmp(all + 13, text, *len) == 0);
    header(all, number, 0x303, *len);
    MUST(EVP_Q_mac(NULL, "HMAC", "provider=default", s->digest, NULL, mac_key, mac_len, all, 13 + *len, mac, sizeof(mac), NULL));
    MUST(memcmp(all + 13 + *len, mac, mac_len) == 0);
    free(all);
    EVP_CIPHER_CTX_free(c);
    EVP_CIPHER_free(cbc);

    return 5 + body;
}

/* One call for so many records: returns what came out, in memory of exactly its length. */
static unsigned char *
several(EVP_CIPHER_CTX *c, uint64_t number, const unsigned char *text, size_t len, unsigned records, size_t *packed)
{
    EVP_CTRL_TLS1_1_MULTIBLOCK_PARAM p;
    unsigned char                   *aad = malloc(13), *out;
    int                              told;

    /* Nothing behind the header may be read, whatever length is claimed: the sanitizer sees to that. */
    header(aad, number, 0x303, 0);
    p.out = NULL;
    p.inp = aad;
    p.len = len;
    p.interleave = records;
    told = EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_TLS1_1_MULTIBLOCK_AAD, (int) sizeof(p), &p);
    MUST(told > 0 && p.interleave == records);
    free(aad);
    *packed = (size_t) told;
    out = malloc(*packed);
    p.out = out;
    p.inp = text;
    p.len = len;
    MUST(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_TLS1_1_MULTIBLOCK_ENCRYPT, (int) sizeof(p), &p) == told);

    return out;
}

static void
records_are_right(const Suite *s)
{
    static const size_t   each[] = { 512, 1000, 3071, 3072, 3073, 3080, 4096, 6143, 6144, 6145, 15872, 16383 };
    static const uint64_t numbers[] = { 0, 1, 250, 251, 255, 0xfffe, 0xffffff00fcULL };
    EVP_CIPHER_CTX       *c = context(s, 1, "provider=wattlock");
    size_t                i, n, extra;
    unsigned              records, at;

    for (i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
        for (records = 4; records <= 8; records += 4) {
            for (extra = 0; extra < records; extra++) {
                size_t         len = each[i] * records + extra, packed, used = 0, taken = 0, one;
                unsigned char *text = malloc(len), *out;

                n = (i + extra) % (sizeof(numbers) / sizeof(numbers[0]));
                MUST(RAND_bytes(text, (int) len) == 1);
                if (each[i] + extra > 16384) {
                    free(text);
                    continue;
                }
                out = several(c, numbers[n], text, len, records, &packed);
                for (at = 0; at < records; at++) {
                    used += opened(s, out + used, numbers[n] + at, text + taken, &one);
                    /* OpenSSL, which makes those of fewer than 24 KiB in all, takes bytes of the last into each. */
                    MUST(one == each[i] + (at + 1 == records ? extra : 0)
                         || (len < 24 << 10 && at + 1 < records && one == each[i] + 1)
                         || (len < 24 << 10 && at + 1 == records && one == each[i] + extra - (records - 1)));
                    taken += one;
                }
                MUST(used == packed && taken == len);
                free(out);
                free(text);
            }
        }
    }

    EVP_CIPHER_CTX_free(c);
}

static int
by_vector(const void *a, const void *b)
{
    return memcmp(a, b, 16);
}

static void
no_vector_comes_twice(const Suite *s)
{
    enum { CALLS = 12500, TEXT = 8 * 3072 };
    EVP_CIPHER_CTX *c = context(s, 1, "provider=wattlock");
    unsigned char  *vectors = malloc(16 * 8 * CALLS), *text = calloc(1, TEXT);
    size_t          call, at, packed;

    for (call = 0; call < CALLS; call++) {
        unsigned char *out = several(c, 8 * call, text, TEXT, 8, &packed);

        for (at = 0; at < 8; at++) {
            memcpy(vectors + 16 * (8 * call + at), out + packed / 8 * at + 5, 16);
        }
        free(out);
    }

    qsort(vectors, 8 * CALLS, 16, by_vector);
    for (at = 1; at < 8 * CALLS; at++) {
        MUST(memcmp(vectors + 16 * (at - 1), vectors + 16 * at, 16) != 0);
    }

    free(vectors);
    free(text);
    EVP_CIPHER_CTX_free(c);
}

static int
ask(EVP_CIPHER_CTX *c, unsigned version, size_t said, size_t len, unsigned records)
{
    EVP_CTRL_TLS1_1_MULTIBLOCK_PARAM p;
    unsigned char                    aad[13];

    header(aad, 0, version, said);
    p.out = NULL;
    p.inp = aad;
    p.len = len;
    p.interleave = records;

    return EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_TLS1_1_MULTIBLOCK_AAD, (int) sizeof(p), &p);
}

static int
make(EVP_CIPHER_CTX *c, unsigned char *out, const unsigned char *text, size_t len, unsigned records)
{
    EVP_CTRL_TLS1_1_MULTIBLOCK_PARAM p;

    p.out = out;
    p.inp = text;
    p.len = len;
    p.interleave = records;

    return EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_TLS1_1_MULTIBLOCK_ENCRYPT, (int) sizeof(p), &p);
}

static void
nonsense_is_refused(const Suite *s)
{
    EVP_CIPHER_CTX *c = context(s, 1, "provider=wattlock"), *d = context(s, 0, "provider=wattlock");
    unsigned char  *text = calloc(1, 1 << 18), *out = calloc(1, 1 << 18);
    size_t          len;

    MUST(ask(c, 0x303, 0, 4096, 3) <= 0 && ask(c, 0x303, 0, 4096, 0) <= 0 && ask(c, 0x303, 0, 4096, 16) <= 0);
    MUST(ask(c, 0x301, 0, 4096, 4) <= 0);
    MUST(ask(c, 0x303, 0, 8 * 16384 + 1, 8) <= 0 && ask(c, 0x303, 0, 4 * 16384 + 1, 4) <= 0);
    MUST(ask(c, 0x303, 4095, 4096, 4) <= 0 && ask(c, 0x303, 4096, 13, 8) > 0 && ask(c, 0x303, 8192, 13, 4) > 0);
    MUST(ask(d, 0x303, 0, 4096, 4) <= 0);
    /* What was asked for, once, and nothing else: OpenSSL makes the short ones. */
    for (len = 4096; len <= 32768; len *= 8) {
        MUST(ask(c, 0x303, 0, len, 4) > 0 && make(c, out, text, len, 8) <= 0 && make(c, out, text, len, 4) <= 0);
        MUST(ask(c, 0x303, 0, len, 4) > 0 && make(c, out, text, len + 1, 4) <= 0);
        MUST(ask(c, 0x303, 0, len, 4) > 0 && make(c, text + 100, text, len, 4) <= 0);
        MUST(ask(c, 0x303, 0, len, 4) > 0 && make(c, out, text, len, 4) > 0 && make(c, out, text, len, 4) <= 0);
    }
    MUST(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_TLS1_1_MULTIBLOCK_MAX_BUFSIZE, 15872, NULL)
         == (int) (21 + (15872 + s->mac + 16) / 16 * 16));
    ERR_clear_error();
    free(text);
    free(out);
    EVP_CIPHER_CTX_free(c);
    EVP_CIPHER_CTX_free(d);
}

/* Records one by one: byte for byte what OpenSSL alone makes, and takes apart. */
static void
single_records_are_openssls_own(const Suite *s)
{
    static const size_t lens[] = { 0, 1, 11, 12, 27, 28, 1000, 16384 };
    const char         *from[] = { "provider=wattlock", "provider=default" };
    size_t              i, of;

    for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        unsigned char *out[2], aad[13], *back[2];
        size_t         whole = 16 + (lens[i] + s->mac + 16) / 16 * 16;

        for (of = 0; of < 2; of++) {
            EVP_CIPHER_CTX *c = context(s, 1, from[of]), *d = context(s, 0, from[of]), *copy = EVP_CIPHER_CTX_new();
            int             pad;

            MUST(EVP_CIPHER_CTX_copy(copy, c) == 1);
            out[of] = calloc(1, whole + 64);
            back[of] = calloc(1, whole + 64);
            memset(out[of], 0x5a, 16 + lens[i]);
            header(aad, 9, 0x303, 16 + lens[i]);
            pad = EVP_CIPHER_CTX_ctrl(copy, EVP_CTRL_AEAD_TLS1_AAD, 13, aad);
            MUST(pad > 0 && 16 + lens[i] + (size_t) pad == whole);
            MUST(EVP_Cipher(copy, out[of], out[of], (unsigned) whole) > 0);
            memcpy(back[of], out[of], whole);
            header(aad, 9, 0x303, whole);
            MUST(EVP_CIPHER_CTX_ctrl(d, EVP_CTRL_AEAD_TLS1_AAD, 13, aad) == (int) s->mac);
            MUST(EVP_Cipher(d, back[of], back[of], (unsigned) whole) > 0);
            back[of][20] ^= 1;
            header(aad, 10, 0x303, whole);
            MUST(EVP_CIPHER_CTX_ctrl(d, EVP_CTRL_AEAD_TLS1_AAD, 13, aad) == (int) s->mac);
            MUST(EVP_Cipher(d, back[of], back[of], (unsigned) whole) <= 0);
            EVP_CIPHER_CTX_free(c);
            EVP_CIPHER_CTX_free(d);
            EVP_CIPHER_CTX_free(copy);
        }
        MUST(memcmp(out[0], out[1], whole) == 0);
        for (of = 0; of < 2; of++) {
            free(out[of]);
            free(back[of]);
        }
        ERR_clear_error();
    }
}

static void
calls(void)
{
    size_t i;

    MUST(RAND_bytes(key, sizeof(key)) == 1 && RAND_bytes(mac_key, sizeof(mac_key)) == 1);
    for (i = 0; i < sizeof(suites) / sizeof(suites[0]); i++) {
        records_are_right(&suites[i]);
        nonsense_is_refused(&suites[i]);
        single_records_are_openssls_own(&suites[i]);
    }

    no_vector_comes_twice(&suites[0]);
}

static unsigned long messages;

static void
noted(int out, int version, int type, const void *buf, size_t len, SSL *ssl, void *arg)
{
    (void) out, (void) version, (void) buf, (void) len, (void) ssl, (void) arg;
    messages += type == SSL3_RT_HEADER;
}

static SSL_CTX *
server_of(const char *suite, int fragment)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());

    MUST(ctx != NULL && SSL_CTX_use_certificate_file(ctx, "rsa.crt", SSL_FILETYPE_PEM) == 1);
    MUST(SSL_CTX_use_PrivateKey_file(ctx, "rsa.key", SSL_FILETYPE_PEM) == 1);
    MUST(SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION) == 1 && SSL_CTX_set_cipher_list(ctx, suite) == 1);
    SSL_CTX_set_options(ctx, SSL_OP_NO_ENCRYPT_THEN_MAC);
    SSL_CTX_clear_options(ctx, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_options(ctx, SSL_OP_ALLOW_CLIENT_RENEGOTIATION);
    MUST(SSL_CTX_set_max_send_fragment(ctx, fragment) == 1);

    return ctx;
}

/* The longest record's length of those that lie in memory. */
static size_t
longest(BIO *bio)
{
    unsigned char *at;
    size_t         left = (size_t) BIO_get_mem_data(bio, (char **) &at), most = 0;

    while (left >= 5) {
        size_t one = (size_t) at[3] << 8 | at[4];

        most = one > most ? one : most;
        MUST(left >= 5 + one);
        at += 5 + one;
        left -= 5 + one;
    }

    return most;
}

static void
hands(SSL *a, SSL *b)
{
    int i, x = 0, y = 0;

    for (i = 0; i < 20 && (x != 1 || y != 1); i++) {
        x = SSL_do_handshake(a);
        y = SSL_do_handshake(b);
    }

    MUST(x == 1 && y == 1);
}

/* New keys, and numbers from 0, in the same connection. */
static void
again(SSL *server, SSL *client)
{
    unsigned char before[64], after[64], none;
    size_t        len = SSL_get_finished(server, before, sizeof(before)), i;

    MUST(SSL_renegotiate(server) == 1);
    for (i = 0; i < 10; i++) {
        SSL_do_handshake(server);
        MUST(SSL_read(client, &none, 1) <= 0 && SSL_read(server, &none, 1) <= 0);
    }

    MUST(SSL_renegotiate_pending(server) == 0 && SSL_is_init_finished(server) && SSL_is_init_finished(client));
    MUST(SSL_get_finished(server, after, sizeof(after)) == len && memcmp(before, after, len) != 0);
}

static void
sent(SSL *from, SSL *to, size_t len, size_t record)
{
    unsigned char *text = malloc(len), *back = malloc(len);
    size_t         taken = 0;

    MUST(RAND_bytes(text, (int) len) == 1);
    MUST(SSL_write(from, text, (int) len) == (int) len);
    MUST(record == 0 || longest(SSL_get_wbio(from)) == record);
    while (taken < len) {
        int got = SSL_read(to, back + taken, (int) (len - taken));

        MUST(got > 0);
        taken += (size_t) got;
    }

    MUST(memcmp(text, back, len) == 0);
    free(text);
    free(back);
}

static void
talk(void)
{
    static const char  *names[] = { "AES128-SHA", "AES256-SHA", "AES128-SHA256", "AES256-SHA256" };
    static const int    fragments[] = { 512, 700, 1024, 4096, 16384 };
    static const size_t lens[] = { 65535, 65536, 65537, 1, 131072, 63488, 126976, 200001 };
    OSSL_LIB_CTX       *alone = OSSL_LIB_CTX_new();
    OSSL_PROVIDER      *plain = OSSL_PROVIDER_load(alone, "default");
    SSL_CTX            *client = SSL_CTX_new_ex(alone, NULL, TLS_client_method());
    size_t              i, f, n;

    MUST(client != NULL && SSL_CTX_set_cipher_list(client, "ALL:@SECLEVEL=0") == 1);
    for (i = 0; i < 4; i++) {
        const Suite *s = &suites[i];

        for (f = 0; f < sizeof(fragments) / sizeof(fragments[0]); f++) {
            SSL_CTX *ctx = server_of(names[i], fragments[f]);
            SSL     *a = SSL_new(ctx), *b = SSL_new(client);
            BIO     *one = BIO_new(BIO_s_mem()), *two = BIO_new(BIO_s_mem());
            /* 15,872 bytes of text instead of 16,384, and the like: libssl's sign that it hands over several. */
            size_t   text = (size_t) fragments[f] - (fragments[f] % 4096 == 0 ? 512 : 0);
            size_t   record = 16 + (text + s->mac + 16) / 16 * 16;

            BIO_up_ref(one);
            BIO_up_ref(two);
            SSL_set_bio(a, one, two);
            SSL_set_bio(b, two, one);
            SSL_set_accept_state(a);
            SSL_set_connect_state(b);
            hands(a, b);
            MUST(strcmp(SSL_get_cipher_name(a), names[i]) == 0);
            for (n = 0; n < sizeof(lens) / sizeof(lens[0]); n++) {
                /* Whole calls only: the rest of a write goes in single records, which are longer. */
                sent(a, b, lens[n], lens[n] == 8 * text ? record : 0);
                sent(b, a, 17, 0);
            }
            /* Beyond record 255 of small fragments, and beyond 65,535 of the smallest. */
            for (n = 0; n < (fragments[f] == 512 ? 270 : 20); n++) {
                sent(a, b, 8 * text * (fragments[f] == 512 ? 32 : 3), record);
            }
            again(a, b);
            sent(a, b, 131072, 0);
            sent(b, a, 131072, 0);
            messages = 0;
            SSL_set_msg_callback(a, noted);
            sent(a, b, 131072, 0);
            /* Each record was told of, so none came in a call for several. */
            MUST(messages == (131072 + (unsigned long) fragments[f] - 1) / (unsigned long) fragments[f]);
            SSL_set_msg_callback(a, NULL);
            sent(a, b, 8 * text, record);
            SSL_free(a);
            SSL_free(b);
            SSL_CTX_free(ctx);
        }
    }

    SSL_CTX_free(client);
    OSSL_PROVIDER_unload(plain);
    OSSL_LIB_CTX_free(alone);
}

static void
serve(int port, const char *suite, int fragment, size_t bytes)
{
    SSL_CTX           *ctx = server_of(suite, fragment);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t) port) };
    int                listening = socket(AF_INET, SOCK_STREAM, 0), on = 1, fd;
    unsigned char     *text = malloc(131072);
    size_t             i, done;
    SSL               *ssl;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (i = 0; i < 131072; i++) {
        text[i] = (unsigned char) ("0123456789abcdef"[i % 16]);
    }
    MUST(setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
    MUST(bind(listening, (struct sockaddr *) &at, sizeof(at)) == 0 && listen(listening, 4) == 0);
    puts("listening");
    fflush(stdout);
    alarm(120);
    MUST((fd = accept(listening, NULL, NULL)) >= 0);
    MUST((ssl = SSL_new(ctx)) != NULL && SSL_set_fd(ssl, fd) == 1 && SSL_accept(ssl) == 1);
    for (done = 0; done < bytes; done += 131072) {
        MUST(SSL_write(ssl, text, 131072) == 131072);
    }
    SSL_shutdown(ssl);
    SSL_shutdown(ssl);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    close(listening);
    free(text);
}

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "calls") == 0) {
        calls();
    } else if (argc == 2 && strcmp(argv[1], "talk") == 0) {
        talk();
    } else if (argc == 6 && strcmp(argv[1], "serve") == 0) {
        serve(atoi(argv[2]), argv[3], atoi(argv[4]), (size_t) atol(argv[5]));
    } else {
        return 2;
    }

    puts("good");

    return 0;
}
