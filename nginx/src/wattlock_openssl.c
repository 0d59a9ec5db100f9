/*
 * What a configuration asks of OpenSSL while nginx reads it: the provider, if nothing has loaded it, and the group
 * X25519MLKEM768.
 *
 * So nginx needs no OPENSSL_CONF: `nginx -t` at a terminal, certbot, and a binary that was upgraded read the same
 * nginx.conf. Neither keeps nginx from starting: what cannot be had is said and left out.
 */
#include "wattlock_nginx.h"
#include <openssl/conf.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

/* The entry of `wattlock nginx enable`'s file that names the provider and its properties, and nothing of the system's
 * settings: OpenSSL has taken those already. */
#define WATTLOCK_ENTRY "wattlock_alone"


/* Why OpenSSL did not do something: what its first error says of a file, else the reason. Empties its queue. */
static void
wattlock_why(char *why, size_t size)
{
    int            flags;
    const char    *data, *words;
    unsigned long  code = ERR_get_error_all(NULL, NULL, NULL, &data, &flags);

    words = (flags & ERR_TXT_STRING) && *data != '\0' ? data : ERR_reason_error_string(code);
    (void) ngx_cpystrn((u_char *) why, (u_char *) (code != 0 && words != NULL ? words : "it does not load"), size);
    ERR_clear_error();
}


ngx_int_t
wattlock_load_provider(const char *file, char *why, size_t size)
{
    if (wattlock_is_loaded()) {
        return NGX_OK;
    }

    if (EVP_default_properties_is_fips_enabled(NULL)) {
        (void) ngx_cpystrn((u_char *) why, (u_char *) "openssl.cnf asks for fips=yes", size);
        return NGX_DECLINED;
    }

    ERR_clear_error();
    /* OpenSSL's own provider is there by itself until another is loaded; this makes it stay. */
    (void) OSSL_PROVIDER_available(NULL, "default");

    if (CONF_modules_load_file(file, WATTLOCK_ENTRY, 0) > 0 && wattlock_is_loaded()) {
        ERR_clear_error();
        return NGX_OK;
    }

    wattlock_why(why, size);

    return NGX_DECLINED;
}


ngx_int_t
wattlock_offer_hybrid(SSL_CTX *context)
{
    if (SSL_CTX_set1_groups_list(context, "X25519MLKEM768:X25519:prime256v1:secp384r1") == 1) {
        return NGX_OK;
    }

    ERR_clear_error();

    return NGX_DECLINED;
}
