/*
 * ML-KEM-768 and X25519MLKEM768 through the provider, without sockets; public calls of libssl and libcrypto only, one
 * scenario a run:
 *
 *     mlkem SCENARIO openssl.cnf [N]
 *
 * Server, client and keys belong to one library context that the file configures. Shares that a peer must refuse are
 * made from those of a real handshake: the first flight of either side is plain text. Exit status 0 if all went as it
 * must; else a line says what did not.
 */
#include <openssl/async.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/proverr.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HYBRID "X25519MLKEM768"
#define HYBRID_ID 0x11ec
#define PLAIN "ML-KEM-768"
#define PUBLIC 1184
#define PRIVATE 2400
#define CIPHERTEXT 1088
#define SHARE (PUBLIC + 32)
#define ILLEGAL_PARAMETER 47
#define DECODE_ERROR 50
/* PROV_R_NULL_LENGTH_POINTER, which OpenSSL 3.0 has no name for. */
#define NULL_LENGTH 247
#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)

static OSSL_LIB_CTX  *ctx;
static SSL_CTX       *server_ctx, *client_ctx;

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    ERR_print_errors_fp(stderr);
    _exit(1);
}

/* ---- connections ---- */

typedef struct {
    SSL  *ssl;
    BIO  *in, *out;
} End;

static void
make_contexts(int async)
{
    EVP_PKEY  *key = EVP_PKEY_Q_keygen(ctx, NULL, "EC", "P-256");
    X509      *leaf = X509_new_ex(ctx, NULL);

    SSL_CTX_free(server_ctx);
    SSL_CTX_free(client_ctx);
    MUST((server_ctx = SSL_CTX_new_ex(ctx, NULL, TLS_server_method())) != NULL && key != NULL && leaf != NULL);
    MUST((client_ctx = SSL_CTX_new_ex(ctx, NULL, TLS_client_method())) != NULL);
    MUST(X509_set_pubkey(leaf, key) && ASN1_INTEGER_set(X509_get_serialNumber(leaf), 1));
    MUST(X509_gmtime_adj(X509_getm_notBefore(leaf), -60) && X509_gmtime_adj(X509_getm_notAfter(leaf), 86400));
    MUST(X509_sign(leaf, key, EVP_sha256()) > 0);
    MUST(SSL_CTX_use_certificate(server_ctx, leaf) == 1 && SSL_CTX_use_PrivateKey(server_ctx, key) == 1);

    if (async) {
        SSL_CTX_set_mode(server_ctx, SSL_MODE_ASYNC);
        SSL_CTX_set_mode(client_ctx, SSL_MODE_ASYNC);
    }

    X509_free(leaf);
    EVP_PKEY_free(key);
}

static End
end_of(SSL_CTX *of, const char *groups, int is_server)
{
    End  end = { SSL_new(of), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()) };

    MUST(end.ssl != NULL && end.in != NULL && end.out != NULL && SSL_set1_groups_list(end.ssl, groups) == 1);
    BIO_set_mem_eof_return(end.in, -1);
    SSL_set_bio(end.ssl, end.in, end.out);
    is_server ? SSL_set_accept_state(end.ssl) : SSL_set_connect_state(end.ssl);

    return end;
}

/* As far as it comes alone: 1 when done, 0 if it waits for the peer, -1 if it failed. */
static int
step(End *end, long *pauses)
{
    int  done, why;

    for ( ;; ) {
        ERR_clear_error();
        done = SSL_do_handshake(end->ssl);
        why = SSL_get_error(end->ssl, done);

        if (done == 1) {
            return 1;
        }

        if (why != SSL_ERROR_WANT_ASYNC) {
            return why == SSL_ERROR_WANT_READ ? 0 : -1;
        }

        *pauses += 1;
    }
}

/* Whatever one has written, up to a limit; its length. */
static size_t
taken(End *from, unsigned char *room, size_t most)
{
    int  len = BIO_read(from->out, room, (int) most);

    return len > 0 ? (size_t) len : 0;
}

static void
give(End *to, const unsigned char *bytes, size_t len)
{
    MUST(len == 0 || BIO_write(to->in, bytes, (int) len) == (int) len);
}

static void
carry(End *from, End *to)
{
    unsigned char  room[1 << 15];
    size_t         len;

    while ((len = taken(from, room, sizeof(room))) > 0) {
        give(to, room, len);
    }
}

/* A whole handshake and a word each way. Returns the negotiated group, or -1 if either side failed. */
static int
shake(const char *client_groups, const char *server_groups, long *pauses)
{
    End   client = end_of(client_ctx, client_groups, 0), server = end_of(server_ctx, server_groups, 1);
    int   c = 0, s = 0, rounds, group = -1;
    char  word[8];

    for (rounds = 0; rounds < 20 && c >= 0 && s >= 0 && !(c == 1 && s == 1); rounds++) {
        c = step(&client, pauses);
        carry(&client, &server);
        s = step(&server, pauses);
        carry(&server, &client);
    }

    if (c == 1 && s == 1) {
        MUST(SSL_write(client.ssl, "hello", 5) == 5);
        carry(&client, &server);
        MUST(SSL_read(server.ssl, word, 8) == 5 && memcmp(word, "hello", 5) == 0);
        group = SSL_get_negotiated_group(client.ssl) & 0xffff;
        MUST(group == (SSL_get_negotiated_group(server.ssl) & 0xffff));
    }

    SSL_free(client.ssl);
    SSL_free(server.ssl);
    return group;
}

static void
handshakes(int count)
{
    long  pauses = 0;
    int   i;

    make_contexts(0);

    for (i = 0; i < count; i++) {
        MUST(shake(HYBRID, HYBRID ":X25519", &pauses) == HYBRID_ID);
    }

    MUST(shake("MLKEM768", "MLKEM768:" HYBRID, &pauses) == 0x0201);
    MUST(shake("X25519:" HYBRID, HYBRID ":X25519", &pauses) != -1);
    /* The server says that it wants another share (RFC 8446 section 4.1.4). */
    MUST(shake("P-256:" HYBRID, HYBRID, &pauses) == HYBRID_ID);
    /* Nothing in common, and a group that TLS 1.2 must not use. */
    MUST(shake("P-256", HYBRID, &pauses) == -1);
    MUST(SSL_CTX_set_max_proto_version(client_ctx, TLS1_2_VERSION) == 1);
    MUST(shake(HYBRID, HYBRID, &pauses) == -1 && shake(HYBRID ":P-256", HYBRID ":P-256", &pauses) != HYBRID_ID);
    MUST(pauses == 0);
}

/* One call for an end: whether it paused. `state` becomes as `step` has it. */
static int
one_call(End *end, int *state)
{
    int  done, why;

    if (*state != 0) {
        return 0;
    }

    ERR_clear_error();
    done = SSL_do_handshake(end->ssl);
    why = SSL_get_error(end->ssl, done);
    *state = done == 1 ? 1 : why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_ASYNC ? 0 : -1;
    return why == SSL_ERROR_WANT_ASYNC;
}

/* So many connections at once in one thread, whose jobs pause. */
static void
paused(int count)
{
    End   *clients = calloc((size_t) count, sizeof(End)), *servers = calloc((size_t) count, sizeof(End));
    int   *states = calloc(2 * (size_t) count, sizeof(int)), i, round, open = 2 * count;
    long  pauses = 0;

    MUST(clients != NULL && servers != NULL && states != NULL);
    make_contexts(1);

    for (i = 0; i < count; i++) {
        clients[i] = end_of(client_ctx, HYBRID, 0);
        servers[i] = end_of(server_ctx, HYBRID, 1);
    }

    for (round = 0; round < 1000 && open > 0; round++) {
        for (i = open = 0; i < count; i++) {
            pauses += one_call(&clients[i], &states[2 * i]);
            carry(&clients[i], &servers[i]);
            pauses += one_call(&servers[i], &states[2 * i + 1]);
            carry(&servers[i], &clients[i]);
            MUST(states[2 * i] >= 0 && states[2 * i + 1] >= 0);
            open += (states[2 * i] == 0) + (states[2 * i + 1] == 0);
        }
    }

    MUST(open == 0 && pauses >= count);

    for (i = 0; i < count; i++) {
        MUST((SSL_get_negotiated_group(servers[i].ssl) & 0xffff) == HYBRID_ID);
        SSL_free(clients[i].ssl);
        SSL_free(servers[i].ssl);
    }

    free(clients);
    free(servers);
    free(states);
}

/* ---- shares that must be refused ---- */

typedef struct {
    unsigned char  bytes[1 << 13];
    size_t         len;
    size_t         lens[6];   /* where lengths lie that count the share, and how many there are */
    int            wide[6], count;
    size_t         group, share, share_len;
} Flight;

static size_t
number(const unsigned char *at, int wide)
{
    size_t  n = 0;

    while (wide-- > 0) {
        n = n << 8 | *at++;
    }

    return n;
}

static void
counts(Flight *f, size_t at, int wide)
{
    f->lens[f->count] = at;
    f->wide[f->count++] = wide;
}

/* Finds the only share in the hello that begins a flight. */
static void
parse(Flight *f, int is_client)
{
    const unsigned char  *b = f->bytes;
    size_t               at = 5 + 4 + 2 + 32, end, type, len;

    f->count = 0;
    counts(f, 3, 2);
    counts(f, 6, 3);
    MUST(f->len > 64 && b[0] == 22 && b[5] == (is_client ? 1 : 2));
    at += 1 + b[at];
    at += is_client ? 2 + number(b + at, 2) : 2;
    at += is_client ? 1 + b[at] : 1;
    counts(f, at, 2);
    end = at + 2 + number(b + at, 2);
    at += 2;

    while (at + 4 <= end) {
        type = number(b + at, 2);
        len = number(b + at + 2, 2);

        if (type == 51) {
            counts(f, at + 2, 2);
            at += 4;

            if (is_client) {
                counts(f, at, 2);
                at += 2;
            }

            f->group = at;
            counts(f, at + 2, 2);
            f->share = at + 4;
            f->share_len = number(b + at + 2, 2);
            return;
        }

        at += 4 + len;
    }

    die("no share in it", __LINE__);
}

/* Makes the share longer, by zeroes, or cuts its end off. */
static void
resize(Flight *f, size_t to)
{
    size_t  end = f->share + f->share_len, n;
    int     i, w;

    MUST(f->len + to < sizeof(f->bytes));
    memmove(f->bytes + f->share + to, f->bytes + end, f->len - end);

    if (to > f->share_len) {
        memset(f->bytes + end, 0, to - f->share_len);
    }

    for (i = 0; i < f->count; i++) {
        n = number(f->bytes + f->lens[i], f->wide[i]) + to - f->share_len;

        for (w = f->wide[i]; w > 0; w--, n >>= 8) {
            f->bytes[f->lens[i] + w - 1] = (unsigned char) n;
        }
    }

    f->len += to - f->share_len;
    f->share_len = to;
}

enum { SAME, CUT, SHORT, LONGER, EMPTY, JUST_X25519, JUST_MLKEM, SWAPPED, NOT_REDUCED, LAST_NOT_REDUCED, ZERO_POINT,
       OTHER_GROUP, NO_GROUP, CHANGED_SEED, CHANGED_POINT, CASES };

static void
spoil(Flight *f, int how)
{
    unsigned char  *share = f->bytes + f->share, point[32];
    size_t         kem = f->share_len - 32;

    switch (how) {
    case CUT:
        resize(f, f->share_len - 1);
        break;
    case SHORT:
        resize(f, 1);
        break;
    case LONGER:
        resize(f, f->share_len + 1);
        break;
    case EMPTY:
        resize(f, 0);
        break;
    case JUST_X25519:
        resize(f, 32);
        break;
    case JUST_MLKEM:
        resize(f, kem);
        break;
    case SWAPPED:
        memcpy(point, share + kem, 32);
        memmove(share + 32, share, kem);
        memcpy(share, point, 32);
        break;
    case NOT_REDUCED:
        /* 3329 itself. */
        share[0] = 0x01;
        share[1] = (share[1] & 0xf0) | 0x0d;
        break;
    case LAST_NOT_REDUCED:
        share[1150] |= 0xf0;
        share[1151] = 0xff;
        break;
    case ZERO_POINT:
        memset(share + kem, 0, 32);
        break;
    case OTHER_GROUP:
        f->bytes[f->group] = 0;
        f->bytes[f->group + 1] = 29;
        break;
    case NO_GROUP:
        f->bytes[f->group] = 0x99;
        break;
    case CHANGED_SEED:
        share[kem - 1] ^= 1;
        break;
    case CHANGED_POINT:
        share[kem] ^= 2;
        break;
    }
}

/* The alert that an end has sent, 0 if none. */
static int
alert_of(End *end)
{
    unsigned char  room[1 << 14];
    size_t         len = taken(end, room, sizeof(room)), at = 0;

    while (at + 7 <= len) {
        if (room[at] == 21) {
            return room[at + 6];
        }

        at += 5 + number(room + at + 3, 2);
    }

    return 0;
}

/* A server gets a client's spoilt share. What it says to that, and whether it went on. */
static int
server_says(int how, int *went_on)
{
    End     client = end_of(client_ctx, HYBRID, 0), server = end_of(server_ctx, HYBRID, 1);
    Flight  f;
    long    pauses = 0;
    int     s, c, alert;

    MUST(step(&client, &pauses) == 0);
    f.len = taken(&client, f.bytes, sizeof(f.bytes));
    parse(&f, 1);
    MUST(f.share_len == SHARE && number(f.bytes + f.group, 2) == HYBRID_ID);
    spoil(&f, how);
    give(&server, f.bytes, f.len);
    s = step(&server, &pauses);
    *went_on = s == 0;

    if (s == 0) {
        /* The client learns that the handshakes were two different ones. */
        carry(&server, &client);
        c = step(&client, &pauses);
        MUST(how == SAME ? c == -1 || c == 1 : c != 1);
        carry(&client, &server);
        MUST(how == SAME || step(&server, &pauses) != 1);
    }

    alert = alert_of(&server);
    SSL_free(client.ssl);
    SSL_free(server.ssl);
    return alert;
}

/* A client gets a server's spoilt share. */
static int
client_says(int how, int *went_on)
{
    End     client = end_of(client_ctx, HYBRID, 0), server = end_of(server_ctx, HYBRID, 1);
    Flight  f;
    long    pauses = 0;
    int     c, alert;

    MUST(step(&client, &pauses) == 0);
    carry(&client, &server);
    MUST(step(&server, &pauses) == 0);
    f.len = taken(&server, f.bytes, sizeof(f.bytes));
    parse(&f, 0);
    MUST(f.share_len == CIPHERTEXT + 32);
    spoil(&f, how);
    give(&client, f.bytes, f.len);
    c = step(&client, &pauses);
    *went_on = c == 1;
    alert = alert_of(&client);
    SSL_free(client.ssl);
    SSL_free(server.ssl);
    return alert;
}

static void
shares(int async)
{
    int  how, alert, went_on;

    make_contexts(async);

    for (how = 0; how < CASES; how++) {
        alert = server_says(how, &went_on);

        if (how == SAME || how == CHANGED_SEED || how == CHANGED_POINT || how == NO_GROUP) {
            /* In order as far as a server can see; of no group that is offered another share is asked for. */
            MUST(went_on || how == NO_GROUP);
            MUST(how != SAME || alert == 0);
        } else if (how == EMPTY) {
            MUST(!went_on && (alert == ILLEGAL_PARAMETER || alert == DECODE_ERROR));
        } else if (how == OTHER_GROUP) {
            /* A share of a group that the client does not offer (RFC 8446 section 4.2.8). */
            MUST(!went_on && alert == ILLEGAL_PARAMETER);
        } else if (how == ZERO_POINT) {
            /* Found when the secret is derived, which libssl takes for a failure of its own. */
            MUST(!went_on && alert != 0);
        } else {
            MUST(!went_on && alert == ILLEGAL_PARAMETER);
        }

        alert = client_says(how, &went_on);
        MUST(went_on == (how == SAME) && (alert != 0) == (how != SAME));
    }
}

/* A client that repeats the share that it was not asked for, or sends one cut, after a HelloRetryRequest. */
static void
retried(void)
{
    End     client, server;
    Flight  f;
    long    pauses = 0;
    int     how;

    make_contexts(0);

    for (how = 0; how < CASES; how++) {
        client = end_of(client_ctx, "P-256:" HYBRID, 0);
        server = end_of(server_ctx, HYBRID, 1);
        MUST(step(&client, &pauses) == 0);
        carry(&client, &server);
        MUST(step(&server, &pauses) == 0);
        carry(&server, &client);
        MUST(step(&client, &pauses) == 0);
        f.len = taken(&client, f.bytes, sizeof(f.bytes));

        if (f.bytes[0] == 20) {
            /* The record that is there for old middleboxes. */
            f.len -= 6;
            memmove(f.bytes, f.bytes + 6, f.len);
        }

        parse(&f, 1);
        MUST(f.share_len == SHARE && number(f.bytes + f.group, 2) == HYBRID_ID);
        spoil(&f, how);
        give(&server, f.bytes, f.len);
        MUST((step(&server, &pauses) == 0) == (how == SAME || how == CHANGED_SEED || how == CHANGED_POINT));
        SSL_free(client.ssl);
        SSL_free(server.ssl);
    }

    /* The share of before once more. */
    client = end_of(client_ctx, "P-256:" HYBRID, 0);
    server = end_of(server_ctx, HYBRID, 1);
    MUST(step(&client, &pauses) == 0);
    f.len = taken(&client, f.bytes, sizeof(f.bytes));
    give(&server, f.bytes, f.len);
    MUST(step(&server, &pauses) == 0);
    give(&server, f.bytes, f.len);
    MUST(step(&server, &pauses) == -1 && alert_of(&server) == ILLEGAL_PARAMETER);
    SSL_free(client.ssl);
    SSL_free(server.ssl);
}

/* A hello of more than one packet comes byte by byte, and stops anywhere. */
static void
pieces(void)
{
    End     client = end_of(client_ctx, HYBRID, 0), server = end_of(server_ctx, HYBRID, 1);
    Flight  f;
    long    pauses = 0;
    size_t  at;

    MUST(step(&client, &pauses) == 0);
    f.len = taken(&client, f.bytes, sizeof(f.bytes));
    MUST(f.len > SHARE);

    for (at = 0; at < f.len; at++) {
        MUST(at == 0 || step(&server, &pauses) == 0);
        MUST(BIO_pending(server.out) == 0);
        give(&server, f.bytes + at, 1);
    }

    MUST(step(&server, &pauses) == 0 && BIO_pending(server.out) > CIPHERTEXT);
    SSL_free(client.ssl);
    SSL_free(server.ssl);

    for (at = 0; at < f.len; at += 97) {
        server = end_of(server_ctx, HYBRID, 1);
        give(&server, f.bytes, at);
        MUST(step(&server, &pauses) == 0);
        SSL_free(server.ssl);
    }
}

/* ---- keys ---- */

/* A key of these; any may be missing. */
static EVP_PKEY *
key_of(const char *type, const unsigned char *pub, size_t pub_len, const unsigned char *priv, size_t priv_len,
    const unsigned char *seed, size_t seed_len)
{
    OSSL_PARAM_BLD  *build = OSSL_PARAM_BLD_new();
    EVP_PKEY_CTX    *making = EVP_PKEY_CTX_new_from_name(ctx, type, NULL);
    EVP_PKEY        *key = NULL;
    OSSL_PARAM      *params;

    MUST(pub == NULL || OSSL_PARAM_BLD_push_octet_string(build, "pub", pub, pub_len));
    MUST(priv == NULL || OSSL_PARAM_BLD_push_octet_string(build, "priv", priv, priv_len));
    MUST(seed == NULL || OSSL_PARAM_BLD_push_octet_string(build, "seed", seed, seed_len));
    MUST((params = OSSL_PARAM_BLD_to_param(build)) != NULL && EVP_PKEY_fromdata_init(making) == 1);

    if (EVP_PKEY_fromdata(making, &key, EVP_PKEY_KEYPAIR, params) != 1) {
        key = NULL;
    }

    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(build);
    EVP_PKEY_CTX_free(making);
    return key;
}

static EVP_PKEY *
generated(const char *type)
{
    EVP_PKEY_CTX  *making = EVP_PKEY_CTX_new_from_name(ctx, type, NULL);
    EVP_PKEY      *key = NULL;

    MUST(making != NULL && EVP_PKEY_keygen_init(making) == 1 && EVP_PKEY_generate(making, &key) == 1);
    EVP_PKEY_CTX_free(making);
    return key;
}

static size_t
octets(EVP_PKEY *key, const char *name, unsigned char *room, size_t most)
{
    size_t  len = 0;

    return EVP_PKEY_get_octet_string_param(key, name, room, most, &len) == 1 ? len : 0;
}

/* Whether it encapsulates, to so many bytes each. `fresh` is its randomness, or null. */
static int
wrap(EVP_PKEY *key, const unsigned char *fresh, unsigned char *text, size_t *text_len, unsigned char *secret,
    size_t *secret_len)
{
    EVP_PKEY_CTX  *use = EVP_PKEY_CTX_new_from_pkey(ctx, key, NULL);
    OSSL_PARAM    params[2] = { OSSL_PARAM_END, OSSL_PARAM_END };
    int           done;

    if (fresh != NULL) {
        params[0] = OSSL_PARAM_construct_octet_string("ikme", (void *) fresh, 32);
    }

    done = EVP_PKEY_encapsulate_init(use, params) == 1
        && EVP_PKEY_encapsulate(use, text, text_len, secret, secret_len) == 1;
    EVP_PKEY_CTX_free(use);
    return done;
}

static int
unwrap(EVP_PKEY *key, const unsigned char *text, size_t text_len, unsigned char *secret, size_t *secret_len)
{
    EVP_PKEY_CTX  *use = EVP_PKEY_CTX_new_from_pkey(ctx, key, NULL);
    int           done;

    done = EVP_PKEY_decapsulate_init(use, NULL) == 1
        && EVP_PKEY_decapsulate(use, secret, secret_len, text, text_len) == 1;
    EVP_PKEY_CTX_free(use);
    return done;
}

/* A key of a type, and a ciphertext with its secret; `more` is what X25519 adds to everything. */
typedef struct {
    const char     *type;
    size_t         more, text_len, secret_len;
    EVP_PKEY       *key;
    unsigned char  pub[SHARE], priv[PRIVATE + 32], text[CIPHERTEXT + 32], secret[64];
} Case;

/* Lengths are told, and must be there. */
static void
rooms(Case *c)
{
    EVP_PKEY_CTX   *use = EVP_PKEY_CTX_new_from_pkey(ctx, c->key, NULL);
    size_t         len;
    unsigned char  other[64];

    MUST(EVP_PKEY_get_bits(c->key) == 768 && EVP_PKEY_get_security_bits(c->key) == 192);
    MUST(EVP_PKEY_get_size(c->key) == (int) (CIPHERTEXT + c->more) && EVP_PKEY_is_a(c->key, c->type));
    MUST(octets(c->key, "pub", c->pub, SHARE) == (c->more ? 0 : PUBLIC));
    MUST(octets(c->key, "encoded-pub-key", c->pub, SHARE) == PUBLIC + c->more);
    MUST(octets(c->key, "priv", c->priv, PRIVATE + 32) == PRIVATE + c->more);
    MUST(octets(c->key, "encoded-pub-key", c->text, CIPHERTEXT + 32) == 0);
    MUST(EVP_PKEY_encapsulate_init(use, NULL) == 1);
    MUST(EVP_PKEY_encapsulate(use, NULL, &c->text_len, NULL, &c->secret_len) == 1);
    MUST(c->text_len == CIPHERTEXT + c->more && c->secret_len == 32 + c->more);
    len = c->text_len - 1;
    MUST(EVP_PKEY_encapsulate(use, c->text, &len, c->secret, &c->secret_len) != 1);
    len = c->secret_len - 1;
    MUST(EVP_PKEY_encapsulate(use, c->text, &c->text_len, c->secret, &len) != 1);
    c->secret_len = sizeof(c->secret);
    MUST(EVP_PKEY_encapsulate(use, c->text, &c->text_len, c->secret, &c->secret_len) == 1);
    MUST(c->text_len == CIPHERTEXT + c->more && c->secret_len == 32 + c->more);
    EVP_PKEY_CTX_free(use);

    len = sizeof(other);
    MUST(!unwrap(c->key, c->text, c->text_len - 1, other, &len) && !unwrap(c->key, c->text, 0, other, &len));
    MUST(!unwrap(c->key, c->text, 32, other, &len) && !unwrap(c->key, NULL, 0, other, &len));
    len = c->secret_len - 1;
    MUST(!unwrap(c->key, c->text, c->text_len, other, &len));
}

/* The same secret for the key, its copy, and the key made anew of its private half; for other ciphertexts of ML-KEM
   another one, always the same, and no error. */
static void
secrets(Case *c)
{
    EVP_PKEY       *again = key_of(c->type, NULL, 0, c->priv, PRIVATE + c->more, NULL, 0);
    EVP_PKEY       *keys[3] = { c->key, EVP_PKEY_dup(c->key), again };
    unsigned char  other[64], third[64];
    size_t         len = sizeof(other), i;

    for (i = 0; i < 3; i++) {
        MUST(keys[i] != NULL && EVP_PKEY_eq(c->key, keys[i]) == 1);
        MUST(unwrap(keys[i], c->text, c->text_len, other, &len));
        MUST(len == c->secret_len && memcmp(c->secret, other, len) == 0);
    }

    EVP_PKEY_free(keys[1]);
    EVP_PKEY_free(keys[2]);

    for (i = 0; i < CIPHERTEXT; i += 77) {
        c->text[i] ^= 0x10;
        MUST(unwrap(c->key, c->text, c->text_len, other, &len) && memcmp(c->secret, other, 32) != 0);
        MUST(unwrap(c->key, c->text, c->text_len, third, &len) && memcmp(other, third, len) == 0);
        MUST(c->more == 0 || memcmp(c->secret + 32, other + 32, 32) == 0);
        c->text[i] ^= 0x10;
    }
}

/* A public half encapsulates and does not decapsulate. No key changes. */
static void
public_half(Case *c)
{
    EVP_PKEY       *half = key_of(c->type, c->pub, PUBLIC + c->more, NULL, 0, NULL, 0);
    unsigned char  other[64], room[PRIVATE + 32];
    size_t         len = sizeof(other);

    MUST(half != NULL && EVP_PKEY_eq(c->key, half) == 1 && octets(half, "priv", room, sizeof(room)) == 0);
    MUST(!unwrap(half, c->text, c->text_len, other, &len));
    MUST(wrap(half, NULL, c->text, &c->text_len, c->secret, &c->secret_len));
    MUST(unwrap(c->key, c->text, c->text_len, other, &len) && memcmp(c->secret, other, len) == 0);
    MUST(EVP_PKEY_set1_encoded_public_key(half, c->pub, PUBLIC + c->more) != 1);
    EVP_PKEY_free(half);
}

/* The reason of the only error that there is; 0 if there is none, or more than one. */
static int
only_reason(void)
{
    unsigned long  first = ERR_get_error();
    int            more = 0;

    /* OpenSSL may say more of the call that failed. */
    while (ERR_peek_error() != 0) {
        more += ERR_GET_LIB(ERR_get_error()) == ERR_LIB_PROV;
    }

    return more == 0 && ERR_GET_LIB(first) == ERR_LIB_PROV ? ERR_GET_REASON(first) : 0;
}

/* Lists of keys with an entry of no bytes, or of another type than bytes; and a key without anything. */
static void
entries(Case *c)
{
    EVP_PKEY       *empty = EVP_PKEY_new(), *half = key_of(c->type, c->pub, PUBLIC + c->more, c->pub, 0, c->pub, 0);
    EVP_PKEY_CTX   *making = EVP_PKEY_CTX_new_from_name(ctx, c->type, NULL);
    unsigned char  room[PRIVATE + 32];
    char           text[] = "text";
    OSSL_PARAM     params[2] = { OSSL_PARAM_construct_utf8_string("pub", text, 0), OSSL_PARAM_END }, *told = NULL;

    MUST(half != NULL && octets(half, "priv", room, sizeof(room)) == 0 && EVP_PKEY_eq(c->key, half) == 1);
    EVP_PKEY_free(half);
    half = key_of(c->type, c->pub, 0, c->priv, PRIVATE + c->more, c->pub, 0);
    MUST(half != NULL && octets(half, "priv", room, sizeof(room)) == PRIVATE + c->more);
    EVP_PKEY_free(half);

    half = NULL;
    ERR_clear_error();
    MUST(EVP_PKEY_fromdata_init(making) == 1 && EVP_PKEY_fromdata(making, &half, EVP_PKEY_PUBLIC_KEY, params) != 1);
    MUST(only_reason() == PROV_R_FAILED_TO_GET_PARAMETER);
    MUST(EVP_PKEY_paramgen_init(making) == 1 && EVP_PKEY_paramgen(making, &empty) == 1);
    ERR_clear_error();
    MUST(EVP_PKEY_todata(empty, EVP_PKEY_PUBLIC_KEY, &told) != 1 && only_reason() == PROV_R_MISSING_KEY);
    params[0].key = "encoded-pub-key";
    MUST(EVP_PKEY_set_params(empty, params) != 1 && only_reason() == PROV_R_FAILED_TO_GET_PARAMETER);
    EVP_PKEY_free(empty);
    EVP_PKEY_CTX_free(making);
}

/* Calls that do not say how long a place is. */
static void
without_a_length(Case *c)
{
    EVP_PKEY_CTX   *use = EVP_PKEY_CTX_new_from_pkey(ctx, c->key, NULL);
    unsigned char  secret[64], text[CIPHERTEXT + 32];
    size_t         len = sizeof(text);

    MUST(EVP_PKEY_encapsulate_init(use, NULL) == 1);
    ERR_clear_error();
    MUST(EVP_PKEY_encapsulate(use, text, NULL, secret, &len) != 1 && only_reason() == NULL_LENGTH);
    MUST(EVP_PKEY_encapsulate(use, text, &len, secret, NULL) != 1 && only_reason() == NULL_LENGTH);
    MUST(EVP_PKEY_decapsulate_init(use, NULL) == 1);
    MUST(EVP_PKEY_decapsulate(use, secret, NULL, c->text, c->text_len) == 1);
    MUST(memcmp(secret, c->secret, c->secret_len) == 0);
    EVP_PKEY_CTX_free(use);
}

/* Halves of a wrong length, of another key, not reduced, with another hash. */
static void
not_in_order(Case *c)
{
    unsigned char  *pub = c->pub, *priv = c->priv;
    size_t         pub_len = PUBLIC + c->more, priv_len = PRIVATE + c->more, i;

    MUST(key_of(c->type, pub, pub_len - 1, NULL, 0, NULL, 0) == NULL);
    MUST(key_of(c->type, pub, 0, NULL, 0, NULL, 0) == NULL);
    MUST(key_of(c->type, NULL, 0, priv, priv_len - 1, NULL, 0) == NULL);
    MUST(key_of(c->type, NULL, 0, NULL, 0, NULL, 0) == NULL);
    pub[0] ^= 1;
    MUST(key_of(c->type, pub, pub_len, priv, priv_len, NULL, 0) == NULL);
    pub[0] = 0x01;
    pub[1] = (pub[1] & 0xf0) | 0x0d;
    MUST(key_of(c->type, pub, pub_len, NULL, 0, NULL, 0) == NULL);

    /* The secret vector of another key, which no hash covers; the public half; its hash. */
    for (i = 0; i < PRIVATE - 32; i += 101) {
        priv[i] ^= 4;
        MUST(key_of(c->type, NULL, 0, priv, priv_len, NULL, 0) == NULL);
        priv[i] ^= 4;
    }

    priv[0] = priv[1] = 0xff;
    MUST(key_of(c->type, NULL, 0, priv, priv_len, NULL, 0) == NULL);
}

static void
any_type(const char *type, size_t more)
{
    static Case  c;

    c = (Case) { .type = type, .more = more, .key = generated(type) };
    rooms(&c);
    secrets(&c);
    without_a_length(&c);
    entries(&c);
    public_half(&c);
    not_in_order(&c);
    EVP_PKEY_free(c.key);
}

static unsigned char  seed[65];

/* A job that takes a key in, by its seed alone and from a file. */
static int
taken_in(void *unused)
{
    EVP_PKEY             *key = key_of(PLAIN, NULL, 0, NULL, 0, seed, 64), *read;
    unsigned char        *der = NULL;
    const unsigned char  *at;
    int                  len = key != NULL ? i2d_PrivateKey(key, &der) : 0;

    (void) unused;
    at = der;
    read = len > 0 ? d2i_AutoPrivateKey_ex(NULL, &at, len, ctx, NULL) : NULL;
    len = read != NULL && EVP_PKEY_eq(key, read) == 1;
    OPENSSL_free(der);
    EVP_PKEY_free(read);
    EVP_PKEY_free(key);
    return len;
}

static void
without_a_pause(int (*work)(void *))
{
    ASYNC_JOB       *job = NULL;
    ASYNC_WAIT_CTX  *wait = ASYNC_WAIT_CTX_new();
    int             done = 0;

    MUST(ASYNC_start_job(&job, wait, &done, work, NULL, 0) == ASYNC_FINISH && done == 1);
    ASYNC_WAIT_CTX_free(wait);
}

static void
keys(void)
{
    static unsigned char  priv[PRIVATE], text[2][CIPHERTEXT], secret[2][32], fresh[32];
    EVP_PKEY              *key, *same;
    size_t                text_len = CIPHERTEXT, secret_len = 32;
    EVP_PKEY_CTX          *making;
    OSSL_PARAM            params[2] = { OSSL_PARAM_END, OSSL_PARAM_END };
    int                   i;

    any_type(PLAIN, 0);
    any_type(HYBRID, 32);

    /* A seed is kept, gives the same key again, and must agree with what else is said. */
    key = generated(PLAIN);
    MUST(key != NULL && octets(key, "seed", seed, 64) == 64 && octets(key, "priv", priv, PRIVATE) == PRIVATE);
    same = key_of(PLAIN, NULL, 0, NULL, 0, seed, 64);
    MUST(same != NULL && EVP_PKEY_eq(key, same) == 1);
    EVP_PKEY_free(same);
    same = key_of(PLAIN, NULL, 0, priv, PRIVATE, seed, 64);
    MUST(same != NULL && EVP_PKEY_eq(key, same) == 1);
    EVP_PKEY_free(same);
    MUST(key_of(PLAIN, NULL, 0, NULL, 0, seed, 63) == NULL && key_of(PLAIN, NULL, 0, NULL, 0, seed, 65) == NULL);
    seed[0] ^= 1;
    MUST(key_of(PLAIN, NULL, 0, priv, PRIVATE, seed, 64) == NULL);
    seed[0] ^= 1;
    /* The last bytes are the secret of implicit rejection, which no hash covers. */
    priv[PRIVATE - 1] ^= 1;
    MUST(key_of(PLAIN, NULL, 0, priv, PRIVATE, seed, 64) == NULL);
    without_a_pause(taken_in);
    params[0] = OSSL_PARAM_construct_octet_string("seed", seed, 64);
    making = EVP_PKEY_CTX_new_from_name(ctx, PLAIN, NULL);
    same = NULL;
    MUST(EVP_PKEY_keygen_init(making) == 1 && EVP_PKEY_CTX_set_params(making, params) == 1);
    MUST(EVP_PKEY_generate(making, &same) == 1 && EVP_PKEY_eq(key, same) == 1);
    EVP_PKEY_free(same);
    params[0].data_size = 63;
    MUST(EVP_PKEY_CTX_set_params(making, params) != 1);
    EVP_PKEY_CTX_free(making);

    /* Given randomness decides all, once. */
    for (i = 0; i < 2; i++) {
        MUST(wrap(key, fresh, text[i], &text_len, secret[i], &secret_len));
    }

    MUST(memcmp(text[0], text[1], CIPHERTEXT) == 0 && memcmp(secret[0], secret[1], 32) == 0);
    MUST(wrap(key, NULL, text[1], &text_len, secret[1], &secret_len) && memcmp(text[0], text[1], CIPHERTEXT) != 0);
    EVP_PKEY_free(key);
}

/* A child and its parent encapsulate and generate, and nothing comes twice. */
static void
forked(int count)
{
    static unsigned char  text[CIPHERTEXT + 32], secret[64], pub[SHARE];
    EVP_PKEY              *key = generated(HYBRID), *fresh;
    size_t                text_len, secret_len;
    int                   i, status, pipes[2];
    unsigned char         (*seen)[96] = calloc(4 * (size_t) count, 96);
    pid_t                 child = 0;

    /* Enough that pairs are made in advance, so that some are left when the process forks. */
    for (i = 0; i < 21; i++) {
        text_len = sizeof(text);
        secret_len = sizeof(secret);
        MUST(wrap(key, NULL, text, &text_len, secret, &secret_len));
    }

    MUST(seen != NULL && pipe(pipes) == 0 && (child = fork()) >= 0);

    for (i = 0; i < 2 * count; i += 2) {
        text_len = sizeof(text);
        secret_len = sizeof(secret);
        MUST(wrap(key, NULL, text, &text_len, secret, &secret_len) && (fresh = generated(HYBRID)) != NULL);
        memcpy(seen[i], text + CIPHERTEXT, 32);
        memcpy(seen[i] + 32, secret, 64);
        MUST(octets(fresh, "encoded-pub-key", pub, sizeof(pub)) == SHARE);
        memcpy(seen[i + 1], pub + SHARE - 96, 96);
        EVP_PKEY_free(fresh);
    }

    if (child == 0) {
        for (i = 0; i < 2 * count; i++) {
            MUST(write(pipes[1], seen[i], 96) == 96);
        }

        _exit(0);
    }

    for (i = 2 * count; i < 4 * count; i++) {
        size_t  got = 0;

        while (got < 96) {
            ssize_t  n = read(pipes[0], seen[i] + got, 96 - got);

            MUST(n > 0);
            got += (size_t) n;
        }
    }

    MUST(waitpid(child, &status, 0) == child && status == 0);

    for (i = 0; i < 4 * count; i++) {
        int  j, part;

        for (j = i + 1; j < 4 * count; j++) {
            for (part = 0; part < 96; part += 32) {
                MUST(memcmp(seen[i] + part, seen[j] + part, 32) != 0);
            }
        }
    }

    free(seen);
    EVP_PKEY_free(key);
}

int
main(int argc, char **argv)
{
    int  count = argc > 3 ? atoi(argv[3]) : 1;

    MUST(argc > 2 && (ctx = OSSL_LIB_CTX_new()) != NULL && OSSL_LIB_CTX_load_config(ctx, argv[2]) == 1);

    if (strcmp(argv[1], "handshakes") == 0) {
        handshakes(count);
    } else if (strcmp(argv[1], "paused") == 0) {
        paused(count);
    } else if (strcmp(argv[1], "shares") == 0) {
        shares(0);
        shares(1);
    } else if (strcmp(argv[1], "retried") == 0) {
        retried();
        pieces();
    } else if (strcmp(argv[1], "keys") == 0) {
        keys();
    } else if (strcmp(argv[1], "forked") == 0) {
        forked(count);
    } else {
        die("no such scenario", __LINE__);
    }

    SSL_CTX_free(server_ctx);
    SSL_CTX_free(client_ctx);
    ASYNC_cleanup_thread();
    OSSL_LIB_CTX_free(ctx);
    return 0;
}
