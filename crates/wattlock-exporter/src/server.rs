//! All connections, in one thread.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::address::Listener;
use crate::connection::{Connection, Next};
use crate::content::Content;
use crate::host::Hosts;

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
pub fn serve(listener: &Listener, content: &mut Content, hosts: &Hosts) -> std::io::Result<()> {
    let mut connections: Vec<Connection> = Vec::new();
    let most = most();
    let (mut more, mut paused) = (false, None);
    loop {
        let now = Instant::now();
        let ready = wait(listener, &connections, more, paused, now)?;
        let now = Instant::now();
        paused = paused.filter(|until| now < *until);
        more = false;
        let mut at = 0;
        connections.retain_mut(|connection| {
            let is_ready = ready[1 + at];
            at += 1;
            // Also of one that sends a byte now and then.
            if now >= connection.until() {
                return false;
            }
            if !is_ready {
                return true;
            }
            match connection.go_on(content, hosts, now) {
                Next::Close => false,
                Next::Wait => true,
                Next::More => {
                    more = true;
                    true
                }
            }
        });
        if ready[0] && paused.is_none() && !accept(listener, &mut connections, most, now) {
            paused = Some(now + PAUSE);
        }
    }
}

/// Most connections with the descriptors that this process may have.
fn most() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(MOST, |limit| MOST.min(limit.saturating_sub(KEPT) as usize)).max(1)
}

/// What can go on, the listener first. Those that have more to do are as ready as those whose peer did something.
fn wait(
    listener: &Listener,
    connections: &[Connection],
    more: bool,
    paused: Option<Instant>,
    now: Instant,
) -> std::io::Result<Vec<bool>> {
    let mut waiting = Vec::with_capacity(1 + connections.len());
    let accepts = if paused.is_some() { PollFlags::empty() } else { PollFlags::IN };
    waiting.push(PollFd::new(listener, accepts));
    for connection in connections {
        let flags = if connection.writes() { PollFlags::OUT } else { PollFlags::IN };
        waiting.push(PollFd::new(connection.stream(), flags));
    }
    let deadlines = connections.iter().map(Connection::until).chain(paused);
    let patience = match more {
        true => Some(Duration::ZERO),
        false => deadlines.min().map(|until| until.saturating_duration_since(now)),
    };
    let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
    match poll(&mut waiting, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready: Vec<bool> = waiting.iter().map(|one| !one.revents().is_empty()).collect();
    if more {
        ready[1..].iter_mut().for_each(|ready| *ready = true);
    }
    Ok(ready)
}

/// Takes what waits at the door. `false` if that is not possible now.
fn accept(listener: &Listener, connections: &mut Vec<Connection>, most: usize, now: Instant) -> bool {
    for _ in 0..most {
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                continue;
            }
            // Few descriptors: one that waits is worth less than one that comes.
            Err(_) => return close_one(connections),
        };
        if connections.len() >= most {
            close_one(connections);
        }
        connections.push(Connection::new(stream, now));
    }
    true
}

/// Closes the connection that has waited longest; `false` if there is none.
fn close_one(connections: &mut Vec<Connection>) -> bool {
    let oldest = (0..connections.len()).min_by_key(|at| connections[*at].since);
    oldest.map(|at| connections.swap_remove(at)).is_some()
}
