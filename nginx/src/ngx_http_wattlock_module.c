/*
 * Directives, status page, and the module's life in nginx's processes.
 *
 * Configuration is read by the master; each worker takes the provider's function table and raises the bridge for
 * itself when it starts, and says once what it found.
 */
#include "wattlock_nginx.h"
#include <ngx_http.h>
#include <openssl/provider.h>

/* As ngx_http_ssl_module.c, which no header has it from. */
#define NGX_DEFAULT_ECDH_CURVE "auto"

/* One worker, in memory that all workers of a configuration share: at the place that nginx's master has for its process.
 * Only that worker writes here. The others read, for the status page: each figure by itself is whole. */
typedef struct {
    ngx_pid_t           pid;        /* 0: there is none */
    ngx_uint_t          active;
    wattlock_counts_t   counts;
    char                why[128];       /* it is inactive */
    char                polling[64];    /* the rule in force */
    char                settings[256];  /* why those of the configuration are not in force */
} wattlock_worker_t;

typedef struct {
    ngx_flag_t          upstream;
    ngx_flag_t          hybrid;
    ngx_array_t         settings;   /* of struct wattlock_setting */
    char               *poll;       /* the value of wattlock_poll, also among the settings */
    ngx_shm_zone_t     *zone;       /* data: NGX_MAX_PROCESSES of wattlock_worker_t */
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
static ngx_int_t wattlock_activate(ngx_cycle_t *cycle, wattlock_main_conf_t *main_conf);
static void wattlock_exit_process(ngx_cycle_t *cycle);
static char *wattlock_set_poll(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *wattlock_set_provider(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *wattlock_set_openssl_conf(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *wattlock_set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static ngx_int_t wattlock_status_handler(ngx_http_request_t *r);

static const struct wattlock_table  *table;
static const char                   *inactive = "no server has `wattlock on`";
static wattlock_worker_t            *me;

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

    { ngx_string("wattlock_openssl_conf"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      wattlock_set_openssl_conf,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("wattlock_hybrid"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(wattlock_main_conf_t, hybrid),
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


static const struct wattlock_table *
wattlock_loaded_table(void)
{
    const struct wattlock_table  *found = NULL;

    (void) OSSL_PROVIDER_do_all(NULL, wattlock_look, &found);
    ERR_clear_error();

    return found;
}


int
wattlock_is_loaded(void)
{
    return wattlock_loaded_table() != NULL;
}


const struct wattlock_table *
wattlock_find_table(const char **why)
{
    const struct wattlock_table  *found = wattlock_loaded_table();

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
    conf->hybrid = NGX_CONF_UNSET;

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
    ngx_conf_init_value(main_conf->hybrid, 0);

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


/* wattlock_set KEY VALUE: a setting of the provider (docs/use/openssl.md), in force in every worker. */
static char *
wattlock_set_provider(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t  *value = cf->args->elts;

    (void) cmd;

    return wattlock_add_setting(conf, value[1].data, value[2].data);
}


/* wattlock_openssl_conf FILE: the provider, if no openssl.cnf has loaded it. At once, so that what is read next finds
 * it. */
static char *
wattlock_set_openssl_conf(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char        why[256];
    ngx_str_t  *value = cf->args->elts;

    (void) cmd;
    (void) conf;

    if (ngx_conf_full_name(cf->cycle, &value[1], 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (wattlock_load_provider((char *) value[1].data, why, sizeof(why)) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0, "wattlock: no provider: %s", why);
    }

    return NGX_CONF_OK;
}


static ngx_int_t
wattlock_init_zone(ngx_shm_zone_t *zone, void *data)
{
    (void) data;
    zone->data = ngx_slab_calloc((ngx_slab_pool_t *) zone->shm.addr, NGX_MAX_PROCESSES * sizeof(wattlock_worker_t));

    return zone->data != NULL ? NGX_OK : NGX_ERROR;
}


/* Whether a server's `ssl_conf_command` names groups. */
static ngx_uint_t
wattlock_commands_groups(ngx_http_ssl_srv_conf_t *ssl)
{
    ngx_uint_t     i;
    ngx_keyval_t  *commands;

    if (ssl->conf_commands == NULL) {
        return 0;
    }

    commands = ssl->conf_commands->elts;

    for (i = 0; i < ssl->conf_commands->nelts; i++) {
        if (wattlock_names_groups((char *) commands[i].key.data)) {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
wattlock_postconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t                   i, without = 0;
    char                        *groups;
    const char                  *why;
    ngx_str_t                    name = ngx_string("wattlock");
    wattlock_main_conf_t        *main_conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_wattlock_module);
    ngx_http_ssl_srv_conf_t     *ssl;
    ngx_http_core_srv_conf_t   **servers;
    wattlock_server_conf_t      *server;
    ngx_http_core_main_conf_t   *core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    if (wattlock_loop_prepare(&why) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "wattlock: %s", why);
        return NGX_ERROR;
    }

    main_conf->zone = ngx_shared_memory_add(cf, &name,
                                            NGX_MAX_PROCESSES * sizeof(wattlock_worker_t) + 16 * ngx_pagesize,
                                            &ngx_http_wattlock_module);

    if (main_conf->zone == NULL) {
        return NGX_ERROR;
    }

    main_conf->zone->init = wattlock_init_zone;
    /* Another configuration has other workers, and may have another build of this module. */
    main_conf->zone->noreuse = 1;

    groups = main_conf->hybrid ? wattlock_system_groups() : NULL;
    servers = core->servers.elts;

    for (i = 0; i < core->servers.nelts; i++) {
        ssl = servers[i]->ctx->srv_conf[ngx_http_ssl_module.ctx_index];
        server = servers[i]->ctx->srv_conf[ngx_http_wattlock_module.ctx_index];

        if (ssl != NULL && ssl->ssl.ctx != NULL && wattlock_mark(ssl->ssl.ctx, server->enable) != 1) {
            OPENSSL_free(groups);
            return NGX_ERROR;
        }

        /* Groups that a server, or the http block, names itself stay. */
        if (main_conf->hybrid && ssl != NULL && ssl->ssl.ctx != NULL
            && ngx_strcmp(ssl->ecdh_curve.data, NGX_DEFAULT_ECDH_CURVE) == 0
            && !wattlock_commands_groups(ssl))
        {
            without += wattlock_offer_hybrid(ssl->ssl.ctx, groups) != NGX_OK;
        }
    }

    OPENSSL_free(groups);

    if (without > 0) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0, "wattlock: no X25519MLKEM768: without the provider OpenSSL has none");
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
    ngx_int_t              rc;
    wattlock_main_conf_t  *main_conf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE) {
        return NGX_OK;
    }

    if (ngx_get_conf(cycle->conf_ctx, ngx_http_module) == NULL) {
        inactive = "there is no http block";
        return NGX_OK;
    }

    main_conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_wattlock_module);
    me = (wattlock_worker_t *) main_conf->zone->data + (ngx_process == NGX_PROCESS_WORKER ? ngx_process_slot : 0);
    ngx_memzero(me, sizeof(wattlock_worker_t));
    wattlock_counts = &me->counts;
    rc = wattlock_activate(cycle, main_conf);
    ngx_cpystrn((u_char *) me->why, (u_char *) (inactive != NULL ? inactive : ""), sizeof(me->why));
    me->active = inactive == NULL;
    ngx_memory_barrier();
    me->pid = ngx_pid;

    return rc;
}


static ngx_int_t
wattlock_activate(ngx_cycle_t *cycle, wattlock_main_conf_t *main_conf)
{
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
        && table->set(table->provider, main_conf->settings.elts, main_conf->settings.nelts, me->settings,
                      sizeof(me->settings)) != 1)
    {
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "wattlock: no wattlock_set and no wattlock_poll is in force, but openssl.cnf's settings: %s",
                      me->settings);
    }

    inactive = NULL;
    (void) table->polling(table->provider, me->polling, sizeof(me->polling));
    ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0, "wattlock: active, %s polling", me->polling);

    return wattlock_loop_start(cycle, table, main_conf->upstream);
}


static void
wattlock_exit_process(ngx_cycle_t *cycle)
{
    (void) cycle;
    wattlock_loop_stop();
    wattlock_bridge_lower();
    table = NULL;

    if (me != NULL) {
        me->pid = 0;
    }
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


/* What a worker counts, by name: in JSON and Prometheus text, on the page, and in words. */
static const struct {
    const char  *name;
    const char  *title;
    const char  *help;
    size_t       at;
    unsigned     gauge:1;
} wattlock_figures[] = {
    { "handshakes", "handshakes",
      "Handshakes begun.",
      offsetof(wattlock_counts_t, handshakes), 0 },
    { "in_handshake", "under way",
      "Handshakes under way.",
      offsetof(wattlock_counts_t, in_handshake), 1 },
    { "completed", "completed",
      "Handshakes that completed.",
      offsetof(wattlock_counts_t, completed), 0 },
    { "aborted", "aborted",
      "Handshakes that failed or were closed by either side.",
      offsetof(wattlock_counts_t, aborted), 0 },
    { "paused", "paused",
      "Handshakes that waited at least once for an operation.",
      offsetof(wattlock_counts_t, paused), 0 },
    { "polls", "polls",
      "Turns of the event loop in which the provider was asked.",
      offsetof(wattlock_counts_t, polls), 0 },
    { "flushes", "batches",
      "Batches that ran because the provider was asked.",
      offsetof(wattlock_counts_t, flushes), 0 },
    { "looks", "looks",
      "Turns that looked for devices' answers.",
      offsetof(wattlock_counts_t, looks), 0 },
    { "writes_paused", "writes paused",
      "Writes that waited for a device.",
      offsetof(wattlock_counts_t, writes_paused), 0 },
    { "group_x25519mlkem768", "X25519MLKEM768",
      "Clients' handshakes that completed with X25519MLKEM768.",
      offsetof(wattlock_counts_t, group_x25519mlkem768), 0 },
    { "group_x25519", "X25519",
      "Clients' handshakes that completed with X25519.",
      offsetof(wattlock_counts_t, group_x25519), 0 },
    { "group_p256", "P-256",
      "Clients' handshakes that completed with P-256.",
      offsetof(wattlock_counts_t, group_p256), 0 },
    { "group_other", "other groups",
      "Clients' handshakes that completed with another group.",
      offsetof(wattlock_counts_t, group_other), 0 },
    { "group_none", "no group",
      "Clients' handshakes that completed without a key agreement.",
      offsetof(wattlock_counts_t, group_none), 0 },
};

#define FIGURES (sizeof(wattlock_figures) / sizeof(wattlock_figures[0]))

/* Bytes of text that a worker needs at most: three texts, of which each byte may become six, and the figures. */
#define WORKER_TEXT (6 * sizeof(wattlock_worker_t) + 2048)
/* And what stands there once: the words of each figure, one worker's reason, and a line for all. */
#define FIXED_TEXT (FIGURES * 256 + WORKER_TEXT)


static ngx_uint_t
wattlock_figure(const wattlock_counts_t *counts, size_t which)
{
    return *(const ngx_uint_t *) ((const u_char *) counts + wattlock_figures[which].at);
}


/* The workers that there are now, into `rows` if that is not NULL; at most `most`. */
static ngx_uint_t
wattlock_workers(const wattlock_worker_t *all, wattlock_worker_t *rows, ngx_uint_t most)
{
    ngx_uint_t  i, n = 0;

    for (i = 0; i < NGX_MAX_PROCESSES && n < most; i++) {
        /* One that was killed could not say so. */
        if (all[i].pid != 0 && (all[i].pid == ngx_pid || kill(all[i].pid, 0) == 0 || errno != ESRCH)) {
            if (rows != NULL) {
                rows[n] = all[i];
            }

            n++;
        }
    }

    return n;
}


static u_char *
wattlock_json(u_char *at, const char *text)
{
    return (u_char *) ngx_escape_json(at, (u_char *) text, ngx_strlen(text));
}


static u_char *
wattlock_html(u_char *at, const char *text)
{
    return (u_char *) ngx_escape_html(at, (u_char *) text, ngx_strlen(text));
}


static u_char *
wattlock_counts_json(u_char *at, const wattlock_counts_t *counts)
{
    size_t  f;

    for (f = 0; f < FIGURES; f++) {
        at = ngx_sprintf(at, "\"%s\":%ui,", wattlock_figures[f].name, wattlock_figure(counts, f));
    }

    return at;
}


static u_char *
wattlock_row_html(u_char *at, const wattlock_counts_t *counts)
{
    size_t  f;

    for (f = 0; f < FIGURES; f++) {
        at = ngx_sprintf(at, "<td>%ui", wattlock_figure(counts, f));
    }

    return at;
}


/* What this module has to say of the workers, before the provider's counters; terminated. */
static u_char *
wattlock_told(int which, u_char *at, const wattlock_worker_t *rows, ngx_uint_t n)
{
    size_t                    f;
    ngx_uint_t                i;
    wattlock_counts_t         sum;
    const wattlock_worker_t  *idle = NULL;

    ngx_memzero(&sum, sizeof(sum));

    for (i = 0; i < n; i++) {
        idle = idle == NULL && !rows[i].active ? &rows[i] : idle;

        for (f = 0; f < FIGURES; f++) {
            *(ngx_uint_t *) ((u_char *) &sum + wattlock_figures[f].at) += wattlock_figure(&rows[i].counts, f);
        }
    }

    switch (which) {

    case WATTLOCK_JSON:
        at = ngx_sprintf(at, "{\"active\":%s,\"why\":\"", n > 0 && idle == NULL ? "true" : "false");
        at = wattlock_json(at, idle != NULL ? idle->why : "");
        at = wattlock_counts_json(ngx_sprintf(at, "\",\"worker\":%P,", ngx_pid), &sum);
        at = ngx_sprintf(at, "\"workers\":[");

        for (i = 0; i < n; i++) {
            at = ngx_sprintf(at, "%s{\"worker\":%P,\"active\":%s,", i > 0 ? "," : "", rows[i].pid,
                             rows[i].active ? "true" : "false");
            at = wattlock_json(ngx_sprintf(wattlock_counts_json(at, &rows[i].counts), "\"why\":\""), rows[i].why);
            at = wattlock_json(ngx_sprintf(at, "\",\"polling\":\""), rows[i].polling);
            at = wattlock_json(ngx_sprintf(at, "\",\"settings_refused\":\""), rows[i].settings);
            at = ngx_sprintf(at, "\"}");
        }

        at = ngx_sprintf(at, "],\"runtime\":");
        break;

    case WATTLOCK_PROMETHEUS:
        at = ngx_sprintf(at, "# HELP wattlock_nginx_active Whether the module works in this worker.\n"
                         "# TYPE wattlock_nginx_active gauge\n");

        for (i = 0; i < n; i++) {
            at = ngx_sprintf(at, "wattlock_nginx_active{worker=\"%P\"} %ui\n", rows[i].pid, rows[i].active);
        }

        for (f = 0; f < FIGURES; f++) {
            const char  *rest = wattlock_figures[f].gauge ? "" : "_total";

            at = ngx_sprintf(at, "# HELP wattlock_nginx_%s%s %s\n", wattlock_figures[f].name, rest,
                             wattlock_figures[f].help);
            at = ngx_sprintf(at, "# TYPE wattlock_nginx_%s%s %s\n", wattlock_figures[f].name, rest,
                             wattlock_figures[f].gauge ? "gauge" : "counter");

            for (i = 0; i < n; i++) {
                at = ngx_sprintf(at, "wattlock_nginx_%s%s{worker=\"%P\"} %ui\n", wattlock_figures[f].name, rest,
                                 rows[i].pid, wattlock_figure(&rows[i].counts, f));
            }
        }

        break;

    default:
        if (idle != NULL) {
            at = ngx_sprintf(at, "<p class=\"verdict alarm\">Inactive in worker %P: ", idle->pid);
            at = wattlock_html(at, idle->why);
            at = ngx_sprintf(at, "</p>");
        }

        at = ngx_sprintf(at, "<h2>nginx</h2><table><tr><th>worker<th>state");

        for (f = 0; f < FIGURES; f++) {
            at = ngx_sprintf(at, "<th>%s", wattlock_figures[f].title);
        }

        for (i = 0; i < n; i++) {
            at = ngx_sprintf(at, "<tr><td>%P<td>%s", rows[i].pid, rows[i].active ? "active, polling " : "inactive: ");
            at = wattlock_html(at, rows[i].active ? rows[i].polling : rows[i].why);

            if (rows[i].settings[0] != '\0') {
                at = wattlock_html(ngx_sprintf(at, "; settings refused: "), rows[i].settings);
            }

            at = wattlock_row_html(at, &rows[i].counts);
        }

        at = wattlock_row_html(ngx_sprintf(at, "<tr><th>all<td>"), &sum);
        at = ngx_sprintf(at, "</table>");
    }

    *at = '\0';

    return at;
}


/* The page around what this module has to say, if there is no provider to make one. */
#define WATTLOCK_PLAIN "<!doctype html><html lang=en><meta charset=utf-8>" \
    "<meta name=viewport content=width=device-width><meta name=color-scheme content=\"light dark\">" \
    "<meta http-equiv=refresh content=5><link rel=icon href=data:,><title>Wattlock</title><style>" \
    "body{font:16px system-ui,sans-serif;margin:1.4rem}table{display:block;overflow-x:auto}" \
    "td,th{padding:.2rem 1rem .2rem 0;text-align:left;white-space:nowrap}</style><h1>Wattlock in nginx</h1>%s</html>\n"

/* ?format=json (default), prometheus or html. */
static ngx_int_t
wattlock_status_handler(ngx_http_request_t *r)
{
    int                     which = WATTLOCK_JSON;
    size_t                  need = 0, room, told;
    u_char                 *text, *end;
    uint32_t               *pids;
    ngx_int_t               rc;
    ngx_str_t               format = ngx_string("json"), type;
    ngx_buf_t              *b;
    ngx_uint_t              i, n;
    ngx_chain_t             out;
    wattlock_worker_t      *rows;
    wattlock_main_conf_t   *main_conf = ngx_http_get_module_main_conf(r, ngx_http_wattlock_module);

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

    n = wattlock_workers(main_conf->zone->data, NULL, NGX_MAX_PROCESSES);
    rows = ngx_palloc(r->pool, (n + 1) * sizeof(wattlock_worker_t));
    pids = ngx_palloc(r->pool, (n + 1) * sizeof(uint32_t));
    told = FIXED_TEXT + n * WORKER_TEXT;
    text = ngx_palloc(r->pool, told);

    if (rows == NULL || pids == NULL || text == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    n = wattlock_workers(main_conf->zone->data, rows, n);
    end = wattlock_told(which, text, rows, n);

    for (i = 0; i < n; i++) {
        pids[i] = (uint32_t) rows[i].pid;
    }

    if (table != NULL) {
        u_char      *whole;
        const char  *own = which == WATTLOCK_HTML ? (char *) text : NULL;

        /* What is counted meanwhile has a few digits more. */
        room = table->status_of(table->provider, which, pids, n, own, NULL, 0) + 4096;
        told = own == NULL ? (size_t) (end - text) : 0;
        whole = ngx_palloc(r->pool, told + room + 8);

        if (whole == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_memcpy(whole, text, told);
        text = whole;
        end = whole + told;
        need = table->status_of(table->provider, which, pids, n, own, (char *) end, room);

        if (need == 0 || need > room) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        end += need - 1;

    } else if (which == WATTLOCK_JSON) {
        end = ngx_sprintf(end, "null");

    } else if (which == WATTLOCK_HTML) {
        /* The style sheet is the provider's. */
        u_char  *whole = ngx_palloc(r->pool, end - text + sizeof(WATTLOCK_PLAIN));

        if (whole == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        end = ngx_sprintf(whole, WATTLOCK_PLAIN, text);
        text = whole;
    }

    if (which == WATTLOCK_JSON) {
        end = ngx_sprintf(end, "}\n");
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
