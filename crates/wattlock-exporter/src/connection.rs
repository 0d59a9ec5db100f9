//! One connection: hyper speaks HTTP on it, and how long the peer may take is decided here.
//!
//! A phase has its time, and nothing that a peer sends or takes meanwhile makes it longer: one byte now and then keeps
//! no connection open.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{self, Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// Most bytes of a request's head (hyper takes no fewer), and most header lines.
const MOST_BYTES: usize = 8192;
const MOST_LINES: usize = 64;
/// Bytes of one read.
const PIECE: usize = 2048;
/// Most reads of what a peer sends beyond its last answer.
const MOST_DRAINED: usize = 32;

/// A connection's bytes.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A request, from its first byte or the start of the connection.
    Asking,
    /// That the peer takes the answer.
    Taking,
    /// The next request; Prometheus asks every minute or more often.
    Idle,
    /// The rest of what was sent, before the connection is closed: a reset would take the answer back.
    Draining,
}

impl Phase {
    fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Phase::Asking => 5,
            Phase::Taking => 10,
            Phase::Idle => 90,
            Phase::Draining => 1,
        })
    }
}

/// Where a connection stands, and since when.
#[derive(Debug)]
pub(crate) struct Pace {
    phase: Cell<Phase>,
    since: Cell<Instant>,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { phase: Cell::new(Phase::Asking), since: Cell::new(Instant::now()) }
    }

    pub(crate) fn since(&self) -> Instant {
        self.since.get()
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(Instant::now());
    }

    fn until(&self) -> Instant {
        self.since.get() + self.phase.get().patience()
    }

    /// Does something until its phase's time is over.
    async fn keep(&self, doing: impl Future<Output = ()>) {
        let (mut doing, mut alarm) = (pin!(doing), pin!(sleep_until(self.until())));
        poll_fn(|context| {
            if doing.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            // It may have entered another phase.
            if alarm.deadline() != self.until() {
                alarm.as_mut().reset(self.until());
            }
            alarm.as_mut().poll(context)
        })
        .await;
    }
}

/// Answers requests until the peer or its time is at an end.
pub(crate) async fn attend(
    stream: impl Stream,
    pace: &Pace,
    answer: &impl Fn(&Request<Incoming>) -> Response<Full<Bytes>>,
) {
    let service = service_fn(|request| {
        pace.enter(Phase::Taking);
        future::ready(Ok::<_, Infallible>(answer(&request)))
    });
    let mut wire = Wire { stream, pace };
    let serving = async {
        let mut http = http1::Builder::new();
        http.max_buf_size(MOST_BYTES).max_headers(MOST_LINES).half_close(true).title_case_headers(true);
        // An error is the peer's, and was answered if it can be.
        let _ = http.serve_connection(&mut wire, service).await;
        pace.enter(Phase::Draining);
        wire.drain().await;
    };
    pace.keep(serving).await;
}

/// The stream as hyper sees it, and as what passes moves the phase.
struct Wire<'a, S> {
    stream: S,
    pace: &'a Pace,
}

impl<S: Stream> Wire<'_, S> {
    /// Ends the output, which hyper leaves open after a request to change the protocol. Reads what else comes, and not
    /// for ever, however fast it comes.
    async fn drain(&mut self) {
        let _ = poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context)).await;
        for _ in 0..MOST_DRAINED {
            let read = poll_fn(|context| {
                let mut piece = [0; PIECE];
                let mut piece = ReadBuf::new(&mut piece);
                let read = Pin::new(&mut self.stream).poll_read(context, &mut piece);
                read.map_ok(|()| piece.filled().len())
            });
            if read.await.unwrap_or(0) == 0 {
                return;
            }
        }
    }
}

impl<S: Stream> Read for Wire<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut piece = [0; PIECE];
        let mut piece = ReadBuf::new(&mut piece[..to.remaining().min(PIECE)]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut piece))?;
        if !piece.filled().is_empty() && self.pace.phase.get() == Phase::Idle {
            self.pace.enter(Phase::Asking);
        }
        to.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> Write for Wire<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    /// Without it hyper would copy a body for each connection.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }

    /// Is called when all that was written has been taken, and then only hyper reads the next request.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        if self.pace.phase.get() == Phase::Taking {
            self.pace.enter(Phase::Idle);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::net::UnixStream;
    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local, yield_now};
    use tokio::time::sleep;

    use super::*;

    const ASKED: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const LAST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    /// After how many seconds a client's connection is over, on a clock that moves when all wait.
    fn over_after(body: usize, client: impl AsyncFnOnce(DuplexStream) + 'static) -> f64 {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let over = async move {
            let (ours, theirs) = duplex(1000);
            let begun = Instant::now();
            spawn_local(async move { client(theirs).await });
            let body = Bytes::from(vec![b'x'; body]);
            attend(ours, &Pace::new(), &|_: &Request<Incoming>| Response::new(Full::new(body.clone()))).await;
            begun.elapsed().as_secs_f64()
        };
        let both = LocalSet::new();
        (runtime.block_on(both.run_until(over)) * 10.0).round() / 10.0
    }

    /// One byte every 300 ms, of a text without an end.
    async fn trickle(peer: &mut DuplexStream) {
        while peer.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(300)).await;
        }
    }

    #[test]
    fn a_byte_now_and_then_keeps_no_connection_open() {
        let silent = over_after(1, async |peer| {
            sleep(Duration::from_secs(1000)).await;
            drop(peer);
        });
        assert_eq!(silent, 5.0, "for the first request");
        let asking = over_after(1, async |mut peer| {
            peer.write_all(b"GET /").await.unwrap();
            trickle(&mut peer).await;
        });
        assert_eq!(asking, 5.0, "for the first request");
        let taking = over_after(1 << 20, async |mut peer| {
            sleep(Duration::from_secs(2)).await;
            peer.write_all(ASKED).await.unwrap();
            while peer.read_u8().await.is_ok() {
                sleep(Duration::from_millis(300)).await;
            }
        });
        assert_eq!(taking, 12.0, "for the answer");
        let idle = over_after(1, async |mut peer| {
            peer.write_all(ASKED).await.unwrap();
            sleep(Duration::from_secs(1000)).await;
        });
        assert_eq!(idle, 90.0, "for the next request");
        let again = over_after(1, async |mut peer| {
            peer.write_all(ASKED).await.unwrap();
            sleep(Duration::from_secs(60)).await;
            trickle(&mut peer).await;
        });
        assert_eq!(again, 65.0, "for the rest of the next request");
        let drained = over_after(1, async |mut peer| {
            peer.write_all(LAST).await.unwrap();
            trickle(&mut peer).await;
        });
        assert_eq!(drained, 1.0, "for what else is sent");
    }

    #[test]
    fn a_peer_that_floods_is_closed_and_one_that_ends_is_done_at_once() {
        let flooded = over_after(1, async |mut peer| {
            peer.write_all(LAST).await.unwrap();
            while peer.write_all(&[b'x'; 4096]).await.is_ok() {}
        });
        assert_eq!(flooded, 0.0);
        let ended = over_after(1, async |mut peer| {
            peer.write_all(ASKED).await.unwrap();
            peer.shutdown().await.unwrap();
            let mut answer = String::new();
            peer.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nx"), "{answer}");
        });
        assert_eq!(ended, 0.0);
    }

    #[test]
    fn a_body_is_shared_and_not_copied_for_each_that_takes_it() {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
        let shared = async {
            let body = Bytes::from(vec![b'x'; 8 << 20]);
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let given = Cell::new(Some(body.clone()));
            spawn_local(async move {
                let answer = |_: &Request<Incoming>| Response::new(Full::new(given.take().unwrap()));
                attend(ours, &Pace::new(), &answer).await;
            });
            theirs.write_all(ASKED).await.unwrap();
            let mut first = [0; 15];
            theirs.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            assert!(!body.is_unique(), "the connection has it, too, and not a copy");
            drop(theirs);
            while !body.is_unique() {
                yield_now().await;
            }
        };
        let both = LocalSet::new();
        runtime.block_on(both.run_until(shared));
    }
}
