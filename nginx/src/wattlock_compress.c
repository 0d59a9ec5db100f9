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
 * *The loop.* Compression is done in slices of at most SLICE_NS of predicted work. What is left is gone on with in the next
 * turn of the loop, so that a large response holds nobody up. That is done where the request's write handler is sure to
 * call again: responses of upstreams and subrequests are not cut, nor is what stands before a flush.
 *
 * *Flushes* go out at once, as a sync flush of one continuous stream; one buffer may flush and end. Buffers without data in
 * mid-stream are passed over.
 */
#include "wattlock_nginx.h"
#include <ngx_http.h>
#include <time.h>

/* The longest that one call may compress, as far as can be foreseen. */
#define SLICE_NS       250000
#define SLICE_LEAST    4096
#define SLICE_MOST     (256 * 1024)

/* Output in memory that the client has not taken yet. */
#define OUTPUT_BUFFER  (32 * 1024)
#define OUTPUT_MOST    (8 * OUTPUT_BUFFER)

/* State of a compressor, for `wattlock_memory`. */
#define GZIP_STATE     (512 * 1024)
#define ZSTD_STATE     (3 * 1024 * 1024)

#define ZSTD_LEVEL     3
#define LEVELS         10

/* Idle compressors kept of one sort: making one anew means some hundred page faults. */
#define IDLE_MOST      4

/* Gzip's own, which it does not use where we have its place. */
#define WATTLOCK_BUFFERED  NGX_HTTP_GZIP_BUFFERED

typedef struct {
    size_t       memory;
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
    size_t               allocated;
    size_t               budget;     /* bytes that this call may still take */
    off_t                zin;
    off_t                zout;
    uint64_t             ns;
    int                  coding;
    int                  level;
    unsigned             done:1;
    unsigned             nomem:1;
    unsigned             yield:1;
    unsigned             cuttable:1; /* in this call: the loop may go round before the input is used up */
} wattlock_response_t;

static void *wattlock_compress_create_main_conf(ngx_conf_t *cf);
static char *wattlock_compress_init_main_conf(ngx_conf_t *cf, void *conf);
static void *wattlock_compress_create_conf(ngx_conf_t *cf);
static char *wattlock_compress_merge_conf(ngx_conf_t *cf, void *parent, void *child);
static ngx_int_t wattlock_compress_variables(ngx_conf_t *cf);
static ngx_int_t wattlock_compress_postconfiguration(ngx_conf_t *cf);
static ngx_int_t wattlock_compress_init_process(ngx_cycle_t *cycle);
static void wattlock_compress_exit_process(ngx_cycle_t *cycle);

/* An nginx without it does not export it. */
extern ngx_module_t  ngx_http_gzip_filter_module __attribute__((weak));
extern ngx_module_t  ngx_http_copy_filter_module;

static const struct wattlock_table  *table;
static const char                   *inactive;
static ngx_uint_t                    level_offset = (ngx_uint_t) -1;
static size_t                        held;          /* state of all compressors in use */
static wattlock_idle_t               idle[2][LEVELS];

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

    held += wattlock_state_size(coding);

    return compressor;
}


/* Gives a compressor back, if there still is one. Also the cleanup of the request's pool. */
static void
wattlock_give_back(void *data)
{
    wattlock_response_t  *response = data;
    wattlock_idle_t      *kept = &idle[response->coding][response->level];

    if (response->compressor == NULL) {
        return;
    }

    if (kept->count < IDLE_MOST) {
        kept->compressor[kept->count++] = response->compressor;

    } else {
        table->compressor_free(table->provider, response->compressor);
    }

    response->compressor = NULL;
    held -= wattlock_state_size(response->coding);
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

    if (bytes >= SLICE_LEAST) {
        kept->ns_kib = (ngx_uint_t) ((7 * (uint64_t) kept->ns_kib + ns * 1024 / bytes) / 8);
    }
}


/*
 * Whether somebody is sure to call again with nothing new if the loop goes round first: ngx_http_writer, which a request
 * has that is served without an upstream and whose output is the connection's. An event pipe and a subrequest call only
 * with more to say. What a flush stands behind goes out at once.
 */
static int
wattlock_cuttable(wattlock_response_t *response)
{
    ngx_chain_t         *cl;
    ngx_http_request_t  *r = response->request;

    if (r != r->main || r->upstream != NULL || r->postponed != NULL || r->connection->data != r) {
        return 0;
    }

    for (cl = response->in; cl != NULL; cl = cl->next) {
        if (cl->buf->flush) {
            return 0;
        }
    }

    return 1;
}


/* Whether the loop may go round before this buffer is used up. */
static int
wattlock_may_wait(wattlock_response_t *response, ngx_buf_t *b)
{
    return response->cuttable && (!b->recycled || b->tag == (ngx_buf_tag_t) &ngx_http_copy_filter_module);
}


/* Compresses some of the first buffer. NGX_OK: go on; NGX_AGAIN: no input, no room, or enough for this turn. */
static ngx_int_t
wattlock_step(wattlock_response_t *response)
{
    int           then, answer;
    size_t        size, from, to;
    uint64_t      began;
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t  *cl = response->in;

    if (cl == NULL) {
        return NGX_AGAIN;
    }

    b = cl->buf;
    size = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;
    then = b->last_buf ? WATTLOCK_END : b->flush ? WATTLOCK_FLUSH : WATTLOCK_MORE;
    from = size;

    if (wattlock_may_wait(response, b) && size > response->budget) {
        if (response->budget == 0) {
            response->yield = 1;
            return NGX_AGAIN;
        }

        from = response->budget;
        then = WATTLOCK_MORE;
    }

    if (from > 0 || then != WATTLOCK_MORE) {
        rc = wattlock_output_buffer(response);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_AGAIN : NGX_ERROR;
        }

        to = response->buf->end - response->buf->last;
        began = wattlock_now_ns();
        answer = table->compress(table->provider, response->compressor, b->pos, &from, response->buf->last, &to, then);
        wattlock_note(response, from, wattlock_now_ns() - began);

        if (answer < 0) {
            ngx_log_error(NGX_LOG_ALERT, response->request->connection->log, 0, "wattlock: the compressor failed");
            return NGX_ERROR;
        }

        b->pos += from;
        response->zin += from;
        response->buf->last += to;
        response->budget -= ngx_min(response->budget, from);

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

            response->request->connection->buffered &= ~WATTLOCK_BUFFERED;
        }

        if (then == WATTLOCK_END) {
            response->done = 1;
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


static size_t
wattlock_slice(wattlock_response_t *response)
{
    uint64_t  bytes = (uint64_t) SLICE_NS * 1024 / ngx_max(idle[response->coding][response->level].ns_kib, 1);

    return (size_t) ngx_min(ngx_max(bytes, SLICE_LEAST), SLICE_MOST);
}


static ngx_int_t
wattlock_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    int                   flush;
    ngx_int_t             rc;
    ngx_chain_t          *cl;
    wattlock_response_t  *response = ngx_http_get_module_ctx(r, ngx_http_wattlock_compress_module);

    if (response == NULL || response->done || r->header_only) {
        return ngx_http_next_body_filter(r, in);
    }

    if (in != NULL) {
        if (ngx_chain_add_copy(r->pool, &response->in, in) != NGX_OK) {
            goto failed;
        }

        r->connection->buffered |= WATTLOCK_BUFFERED;
    }

    if (response->nomem) {
        /* What the client has not taken yet. */
        if (ngx_http_next_body_filter(r, NULL) == NGX_ERROR) {
            goto failed;
        }

        cl = NULL;
        ngx_chain_update_chains(r->pool, &response->free, &response->busy, &cl,
                                (ngx_buf_tag_t) &ngx_http_wattlock_compress_module);
        response->nomem = 0;
        flush = 0;

    } else {
        flush = response->busy != NULL;
    }

    response->budget = wattlock_slice(response);
    response->yield = 0;
    response->cuttable = wattlock_cuttable(response);

    for ( ;; ) {

        do {
            rc = wattlock_step(response);
        } while (rc == NGX_OK);

        if (rc == NGX_ERROR) {
            goto failed;
        }

        if (response->yield) {
            /*
             * The loop goes round once, without sleeping, and comes back here through the request's write handler. A
             * flush that was done meanwhile took the mark away.
             */
            r->connection->buffered |= WATTLOCK_BUFFERED;
            ngx_post_event(r->connection->write, &ngx_posted_next_events);
        }

        if (response->out == NULL && !flush) {
            return response->busy != NULL || response->yield ? NGX_AGAIN : NGX_OK;
        }

        rc = ngx_http_next_body_filter(r, response->out);

        if (rc == NGX_ERROR) {
            goto failed;
        }

        ngx_chain_update_chains(r->pool, &response->free, &response->busy, &response->out,
                                (ngx_buf_tag_t) &ngx_http_wattlock_compress_module);
        response->last_out = &response->out;
        response->nomem = 0;
        flush = 0;

        if (response->done) {
            return rc;
        }

        if (response->yield) {
            return NGX_AGAIN;
        }
    }

failed:

    response->done = 1;
    wattlock_give_back(response);

    return NGX_ERROR;
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
    }

    return conf;
}


static char *
wattlock_compress_init_main_conf(ngx_conf_t *cf, void *conf)
{
    wattlock_compress_main_conf_t  *main_conf = conf;

    (void) cf;
    ngx_conf_init_size_value(main_conf->memory, 64 * 1024 * 1024);

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
