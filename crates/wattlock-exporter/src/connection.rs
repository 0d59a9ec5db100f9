//! One connection: bytes in, answers out, and until when it may take its time.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::address::Stream;
use crate::content::{Answer, Content};
use crate::host::Hosts;
use crate::request::{MOST_BYTES, first};

/// For a request to arrive, from the first byte or the start of the connection.
const TO_ASK: Duration = Duration::from_secs(5);
/// For an answer to be taken.
const TO_TAKE: Duration = Duration::from_secs(10);
/// Between an answer and the next request; Prometheus asks every minute or more often.
const TO_IDLE: Duration = Duration::from_secs(90);
/// For what else was sent, before a connection is closed: a reset would take the answer back.
const TO_DRAIN: Duration = Duration::from_secs(1);

/// What is being sent.
struct Sending {
    head: Vec<u8>,
    body: Arc<Vec<u8>>,
    sent: usize,
    again: bool,
}

/// Where a connection stands.
enum State {
    Asking,
    Sending(Sending),
    Draining,
}

pub(crate) struct Connection {
    stream: Stream,
    input: Vec<u8>,
    state: State,
    until: Instant,
    /// Since when it is in this state.
    pub(crate) since: Instant,
}

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// When the peer does something.
    Wait,
    /// At once: there is more that it asked for.
    More,
    /// No.
    Close,
}

impl Connection {
    pub(crate) fn new(stream: Stream, now: Instant) -> Connection {
        Connection { stream, input: Vec::new(), state: State::Asking, until: now + TO_ASK, since: now }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Whether it waits for room to write, not for bytes to read.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.state, State::Sending(_))
    }

    fn enter(&mut self, state: State, time: Duration, now: Instant) {
        (self.state, self.until, self.since) = (state, now + time, now);
    }

    /// Goes on as far as it can without waiting.
    pub(crate) fn go_on(&mut self, content: &mut Content, hosts: &Hosts, now: Instant) -> Next {
        match self.step(content, hosts, now) {
            Ok(next) => next,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Next::Wait,
            Err(error) if error.kind() == ErrorKind::Interrupted => Next::More,
            Err(_) => Next::Close,
        }
    }

    fn step(&mut self, content: &mut Content, hosts: &Hosts, now: Instant) -> io::Result<Next> {
        match &mut self.state {
            State::Asking => self.ask(content, hosts, now),
            State::Sending(_) => self.send(now),
            State::Draining => self.drain(),
        }
    }

    fn ask(&mut self, content: &mut Content, hosts: &Hosts, now: Instant) -> io::Result<Next> {
        loop {
            if !self.input.is_empty()
                && let Some(request) = first(&self.input, hosts)
            {
                self.input.drain(..request.length.min(self.input.len()));
                let answer = request.path.map_or_else(Answer::refusal, |path| content.answer(&path, now));
                let again = request.again;
                let body = if request.head { Arc::default() } else { answer.body.clone() };
                let sending = Sending { head: answer.head(again), body, sent: 0, again };
                self.enter(State::Sending(sending), TO_TAKE, now);
                return self.send(now);
            }
            let mut piece = [0; 2048];
            let room = MOST_BYTES.saturating_sub(self.input.len()).clamp(1, piece.len());
            let read = self.stream.read(&mut piece[..room])?;
            if read == 0 {
                return Ok(Next::Close);
            }
            if self.input.is_empty() {
                // An idle connection's patience was for the first byte.
                self.until = self.until.min(now + TO_ASK);
            }
            self.input.extend_from_slice(&piece[..read]);
        }
    }

    fn send(&mut self, now: Instant) -> io::Result<Next> {
        let State::Sending(sending) = &mut self.state else { return Ok(Next::Wait) };
        while sending.sent < sending.head.len() + sending.body.len() {
            let rest = match sending.sent.checked_sub(sending.head.len()) {
                None => &sending.head[sending.sent..],
                Some(at) => &sending.body[at..],
            };
            match self.stream.write(rest)? {
                0 => return Ok(Next::Close),
                written => sending.sent += written,
            }
        }
        if sending.again {
            let (time, next) =
                if self.input.is_empty() { (TO_IDLE, Next::Wait) } else { (TO_ASK, Next::More) };
            self.enter(State::Asking, time, now);
            return Ok(next);
        }
        self.input = Vec::new();
        self.stream.end_output()?;
        self.enter(State::Draining, TO_DRAIN, now);
        self.drain()
    }

    fn drain(&mut self) -> io::Result<Next> {
        let mut piece = [0; 2048];
        // Not for ever, however fast it comes.
        for _ in 0..32 {
            if self.stream.read(&mut piece)? == 0 {
                return Ok(Next::Close);
            }
        }
        Ok(Next::Close)
    }
}
