/*
 * Connections and completions inside nginx's event loop. One worker, one thread: nothing here is shared.
 *
 * A handshake that pauses has been gathered by the provider, which also decides when a batch goes. This file reports where
 * the loop is (a handshake paused, a turn with and without other events, how far handshakes came) and asks again when the
 * provider says. Completions post the waiting connections' read events, which run in the same turn and may gather again.
 * With nothing in flight nothing here runs.
 *
 * Only handshakes pause: an SSL has one job slot, and any other call while a job is paused would resume that job and
 * return its result. So the mode is cleared when the handshake is done.
 */
#include "wattlock_nginx.h"

typedef struct {
    wattlock_cork_t    cork;
    void             (*info)(const SSL *ssl, int where, int ret);  /* the SSL's own, before ours; mostly NULL */
    unsigned           in_handshake:1;
} wattlock_ssl_t;

wattlock_counts_t                   wattlock_counts;

static int                          ssl_index = -1;
static int                          context_index = -1;
static const struct wattlock_table *table;
static ngx_flag_t                   for_upstream;
static ngx_event_t                  turn_event;
static ngx_connection_t             turn_connection;
static unsigned                     progress;   /* rises with whatever brings a handshake further */
static unsigned                     in_flight;  /* when the provider was last asked */
static ngx_event_t                  timer_event;

static void wattlock_ask(int at);


/* Marks in SSL_CTX ex_data; absent where nobody decided. */
static char  mark_on, mark_off;


/* Tells the provider how many handshakes could be waiting. If some do, the next to run is the question whether all do. */
static void
wattlock_active(void)
{
    progress++;

    if (table == NULL) {
        return;
    }

    table->set_active(table->provider, (unsigned) wattlock_counts.in_handshake);

    if (in_flight > 0 && !turn_event.posted) {
        ngx_post_event(&turn_event, &ngx_posted_events);
    }
}


static void
wattlock_handshake_over(wattlock_ssl_t *state)
{
    if (state->in_handshake) {
        state->in_handshake = 0;
        wattlock_counts.in_handshake--;
        wattlock_active();
    }
}


/*
 * libssl calls an SSL's info callback or else its context's: ours hides nginx's, which is the context's and without which
 * TLS 1.3 sessions would not age. The context is asked for at each call, for SNI may have
 * changed it. Nothing else that we set on an SSL hides anything: the mode is a bit of its own, and nginx sets no
 * asynchronous callback.
 */
static void
wattlock_info(const SSL *ssl, int where, int ret)
{
    wattlock_ssl_t  *state = SSL_get_ex_data(ssl, ssl_index);
    void           (*info)(const SSL *ssl, int where, int ret);

    if (state == NULL) {
        return;
    }

    info = state->info != NULL ? state->info : SSL_CTX_get_info_callback(SSL_get_SSL_CTX(ssl));

    if (info != NULL) {
        info(ssl, where, ret);
    }

    if ((where & SSL_CB_ACCEPT_LOOP) == SSL_CB_ACCEPT_LOOP && state->in_handshake
        && SSL_get_state(ssl) == TLS_ST_SR_FINISHED && SSL_version(ssl) == TLS1_3_VERSION
        && SSL_get_num_tickets(ssl) > 1 && !SSL_session_reused(ssl))
    {
        wattlock_cork(&state->cork, ssl);
    }

    if (where & SSL_CB_HANDSHAKE_DONE) {
        SSL_clear_mode((SSL *) ssl, SSL_MODE_ASYNC);
        wattlock_handshake_over(state);
    }
}


/* From the ex_data: before the rest of an SSL in OpenSSL 3.0 and 3.1, after nearly all of it since. Nothing asks it. */
static void
wattlock_ssl_free(void *parent, void *data, CRYPTO_EX_DATA *ex, int index, long argl, void *argp)
{
    wattlock_ssl_t  *state = data;

    (void) parent;
    (void) ex;
    (void) index;
    (void) argl;
    (void) argp;

    if (state == NULL) {
        return;
    }

    wattlock_uncork(&state->cork);
    wattlock_handshake_over(state);
    ngx_free(state);
}


ngx_int_t
wattlock_loop_prepare(const char **why)
{
    if (ssl_index == -1) {
        ssl_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, wattlock_ssl_free);
        context_index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    }

    if (ssl_index == -1 || context_index == -1) {
        *why = "no memory for an ex_data index";
        return NGX_DECLINED;
    }

    return NGX_OK;
}


int
wattlock_mark(SSL_CTX *context, int on)
{
    return SSL_CTX_set_ex_data(context, context_index, on ? &mark_on : &mark_off);
}


/* A completion: the connection goes on in this turn of the loop. */
static int
wattlock_completed(SSL *ssl, void *argument)
{
    ngx_connection_t  *c = SSL_get_ex_data(ssl, ngx_ssl_connection_index);

    (void) argument;
    wattlock_counts.completed++;

    if (c != NULL && c->read != NULL && !c->close) {
        ngx_post_event(c->read, &ngx_posted_events);
    }

    return 1;
}


/* A new TLS connection: its handshake may pause. It begins once: a second time it would be counted twice, and our info
 * callback would be the one that it calls first. */
static void
wattlock_begin(SSL *ssl)
{
    void            *mark = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), context_index);
    wattlock_ssl_t  *state;

    if (mark == &mark_off || (mark == NULL && !for_upstream) || SSL_get_ex_data(ssl, ssl_index) != NULL) {
        return;
    }

    state = ngx_calloc(sizeof(wattlock_ssl_t), ngx_cycle->log);

    if (state == NULL) {
        return;
    }

    state->info = SSL_get_info_callback(ssl);

    if (SSL_set_ex_data(ssl, ssl_index, state) != 1) {
        ngx_free(state);
        return;
    }

    SSL_set_info_callback(ssl, wattlock_info);
    SSL_set_async_callback(ssl, wattlock_completed);
    SSL_set_async_callback_arg(ssl, ssl);
    SSL_set_mode(ssl, SSL_MODE_ASYNC);

    state->in_handshake = 1;
    wattlock_counts.handshakes++;
    wattlock_counts.in_handshake++;
    wattlock_active();
}


/*
 * In place of SSL_set_ex_data: nginx ties each new SSL to its connection with it, before anything is done with either.
 * A connection over datagrams (HTTP/3) stays synchronous: a completion could not be posted to it, since its read event
 * waits for datagrams and no call is ever repeated without one.
 */
int
wattlock_set_ex_data(SSL *ssl, int index, void *data)
{
    int               done = SSL_set_ex_data(ssl, index, data);
    ngx_connection_t *c = data;

    if (done == 1 && table != NULL && index == ngx_ssl_connection_index && c != NULL && c->type != SOCK_DGRAM) {
        wattlock_begin(ssl);
    }

    return done;
}


/*
 * In place of SSL_free. A job that waits is ended here: its request is withdrawn, and the call repeated until the job has
 * returned, so that its fiber and whatever lies on it is released. In the ex_data's free function it would be too late:
 * OpenSSL 3.2 and later have freed the wait context by then, in which the job pauses.
 */
void
wattlock_free(SSL *ssl)
{
    ngx_uint_t  tries;

    if (ssl != NULL && table != NULL && SSL_get_ex_data(ssl, ssl_index) != NULL && SSL_waiting_for_async(ssl)) {
        wattlock_counts.aborted++;
        SSL_set_quiet_shutdown(ssl, 1);

        for (tries = 0; tries < 16 && SSL_waiting_for_async(ssl); tries++) {
            (void) table->cancel_for(table->provider, ssl);
            (void) SSL_do_handshake(ssl);
        }

        ERR_clear_error();
    }

    SSL_free(ssl);
}


/* In place of SSL_write. */
int
wattlock_write(SSL *ssl, const void *data, int size)
{
    wattlock_ssl_t  *state = table != NULL ? SSL_get_ex_data(ssl, ssl_index) : NULL;

    return state != NULL ? wattlock_cork_write(&state->cork, ssl, data, size) : SSL_write(ssl, data, size);
}


int
wattlock_get_error(const SSL *ssl, int ret)
{
    int                error = SSL_get_error(ssl, ret);
    ngx_connection_t  *c;

    progress++;

    if (error == SSL_ERROR_WANT_ASYNC) {
        wattlock_counts.paused++;
        wattlock_ask(WATTLOCK_AT_CALL);

        return SSL_ERROR_WANT_READ;
    }

    if (error == SSL_ERROR_WANT_ASYNC_JOB) {
        /* No job was to be had: once more in the next turn. */
        c = SSL_get_ex_data(ssl, ngx_ssl_connection_index);

        if (c != NULL && !c->read->posted) {
            ngx_post_event(c->read, &ngx_posted_next_events);
        }

        return SSL_ERROR_WANT_READ;
    }

    return error;
}


/* Reports where the loop is, and asks again when the provider says. */
static void
wattlock_ask(int at)
{
    struct wattlock_turn  told;

    if (table == NULL) {
        return;
    }

    table->turn(table->provider, at, progress, &told);

    in_flight = told.in_flight;
    wattlock_counts.polls++;
    wattlock_counts.flushes += told.went;

    if (told.again == WATTLOCK_AGAIN_LATER && !timer_event.timer_set) {
        ngx_add_timer(&timer_event, (ngx_msec_t) ((told.wait_ns + 999999) / 1000000));
    }

    if (turn_event.posted) {
        return;
    }

    if (told.again == WATTLOCK_AGAIN_BEHIND) {
        ngx_post_event(&turn_event, &ngx_posted_events);

    } else if (told.again == WATTLOCK_AGAIN_NEXT) {
        ngx_post_event(&turn_event, &ngx_posted_next_events);
    }
}


static void
wattlock_turn(ngx_event_t *event)
{
    (void) event;
    wattlock_ask(ngx_queue_empty(&ngx_posted_events) ? WATTLOCK_AT_QUIET : WATTLOCK_AT_BUSY);
}


ngx_int_t
wattlock_loop_start(ngx_cycle_t *cycle, const struct wattlock_table *found, ngx_flag_t upstream)
{
    ngx_memzero(&turn_event, sizeof(ngx_event_t));
    ngx_memzero(&timer_event, sizeof(ngx_event_t));
    ngx_memzero(&turn_connection, sizeof(ngx_connection_t));

    turn_connection.fd = (ngx_socket_t) -1;
    turn_event.handler = wattlock_turn;
    turn_event.log = cycle->log;
    turn_event.data = &turn_connection;
    timer_event.handler = wattlock_turn;
    timer_event.log = cycle->log;
    timer_event.data = &turn_connection;
    timer_event.cancelable = 1;

    wattlock_cork_start(cycle, &turn_connection);
    for_upstream = upstream;
    table = found;
    table->claim(table->provider, 1);

    return NGX_OK;
}


void
wattlock_loop_stop(void)
{
    if (timer_event.timer_set) {
        ngx_del_timer(&timer_event);
    }

    if (turn_event.posted) {
        ngx_delete_posted_event(&turn_event);
    }

    wattlock_cork_stop();

    if (table != NULL) {
        table->claim(table->provider, 0);
    }

    table = NULL;
}
