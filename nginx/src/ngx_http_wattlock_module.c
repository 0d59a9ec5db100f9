/*
 * Directives, status page, and the module's life in nginx's processes.
 *
 * Configuration is read by the master; each worker takes the provider's function table and raises the bridge for
 * itself when it starts, and says once what it found.
 */
#include "wattlock_nginx.h"
#include <ngx_http.h>
#include <openssl/provider.h>

typedef struct {
    ngx_flag_t          upstream;
    ngx_array_t         settings;   /* of struct wattlock_setting */
    char               *poll;       /* the value of wattlock_poll, also among the settings */
} wattlock_main_conf_t;

typedef struct {
    ngx_flag_t          enable;
} wattlock_server_conf_t;

static void *wattlock_create_main_conf(ngx_conf_t *cf);
static char *wattlock_init_main_conf(ngx_conf_t *cf, void *conf);
static void *wattlock_create_server_conf(ngx_conf_t *cf);
static char *wattlock_merge_server_conf(ngx_conf_t *cf, void *parent, void *child);
static ngx_int_t wattlock_postconfiguration(ngx_conf_t *cf);
static ngx_int_t wattlock_init_process(ngx_cycle_t *cycle);
static void wattlock_exit_process(ngx_cycle_t *cycle);
static char *wattlock_set_poll(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *wattlock_set_provider(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *wattlock_set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static ngx_int_t wattlock_status_handler(ngx_http_request_t *r);

static const struct wattlock_table  *table;
static const char                   *inactive = "no server has `wattlock on`";

static ngx_command_t  wattlock_commands[] = {

    { ngx_string("wattlock"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_SRV_CONF_OFFSET,
      offsetof(wattlock_server_conf_t, enable),
      NULL },

    { ngx_string("wattlock_upstream"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(wattlock_main_conf_t, upstream),
      NULL },

    { ngx_string("wattlock_poll"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      wattlock_set_poll,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("wattlock_set"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE2,
      wattlock_set_provider,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("wattlock_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      wattlock_set_status,
      0,
      0,
      NULL },

      ngx_null_command
};

static ngx_http_module_t  wattlock_http = {
    NULL,                             /* preconfiguration */
    wattlock_postconfiguration,       /* postconfiguration */
    wattlock_create_main_conf,        /* create main configuration */
    wattlock_init_main_conf,          /* init main configuration */
    wattlock_create_server_conf,      /* create server configuration */
    wattlock_merge_server_conf,       /* merge server configuration */
    NULL,                             /* create location configuration */
    NULL                              /* merge location configuration */
};

ngx_module_t  ngx_http_wattlock_module = {
    NGX_MODULE_V1,
    &wattlock_http,                   /* module context */
    wattlock_commands,                /* module directives */
    NGX_HTTP_MODULE,                  /* module type */
    NULL,                             /* init master */
    NULL,                             /* init module */
    wattlock_init_process,            /* init process */
    NULL,                             /* init thread */
    NULL,                             /* exit thread */
    wattlock_exit_process,            /* exit process */
    NULL,                             /* exit master */
    NGX_MODULE_V1_PADDING
};


/* The provider among those that are loaded, by its name in openssl.cnf or by the table it has. */
static int
wattlock_look(OSSL_PROVIDER *provider, void *data)
{
    const struct wattlock_table  **found = data;
    const struct wattlock_table   *candidate = NULL;
    OSSL_PARAM                     params[2];

    params[0] = OSSL_PARAM_construct_octet_ptr(WATTLOCK_TABLE, (void **) &candidate, 0);
    params[1] = OSSL_PARAM_construct_end();

    if (OSSL_PROVIDER_get_params(provider, params) == 1 && candidate != NULL) {
        *found = candidate;
        return 0;
    }

    return 1;
}


const struct wattlock_table *
wattlock_find_table(const char **why)
{
    const struct wattlock_table  *found = NULL;

    (void) OSSL_PROVIDER_do_all(NULL, wattlock_look, &found);
    ERR_clear_error();

    if (found == NULL) {
        *why = "the provider `wattlock` is not loaded (see `wattlock openssl check`)";
        return NULL;
    }

    if (found->version != WATTLOCK_TABLE_VERSION || found->size < sizeof(struct wattlock_table)) {
        *why = "the provider's function table is of another version than this module";
        return NULL;
    }

    return found;
}


static void *
wattlock_create_main_conf(ngx_conf_t *cf)
{
    wattlock_main_conf_t  *conf = ngx_pcalloc(cf->pool, sizeof(wattlock_main_conf_t));

    if (conf == NULL
        || ngx_array_init(&conf->settings, cf->pool, 4, sizeof(struct wattlock_setting)) != NGX_OK)
    {
        return NULL;
    }

    conf->upstream = NGX_CONF_UNSET;

    return conf;
}


static char *
wattlock_init_main_conf(ngx_conf_t *cf, void *conf)
{
    wattlock_main_conf_t         *main_conf = conf;
    const char                   *why;
    const struct wattlock_table  *found = main_conf->settings.nelts > 0 ? wattlock_find_table(&why) : NULL;
    char                          words[256] = "";

    /* Only now: what one setting says may make sense because of another. */
    if (found != NULL
        && found->check(found->provider, main_conf->settings.elts, main_conf->settings.nelts, words, sizeof(words)) != 1)
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "wattlock: %s", words);
        return NGX_CONF_ERROR;
    }

    ngx_conf_init_value(main_conf->upstream, 0);

    return NGX_CONF_OK;
}


static void *
wattlock_create_server_conf(ngx_conf_t *cf)
{
    wattlock_server_conf_t  *conf = ngx_pcalloc(cf->pool, sizeof(wattlock_server_conf_t));

    if (conf != NULL) {
        conf->enable = NGX_CONF_UNSET;
    }

    return conf;
}


static char *
wattlock_merge_server_conf(ngx_conf_t *cf, void *parent, void *child)
{
    wattlock_server_conf_t  *from = parent, *to = child;

    (void) cf;
    ngx_conf_merge_value(to->enable, from->enable, 0);

    return NGX_CONF_OK;
}


static char *
wattlock_add_setting(wattlock_main_conf_t *main_conf, u_char *key, u_char *value)
{
    struct wattlock_setting  *setting = ngx_array_push(&main_conf->settings);

    if (setting == NULL) {
        return NGX_CONF_ERROR;
    }

    setting->key = (char *) key;
    setting->value = (char *) value;

    return NGX_CONF_OK;
}


/* wattlock_poll RULE [PARAMETERS]: the provider's setting `poll`, which reads it. */
static char *
wattlock_set_poll(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    wattlock_main_conf_t  *main_conf = conf;
    ngx_str_t             *value = cf->args->elts;
    ngx_uint_t             i;
    size_t                 size = 0;
    u_char                *end;

    (void) cmd;

    if (main_conf->poll != NULL) {
        return "is duplicate";
    }

    for (i = 1; i < cf->args->nelts; i++) {
        size += value[i].len + 1;
    }

    end = ngx_pnalloc(cf->pool, size);

    if (end == NULL) {
        return NGX_CONF_ERROR;
    }

    main_conf->poll = (char *) end;

    for (i = 1; i < cf->args->nelts; i++) {
        end = ngx_cpymem(end, value[i].data, value[i].len);
        *end++ = ' ';
    }

    end[-1] = '\0';

    return wattlock_add_setting(main_conf, (u_char *) "poll", (u_char *) main_conf->poll);
}


/* wattlock_set KEY VALUE: a setting of the provider (docs/provider.md), in force in every worker. */
static char *
wattlock_set_provider(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t  *value = cf->args->elts;

    (void) cmd;

    return wattlock_add_setting(conf, value[1].data, value[2].data);
}


static ngx_int_t
wattlock_postconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t                   i;
    const char                  *why;
    ngx_http_ssl_srv_conf_t     *ssl;
    ngx_http_core_srv_conf_t   **servers;
    wattlock_server_conf_t      *server;
    ngx_http_core_main_conf_t   *core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    if (wattlock_loop_prepare(&why) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "wattlock: %s", why);
        return NGX_ERROR;
    }

    servers = core->servers.elts;

    for (i = 0; i < core->servers.nelts; i++) {
        ssl = servers[i]->ctx->srv_conf[ngx_http_ssl_module.ctx_index];
        server = servers[i]->ctx->srv_conf[ngx_http_wattlock_module.ctx_index];

        if (ssl != NULL && ssl->ssl.ctx != NULL && wattlock_mark(ssl->ssl.ctx, server->enable) != 1) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_uint_t
wattlock_wanted(ngx_cycle_t *cycle, wattlock_main_conf_t *main_conf)
{
    ngx_uint_t                   i;
    wattlock_server_conf_t      *server;
    ngx_http_core_srv_conf_t   **servers;
    ngx_http_core_main_conf_t   *core = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_core_module);

    if (main_conf->upstream) {
        return 1;
    }

    servers = core->servers.elts;

    for (i = 0; i < core->servers.nelts; i++) {
        server = servers[i]->ctx->srv_conf[ngx_http_wattlock_module.ctx_index];

        if (server->enable == 1) {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
wattlock_init_process(ngx_cycle_t *cycle)
{
    wattlock_main_conf_t  *main_conf;
    char                   words[256] = "";

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE) {
        return NGX_OK;
    }

    if (ngx_get_conf(cycle->conf_ctx, ngx_http_module) == NULL) {
        inactive = "there is no http block";
        return NGX_OK;
    }

    main_conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_wattlock_module);

    if (!wattlock_wanted(cycle, main_conf)) {
        return NGX_OK;
    }

    table = wattlock_find_table(&inactive);

    if (table == NULL || wattlock_bridge_raise(&inactive) != NGX_OK) {
        table = NULL;
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0, "wattlock: inactive: %s", inactive);
        return NGX_OK;
    }

    if (main_conf->settings.nelts > 0
        && table->set(table->provider, main_conf->settings.elts, main_conf->settings.nelts, words, sizeof(words)) != 1)
    {
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0, "wattlock: neither wattlock_set nor wattlock_poll is in force: %s", words);
    }

    inactive = NULL;
    ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0, "wattlock: active, %s polling",
                  main_conf->poll != NULL ? main_conf->poll : "adaptive");

    return wattlock_loop_start(cycle, table, main_conf->upstream);
}


static void
wattlock_exit_process(ngx_cycle_t *cycle)
{
    (void) cycle;
    wattlock_loop_stop();
    wattlock_bridge_lower();
    table = NULL;
}


static char *
wattlock_set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *location = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    (void) cmd;
    (void) conf;
    location->handler = wattlock_status_handler;

    return NGX_CONF_OK;
}


/* A sample of Prometheus' text: of whichever worker answers, so it says of which. */
#define SAMPLE(name, sort)                                                                                            \
    "# TYPE wattlock_nginx_" name " " sort "\nwattlock_nginx_" name "{worker=\"%P\"} %ui\n"


/* ?format=json (default), prometheus or html. */
static ngx_int_t
wattlock_status_handler(ngx_http_request_t *r)
{
    ngx_int_t    rc;
    ngx_str_t    format = ngx_string("json"), type;
    ngx_buf_t   *b;
    ngx_chain_t  out;
    size_t       need, room;
    u_char      *text, *end;
    int          which = WATTLOCK_JSON;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    (void) ngx_http_arg(r, (u_char *) "format", 6, &format);
    ngx_str_set(&type, "application/json");

    if (format.len == 10 && ngx_strncmp(format.data, "prometheus", 10) == 0) {
        which = WATTLOCK_PROMETHEUS;
        ngx_str_set(&type, "text/plain; version=0.0.4");

    } else if (format.len == 4 && ngx_strncmp(format.data, "html", 4) == 0) {
        which = WATTLOCK_HTML;
        ngx_str_set(&type, "text/html; charset=utf-8");

    } else if (format.len != 4 || ngx_strncmp(format.data, "json", 4) != 0) {
        return NGX_HTTP_BAD_REQUEST;
    }

    room = 2048;
    need = table != NULL ? table->status(table->provider, which, NULL, 0) + 4096 : 0;
    room += need;
    text = ngx_palloc(r->pool, room);

    if (text == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    end = text;

    if (which == WATTLOCK_JSON) {
        end = ngx_slprintf(end, text + room,
            "{\"active\":%s,\"why\":\"%s\",\"worker\":%P,\"handshakes\":%ui,\"in_handshake\":%ui,\"paused\":%ui,"
            "\"completed\":%ui,\"aborted\":%ui,\"polls\":%ui,\"flushes\":%ui,\"runtime\":",
            table != NULL ? "true" : "false", inactive != NULL ? inactive : "", ngx_pid,
            wattlock_counts.handshakes, wattlock_counts.in_handshake, wattlock_counts.paused,
            wattlock_counts.completed, wattlock_counts.aborted, wattlock_counts.polls, wattlock_counts.flushes);

    } else if (which == WATTLOCK_PROMETHEUS) {
        end = ngx_slprintf(end, text + room,
            SAMPLE("active", "gauge") SAMPLE("handshakes_total", "counter") SAMPLE("in_handshake", "gauge")
            SAMPLE("paused_total", "counter") SAMPLE("completed_total", "counter")
            SAMPLE("aborted_total", "counter") SAMPLE("polls_total", "counter") SAMPLE("flushes_total", "counter"),
            ngx_pid, (ngx_uint_t) (table != NULL), ngx_pid, wattlock_counts.handshakes,
            ngx_pid, wattlock_counts.in_handshake, ngx_pid, wattlock_counts.paused,
            ngx_pid, wattlock_counts.completed, ngx_pid, wattlock_counts.aborted,
            ngx_pid, wattlock_counts.polls, ngx_pid, wattlock_counts.flushes);

    } else if (table == NULL) {
        end = ngx_slprintf(end, text + room, "<!doctype html><title>Wattlock</title><p>inactive: %s", inactive);
    }

    if (table != NULL) {
        need = table->status(table->provider, which, (char *) end, text + room - end);
        end += need <= (size_t) (text + room - end) && need > 0 ? need - 1 : 0;

    } else if (which == WATTLOCK_JSON) {
        end = ngx_slprintf(end, text + room, "null");
    }

    if (which == WATTLOCK_JSON) {
        end = ngx_slprintf(end, text + room, "}\n");
    }

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = end - text;
    r->headers_out.content_type = type;
    r->headers_out.content_type_len = type.len;
    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b = ngx_calloc_buf(r->pool);

    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->pos = text;
    b->last = end;
    b->memory = 1;
    b->last_buf = (r == r->main);
    b->last_in_chain = 1;
    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}
