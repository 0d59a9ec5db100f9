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
    int            flags = 0;
    const char    *data = "", *words;
    /* Of an empty queue nothing is told, not even these two. */
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


char *
wattlock_system_groups(void)
{
    int                    i;
    CONF                  *conf;
    char                  *file, *groups = NULL;
    const char            *name, *dot, *section;
    CONF_VALUE            *entry;
    STACK_OF(CONF_VALUE)  *entries = NULL;

    ERR_set_mark();
    conf = NCONF_new(NULL);
    file = CONF_get1_default_config_file();

    /* config(5), "SSL Configuration": what SSL_CTX_new(3) applies to each context. */
    if (conf != NULL && file != NULL && NCONF_load(conf, file, NULL) > 0
        && (section = NCONF_get_string(conf, NULL, "openssl_conf")) != NULL
        && (section = NCONF_get_string(conf, section, "ssl_conf")) != NULL
        && (section = NCONF_get_string(conf, section, "system_default")) != NULL)
    {
        entries = NCONF_get_section(conf, section);
    }

    for (i = 0; i < sk_CONF_VALUE_num(entries); i++) {
        entry = sk_CONF_VALUE_value(entries, i);
        dot = strchr(entry->name, '.');
        name = dot != NULL ? dot + 1 : entry->name;

        if (wattlock_names_groups(name)) {
            OPENSSL_free(groups);
            groups = OPENSSL_strdup(entry->value);
        }
    }

    OPENSSL_free(file);
    NCONF_free(conf);
    ERR_pop_to_mark();

    return groups;
}


int
wattlock_names_groups(const char *command)
{
    return strcasecmp(command, "Groups") == 0 || strcasecmp(command, "Curves") == 0;
}


ngx_int_t
wattlock_offer_hybrid(SSL_CTX *context, const char *groups)
{
    int     size;
    char   *list;
    size_t  length;

    if (groups == NULL) {
        groups = "X25519:prime256v1:secp384r1";

    } else if (strcasestr(groups, "X25519MLKEM768") != NULL) {
        return NGX_OK;
    }

    length = sizeof("X25519MLKEM768:") + strlen(groups);
    list = OPENSSL_malloc(length);
    size = list != NULL ? snprintf(list, length, "X25519MLKEM768:%s", groups) : -1;

    if (size > 0 && SSL_CTX_set1_groups_list(context, list) == 1) {
        OPENSSL_free(list);
        return NGX_OK;
    }

    OPENSSL_free(list);
    ERR_clear_error();

    return NGX_DECLINED;
}
