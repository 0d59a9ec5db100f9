/*
 * Preloaded: each callback that a TLS handshake can make has a frame of FRAME bytes, and writes its name into NOTED the
 * first time in a process, with "job" before it if it ran in an ASYNC_JOB, else "plain". Callbacks that nginx gives are
 * called behind that; where it gives none there is one that changes nothing.
 *
 *   cc -shared -fPIC -DFRAME=65536 -DNOTED='"FILE"' [-DTICKETS_OLD | -DTICKETS_EVP] frames.c
 */
#define _GNU_SOURCE
#define OPENSSL_SUPPRESS_DEPRECATED
#include <dlfcn.h>
#include <fcntl.h>
#include <openssl/async.h>
#include <openssl/core_names.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REAL(type, name) ((type) dlsym(RTLD_NEXT, name))

static void note(const char *name)
{
    static char  seen[64][32];
    char         line[32];
    int          at, file, size;

    size = snprintf(line, sizeof(line), "%s %s\n", ASYNC_get_current_job() != NULL ? "job" : "plain", name);

    for (at = 0; at < 63 && seen[at][0] != '\0'; at++) {
        if (strcmp(seen[at], line) == 0) {
            return;
        }
    }

    strcpy(seen[at], line);
    file = open(NOTED, O_WRONLY|O_APPEND);
    (void) !write(file, line, size);
    close(file);
}

static __attribute__((noinline)) void deep(const char *name)
{
    volatile char  frame[FRAME];

    memset((char *) frame, 1, sizeof(frame));
    note(name);
    __asm__ volatile("" : : "r"(frame) : "memory");
}

/* nginx's own, of each context. */
struct own {
    SSL_CTX                      *context;
    int                         (*cert)(SSL *, void *);
    void                         *cert_argument;
    void                        (*info)(const SSL *, int, int);
    SSL_CTX_alpn_select_cb_func   alpn;
    void                         *alpn_argument;
    int                         (*name)(SSL *, int *, void *);
    int                         (*status)(SSL *, void *);
    int                         (*session_new)(SSL *, SSL_SESSION *);
    SSL_SESSION                *(*session_get)(SSL *, const unsigned char *, int, int *);
    void                        (*session_remove)(SSL_CTX *, SSL_SESSION *);
    SSL_verify_cb                 verify;
};

static struct own *of(SSL_CTX *context)
{
    static struct own  all[64];
    int                at;

    for (at = 0; at < 63 && all[at].context != NULL && all[at].context != context; at++) { /* void */ }

    all[at].context = context;

    return &all[at];
}

static struct own *by(const SSL *ssl)
{
    return of(SSL_get_SSL_CTX(ssl));
}

static int on_cert(SSL *ssl, void *argument)
{
    deep("cert");
    return by(ssl)->cert != NULL ? by(ssl)->cert(ssl, by(ssl)->cert_argument) : 1;
}

static void on_info(const SSL *ssl, int where, int ret)
{
    deep("info");

    if (by(ssl)->info != NULL) {
        by(ssl)->info(ssl, where, ret);
    }
}

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *size, const unsigned char *in, unsigned int in_size,
    void *argument)
{
    deep("alpn");
    return by(ssl)->alpn != NULL ? by(ssl)->alpn(ssl, out, size, in, in_size, by(ssl)->alpn_argument)
                                 : SSL_TLSEXT_ERR_NOACK;
}

static int on_name(SSL *ssl, int *alert, void *argument)
{
    deep("name");
    return by(ssl)->name != NULL ? by(ssl)->name(ssl, alert, argument) : SSL_TLSEXT_ERR_OK;
}

static int on_status(SSL *ssl, void *argument)
{
    deep("status");
    return by(ssl)->status != NULL ? by(ssl)->status(ssl, argument) : SSL_TLSEXT_ERR_NOACK;
}

static int on_session_new(SSL *ssl, SSL_SESSION *session)
{
    deep("session-new");
    return by(ssl)->session_new(ssl, session);
}

static SSL_SESSION *on_session_get(SSL *ssl, const unsigned char *id, int size, int *copy)
{
    SSL_SESSION  *found = by(ssl)->session_get(ssl, id, size, copy), *again;

    deep("session-get");

    if (found != NULL && (again = SSL_SESSION_dup(found)) != NULL) {
        SSL_CTX_remove_session(SSL_get_SSL_CTX(ssl), again);
        SSL_SESSION_free(again);
    }

    return found;
}

static void on_session_remove(SSL_CTX *context, SSL_SESSION *session)
{
    deep("session-remove");
    of(context)->session_remove(context, session);
}

static int on_verify(int good, X509_STORE_CTX *store)
{
    SSL  *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());

    deep("verify");
    return by(ssl)->verify != NULL ? by(ssl)->verify(good, store) : good;
}

static int on_hello(SSL *ssl, int *alert, void *argument)
{
    deep("client-hello");
    return SSL_CLIENT_HELLO_SUCCESS;
}

static void on_keylog(const SSL *ssl, const char *line)
{
    deep("keylog");
}

static void on_message(int out, int version, int type, const void *data, size_t size, SSL *ssl, void *argument)
{
    deep("message");
}

static int on_psk_find(SSL *ssl, const unsigned char *id, size_t size, SSL_SESSION **session)
{
    deep("psk-find");
    *session = NULL;
    return 1;
}

static int on_psk_use(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *size, SSL_SESSION **session)
{
    deep("psk-use");
    *session = NULL;
    *id = NULL;
    *size = 0;
    return 1;
}

static unsigned int on_psk_server(SSL *ssl, const char *id, unsigned char *psk, unsigned int most)
{
    deep("psk-server");
    return 0;
}

static unsigned int on_psk_client(SSL *ssl, const char *hint, char *id, unsigned int most_id, unsigned char *psk,
    unsigned int most)
{
    deep("psk-client");
    return 0;
}

#if defined(TICKETS_OLD) || defined(TICKETS_EVP)
static unsigned char  ticket_key[32] = "the same for each ticket, a test";
#endif

#ifdef TICKETS_OLD
static int on_ticket(SSL *ssl, unsigned char *id, unsigned char *iv, EVP_CIPHER_CTX *cipher, HMAC_CTX *mac, int make)
{
    deep("ticket-old");

    if (make) {
        memset(id, 7, 16);
        memset(iv, 7, 16);
    }

    return HMAC_Init_ex(mac, ticket_key, 32, EVP_sha256(), NULL)
           && EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, ticket_key, iv, make) ? 1 : -1;
}
#endif

#ifdef TICKETS_EVP
static int on_ticket(SSL *ssl, unsigned char *id, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, int make)
{
    OSSL_PARAM  params[] = {
        OSSL_PARAM_octet_string(OSSL_MAC_PARAM_KEY, ticket_key, 32),
        OSSL_PARAM_utf8_string(OSSL_MAC_PARAM_DIGEST, "sha256", 0),
        OSSL_PARAM_END
    };

    deep("ticket-evp");

    if (make) {
        memset(id, 7, 16);
        memset(iv, 7, 16);
    }

    return EVP_MAC_CTX_set_params(mac, params)
           && EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, ticket_key, iv, make) ? 1 : -1;
}
#endif

typedef long (*callback_ctrl)(SSL_CTX *, int, void (*)(void));

SSL_CTX *SSL_CTX_new(const SSL_METHOD *method)
{
    SSL_CTX  *context = REAL(SSL_CTX *(*)(const SSL_METHOD *), "SSL_CTX_new")(method);

    REAL(void (*)(SSL_CTX *, int (*)(SSL *, void *), void *), "SSL_CTX_set_cert_cb")(context, on_cert, NULL);
    REAL(void (*)(SSL_CTX *, SSL_CTX_alpn_select_cb_func, void *), "SSL_CTX_set_alpn_select_cb")(context, on_alpn, NULL);
    REAL(callback_ctrl, "SSL_CTX_callback_ctrl")(context, SSL_CTRL_SET_TLSEXT_SERVERNAME_CB, (void (*)(void)) on_name);
    REAL(callback_ctrl, "SSL_CTX_callback_ctrl")(context, SSL_CTRL_SET_TLSEXT_STATUS_REQ_CB, (void (*)(void)) on_status);
    SSL_CTX_set_client_hello_cb(context, on_hello, NULL);
    SSL_CTX_set_keylog_callback(context, on_keylog);
    SSL_CTX_set_msg_callback(context, on_message);
    SSL_CTX_set_psk_find_session_callback(context, on_psk_find);
    SSL_CTX_set_psk_use_session_callback(context, on_psk_use);
    SSL_CTX_set_psk_server_callback(context, on_psk_server);
    SSL_CTX_set_psk_client_callback(context, on_psk_client);
#ifdef TICKETS_OLD
    REAL(callback_ctrl, "SSL_CTX_callback_ctrl")(context, SSL_CTRL_SET_TLSEXT_TICKET_KEY_CB, (void (*)(void)) on_ticket);
#endif
#ifdef TICKETS_EVP
    SSL_CTX_set_tlsext_ticket_key_evp_cb(context, on_ticket);
#endif

    return context;
}

void SSL_CTX_set_cert_cb(SSL_CTX *context, int (*callback)(SSL *, void *), void *argument)
{
    of(context)->cert = callback;
    of(context)->cert_argument = argument;
    REAL(void (*)(SSL_CTX *, int (*)(SSL *, void *), void *), "SSL_CTX_set_cert_cb")(context, on_cert, NULL);
}

void SSL_CTX_set_alpn_select_cb(SSL_CTX *context, SSL_CTX_alpn_select_cb_func callback, void *argument)
{
    of(context)->alpn = callback;
    of(context)->alpn_argument = argument;
    REAL(void (*)(SSL_CTX *, SSL_CTX_alpn_select_cb_func, void *), "SSL_CTX_set_alpn_select_cb")(context, on_alpn, NULL);
}

void SSL_CTX_set_info_callback(SSL_CTX *context, void (*callback)(const SSL *, int, int))
{
    of(context)->info = callback;
    REAL(void (*)(SSL_CTX *, void (*)(const SSL *, int, int)), "SSL_CTX_set_info_callback")(context, on_info);
}

long SSL_CTX_callback_ctrl(SSL_CTX *context, int command, void (*callback)(void))
{
    if (command == SSL_CTRL_SET_TLSEXT_SERVERNAME_CB) {
        of(context)->name = (int (*)(SSL *, int *, void *)) callback;
        callback = (void (*)(void)) on_name;

    } else if (command == SSL_CTRL_SET_TLSEXT_STATUS_REQ_CB) {
        of(context)->status = (int (*)(SSL *, void *)) callback;
        callback = (void (*)(void)) on_status;
    }

#if defined(TICKETS_OLD) || defined(TICKETS_EVP)
    if (command == SSL_CTRL_SET_TLSEXT_TICKET_KEY_CB) {
        return 1;
    }
#endif

    return REAL(callback_ctrl, "SSL_CTX_callback_ctrl")(context, command, callback);
}

void SSL_CTX_sess_set_new_cb(SSL_CTX *context, int (*callback)(SSL *, SSL_SESSION *))
{
    of(context)->session_new = callback;
    REAL(void (*)(SSL_CTX *, int (*)(SSL *, SSL_SESSION *)), "SSL_CTX_sess_set_new_cb")(context, on_session_new);
}

void SSL_CTX_sess_set_get_cb(SSL_CTX *context, SSL_SESSION *(*callback)(SSL *, const unsigned char *, int, int *))
{
    of(context)->session_get = callback;
    REAL(void (*)(SSL_CTX *, SSL_SESSION *(*)(SSL *, const unsigned char *, int, int *)), "SSL_CTX_sess_set_get_cb")
        (context, on_session_get);
}

void SSL_CTX_sess_set_remove_cb(SSL_CTX *context, void (*callback)(SSL_CTX *, SSL_SESSION *))
{
    of(context)->session_remove = callback;
    REAL(void (*)(SSL_CTX *, void (*)(SSL_CTX *, SSL_SESSION *)), "SSL_CTX_sess_set_remove_cb")(context, on_session_remove);
}

void SSL_CTX_set_verify(SSL_CTX *context, int mode, SSL_verify_cb callback)
{
    of(context)->verify = callback;
    REAL(void (*)(SSL_CTX *, int, SSL_verify_cb), "SSL_CTX_set_verify")(context, mode, on_verify);
}
