/*
 * Connections, their jobs, and completions inside nginx's event loop. One worker, one thread: nothing here is shared.
 *
 * A handshake runs in an ASYNC_JOB of ours and pauses while its operation waits for others of its kind. libssl would start
 * jobs by itself (SSL_MODE_ASYNC), but on a stack of 32 KiB of heap with no guard page, and a handshake calls back into
 * nginx and into modules of others, which count on the worker's stack: PCRE's compiled matcher takes 32 KiB alone. So the
 * mode stays off, the job is started here, and its function goes on at once to a stack as large as the worker's own, which
 * the provider has. If there is none, the call runs on the worker's stack and does not pause.
 *
 * A paused handshake has been gathered by the provider, which also decides when a batch goes. This file reports where
 * the loop is (a handshake paused, a turn with and without other events, how far handshakes came) and asks again when the
 * provider says. Completions post the waiting connections' read events, which run in the same turn and may gather again.
 * With nothing in flight nothing here runs.
 *
 * The calls pause by which nginx begins a handshake: SSL_do_handshake, and SSL_read_early_data up to the first early data.
 * Where the policy may give records to a device, SSL_write pauses, too (Li et al., "QWEB", 2020). libssl is in the midst of
 * such a call while its job is paused, so any other call on the same SSL would enter its state machine a second time: reads,
 * writes and shutdowns are told to come again.
 *
 * A paused write is told to nginx as one that met a full socket, for which all of nginx is prepared: the connection's write
 * event comes from us. (QWEB tells it as one that waits for something to read. nginx's HTTP/2 takes that for a success and
 * forgets what it had to write.) The text is copied, since the request whose buffer it is may end before the job does.
 *
 * A read that is refused meanwhile gets its event when the write is over, and the next write waits for it: who always has
 * something to write would else never read.
 */
#include "wattlock_nginx.h"
#include <sys/timerfd.h>

/* A group without a NID is its number (draft-ietf-tls-ecdhe-mlkem) with a mark: SSL_get_negotiated_group(3). */
#define X25519MLKEM768  (TLSEXT_nid_unknown | 0x11ec)

/* A longer text is written without a pause: it would be copied. */
#define MOST_WRITTEN  (1024 * 1024)

/* In a text of that length, if they are as small as a client may have them (RFC 6066, section 4). */
#define MOST_RECORDS  (MOST_WRITTEN / 512)

/* nginx takes it for a failure if this is not sent at once, */
#define CONTINUE  "HTTP/1.1 100 Continue" CRLF CRLF

/* and for a success if what begins so is not: it never comes again for it, but goes on with what is behind it. */
#define SWITCHING  "HTTP/1.1 101 "

/* What a job calls. */
typedef enum {
    WATTLOCK_HANDSHAKE,
    WATTLOCK_EARLY_DATA,
    WATTLOCK_WRITE
} wattlock_call_e;

typedef struct {
    wattlock_cork_t    cork;
    void             (*info)(const SSL *ssl, int where, int ret);  /* the SSL's own, before ours; mostly NULL */
    SSL               *ssl;
    ASYNC_WAIT_CTX    *wait;            /* from the first job to the end of the handshake; from the first write's on, always */
    ASYNC_JOB         *job;
    wattlock_call_e    call;            /* of the job */
    int                result;          /* of the call */
    u_char            *text;            /* what SSL_write in the job writes */
    int                size;
    int                written;         /* of what nginx has to write, before that */
    size_t             early_read;      /* by SSL_read_early_data in the job: what nginx passes is on its stack, */
    u_char             early_data;      /* which has gone by the time the job goes on */
    unsigned           early_over:1;    /* early data has come, or none will */
    unsigned           ran:1;           /* the job has made its call */
    unsigned           paused:1;        /* now */
    unsigned           waited:1;        /* its handshake has been paused */
    unsigned           answered:1;      /* the answer to what it paused for was found since it went on */
    unsigned           reading:1;       /* what was refused last was a read */
    unsigned           read_refused:1;  /* since a write paused */
    unsigned           gives_way:1;     /* the next write waits for that read */
    unsigned           behind:1;        /* a write waits so, in `giving_way` */
    unsigned           unlike:1;        /* a write was not repeated as it began */
    unsigned           lost:1;          /* its job could not be resumed, and never can be */
    unsigned           in_handshake:1;
    ngx_queue_t        with;            /* while `behind` */
} wattlock_ssl_t;

static wattlock_counts_t            own_counts;
wattlock_counts_t                  *wattlock_counts = &own_counts;

static int                          ssl_index = -1;
static int                          context_index = -1;
static const struct wattlock_table *table;
static ngx_flag_t                   for_upstream;
static ngx_event_t                  turn_event;
static ngx_connection_t             turn_connection;
static ngx_queue_t                  giving_way;
static ngx_event_t                  way_event;  /* posted if `giving_way` has any */
static unsigned                     progress;   /* rises with whatever brings a handshake further */
static unsigned                     in_flight;  /* when the provider was last asked */
static unsigned                     at_call;    /* while it is asked in the middle of a turn */
static ngx_connection_t            *timer;      /* a descriptor: nginx's timers count milliseconds */
static uint64_t                     timer_ns;   /* for when it is set, by CLOCK_MONOTONIC; 0 if it is not */

static void wattlock_ask(int at);
static void wattlock_ask_beside(void);


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

    table->set_active(table->provider, (unsigned) wattlock_counts->in_handshake);

    if (in_flight > 0 && !turn_event.posted) {
        ngx_post_event(&turn_event, &ngx_posted_events);
    }
}


/* Of a resumed session libssl tells the group that made it, also if no keys were agreed on anew: then the client sent no
 * share. */
static void
wattlock_count_group(SSL *ssl)
{
    int        group = SSL_get_negotiated_group(ssl);
    EVP_PKEY  *share = NULL;

    if (SSL_session_reused(ssl) && !SSL_get_peer_tmp_key(ssl, &share)) {
        group = NID_undef;
    }

    EVP_PKEY_free(share);

    switch (group) {
    case NID_undef:             wattlock_counts->group_none++;            break;
    case X25519MLKEM768:        wattlock_counts->group_x25519mlkem768++;  break;
    case NID_X25519:            wattlock_counts->group_x25519++;          break;
    case NID_X9_62_prime256v1:  wattlock_counts->group_p256++;            break;
    default:                    wattlock_counts->group_other++;
    }
}


static void
wattlock_handshake_over(wattlock_ssl_t *state, int completed)
{
    if (state->in_handshake) {
        state->in_handshake = 0;
        wattlock_counts->in_handshake--;
        completed ? wattlock_counts->completed++ : wattlock_counts->aborted++;

        if (completed && SSL_is_server(state->ssl)) {
            wattlock_count_group(state->ssl);
        }

        wattlock_active();
    }
}


/*
 * libssl calls an SSL's info callback or else its context's: ours hides nginx's, which is the context's and without which
 * TLS 1.3 sessions would not age. The context is asked for at each call, for SNI may have changed it. Nothing else that we
 * set on an SSL hides anything.
 *
 * What the callback is told is no more than where libssl is. A server that takes early data is told that its handshake is
 * done a first time before the client's Finished (the state TLS_ST_EARLY_DATA): it is done only in the state TLS_ST_OK.
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

    if ((where & SSL_CB_HANDSHAKE_DONE) && SSL_get_state(ssl) == TLS_ST_OK) {
        wattlock_handshake_over(state, 1);
    }
}


static void
wattlock_way_given(wattlock_ssl_t *state)
{
    if (state->behind) {
        ngx_queue_remove(&state->with);
    }

    state->gives_way = 0;
    state->behind = 0;
}


/* Behind the reads' events: the writes that waited for them go on. */
static void
wattlock_writes_go_on(ngx_event_t *event)
{
    wattlock_ssl_t    *state;
    ngx_connection_t  *c;

    (void) event;

    while (!ngx_queue_empty(&giving_way)) {
        state = ngx_queue_data(ngx_queue_head(&giving_way), wattlock_ssl_t, with);
        c = SSL_get_ex_data(state->ssl, ngx_ssl_connection_index);
        wattlock_way_given(state);

        if (c != NULL && c->write != NULL) {
            c->write->ready = 1;
            ngx_post_event(c->write, &ngx_posted_events);
        }
    }
}


/* Whether a write is to wait for a read. One that waited once waits no longer. */
static int
wattlock_gives_way(wattlock_ssl_t *state)
{
    ngx_connection_t  *c = SSL_get_ex_data(state->ssl, ngx_ssl_connection_index);

    if (state->behind) {
        return 1;
    }

    if (!state->gives_way || c == NULL || c->read == NULL || !c->read->posted) {
        state->gives_way = 0;
        return 0;
    }

    state->behind = 1;
    ngx_queue_insert_tail(&giving_way, &state->with);

    if (!way_event.posted) {
        ngx_post_event(&way_event, &ngx_posted_events);
    }

    return 1;
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
    wattlock_way_given(state);
    wattlock_handshake_over(state, 0);
    /* A job that is still paused (an SSL that a module of others freed, past our slots) loses its request and is never
     * resumed. */
    ASYNC_WAIT_CTX_free(state->wait);

    if (!state->paused && !state->lost) {
        ngx_free(state->text);
    }

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


/*
 * A completion: the connection goes on in this turn of the loop, or in the next where a call found it. If that brought its
 * turn on, a turn in which calls always find something would not end.
 */
static int
wattlock_completed(void *argument)
{
    ngx_connection_t  *c = SSL_get_ex_data(argument, ngx_ssl_connection_index);
    wattlock_ssl_t    *state = SSL_get_ex_data(argument, ssl_index);
    ngx_queue_t       *queue = at_call ? &ngx_posted_next_events : &ngx_posted_events;

    /* Also if nginx has marked the connection to be closed: it is when its handshake is over. */
    if (c == NULL || c->read == NULL || state == NULL) {
        return 1;
    }

    state->answered = 1;

    if (state->call == WATTLOCK_WRITE) {
        c->write->ready = 1;
        ngx_post_event(c->write, queue);

    } else {
        ngx_post_event(c->read, queue);
    }

    return 1;
}


/* Behind `on_stack`: on a stack like the worker's, or on the worker's. */
static void
wattlock_call(void *argument)
{
    wattlock_ssl_t  *state = argument;

    state->ran = 1;

    switch (state->call) {

    case WATTLOCK_HANDSHAKE:
        state->result = SSL_do_handshake(state->ssl);
        break;

    case WATTLOCK_EARLY_DATA:
        state->result = SSL_read_early_data(state->ssl, &state->early_data, sizeof(state->early_data),
                                            &state->early_read);
        break;

    case WATTLOCK_WRITE:
        state->result = SSL_write(state->ssl, state->text, state->size);
        break;
    }
}


/* A job's function, on its 32 KiB. */
static int
wattlock_job(void *argument)
{
    wattlock_ssl_t *const  *state = argument;

    (void) table->on_stack(table->provider, wattlock_call, *state);

    return 1;
}


/* Starts or resumes the job. Returns 1 if its call has returned, 0 if it is paused or lost. */
static int
wattlock_go_on(wattlock_ssl_t *state)
{
    int  ignored;

    state->paused = 0;

    switch (ASYNC_start_job(&state->job, state->wait, &ignored, wattlock_job, &state, sizeof(state))) {

    case ASYNC_PAUSE:
        state->paused = 1;
        /* What the call has left there so far would be taken for the next connection's. */
        ERR_clear_error();
        return 0;

    case ASYNC_FINISH:
        state->job = NULL;
        break;

    default: /* ASYNC_NO_JOBS, or no fiber: if nothing has been called, the worker's stack does */
        state->job = NULL;
        state->lost = state->ran;
        ERR_clear_error();
    }

    if (!state->ran) {
        wattlock_call(state);
    }

    return !state->lost;
}


/* One of the calls that may pause. Returns 1 if it has returned. */
static int
wattlock_drive(wattlock_ssl_t *state, wattlock_call_e call)
{
    int  before = state->paused, done;

    if (state->lost) {
        return 0;
    }

    if (state->paused) {
        if (state->call != call) {
            return 0;
        }

    } else {
        state->call = call;
        state->early_read = 0;
        state->ran = 0;
    }

    if (state->wait == NULL) {
        state->wait = ASYNC_WAIT_CTX_new();

        if (state->wait == NULL || ASYNC_WAIT_CTX_set_callback(state->wait, wattlock_completed, state->ssl) != 1) {
            ASYNC_WAIT_CTX_free(state->wait);
            state->wait = NULL;
            wattlock_call(state);
            return 1;
        }
    }

    for ( ;; ) {
        state->answered = 0;
        done = wattlock_go_on(state);

        if (!state->paused) {
            break;
        }

        if (call != WATTLOCK_WRITE) {
            wattlock_counts->paused += !state->waited;
            state->waited = 1;

        } else {
            wattlock_counts->writes_paused += !before;
            before = 1;
        }

        progress++;
        wattlock_ask(WATTLOCK_AT_CALL);

        /*
         * Its own answer may be among those that were found. It goes on here: what was posted for it is forgotten where nginx,
         * told of a full socket, takes the connection for one that cannot write.
         */
        if (!state->answered) {
            return done;
        }
    }

    if (done && call == WATTLOCK_HANDSHAKE && state->result == 1 && SSL_is_init_finished(state->ssl)) {
        /* Also if a module of others has put an info callback in the place of ours. */
        wattlock_handshake_over(state, 1);
    }

    if (!state->in_handshake && call != WATTLOCK_WRITE) {
        ASYNC_WAIT_CTX_free(state->wait);
        state->wait = NULL;
    }

    /* What was done inside the call took time, in which others' answers may have come. */
    if (in_flight != 0) {
        wattlock_ask_beside();
    }

    return done;
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
    /* Nor on a job's own stack by anybody else's wish. */
    SSL_clear_mode(ssl, SSL_MODE_ASYNC);

    state->ssl = ssl;
    state->in_handshake = 1;
    wattlock_counts->handshakes++;
    wattlock_counts->in_handshake++;
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


static wattlock_ssl_t *
wattlock_state(const SSL *ssl)
{
    return table != NULL && ssl != NULL ? SSL_get_ex_data(ssl, ssl_index) : NULL;
}


/*
 * Whether the caller is itself in a job: a callback of one handshake that brings another connection further. A job has no
 * job inside it, and the outer one must not pause for the inner connection, whose events would then find it halfway, or
 * free it. From here to `wattlock_leave` nothing pauses.
 */
static int
wattlock_enter(void)
{
    if (ASYNC_get_current_job() == NULL) {
        return 0;
    }

    ASYNC_block_pause();

    if (table != NULL) {
        table->nested(table->provider, 1);
    }

    return 1;
}


static void
wattlock_leave(int nested)
{
    if (!nested) {
        return;
    }

    if (table != NULL) {
        table->nested(table->provider, 0);
    }

    ASYNC_unblock_pause();
}


/* In place of SSL_do_handshake. */
int
wattlock_do_handshake(SSL *ssl)
{
    wattlock_ssl_t  *state = wattlock_state(ssl);
    int              done, nested = wattlock_enter();

    if (nested) {
        done = state != NULL && (state->paused || state->lost) ? -1 : SSL_do_handshake(ssl);
        wattlock_leave(nested);
        return done;
    }

    if (state == NULL || !(state->in_handshake || state->paused)) {
        return SSL_do_handshake(ssl);
    }

    return wattlock_drive(state, WATTLOCK_HANDSHAKE) ? state->result : -1;
}


/* In place of SSL_read_early_data. Less than was asked for may come. */
int
wattlock_read_early_data(SSL *ssl, void *data, size_t size, size_t *read)
{
    wattlock_ssl_t  *state = wattlock_state(ssl);
    int              done, nested = wattlock_enter();

    *read = 0;

    if (nested) {
        done = state != NULL && (state->paused || state->lost)
            ? SSL_READ_EARLY_DATA_ERROR : SSL_read_early_data(ssl, data, size, read);
        wattlock_leave(nested);
        return done;
    }

    if (state == NULL || size == 0 || !(state->paused || (state->in_handshake && !state->early_over))) {
        return SSL_read_early_data(ssl, data, size, read);
    }

    if (!wattlock_drive(state, WATTLOCK_EARLY_DATA)) {
        return SSL_READ_EARLY_DATA_ERROR;
    }

    if (state->result != SSL_READ_EARLY_DATA_ERROR) {
        state->early_over = 1;
    }

    if (state->result == SSL_READ_EARLY_DATA_SUCCESS && state->early_read > 0) {
        *(u_char *) data = state->early_data;
        *read = state->early_read;
    }

    return state->result;
}


/*
 * In place of SSL_free. A job that waits is ended here: its request is withdrawn, so that the operation fails, and the job
 * resumed until its call has returned. nginx frees the SSL before anything else of the connection, so all that callbacks
 * may look at is still there.
 */
void
wattlock_free(SSL *ssl)
{
    wattlock_ssl_t  *state = wattlock_state(ssl);
    ngx_uint_t       tries;

    if (state != NULL && state->paused && ASYNC_get_current_job() == NULL) {
        SSL_set_quiet_shutdown(ssl, 1);

        for (tries = 0; tries < 64 && state->paused; tries++) {
            (void) table->cancel_for(table->provider, ssl);
            (void) wattlock_go_on(state);
        }

        ERR_clear_error();
    }

    if (state != NULL && (state->paused || state->lost)) {
        /* Something in the job still has it in hand (or this is a job, which can resume no other). Its request is
         * withdrawn and it is never resumed. */
        (void) table->cancel_for(table->provider, ssl);
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0, "wattlock: a job does not end: its connection is left behind");
        wattlock_uncork(&state->cork);
        wattlock_handshake_over(state, 0);
        (void) SSL_set_ex_data(ssl, ngx_ssl_connection_index, NULL);
        return;
    }

    SSL_free(ssl);

    /* Perhaps all that are left wait. nginx closes the connection behind this. */
    if (in_flight > 0 && !turn_event.posted) {
        ngx_post_event(&turn_event, &ngx_posted_events);
    }
}


/* What nginx does not come again for. */
static int
wattlock_at_once(const void *data, int size)
{
    return (size == sizeof(CONTINUE) - 1 && ngx_memcmp(data, CONTINUE, size) == 0)
        || (size >= (int) sizeof(SWITCHING) - 1 && ngx_memcmp(data, SWITCHING, sizeof(SWITCHING) - 1) == 0);
}


/* Whether a write may pause: its text is copied for it. */
static int
wattlock_write_may_pause(wattlock_ssl_t *state, const void *data, int size)
{
    if (size <= 0 || size > MOST_WRITTEN || wattlock_at_once(data, size) || state->in_handshake
        || !SSL_is_init_finished(state->ssl) || !table->writes_wait(table->provider))
    {
        return 0;
    }

    state->text = ngx_alloc(size, ngx_cycle->log);

    if (state->text == NULL) {
        return 0;
    }

    /* libssl would have a write that met a full socket repeated from the same place. */
    SSL_set_mode(state->ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    ngx_memcpy(state->text, data, size);
    state->size = size;

    return 1;
}


/* A write in a job is begun or goes on. Returns 1 if it has returned. */
static int
wattlock_drive_write(wattlock_ssl_t *state)
{
    int                done;
    ngx_err_t          err;
    ngx_connection_t  *c;

    done = wattlock_drive(state, WATTLOCK_WRITE);
    state->reading = 0;

    if (state->paused) {
        return 0;
    }

    err = ngx_errno;
    c = SSL_get_ex_data(state->ssl, ngx_ssl_connection_index);

    if (!state->lost) {
        ngx_free(state->text);
        state->text = NULL;
    }

    if (state->read_refused && c != NULL && c->read != NULL) {
        state->read_refused = 0;
        state->gives_way = 1;
        c->read->ready = 1;
        ngx_post_event(c->read, &ngx_posted_events);
    }

    ngx_set_errno(err);

    return done;
}


/*
 * In place of SSL_write. What nginx has to write may have grown while a write was paused. Then the rest is written, too, before
 * anything is answered: nginx would not come again for it, since SSL_write writes all or nothing.
 */
int
wattlock_write(SSL *ssl, const void *data, int size)
{
    wattlock_ssl_t  *state = wattlock_state(ssl);
    const u_char    *text = data;
    int              done, nested;

    if (state != NULL && (state->lost || state->unlike || (state->paused && state->call != WATTLOCK_WRITE))) {
        return -1;
    }

    if (state != NULL && (size < state->written + (state->paused ? state->size : 0)
                          || (state->paused && ngx_memcmp(text + state->written, state->text, state->size) != 0)))
    {
        /* SSL_write(3): a write is repeated with the same text, or more. */
        state->unlike = 1;
        return -1;
    }

    nested = wattlock_enter();

    for ( ;; ) {
        if (state == NULL || !state->paused) {
            int  written = state == NULL ? 0 : state->written;

            if (state != NULL && !nested && !wattlock_at_once(text + written, size - written) && wattlock_gives_way(state)) {
                state->reading = 0;
                done = -1;
                break;
            }

            if (state == NULL || nested || !wattlock_write_may_pause(state, text + written, size - written)) {
                done = state == NULL ? SSL_write(ssl, data, size)
                                     : wattlock_cork_write(&state->cork, ssl, text + written, size - written);

                if (state != NULL && done > 0) {
                    done += written;
                    state->written = 0;
                }

                break;
            }
        }

        state->reading = 0;
        done = -1;

        if (nested || !wattlock_drive_write(state)) {
            break;
        }

        done = state->result;

        if (done <= 0) {
            break;
        }

        state->written += done;

        if (state->written == size) {
            state->written = 0;
            done = size;
            break;
        }
    }

    wattlock_leave(nested);

    return done;
}


/* In place of SSL_read. */
int
wattlock_read(SSL *ssl, void *data, int size)
{
    wattlock_ssl_t  *state = wattlock_state(ssl);
    int              done, nested;

    if (state != NULL && (state->paused || state->lost)) {
        state->reading = 1;
        state->read_refused = state->call == WATTLOCK_WRITE;
        return -1;
    }

    nested = wattlock_enter();
    done = SSL_read(ssl, data, size);
    wattlock_leave(nested);

    if (state != NULL) {
        state->reading = 1;
        state->gives_way = 0;
    }

    return done;
}


/*
 * nginx closes a connection for which it still has something to write: the end of an answer of HTTP/2, or GOAWAY. Of its own
 * accord it would have written that, as a socket has room for it; it has not because a write of ours waited. So it is written
 * now, in the call, and the connection ends as it would have: not quietly.
 */
static void
wattlock_say_rest(wattlock_ssl_t *state)
{
    int                rest;
    ngx_buf_t         *buf;
    ngx_uint_t         tries, before = state->paused;
    ngx_connection_t  *c = SSL_get_ex_data(state->ssl, ngx_ssl_connection_index);

    if ((!state->paused && !state->behind) || state->unlike || c == NULL || c->ssl == NULL || c->ssl->buf == NULL
        || !(c->buffered & NGX_SSL_BUFFERED) || c->timedout || c->error
        || (c->ssl->no_wait_shutdown && c->ssl->no_send_shutdown))
    {
        return;
    }

    for (tries = 0; tries < MOST_RECORDS && state->paused; tries++) {
        (void) table->hurry_for(table->provider, state->ssl);
        (void) wattlock_drive_write(state);
    }

    if (state->paused || state->lost) {
        return;
    }

    buf = c->ssl->buf;
    rest = buf->last - buf->pos - state->written;

    if (before) {
        rest = state->result > 0 ? rest - state->result : -1;
    }

    if (rest < 0 || (rest > 0 && SSL_write(state->ssl, buf->last - rest, rest) <= 0)) {
        /* The socket is full, or the connection gone. */
        ERR_clear_error();
        return;
    }

    SSL_set_quiet_shutdown(state->ssl, 0);
    SSL_set_shutdown(state->ssl, SSL_RECEIVED_SHUTDOWN | (c->ssl->no_send_shutdown ? SSL_SENT_SHUTDOWN : 0));
}


/* In place of SSL_shutdown. It waits for a paused write, which nginx does not repeat any more, unless it is quiet: such a one
 * says nothing to the other side, and the write is withdrawn when the SSL is freed. */
int
wattlock_shutdown(SSL *ssl)
{
    wattlock_ssl_t  *state = wattlock_state(ssl);
    int              done, nested = wattlock_enter(), writes;

    if (state != NULL && !nested && state->call == WATTLOCK_WRITE && SSL_get_quiet_shutdown(ssl)) {
        wattlock_say_rest(state);
    }

    if (state != NULL) {
        wattlock_way_given(state);
    }

    writes = state != NULL && state->paused && state->call == WATTLOCK_WRITE;

    if (writes && !nested && !SSL_get_quiet_shutdown(ssl)) {
        (void) wattlock_drive_write(state);
        ERR_clear_error();
        writes = state->paused;
    }

    if (state != NULL && (state->lost || (state->paused && !(writes && SSL_get_quiet_shutdown(ssl))))) {
        state->reading = 0;
        wattlock_leave(nested);
        return -1;
    }

    done = SSL_shutdown(ssl);
    wattlock_leave(nested);

    return done;
}


/* In place of SSL_get_error. */
int
wattlock_get_error(const SSL *ssl, int ret)
{
    wattlock_ssl_t  *state = wattlock_state(ssl);

    progress++;

    if (state != NULL && (state->lost || state->unlike)) {
        return SSL_ERROR_SSL;
    }

    if (state != NULL && state->behind && !state->reading) {
        return SSL_ERROR_WANT_WRITE;
    }

    if (state == NULL || !state->paused) {
        return SSL_get_error(ssl, ret);
    }

    /* nginx takes it for a failure that a call waits for an operation; and its event comes from us. */
    return state->call == WATTLOCK_WRITE && !state->reading ? SSL_ERROR_WANT_WRITE : SSL_ERROR_WANT_READ;
}


/*
 * Connections of this worker that are not idle, by nginx's own counters: without its listening sockets, its channel to the
 * master, the descriptor that wakes compression, and the timer. (Idle ones in a cache of upstreams are not known and count.)
 */
static unsigned
wattlock_busy(void)
{
    ngx_uint_t              i, used, others;
    const ngx_listening_t  *listening = ngx_cycle->listening.elts;

    used = ngx_cycle->connection_n - ngx_cycle->free_connection_n;
    others = ngx_cycle->reusable_connections_n + (ngx_process == NGX_PROCESS_WORKER) + wattlock_compress_listens()
             + (timer != NULL);

    for (i = 0; i < ngx_cycle->listening.nelts; i++) {
        others += listening[i].connection != NULL;
    }

    used = used > others ? used - others : 0;

    return (unsigned) ngx_max(used, wattlock_counts->in_handshake);
}


/* The loop is woken after so long, or earlier. Returns 0 if it cannot be. */
static int
wattlock_wake_after(uint64_t wait_ns)
{
    uint64_t           at;
    struct timespec    now;
    struct itimerspec  when;

    if (timer == NULL || clock_gettime(CLOCK_MONOTONIC, &now) == -1) {
        return 0;
    }

    at = (uint64_t) now.tv_sec * 1000000000 + now.tv_nsec + ngx_min(wait_ns, (uint64_t) 1 << 60);

    if (timer_ns != 0 && timer_ns <= at) {
        return 1;
    }

    ngx_memzero(&when, sizeof(when));
    when.it_value.tv_sec = at / 1000000000;
    when.it_value.tv_nsec = at % 1000000000;

    if (timerfd_settime(timer->fd, TFD_TIMER_ABSTIME, &when, NULL) == -1) {
        return 0;
    }

    timer_ns = at;

    return 1;
}


/* Reports where the loop is, and asks again when the provider says. */
static void
wattlock_ask(int at)
{
    struct wattlock_turn  told;

    if (table == NULL) {
        return;
    }

    table->set_busy(table->provider, wattlock_busy());
    at_call = at == WATTLOCK_AT_CALL;
    table->turn(table->provider, at, progress, &told);
    at_call = 0;

    in_flight = told.in_flight;
    wattlock_counts->polls++;
    wattlock_counts->flushes += told.went;
    wattlock_counts->looks += told.looked;

    if (told.again == WATTLOCK_AGAIN_LATER && !wattlock_wake_after(told.wait_ns)) {
        told.again = WATTLOCK_AGAIN_NEXT;
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


/* The same where a call has returned: nginx has yet to read what it left in errno and in the error queue. */
static void
wattlock_ask_beside(void)
{
    ngx_err_t  err = ngx_errno;

    (void) ERR_set_mark();
    wattlock_ask(WATTLOCK_AT_CALL);
    (void) ERR_pop_to_mark();
    ngx_set_errno(err);
}


static void
wattlock_turn(ngx_event_t *event)
{
    (void) event;
    wattlock_ask(ngx_queue_empty(&ngx_posted_events) ? WATTLOCK_AT_QUIET : WATTLOCK_AT_BUSY);
}


static void
wattlock_timer(ngx_event_t *event)
{
    uint64_t  times;

    (void) event;
    timer_ns = 0;
    /* One that was read already has no times: the turn is due all the same. A compiler of a distribution wants to see the
     * answer used. */
    if (read(timer->fd, &times, sizeof(times)) < 0) {
        times = 0;
    }

    /* Behind what came in the same turn. */
    if (!turn_event.posted) {
        ngx_post_event(&turn_event, &ngx_posted_events);
    }
}


/* Without it a loop that could sleep does not. */
static void
wattlock_timer_start(ngx_cycle_t *cycle)
{
    int  fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK|TFD_CLOEXEC);

    timer_ns = 0;
    timer = fd != -1 ? ngx_get_connection(fd, cycle->log) : NULL;

    if (timer != NULL) {
        timer->read->handler = wattlock_timer;
        timer->read->log = cycle->log;
        timer->write->log = cycle->log;
        /* nginx marks its own so. */
        timer->read->channel = 1;
        timer->write->channel = 1;

        if (ngx_handle_read_event(timer->read, 0) == NGX_OK) {
            return;
        }

        ngx_free_connection(timer);
        timer->fd = (ngx_socket_t) -1;
        timer = NULL;
    }

    if (fd != -1) {
        (void) close(fd);
    }
}


ngx_int_t
wattlock_loop_start(ngx_cycle_t *cycle, const struct wattlock_table *found, ngx_flag_t upstream)
{
    ngx_memzero(&turn_event, sizeof(ngx_event_t));
    ngx_memzero(&turn_connection, sizeof(ngx_connection_t));

    turn_connection.fd = (ngx_socket_t) -1;
    turn_event.handler = wattlock_turn;
    turn_event.log = cycle->log;
    turn_event.data = &turn_connection;
    wattlock_timer_start(cycle);

    ngx_memzero(&way_event, sizeof(ngx_event_t));
    way_event.handler = wattlock_writes_go_on;
    way_event.log = cycle->log;
    way_event.data = &turn_connection;
    ngx_queue_init(&giving_way);

    wattlock_cork_start(cycle, &turn_connection);
    for_upstream = upstream;
    table = found;
    table->claim(table->provider, 1);

    return NGX_OK;
}


void
wattlock_loop_stop(void)
{
    if (timer != NULL) {
        ngx_close_connection(timer);
        timer = NULL;
    }

    if (turn_event.posted) {
        ngx_delete_posted_event(&turn_event);
    }

    if (way_event.posted) {
        ngx_delete_posted_event(&way_event);
    }

    wattlock_cork_stop();

    if (table != NULL) {
        table->claim(table->provider, 0);
    }

    table = NULL;
}
