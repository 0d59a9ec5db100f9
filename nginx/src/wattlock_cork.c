/*
 * Segments that are not full wait for the rest of their turn.
 *
 * libssl flushes after each record, also after each session ticket that ends a TLS 1.3 handshake, and each flush is a segment
 * of its own that the other side is woken for. To the end of a turn of the loop, unless an answer is known to end earlier, the
 * socket holds back segments that are not full. So tickets travel together, and with the answer if it is written in the same
 * turn, and the records of an answer fill segments.
 */
#include "wattlock_nginx.h"

/* nginx's own ssl_buffer_size, too: by how much it writes. */
#define WHOLE_RECORD SSL3_RT_MAX_PLAIN_LENGTH

/* As many as make the largest segment (64 KiB), and the rest of one. Longer answers gain nothing more. */
#define MOST_TOGETHER  5

static ngx_queue_t  corked;
static ngx_event_t  uncork_event;


void
wattlock_cork(wattlock_cork_t *cork, const SSL *ssl)
{
    int  on = 1, fd = SSL_get_wfd(ssl);

    if (cork->corked || fd == -1 || setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == -1) {
        return;
    }

    cork->fd = fd;
    cork->corked = 1;
    ngx_queue_insert_tail(&corked, &cork->with);

    if (!uncork_event.posted) {
        ngx_post_event(&uncork_event, &ngx_posted_events);
    }
}


void
wattlock_uncork(wattlock_cork_t *cork)
{
    int  off = 0;

    if (cork->corked) {
        cork->corked = 0;
        ngx_queue_remove(&cork->with);
        (void) setsockopt(cork->fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
    }
}


static void
wattlock_uncork_all(ngx_event_t *event)
{
    (void) event;

    while (!ngx_queue_empty(&corked)) {
        wattlock_uncork(ngx_queue_data(ngx_queue_head(&corked), wattlock_cork_t, with));
    }
}


/* A whole record is seldom the last of an answer; what is less than one is. */
int
wattlock_cork_write(wattlock_cork_t *cork, SSL *ssl, const void *data, int size)
{
    int  done;

    if (size >= WHOLE_RECORD && cork->whole < MOST_TOGETHER) {
        wattlock_cork(cork, ssl);
    }

    done = SSL_write(ssl, data, size);
    cork->whole = size < WHOLE_RECORD ? 0 : cork->whole < MOST_TOGETHER ? cork->whole + 1 : MOST_TOGETHER;

    if (cork->whole == 0 || cork->whole == MOST_TOGETHER) {
        wattlock_uncork(cork);
    }

    return done;
}


void
wattlock_cork_start(ngx_cycle_t *cycle, ngx_connection_t *connection)
{
    ngx_memzero(&uncork_event, sizeof(ngx_event_t));
    uncork_event.handler = wattlock_uncork_all;
    uncork_event.log = cycle->log;
    uncork_event.data = connection;
    ngx_queue_init(&corked);
}


void
wattlock_cork_stop(void)
{
    if (uncork_event.posted) {
        ngx_delete_posted_event(&uncork_event);
        wattlock_uncork_all(&uncork_event);
    }
}
