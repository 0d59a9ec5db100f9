//! All connections, in one thread. A panic in one ends that one.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::task::{JoinHandle, LocalSet, spawn_local, yield_now};
use tokio::time::sleep;

use crate::address::Listener;
use crate::connection::{Pace, Stream, attend};
use crate::content::Content;
use crate::host::Hosts;
use crate::request;

/// Most connections at once. One more closes the one that has waited longest.
const MOST: usize = 128;
/// Descriptors that are kept for reading counters, and for what the program has open by itself.
const KEPT: u64 = 20;

/// The next try after a connection that could not be accepted: without a free descriptor the error comes at once, again
/// and again.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until the process ends.
///
/// # Errors
/// The system cannot wait for connections.
pub fn serve(listener: Listener, content: Content, hosts: Hosts) -> io::Result<()> {
    let content = RefCell::new(content);
    let answer = move |request: &Request<Incoming>| {
        // Nothing else has it: no answer waits while it is made.
        request::answer(request, &mut content.borrow_mut(), &hosts)
    };
    let (answer, most) = (Rc::new(answer), most());
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let serving = async {
        match listener {
            Listener::Port(listener) => {
                let listener = TcpListener::from_std(listener)?;
                let accept = async || {
                    let (stream, _) = listener.accept().await?;
                    let _ = stream.set_nodelay(true);
                    Ok(Box::new(stream) as Box<dyn Stream>)
                };
                attend_all(accept, most, answer).await;
            }
            Listener::Socket(listener, _) => {
                let listener = UnixListener::from_std(listener)?;
                let accept = async || Ok(Box::new(listener.accept().await?.0) as Box<dyn Stream>);
                attend_all(accept, most, answer).await;
            }
        }
        Ok(())
    };
    let connections = LocalSet::new();
    runtime.block_on(connections.run_until(serving))
}

/// Most connections with the descriptors that this process may have.
fn most() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(MOST, |limit| MOST.min(limit.saturating_sub(KEPT) as usize)).max(1)
}

/// A connection that is attended to.
struct Guest {
    pace: Rc<Pace>,
    task: JoinHandle<()>,
}

/// Takes what waits at the door, for ever.
async fn attend_all<A>(accept: impl AsyncFn() -> io::Result<Box<dyn Stream>>, most: usize, answer: Rc<A>)
where
    A: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + 'static,
{
    let mut guests: Vec<Guest> = Vec::new();
    loop {
        match accept().await {
            Ok(stream) => {
                make_room(&mut guests, most).await;
                let pace = Rc::new(Pace::new());
                let (its, answer) = (pace.clone(), answer.clone());
                let task = spawn_local(async move { attend(stream, &its, &*answer).await });
                guests.push(Guest { pace, task });
                // Each has its turn before others come: a crowd at the door closes none that has just asked.
                yield_now().await;
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            // Few descriptors: one that waits is worth less than one that comes.
            Err(_) => {
                if !make_room(&mut guests, 1).await {
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Closes the connection that has waited longest, unless there are fewer than so many. Whether it closed one: then its
/// descriptor is free.
async fn make_room(guests: &mut Vec<Guest>, most: usize) -> bool {
    guests.retain(|guest| !guest.task.is_finished());
    if guests.len() < most {
        return false;
    }
    let oldest = (0..guests.len()).min_by_key(|at| guests[*at].pace.since());
    let Some(oldest) = oldest.map(|at| guests.remove(at)) else { return false };
    oldest.task.abort();
    // It was cancelled, or ended before.
    let _ = oldest.task.await;
    true
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::future::pending;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    /// Runs on a clock that moves when all wait.
    fn run(test: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let connections = LocalSet::new();
        runtime.block_on(connections.run_until(test));
    }

    /// The path, or a panic if it is that.
    fn echo(request: &Request<Incoming>) -> Response<Full<Bytes>> {
        assert_ne!(request.uri().path(), "/panic", "as asked");
        Response::new(Full::new(request.uri().path().to_owned().into()))
    }

    /// Clients that have asked before they are accepted, and the door that they wait at.
    async fn waiting(paths: &[&str]) -> (Vec<DuplexStream>, RefCell<VecDeque<DuplexStream>>) {
        let (mut clients, mut door) = (Vec::new(), VecDeque::new());
        for path in paths {
            let (mut client, guest) = duplex(1000);
            client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            clients.push(client);
            door.push_back(guest);
        }
        (clients, RefCell::new(door))
    }

    async fn next(door: &RefCell<VecDeque<DuplexStream>>) -> io::Result<Box<dyn Stream>> {
        let guest = door.borrow_mut().pop_front();
        match guest {
            Some(guest) => Ok(Box::new(guest)),
            None => pending().await,
        }
    }

    /// What a client has heard, and whether its connection is closed, a second later.
    async fn heard(client: &mut DuplexStream) -> (String, bool) {
        let mut all = Vec::new();
        let closed = timeout(Duration::from_secs(1), client.read_to_end(&mut all)).await.is_ok();
        (String::from_utf8(all).unwrap(), closed)
    }

    #[test]
    fn one_more_than_fit_closes_the_one_that_has_waited_longest_and_each_had_its_turn() {
        run(async {
            let paths: Vec<String> = (0..500).map(|number| format!("/{number}")).collect();
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let (mut clients, door) = waiting(&paths).await;
            spawn_local(attend_all(async move || next(&door).await, 4, Rc::new(echo)));
            for (number, client) in clients.iter_mut().enumerate() {
                let (answer, closed) = heard(client).await;
                assert!(answer.ends_with(&format!("\r\n\r\n/{number}")), "{number}: {answer:?}");
                assert_eq!(closed, number < 496, "{number}");
            }
        });
    }

    #[test]
    fn a_panic_ends_its_connection_and_no_other() {
        run(async {
            let (mut clients, door) = waiting(&["/before", "/panic", "/after"]).await;
            spawn_local(attend_all(async move || next(&door).await, 4, Rc::new(echo)));
            for (client, (text, closed)) in
                clients.iter_mut().zip([("/before", false), ("", true), ("/after", false)])
            {
                let (answer, is_closed) = heard(client).await;
                assert!(answer.ends_with(text) && answer.is_empty() == text.is_empty(), "{answer:?}");
                assert_eq!(is_closed, closed, "{text}");
            }
        });
    }

    #[test]
    fn a_connection_that_cannot_be_accepted_closes_one_that_waits_and_then_is_tried_now_and_then() {
        run(async {
            let (mut clients, door) = waiting(&["/1", "/2"]).await;
            let tries = Rc::new(Cell::new(0));
            let counted = tries.clone();
            let accept = async move || {
                if !door.borrow().is_empty() {
                    return next(&door).await;
                }
                counted.set(counted.get() + 1);
                Err(rustix::io::Errno::MFILE.into())
            };
            let begun = tokio::time::Instant::now();
            let serving = attend_all(accept, 4, Rc::new(echo));
            assert!(timeout(Duration::from_secs(10), serving).await.is_err());
            assert_eq!(begun.elapsed().as_secs(), 10);
            // Twice with a connection to close, and then ten times a second.
            assert!((100..=103).contains(&tries.get()), "{}", tries.get());
            for client in &mut clients {
                let (answer, closed) = heard(client).await;
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && closed, "{answer:?}");
            }
        });
    }
}
