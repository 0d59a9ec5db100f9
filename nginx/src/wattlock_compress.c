/*
 * Compression of responses in the place of nginx's gzip filter.
 *
 * nginx's own filter goes on deciding what is compressed: types, lengths, proxied requests, Vary, weak ETags, HEAD. This
 * filter stands behind it. Where a response's context says that gzip has chosen to compress, this filter takes the context
 * away, whereupon gzip's body filter passes everything on untouched, and compresses in its stead, at gzip's own level, with
 * the compressors of the provider's function table. If the client gives zstd at least the weight of gzip and `wattlock_zstd`
 * is on, the response becomes a zstd frame. Responses that others have encoded have no such context and stay theirs.
 *
 * Where anything is missing (the provider, the gzip module, the level's place in gzip's command table, memory) gzip's
 * filter keeps the response, and the debug log says why. Once a header has gone, a compressor that fails ends the
 * connection, as zlib's failure does.
 *
 * *The loop.* One turn of the loop compresses for at most SLICE_NS of predicted work, all responses together. What is
 * left waits in `waiting`, and an event of this module goes on with it in the next turn, response by response. The event
 * belongs to this filter and not to a request: it does not matter who produces a response (a file, an upstream with or
 * without buffers, a subrequest), whether that producer would ever call again, or what stands behind a flush. A producer
 * sees buffers that are not free yet, as with a client that is slow. When they are, the connection's write event is
 * posted, as if the client had taken something: that is the call that producers wait for. A response that is here as a
 * whole and takes less than SLICE_NS is done at once, whatever others took.
 *
 * *Other cores.* A gzip member that has taken much of the loop and goes on is spread, if cores are idle or there
 * is a device: the provider cuts what follows into chunks and joins them. The loop sleeps; a descriptor wakes it when chunks
 * are done, and all members that are spread are asked for their output. One that the policy gives to a device is spread
 * from its first byte on.
 *
 * *Flushes* go out at once, as a sync flush of one continuous stream; one buffer may flush and end. Buffers without data in
 * mid-stream are passed over.
 */
#include "wattlock_nginx.h"
#include <ngx_http.h>
#include <time.h>

/* What one turn of the loop may compress, as far as can be foreseen; the least that is worth a call. */
#define SLICE_NS       250000
#define SLICE_LEAST    4096

/* While responses wait, a worker that is to end has a timer, which keeps it alive. */
#define WAITING_MSEC   60000

/* Output in memory that the client has not taken yet. */
#define OUTPUT_BUFFER  (32 * 1024)
#define OUTPUT_MOST    (8 * OUTPUT_BUFFER)

/* State of a compressor, for `wattlock_memory`. */
#define GZIP_STATE     (512 * 1024)
#define ZSTD_STATE     (3 * 1024 * 1024)

/* What a chunk on another core has before it. */
#define DICTIONARY     (32 * 1024)

#define ZSTD_LEVEL     3
#define LEVELS         10

/* What the provider answers while other cores work. */
#define ELSEWHERE      2

/* Idle compressors kept of one sort: making one anew means some hundred page faults. */
#define IDLE_MOST      4

/* Gzip's own, which it does not use where we have its place. */
#define WATTLOCK_BUFFERED  NGX_HTTP_GZIP_BUFFERED

typedef struct {
    size_t       memory;
    size_t       chunk_size;  /* of what is spread */
    size_t       stream_size; /* that is spread at once, of a response */
    ngx_uint_t   wanted;      /* some location may compress */
} wattlock_compress_main_conf_t;

typedef struct {
    ngx_flag_t   gzip;
    ngx_flag_t   zstd;
} wattlock_compress_conf_t;

/* Compressors of one sort that nobody uses. */
typedef struct {
    void        *compressor[IDLE_MOST];
    ngx_uint_t   count;
    ngx_uint_t   ns_kib;      /* what a KiB took lately, in nanoseconds */
} wattlock_idle_t;

typedef struct {
    ngx_http_request_t  *request;
    void                *compressor;
    ngx_chain_t         *in;
    ngx_chain_t         *out;
    ngx_chain_t        **last_out;
    ngx_chain_t         *free;
    ngx_chain_t         *busy;
    ngx_buf_t           *buf;        /* being filled */
    ngx_queue_t          place;      /* in `waiting`, while `waits` */
    ngx_queue_t          elsewhere;  /* in `spreading`, while `spread` */
    size_t               held;       /* of the worker's memory */
    size_t               allocated;
    off_t                zin;
    off_t                zout;
    uint64_t             ns;
    uint64_t             lately_ns;  /* since everything had come out */
    int                  coding;
    int                  level;
    unsigned             done:1;
    unsigned             failed:1;
    unsigned             nomem:1;    /* the client has to take something first */
    unsigned             open:1;     /* the compressor keeps content that is to come out */
    unsigned             begun:1;
    unsigned             asked:1;    /* for a flush or the end, which have not come out as a whole */
    unsigned             waits:1;
    unsigned             at_once:1;  /* small and whole */
    unsigned             spread:1;   /* on other cores */
} wattlock_response_t;

static void *wattlock_compress_create_main_conf(ngx_conf_t *cf);
static char *wattlock_compress_init_main_conf(ngx_conf_t *cf, void *conf);
static void *wattlock_compress_create_conf(ngx_conf_t *cf);
static char *wattlock_compress_merge_conf(ngx_conf_t *cf, void *parent, void *child);
static ngx_int_t wattlock_compress_variables(ngx_conf_t *cf);
static ngx_int_t wattlock_compress_postconfiguration(ngx_conf_t *cf);
static ngx_int_t wattlock_compress_init_process(ngx_cycle_t *cycle);
static void wattlock_compress_exit_process(ngx_cycle_t *cycle);
static void wattlock_turn(ngx_event_t *event);
static void wattlock_go_on(wattlock_response_t *response);

/* An nginx without it does not export it. */
extern ngx_module_t  ngx_http_gzip_filter_module __attribute__((weak));
extern ngx_module_t  ngx_http_copy_filter_module;

static const struct wattlock_table  *table;
static const char                   *inactive;
static ngx_uint_t                    level_offset = (ngx_uint_t) -1;
static int                           devices = -1;  /* whether any compresses; -1: not yet asked */
static size_t                        held;          /* state of all compressors in use */
static wattlock_idle_t               idle[2][LEVELS];
static ngx_queue_t                   waiting;       /* responses that have input and room, in the order of their turns */
static ngx_queue_t                   spreading;     /* responses on other cores */
static ngx_connection_t             *wake;          /* the descriptor that other cores write to */
static ngx_event_t                   turn_event;
static ngx_connection_t              turn_connection;
static uint64_t                      left_ns;       /* of SLICE_NS, in this turn of the loop */
static ngx_msec_t                    left_at;       /* when it was last whole */

static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;
static ngx_http_get_variable_pt          stock_gzip_ratio;

static ngx_command_t  wattlock_compress_commands[] = {

    { ngx_string("wattlock_gzip"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(wattlock_compress_conf_t, gzip),
      NULL },

    { ngx_string("wattlock_zstd"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(wattlock_compress_conf_t, zstd),
      NULL },

    { ngx_string("wattlock_memory"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(wattlock_compress_main_conf_t, memory),
      NULL },

    { ngx_string("wattlock_chunk_size"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(wattlock_compress_main_conf_t, chunk_size),
      NULL },

    { ngx_string("wattlock_stream_size"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(wattlock_compress_main_conf_t, stream_size),
      NULL },

      ngx_null_command
};

static ngx_http_module_t  wattlock_compress_http = {
    wattlock_compress_variables,           /* preconfiguration */
    wattlock_compress_postconfiguration,   /* postconfiguration */
    wattlock_compress_create_main_conf,    /* create main configuration */
    wattlock_compress_init_main_conf,      /* init main configuration */
    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */
    wattlock_compress_create_conf,         /* create location configuration */
    wattlock_compress_merge_conf           /* merge location configuration */
};

ngx_module_t  ngx_http_wattlock_compress_module = {
    NGX_MODULE_V1,
    &wattlock_compress_http,               /* module context */
    wattlock_compress_commands,            /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    wattlock_compress_init_process,        /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    wattlock_compress_exit_process,        /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


/* Where gzip keeps its level, as its own command table says. */
static ngx_uint_t
wattlock_level_offset(void)
{
    ngx_command_t  *command;

    if (&ngx_http_gzip_filter_module == NULL || ngx_http_gzip_filter_module.commands == NULL) {
        return (ngx_uint_t) -1;
    }

    for (command = ngx_http_gzip_filter_module.commands; command->name.len != 0; command++) {
        if (command->name.len == sizeof("gzip_comp_level") - 1
            && ngx_strncmp(command->name.data, "gzip_comp_level", command->name.len) == 0
            && command->set == ngx_conf_set_num_slot
            && command->conf == NGX_HTTP_LOC_CONF_OFFSET)
        {
            return command->offset;
        }
    }

    return (ngx_uint_t) -1;
}


static ngx_int_t
wattlock_compress_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                      i;
    wattlock_compress_main_conf_t  *conf;

    if ((ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
        || ngx_get_conf(cycle->conf_ctx, ngx_http_module) == NULL)
    {
        return NGX_OK;
    }

    conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_wattlock_compress_module);

    if (!conf->wanted) {
        inactive = "wattlock_gzip is off everywhere";
        return NGX_OK;
    }

    level_offset = wattlock_level_offset();

    if (level_offset == (ngx_uint_t) -1) {
        inactive = "this nginx has no gzip filter, or one that is not known";
        ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0, "wattlock: responses are not compressed by Wattlock: %s", inactive);
        return NGX_OK;
    }

    table = wattlock_find_table(&inactive);

    if (table == NULL) {
        ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0, "wattlock: nginx's own gzip compresses: %s", inactive);
        return NGX_OK;
    }

    ngx_queue_init(&waiting);
    ngx_queue_init(&spreading);
    ngx_memzero(&turn_event, sizeof(ngx_event_t));
    ngx_memzero(&turn_connection, sizeof(ngx_connection_t));
    turn_connection.fd = (ngx_socket_t) -1;
    turn_event.handler = wattlock_turn;
    turn_event.log = cycle->log;
    turn_event.data = &turn_connection;

    /* Until it was measured: low levels are igzip's, 6 and above look far. */
    for (i = 0; i < LEVELS; i++) {
        idle[WATTLOCK_GZIP][i].ns_kib = i <= 2 ? 3000 : i <= 5 ? 12000 : 60000;
        idle[WATTLOCK_ZSTD][i].ns_kib = 6000;
    }

    return NGX_OK;
}


static void
wattlock_compress_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t        coding, level;
    wattlock_idle_t  *kept;

    (void) cycle;

    for (coding = 0; table != NULL && coding < 2; coding++) {
        for (level = 0; level < LEVELS; level++) {
            kept = &idle[coding][level];

            while (kept->count > 0) {
                table->compressor_free(table->provider, kept->compressor[--kept->count]);
            }
        }
    }
}


static size_t
wattlock_state_size(int coding)
{
    return coding == WATTLOCK_GZIP ? GZIP_STATE : ZSTD_STATE;
}


/* Takes an idle compressor or makes one, and begins a stream. */
static void *
wattlock_compressor(int coding, int level, size_t most, const char **why)
{
    void             *compressor;
    wattlock_idle_t  *kept = &idle[coding][level];

    if (held + wattlock_state_size(coding) > most) {
        *why = "wattlock_memory is used up";
        return NULL;
    }

    compressor = kept->count > 0 ? kept->compressor[--kept->count] : table->compressor(table->provider, coding, level);

    if (compressor == NULL) {
        *why = "no compressor could be made";
        return NULL;
    }

    if (table->compress_start(table->provider, compressor) != 1) {
        table->compressor_free(table->provider, compressor);
        *why = "the compressor does not start";
        return NULL;
    }

    return compressor;
}


/* While there is work left a worker that is to end has a timer, which keeps it alive. */
static void
wattlock_stay(void)
{
    int  work = !ngx_queue_empty(&waiting) || !ngx_queue_empty(&spreading);

    if (work && !turn_event.timer_set) {
        ngx_add_timer(&turn_event, WAITING_MSEC);

    } else if (!work && turn_event.timer_set) {
        ngx_del_timer(&turn_event);
    }
}


/* Takes a response out of the line, if it is in it. */
static void
wattlock_leave(wattlock_response_t *response)
{
    if (response->waits) {
        ngx_queue_remove(&response->place);
        response->waits = 0;
    }
}


/* A response waits for the next turn of the loop. */
static void
wattlock_wait(wattlock_response_t *response)
{
    if (!response->waits) {
        ngx_queue_insert_tail(&waiting, &response->place);
        response->waits = 1;
    }

    if (!turn_event.posted) {
        ngx_post_event(&turn_event, &ngx_posted_next_events);
    }

    wattlock_stay();
}


/* Gives a compressor back, if there still is one. Also the cleanup of the request's pool. */
static void
wattlock_give_back(void *data)
{
    wattlock_response_t  *response = data;
    wattlock_idle_t      *kept = &idle[response->coding][response->level];

    wattlock_leave(response);

    if (response->spread) {
        ngx_queue_remove(&response->elsewhere);
    }

    wattlock_stay();

    if (response->compressor == NULL) {
        return;
    }

    /* One that others work for ends with its work. */
    if (kept->count < IDLE_MOST && (!response->spread || response->done) && !response->failed) {
        kept->compressor[kept->count++] = response->compressor;

    } else {
        table->compressor_free(table->provider, response->compressor);
    }

    response->compressor = NULL;
    response->spread = 0;
    held -= response->held;
}


/* The descriptor of other cores: they are done with something. */
static void
wattlock_woken(ngx_event_t *event)
{
    ngx_queue_t          *at, *next;
    wattlock_response_t  *response;

    (void) event;
    table->compress_woken(table->provider);

    for (at = ngx_queue_head(&spreading); at != ngx_queue_sentinel(&spreading); at = next) {
        next = ngx_queue_next(at);
        response = ngx_queue_data(at, wattlock_response_t, elsewhere);
        wattlock_go_on(response);
    }
}


int
wattlock_compress_listens(void)
{
    return wake != NULL;
}


/* Has the loop woken by other cores. Theirs is no client's connection: `channel` is what nginx marks its own with. */
static ngx_int_t
wattlock_listen(void)
{
    int  descriptor;

    if (wake != NULL) {
        return NGX_OK;
    }

    descriptor = table->compress_descriptor(table->provider);
    wake = descriptor >= 0 ? ngx_get_connection(descriptor, ngx_cycle->log) : NULL;

    if (wake == NULL) {
        return NGX_DECLINED;
    }

    wake->read->handler = wattlock_woken;
    wake->read->log = ngx_cycle->log;
    wake->read->channel = 1;
    wake->write->log = ngx_cycle->log;
    wake->write->channel = 1;

    if (ngx_handle_read_event(wake->read, 0) != NGX_OK) {
        ngx_free_connection(wake);
        wake->fd = (ngx_socket_t) -1;
        wake = NULL;
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* What a response on other cores holds: chunks with what is before them and their output, and one being gathered. */
static size_t
wattlock_spread_size(wattlock_compress_main_conf_t *conf)
{
    /* The provider makes larger chunks where compressing is quick. */
    size_t  large = ngx_max(conf->chunk_size, conf->stream_size / 2);
    size_t  many = (conf->stream_size / conf->chunk_size + 1) * (DICTIONARY + 2 * conf->chunk_size);
    size_t  few = (conf->stream_size / large + 1) * (DICTIONARY + 2 * large);

    return ngx_max(many, few) + DICTIONARY + large;
}


/*
 * The same on its way to a device, which works on copies: of each chunk and of what is before it two, and the output. One
 * that is a single chunk has nothing before it.
 */
static size_t
wattlock_device_size(wattlock_compress_main_conf_t *conf, size_t size)
{
    size_t  chunks = ngx_min(size, conf->stream_size) / conf->chunk_size + 1;

    if (size <= conf->chunk_size) {
        return 4 * size;
    }

    return chunks * (2 * DICTIONARY + 3 * conf->chunk_size) + DICTIONARY + conf->chunk_size;
}


/* A response is spread from here on. */
static void
wattlock_elsewhere(wattlock_response_t *response, size_t more)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, response->request->connection->log, 0,
                   "wattlock: compressed on other cores from byte %O on", response->zin);
    response->spread = 1;
    response->held += more;
    held += more;
    ngx_queue_insert_tail(&spreading, &response->elsewhere);
    wattlock_stay();
}


/* Spreads a response that goes on over other cores, if there are any. */
static void
wattlock_spread(wattlock_response_t *response)
{
    size_t                          more;
    wattlock_compress_main_conf_t  *conf;

    if (response->coding != WATTLOCK_GZIP || wattlock_listen() != NGX_OK) {
        return;
    }

    conf = ngx_http_get_module_main_conf(response->request, ngx_http_wattlock_compress_module);
    more = wattlock_spread_size(conf);

    if (held + more <= conf->memory
        && table->compress_spread(table->provider, response->compressor, response->level, response->lately_ns, conf->chunk_size,
                                  conf->stream_size) == 1)
    {
        wattlock_elsewhere(response, more);
    }
}


/*
 * Gives a response that begins to a device, if the policy does. What is not here as a whole counts as a chunk at least. If it
 * begins with a flush (events, or an upstream without buffers) it stays: each flush would be a chunk of its own, with a
 * dictionary many times as long.
 */
static void
wattlock_offload(wattlock_response_t *response)
{
    int                             whole = 0, flush = 0;
    size_t                          size = 0, more;
    ngx_chain_t                    *cl;
    wattlock_compress_main_conf_t  *conf;

    if (devices == -1) {
        devices = table->compress_offload(table->provider, NULL, 0, 0, 0, 0);
    }

    if (!devices || response->coding != WATTLOCK_GZIP || wattlock_listen() != NGX_OK) {
        return;
    }

    conf = ngx_http_get_module_main_conf(response->request, ngx_http_wattlock_compress_module);

    for (cl = response->in; cl != NULL && !whole; cl = cl->next) {
        size += ngx_buf_in_memory(cl->buf) ? (size_t) (cl->buf->last - cl->buf->pos) : 0;
        whole = cl->buf->last_buf;
        flush |= cl->buf->flush;
    }

    if (flush && !whole) {
        return;
    }

    more = wattlock_device_size(conf, whole ? size : (size_t) -1);
    size = whole ? size : ngx_max(size, conf->chunk_size);

    if (held + more <= conf->memory
        && table->compress_offload(table->provider, response->compressor, response->level, size, conf->chunk_size,
                                   conf->stream_size) == 1)
    {
        wattlock_elsewhere(response, more);
    }
}


/* A coding's weight in an Accept-Encoding, in thousandths; -1 if it is not there. */
static ngx_int_t
wattlock_weight(ngx_str_t *header, const char *coding, size_t len)
{
    u_char     *p = header->data, *end = header->data + header->len, *name, *name_end;
    ngx_int_t   weight, digit;

    while (p < end) {
        while (p < end && (*p == ' ' || *p == '\t' || *p == ',')) {
            p++;
        }

        name = p;

        while (p < end && *p != ',' && *p != ';' && *p != ' ' && *p != '\t') {
            p++;
        }

        name_end = p;
        weight = 1000;

        while (p < end && *p != ',') {
            if ((*p == 'q' || *p == 'Q') && p + 1 < end && p[1] == '=') {
                p += 2;
                weight = 0;

                if (p < end && *p >= '0' && *p <= '9') {
                    weight = (*p++ - '0') * 1000;
                }

                if (p < end && *p == '.') {
                    p++;

                    for (digit = 100; p < end && *p >= '0' && *p <= '9'; p++, digit /= 10) {
                        weight += (*p - '0') * digit;
                    }
                }

                continue;
            }

            p++;
        }

        if ((size_t) (name_end - name) == len && ngx_strncasecmp(name, (u_char *) coding, len) == 0) {
            return weight;
        }
    }

    return -1;
}


static int
wattlock_prefers_zstd(ngx_http_request_t *r)
{
#if (NGX_HTTP_GZIP)
    ngx_int_t         gzip, zstd;
    ngx_table_elt_t  *accepted = r->headers_in.accept_encoding;

    if (accepted == NULL) {
        return 0;
    }

    gzip = wattlock_weight(&accepted->value, "gzip", 4);
    zstd = wattlock_weight(&accepted->value, "zstd", 4);

    return zstd > 0 && zstd >= gzip;
#else
    (void) r;

    return 0;
#endif
}


static ngx_int_t
wattlock_header_filter(ngx_http_request_t *r)
{
    u_char                         *gzip_conf;
    ngx_int_t                       level;
    const char                     *why = NULL;
    ngx_table_elt_t                *encoding = r->headers_out.content_encoding;
    ngx_pool_cleanup_t             *cleanup;
    wattlock_response_t            *response;
    wattlock_compress_conf_t       *conf;
    wattlock_compress_main_conf_t  *main_conf;

    if (table == NULL || r != r->main || r->header_only || encoding == NULL || encoding->value.len != 4
        || ngx_strncmp(encoding->value.data, "gzip", 4) != 0
        || ngx_http_get_module_ctx(r, ngx_http_gzip_filter_module) == NULL)
    {
        return ngx_http_next_header_filter(r);
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_wattlock_compress_module);
    main_conf = ngx_http_get_module_main_conf(r, ngx_http_wattlock_compress_module);
    gzip_conf = ngx_http_get_module_loc_conf(r, ngx_http_gzip_filter_module);
    level = *(ngx_int_t *) (gzip_conf + level_offset);

    if (!conf->gzip) {
        why = "wattlock_gzip is off here";

    } else if (level < 1 || level > 9) {
        why = "gzip's level is not 1 to 9";
    }

    response = why == NULL ? ngx_pcalloc(r->pool, sizeof(wattlock_response_t)) : NULL;
    cleanup = response != NULL ? ngx_pool_cleanup_add(r->pool, 0) : NULL;

    if (cleanup != NULL) {
        response->coding = conf->zstd && wattlock_prefers_zstd(r) ? WATTLOCK_ZSTD : WATTLOCK_GZIP;
        response->level = response->coding == WATTLOCK_ZSTD ? ZSTD_LEVEL : (int) level;
        response->compressor = wattlock_compressor(response->coding, response->level, main_conf->memory, &why);
    }

    if (cleanup == NULL || response->compressor == NULL) {
        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "wattlock: nginx's gzip compresses this one: %s",
                       why != NULL ? why : "no memory");
        return ngx_http_next_header_filter(r);
    }

    response->held = wattlock_state_size(response->coding);
    held += response->held;
    cleanup->handler = wattlock_give_back;
    cleanup->data = response;
    response->request = r;
    response->last_out = &response->out;

    /* The place is ours now. */
    ngx_http_set_ctx(r, NULL, ngx_http_gzip_filter_module);
    ngx_http_set_ctx(r, response, ngx_http_wattlock_compress_module);

    if (response->coding == WATTLOCK_ZSTD) {
        ngx_str_set(&encoding->value, "zstd");
    }

    return ngx_http_next_header_filter(r);
}


/* A buffer to write to. NGX_DECLINED: the client has too much before it. */
static ngx_int_t
wattlock_output_buffer(wattlock_response_t *response)
{
    size_t        size = OUTPUT_BUFFER, content = 0;
    ngx_chain_t  *cl;

    if (response->buf != NULL) {
        return NGX_OK;
    }

    if (response->free != NULL) {
        cl = response->free;
        response->free = cl->next;
        response->buf = cl->buf;
        ngx_free_chain(response->request->pool, cl);

        return NGX_OK;
    }

    if (response->allocated >= OUTPUT_MOST) {
        response->nomem = 1;
        return NGX_DECLINED;
    }

    /* A small response that is here as a whole needs no more than itself. */
    if (response->allocated == 0) {
        for (cl = response->in; cl != NULL; cl = cl->next) {
            content += ngx_buf_in_memory(cl->buf) ? cl->buf->last - cl->buf->pos : 0;

            if (cl->buf->last_buf) {
                size = ngx_min(size, content + content / 256 + 160);
                break;
            }
        }
    }

    response->buf = ngx_create_temp_buf(response->request->pool, size);

    if (response->buf == NULL) {
        return NGX_ERROR;
    }

    response->buf->tag = (ngx_buf_tag_t) &ngx_http_wattlock_compress_module;
    response->buf->recycled = 1;
    response->allocated += size;

    return NGX_OK;
}


/* Sends what was written so far on its way, with a flush or the end behind it. */
static ngx_int_t
wattlock_pass_on(wattlock_response_t *response, int then)
{
    ngx_buf_t    *b = response->buf;
    ngx_chain_t  *cl;

    if (b == NULL || b->last == b->pos) {
        if (then == WATTLOCK_MORE) {
            return NGX_OK;
        }

        b = ngx_calloc_buf(response->request->pool);

        if (b == NULL) {
            return NGX_ERROR;
        }

    } else {
        response->buf = NULL;
    }

    cl = ngx_alloc_chain_link(response->request->pool);

    if (cl == NULL) {
        return NGX_ERROR;
    }

    response->zout += b->last - b->pos;
    b->flush = then == WATTLOCK_FLUSH;
    b->last_buf = then == WATTLOCK_END;
    cl->buf = b;
    cl->next = NULL;
    *response->last_out = cl;
    response->last_out = &cl->next;

    return NGX_OK;
}


static uint64_t
wattlock_now_ns(void)
{
    struct timespec  now;

    (void) clock_gettime(CLOCK_MONOTONIC, &now);

    return (uint64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}


/* Notes what some bytes took. Small pieces say little of a rate. */
static void
wattlock_note(wattlock_response_t *response, size_t bytes, uint64_t ns)
{
    wattlock_idle_t  *kept = &idle[response->coding][response->level];

    response->ns += ns;
    response->lately_ns += ns;

    if (bytes >= SLICE_LEAST && !response->spread) {
        kept->ns_kib = (ngx_uint_t) ((7 * (uint64_t) kept->ns_kib + ns * 1024 / bytes) / 8);
    }
}


/* How much of a turn's time is left. A clock that has gone on says that there was another turn. */
static void
wattlock_look(void)
{
    if (left_at != ngx_current_msec) {
        left_at = ngx_current_msec;
        left_ns = SLICE_NS;
    }
}


/* Bytes that so much time is expected to be enough for. */
static size_t
wattlock_bytes(wattlock_response_t *response, uint64_t ns)
{
    uint64_t  bytes = ns * 1024 / ngx_max(idle[response->coding][response->level].ns_kib, 1);

    return (size_t) ngx_max(bytes, SLICE_LEAST);
}


/* Whether all of a response is here, and small. */
static int
wattlock_small(wattlock_response_t *response)
{
    size_t        size = 0, most = wattlock_bytes(response, SLICE_NS);
    ngx_chain_t  *cl;

    for (cl = response->in; cl != NULL && size <= most; cl = cl->next) {
        size += ngx_buf_in_memory(cl->buf) ? cl->buf->last - cl->buf->pos : 0;

        if (cl->buf->last_buf) {
            return size <= most;
        }
    }

    return 0;
}


/* Compresses some of the first buffer. NGX_OK: go on; NGX_AGAIN: no input, no room, or enough for this turn. */
static ngx_int_t
wattlock_step(wattlock_response_t *response)
{
    int           then, answer;
    size_t        size, from, to;
    uint64_t      began, took;
    ngx_int_t     rc;
    ngx_buf_t    *b, nothing = { 0 };
    ngx_chain_t  *cl = response->in;

    if (cl == NULL && !response->spread) {
        return NGX_AGAIN;
    }

    /* What other cores have done comes out without input, too. */
    b = cl != NULL ? cl->buf : &nothing;
    size = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;
    then = b->last_buf ? WATTLOCK_END : b->flush ? WATTLOCK_FLUSH : WATTLOCK_MORE;
    from = size;

    if (from > 0 || then != WATTLOCK_MORE || response->spread) {
        if (left_ns == 0 && !response->at_once && !response->spread) {
            wattlock_spread(response);

            if (!response->spread) {
                wattlock_wait(response);
                return NGX_AGAIN;
            }
        }

        /* What was asked for and has not come out as a whole is asked for again. */
        if (!response->at_once && !response->spread && !response->asked) {
            from = ngx_min(size, wattlock_bytes(response, left_ns));
            then = from < size ? WATTLOCK_MORE : then;
        }

        rc = wattlock_output_buffer(response);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_AGAIN : NGX_ERROR;
        }

        to = response->buf->end - response->buf->last;
        began = wattlock_now_ns();
        answer = table->compress(table->provider, response->compressor, b->pos, &from, response->buf->last, &to, then);
        took = wattlock_now_ns() - began;
        wattlock_note(response, from, took);
        left_ns -= ngx_min(left_ns, took);

        if (answer < 0) {
            ngx_log_error(NGX_LOG_ALERT, response->request->connection->log, 0, "wattlock: the compressor failed");
            return NGX_ERROR;
        }

        b->pos += from;
        response->asked = answer == 0 && then != WATTLOCK_MORE;
        response->open |= cl != NULL;
        response->zin += from;
        response->buf->last += to;

        if (answer == ELSEWHERE || cl == NULL) {
            return wattlock_pass_on(response, WATTLOCK_MORE) != NGX_OK ? NGX_ERROR
                   : answer == 0 ? NGX_OK : NGX_AGAIN;
        }

        if (answer == 0) {
            /* The output is full. */
            return wattlock_pass_on(response, WATTLOCK_MORE);
        }

        if (response->buf->end - response->buf->last < 64 && wattlock_pass_on(response, WATTLOCK_MORE) != NGX_OK) {
            return NGX_ERROR;
        }

        if (then != WATTLOCK_MORE) {
            if (wattlock_pass_on(response, then) != NGX_OK) {
                return NGX_ERROR;
            }

            response->open = 0;
            response->lately_ns = 0;
        }

        if (then == WATTLOCK_END) {
            response->done = 1;
            response->in = NULL;
            wattlock_give_back(response);
            return NGX_AGAIN;
        }

        if (from < size) {
            return NGX_OK;
        }
    }

    response->in = cl->next;
    ngx_free_chain(response->request->pool, cl);

    return NGX_OK;
}


/* Compresses what this turn has time for, and sends what came of it on its way. */
static ngx_int_t
wattlock_work(wattlock_response_t *response)
{
    int                  flush;
    ngx_int_t            rc;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r = response->request;

    if (response->nomem) {
        /* What the client has not taken yet. */
        if (ngx_http_next_body_filter(r, NULL) == NGX_ERROR) {
            return NGX_ERROR;
        }

        cl = NULL;
        ngx_chain_update_chains(r->pool, &response->free, &response->busy, &cl,
                                (ngx_buf_tag_t) &ngx_http_wattlock_compress_module);
        response->nomem = 0;
        flush = 0;

    } else {
        flush = response->busy != NULL;
    }

    for ( ;; ) {

        do {
            rc = wattlock_step(response);
        } while (rc == NGX_OK);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        /* Nobody must think that this response is at its end; somebody else's flush must not take the mark away. */
        if (response->in != NULL || response->open) {
            r->connection->buffered |= WATTLOCK_BUFFERED;

        } else {
            r->connection->buffered &= ~WATTLOCK_BUFFERED;
        }

        if (response->out == NULL && !flush) {
            return response->busy != NULL || response->in != NULL ? NGX_AGAIN : NGX_OK;
        }

        rc = ngx_http_next_body_filter(r, response->out);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        ngx_chain_update_chains(r->pool, &response->free, &response->busy, &response->out,
                                (ngx_buf_tag_t) &ngx_http_wattlock_compress_module);
        response->last_out = &response->out;
        response->nomem = 0;
        flush = 0;

        if (response->done) {
            return rc;
        }

        if (response->waits) {
            return NGX_AGAIN;
        }
    }
}


/* A response that came to nothing. */
static void
wattlock_fail(wattlock_response_t *response)
{
    response->done = 1;
    response->failed = 1;
    response->in = NULL;
    response->request->connection->buffered &= ~WATTLOCK_BUFFERED;
    wattlock_give_back(response);
}


static ngx_int_t
wattlock_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t             rc;
    wattlock_response_t  *response = ngx_http_get_module_ctx(r, ngx_http_wattlock_compress_module);

    if (response == NULL || r->header_only) {
        return ngx_http_next_body_filter(r, in);
    }

    if (response->failed) {
        return NGX_ERROR;
    }

    if (response->done) {
        return ngx_http_next_body_filter(r, in);
    }

    if (in != NULL) {
        if (ngx_chain_add_copy(r->pool, &response->in, in) != NGX_OK) {
            wattlock_fail(response);
            return NGX_ERROR;
        }

        if (!response->begun) {
            wattlock_offload(response);
        }

        response->at_once = !response->begun && !response->spread && wattlock_small(response);
        response->begun = 1;
    }

    wattlock_look();
    rc = wattlock_work(response);

    if (rc == NGX_ERROR) {
        wattlock_fail(response);
    }

    return rc;
}


/* Goes on with a response that waited. Nothing here ends a request: who produces it learns of errors at its next call. */
static void
wattlock_go_on(wattlock_response_t *response)
{
    off_t                zin = response->zin, zout = response->zout;
    ngx_chain_t         *in = response->in;
    ngx_connection_t    *c = response->request->connection;
    ngx_http_request_t  *r = response->request;

    if (c->error || ngx_http_get_module_ctx(r, ngx_http_wattlock_compress_module) != response) {
        /* The client is gone, or the request has become another one (post_action). */
        wattlock_fail(response);

    } else {
        ngx_http_set_log_request(c->log, r);

        if (wattlock_work(response) == NGX_ERROR) {
            wattlock_fail(response);
            c->error = 1;
        }
    }

    /* Whoever produces the response sees what is free now, and asks to be told when the client has taken what is not. Where
     * nothing moved nobody is called: it would begin `send_timeout` anew for a client that stands still. A write event that
     * `limit_rate` delays comes by itself. */
    if (!c->write->delayed
        && (response->done || response->failed || response->zin != zin || response->zout != zout || response->in != in))
    {
        ngx_post_event(c->write, &ngx_posted_events);
    }
}


/* The next turn of the loop. Also the handler of the timer, which only keeps the worker alive. */
static void
wattlock_turn(ngx_event_t *event)
{
    ngx_queue_t          *first;
    wattlock_response_t  *response;

    left_at = ngx_current_msec;
    left_ns = SLICE_NS;

    event->timedout = 0;

    while (left_ns > 0 && !ngx_queue_empty(&waiting)) {
        first = ngx_queue_head(&waiting);
        response = ngx_queue_data(first, wattlock_response_t, place);
        wattlock_leave(response);
        wattlock_go_on(response);
    }

    if (!ngx_queue_empty(&waiting) && !event->posted) {
        ngx_post_event(event, &ngx_posted_next_events);
    }

    wattlock_stay();
}


static ngx_int_t
wattlock_encoding_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
    wattlock_response_t  *response = ngx_http_get_module_ctx(r->main, ngx_http_wattlock_compress_module);

    (void) data;

    if (response == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->data = (u_char *) (response->coding == WATTLOCK_GZIP ? "gzip" : "zstd");
    v->len = 4;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


/* Of a response that is whole: nginx's own $gzip_ratio is not found before either. */
static ngx_int_t
wattlock_number(ngx_http_request_t *r, ngx_http_variable_value_t *v, const char *format, uint64_t whole, uint64_t part)
{
    v->data = ngx_pnalloc(r->pool, 2 * NGX_INT64_LEN + 2);

    if (v->data == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(v->data, format, whole, part) - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
wattlock_ratio_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
    uint64_t              hundredths;
    wattlock_response_t  *response = ngx_http_get_module_ctx(r->main, ngx_http_wattlock_compress_module);

    if (response == NULL && data != 0) {
        /* $gzip_ratio, of a response that gzip itself compressed, or nobody. */
        return stock_gzip_ratio(r, v, 0);
    }

    if (response == NULL || !response->done || response->zout == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    hundredths = ((uint64_t) response->zin * 1000 / (uint64_t) response->zout + 5) / 10;

    return wattlock_number(r, v, "%uL.%02uL", hundredths / 100, hundredths % 100);
}


/* In milliseconds, with three digits: what compressing took of the loop. */
static ngx_int_t
wattlock_time_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
    wattlock_response_t  *response = ngx_http_get_module_ctx(r->main, ngx_http_wattlock_compress_module);

    (void) data;

    if (response == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    return wattlock_number(r, v, "%uL.%03uL", response->ns / 1000000, response->ns / 1000 % 1000);
}


static ngx_int_t
wattlock_compress_variables(ngx_conf_t *cf)
{
    ngx_uint_t            i;
    ngx_http_variable_t  *variable;

    static struct {
        ngx_str_t                  name;
        ngx_http_get_variable_pt   get;
    } variables[] = {
        { ngx_string("wattlock_encoding"), wattlock_encoding_variable },
        { ngx_string("wattlock_ratio"), wattlock_ratio_variable },
        { ngx_string("wattlock_compress_time"), wattlock_time_variable }
    };

    for (i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        variable = ngx_http_add_variable(cf, &variables[i].name, NGX_HTTP_VAR_NOHASH|NGX_HTTP_VAR_NOCACHEABLE);

        if (variable == NULL) {
            return NGX_ERROR;
        }

        variable->get_handler = variables[i].get;
    }

    return NGX_OK;
}


/* $gzip_ratio tells of our responses, too: its handler reads gzip's context, which these do not have. */
static void
wattlock_wrap_gzip_ratio(ngx_http_core_main_conf_t *core)
{
    ngx_uint_t            i;
    ngx_hash_key_t       *keys;
    ngx_http_variable_t  *variable;

    if (core->variables_keys == NULL) {
        return;
    }

    keys = core->variables_keys->keys.elts;

    for (i = 0; i < core->variables_keys->keys.nelts; i++) {
        if (keys[i].key.len == 10 && ngx_strncmp(keys[i].key.data, "gzip_ratio", 10) == 0) {
            variable = keys[i].value;

            if (variable->get_handler != NULL && variable->get_handler != wattlock_ratio_variable) {
                stock_gzip_ratio = variable->get_handler;
                variable->get_handler = wattlock_ratio_variable;
                variable->data = 1;
            }
        }
    }
}


static ngx_int_t
wattlock_compress_postconfiguration(ngx_conf_t *cf)
{
    wattlock_wrap_gzip_ratio(ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));

    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = wattlock_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = wattlock_body_filter;

    return NGX_OK;
}


static void *
wattlock_compress_create_main_conf(ngx_conf_t *cf)
{
    wattlock_compress_main_conf_t  *conf = ngx_pcalloc(cf->pool, sizeof(wattlock_compress_main_conf_t));

    if (conf != NULL) {
        conf->memory = NGX_CONF_UNSET_SIZE;
        conf->chunk_size = NGX_CONF_UNSET_SIZE;
        conf->stream_size = NGX_CONF_UNSET_SIZE;
    }

    return conf;
}


static char *
wattlock_compress_init_main_conf(ngx_conf_t *cf, void *conf)
{
    wattlock_compress_main_conf_t  *main_conf = conf;

    ngx_conf_init_size_value(main_conf->memory, 64 * 1024 * 1024);
    ngx_conf_init_size_value(main_conf->chunk_size, 64 * 1024);
    ngx_conf_init_size_value(main_conf->stream_size, 256 * 1024);

    if (main_conf->chunk_size < 4096 || main_conf->stream_size < 2 * main_conf->chunk_size
        || main_conf->stream_size > 64 * 1024 * 1024)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"wattlock_chunk_size\" must be at least 4k, and "
                           "\"wattlock_stream_size\" at least twice as much and at most 64m");
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static void *
wattlock_compress_create_conf(ngx_conf_t *cf)
{
    wattlock_compress_conf_t  *conf = ngx_pcalloc(cf->pool, sizeof(wattlock_compress_conf_t));

    if (conf != NULL) {
        conf->gzip = NGX_CONF_UNSET;
        conf->zstd = NGX_CONF_UNSET;
    }

    return conf;
}


static char *
wattlock_compress_merge_conf(ngx_conf_t *cf, void *parent, void *child)
{
    wattlock_compress_conf_t       *from = parent, *to = child;
    wattlock_compress_main_conf_t  *main_conf;

    main_conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_wattlock_compress_module);
    ngx_conf_merge_value(to->gzip, from->gzip, 1);
    ngx_conf_merge_value(to->zstd, from->zstd, 0);

    if (to->gzip) {
        main_conf->wanted = 1;
    }

    return NGX_CONF_OK;
}
