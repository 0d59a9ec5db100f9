//! A client that costs little, so that the server is what is measured: one thread, many connections, plain HTTP or TLS
//! (see `offer`).
//!
//! It trusts everybody. It is for measuring servers on loopback and for nothing else.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustls::client::ClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, NamedGroup};
use wattlock_shell::INTERRUPTED;

pub use rustls::version::{TLS12, TLS13};

/// Time after which a connection without an answer is a failure.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time before counting starts: every connection is under way by then.
const WARM_UP: Duration = Duration::from_millis(200);
/// Failures without a single success that are enough.
const HOPELESS: u64 = 64;

/// What a balancer says in front (the PROXY protocol, version 1).
const PROXIED: &[u8] = b"PROXY TCP4 127.0.0.1 127.0.0.1 50000 443\r\n";

/// A sort of clients, and its share of the connections: the shares of all add up to 1.
pub type Sort = (f64, Arc<ClientConfig>);

/// What to do to a server.
#[derive(Debug)]
pub struct Load<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// The sorts of clients, each with its share of the connections; none: plain HTTP, and there must be paths.
    pub sorts: &'a [Sort],
    /// Connections at once.
    pub connections: usize,
    /// Paths to request in turn; empty: handshakes, and each connection is closed.
    pub paths: &'a [String],
    /// Whether a connection stays for further requests.
    pub stays: bool,
    /// Further lines of a request's head, each with its end.
    pub head: &'a str,
    /// How long to count.
    pub time: Duration,
    /// Whether connections are visits of a site; else the server is one of ours, whose every answer is 200.
    pub visit: Option<Visit<'a>>,
}

/// A visit: a connection to a server of a site, over which each path is requested once, whatever the answers are. If the
/// server closes behind one, another connection has the rest, as a browser's.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The server's name.
    pub name: &'a str,
    /// Whether it expects a line of the PROXY protocol first.
    pub proxied: bool,
}

impl Load<'_> {
    fn name(&self) -> &str {
        self.visit.map_or("localhost", |visit| visit.name)
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Tally {
    /// Handshakes, or responses.
    pub done: u64,
    /// Handshakes of visits.
    pub visits: u64,
    /// Answers of visits, by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Of those, handshakes that resumed a session.
    pub resumed: u64,
    /// Of those that did not, handshakes in which the server showed an ECDSA certificate.
    pub ecdsa: u64,
    /// Handshakes by the group that was agreed on; one without a key exchange has none.
    pub groups: Vec<(NamedGroup, u64)>,
    /// Connections that ended otherwise than they should.
    pub failed: u64,
    /// Why the first of them did.
    pub failure: Option<String>,
    /// Bytes of response bodies.
    pub bytes: u64,
    /// Time counted.
    pub wall: Duration,
    /// Processor time of the server meanwhile.
    pub cpu: Duration,
    /// Nanoseconds from connecting to the end of the handshake, or from a request to the end of its response; from
    /// connecting to that, if connections do not stay.
    pub latencies: Vec<u64>,
}

impl Tally {
    /// Takes the account of a finished handshake.
    fn count(&mut self, tls: &ClientConnection) {
        if tls.handshake_kind() == Some(HandshakeKind::Resumed) {
            self.resumed += 1;
        } else if tls.peer_certificates().is_some_and(|chain| chain.first().is_some_and(is_ecdsa)) {
            self.ecdsa += 1;
        }
        if let Some(group) = tls.negotiated_key_exchange_group().map(|group| group.name()) {
            match self.groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, count)) => *count += 1,
                None => self.groups.push((group, 1)),
            }
        }
    }

    /// A second's worth.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.wall.as_secs_f64()
    }

    /// The server's processor time for each, microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.done.max(1) as f64
    }

    /// Share of the time that the server computed; 1 is one core.
    pub fn share(&self) -> f64 {
        self.cpu.as_secs_f64() / self.wall.as_secs_f64()
    }

    /// A latency by rank, microseconds: 0.5 is the median.
    pub fn latency_us(&self, rank: f64) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * rank) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
    }
}

/// Puts a load on a server. `cpu` says how much processor time the server has used so far.
///
/// # Errors
/// The server cannot be reached, nothing succeeds, or the user interrupts.
pub fn drive(load: &Load<'_>, cpu: &dyn Fn() -> Result<Duration>) -> Result<Tally> {
    let mut crowd = Crowd {
        load,
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        opened: vec![0; load.sorts.len()],
        asked: 0,
        works: false,
        tally: Tally::default(),
        buffer: vec![0; 256 << 10],
    };
    let mut slots: Vec<Connection> =
        (0..load.connections).map(|slot| crowd.open(slot, 0)).collect::<Result<_>>()?;
    let (start, mut counting, mut swept) = (Instant::now(), None, Instant::now());
    let mut events = Vec::with_capacity(load.connections);
    loop {
        let now = Instant::now();
        match counting {
            None if now - start >= WARM_UP => {
                let failed = std::mem::take(&mut crowd.tally);
                crowd.works = failed.done > 0;
                crowd.tally = Tally { failed: failed.failed, failure: failed.failure, ..Tally::default() };
                let before = cpu()?;
                counting = Some((Instant::now(), before));
            }
            Some((since, before)) if now - since >= load.time => {
                crowd.tally.cpu = cpu()?.saturating_sub(before);
                crowd.tally.wall = now - since;
                break;
            }
            _ => {}
        }
        ensure!(!INTERRUPTED.load(Ordering::Relaxed), wattlock_door::Error::Interrupted);
        if now - swept > Duration::from_secs(1) {
            swept = now;
            for (slot, connection) in slots.iter_mut().enumerate() {
                if now - connection.since > PATIENCE {
                    crowd.failed("no answer in ten seconds".to_owned())?;
                    *connection = crowd.open(slot, 0)?;
                }
            }
        }
        events.clear();
        let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        match epoll::wait(&crowd.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            // A signal: if it was the user's, that is seen above.
            Err(Errno::INTR) => continue,
            waited => waited?,
        };
        for event in events.drain(..) {
            let slot = event.data.u64() as usize;
            match crowd.advance(&mut slots[slot]) {
                Ok(false) => {}
                Ok(true) => slots[slot] = crowd.open(slot, crowd.rest(&slots[slot]))?,
                Err(why) => {
                    crowd.failed(why)?;
                    slots[slot] = crowd.open(slot, 0)?;
                }
            }
        }
    }
    Ok(crowd.tally)
}

/// All connections' common things.
struct Crowd<'a> {
    load: &'a Load<'a>,
    epoll: OwnedFd,
    /// Connections so far, of each sort.
    opened: Vec<u64>,
    asked: usize,
    /// Whether anything succeeded before counting started.
    works: bool,
    tally: Tally,
    buffer: Vec<u8>,
}

/// One connection.
struct Connection {
    stream: TcpStream,
    tls: Option<ClientConnection>,
    /// When the handshake, or the request, began.
    since: Instant,
    shaken: bool,
    /// Requests of its visit over connections before this one.
    begun: usize,
    /// Requests so far.
    asked: usize,
    answer: Answer,
}

/// What of a response has come.
#[derive(Default)]
struct Answer {
    /// Whether any status will do.
    any: bool,
    status: u16,
    /// Whether the server closes behind it.
    closes: bool,
    head: Vec<u8>,
    /// What of the body is still to come, once the head is whole.
    body: Option<Body>,
}

/// A response's body.
enum Body {
    /// Announced, and bytes still to come.
    Sized(u64, u64),
    Chunked(Chunks),
    /// Up to the end of the connection; bytes so far.
    Unbounded(u64),
}

/// A body in chunks (RFC 9112, section 7.1).
#[derive(Default)]
struct Chunks {
    line: Vec<u8>,
    /// Bytes of this chunk still to come, with the end of its line.
    missing: u64,
    last: bool,
    /// Content so far.
    content: u64,
}

impl Crowd<'_> {
    /// Opens a connection; so many paths of its visit were answered before.
    fn open(&mut self, slot: usize, begun: usize) -> Result<Connection> {
        let load = self.load;
        let config = next(load.sorts.iter().map(|(share, _)| *share), &self.opened).map(|sort| {
            self.opened[sort] += 1;
            &load.sorts[sort].1
        });
        let since = Instant::now();
        let stream = TcpStream::connect(load.address).with_context(|| load.address.to_string())?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &stream, EventData::new_u64(slot as u64), events)?;
        let shaken = config.is_none();
        let answer = Answer::default();
        let mut connection = Connection { stream, tls: None, since, shaken, begun, asked: 0, answer };
        if load.visit.is_some_and(|visit| visit.proxied) {
            connection.stream.write_all(PROXIED)?;
        }
        // A hello or a request fits into an empty send buffer: the client never waits for room to write.
        match config {
            None => self.ask(&mut connection).map_err(anyhow::Error::msg)?,
            Some(config) => {
                let name = load.name().to_owned();
                let name = ServerName::try_from(name).with_context(|| load.name().to_owned())?;
                let tls = connection.tls.insert(ClientConnection::new(Arc::clone(config), name)?);
                tls.write_tls(&mut connection.stream)?;
            }
        }
        Ok(connection)
    }

    /// How many paths of its visit were answered when a connection ended; none if the visit has ended, too.
    fn rest(&self, connection: &Connection) -> usize {
        let answered = connection.begun + connection.asked;
        if self.load.visit.is_some() && answered < self.load.paths.len() { answered } else { 0 }
    }

    fn failed(&mut self, why: String) -> Result<()> {
        self.tally.failed += 1;
        if !self.works && self.tally.done == 0 && self.tally.failed >= HOPELESS {
            bail!("{}: {why}", self.load.address);
        }
        self.tally.failure.get_or_insert(why);
        Ok(())
    }

    /// Reads and writes what can be; `true` when the connection has done what it was for.
    fn advance(&mut self, connection: &mut Connection) -> Result<bool, String> {
        loop {
            write(connection)?;
            let read = match connection.stream.read(&mut self.buffer) {
                Ok(0) => {
                    let Some(Body::Unbounded(body)) = connection.answer.body else {
                        return Err(format!("closed by the server{}", whereabouts(connection)));
                    };
                    self.answered(connection, body);
                    return Ok(true);
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("{error}{}", whereabouts(connection))),
            };
            let buffer = std::mem::take(&mut self.buffer);
            let taken = self.take(connection, &buffer[..read]);
            let drained = read < buffer.len();
            self.buffer = buffer;
            if taken? {
                return Ok(true);
            }
            write(connection)?;
            // A stream that gave less than was asked for has no more (epoll(7)); what comes later is a new event. An end
            // that has come is none: where it ends the answer, it is read at once.
            if drained && !matches!(connection.answer.body, Some(Body::Unbounded(_))) {
                return Ok(false);
            }
        }
    }

    /// Takes bytes of the server in; `true` when the connection has done what it was for.
    fn take(&mut self, connection: &mut Connection, mut bytes: &[u8]) -> Result<bool, String> {
        while !bytes.is_empty() {
            let Some(tls) = &mut connection.tls else {
                return self.hear(connection, bytes);
            };
            tls.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            tls.process_new_packets().map_err(|error| error.to_string())?;
            if !connection.shaken && !tls.is_handshaking() {
                connection.shaken = true;
                if self.load.visit.is_some() {
                    self.tally.visits += 1;
                    self.tally.count(tls);
                }
                if self.load.paths.is_empty() {
                    self.tally.latencies.push(elapsed(connection.since));
                } else {
                    self.ask(connection)?;
                }
            }
            if connection.shaken && !self.load.paths.is_empty() && self.listen(connection)? {
                return Ok(true);
            }
        }
        Ok(connection.shaken && self.load.paths.is_empty() && self.shaken(connection)?)
    }

    /// Whether the *server* is done with the handshake too: with TLS 1.2 its last flight says so, with TLS 1.3 the
    /// tickets that follow it.
    fn shaken(&mut self, connection: &mut Connection) -> Result<bool, String> {
        let Some(tls) = &connection.tls else { return Ok(true) };
        let new = tls.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
        if new && tls.tls13_tickets_received() == 0 {
            return Ok(false);
        }
        self.tally.done += 1;
        self.tally.count(tls);
        write(connection)?;
        Ok(true)
    }

    fn ask(&mut self, connection: &mut Connection) -> Result<(), String> {
        // A visit's requests are its own; else all connections take the paths in turn.
        let own = connection.begun + connection.asked;
        let turn = if self.load.visit.is_some() { own } else { self.asked };
        let path = &self.load.paths[turn % self.load.paths.len()];
        self.asked += 1;
        let (name, head) = (self.load.name(), self.load.head);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n{head}\r\n");
        connection.answer = Answer { any: self.load.visit.is_some(), ..Answer::default() };
        connection.asked += 1;
        if self.load.stays || connection.asked > 1 {
            connection.since = Instant::now();
        }
        let written = match &mut connection.tls {
            Some(tls) => tls.writer().write_all(request.as_bytes()),
            None => connection.stream.write_all(request.as_bytes()),
        };
        written.map_err(|error| error.to_string())
    }

    /// Takes plain bytes of responses in. After each whole one it asks anew, or the connection has done its work.
    fn listen(&mut self, connection: &mut Connection) -> Result<bool, String> {
        let mut plain = [0; 32 << 10];
        while let Some(tls) = &mut connection.tls {
            let read = match tls.reader().read(&mut plain) {
                Ok(0) => return Ok(false),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.to_string()),
            };
            if self.hear(connection, &plain[..read])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The same, of one piece.
    fn hear(&mut self, connection: &mut Connection, plain: &[u8]) -> Result<bool, String> {
        let Some(body) = connection.answer.take(plain)? else { return Ok(false) };
        self.answered(connection, body);
        let over = match self.load.visit {
            Some(_) => connection.answer.closes || self.rest(connection) == 0,
            None => !self.load.stays,
        };
        if !over {
            self.ask(connection)?;
        }
        Ok(over)
    }

    /// Takes the account of a whole response.
    fn answered(&mut self, connection: &Connection, body: u64) {
        self.tally.done += 1;
        self.tally.bytes += body;
        self.tally.latencies.push(elapsed(connection.since));
        if self.load.visit.is_some() {
            *self.tally.statuses.entry(connection.answer.status).or_insert(0) += 1;
        }
    }
}

impl Answer {
    /// Takes bytes in; the body's length once all of it has come. One response at a time: there is no pipelining.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<u64>, String> {
        let mut body = bytes;
        while self.body.is_none() {
            let before = self.head.len();
            self.head.extend_from_slice(body);
            let Some(end) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else {
                return if self.head.len() > 64 << 10 {
                    Err("a head without end".to_owned())
                } else {
                    Ok(None)
                };
            };
            body = &body[end + 4 - before..];
            self.head.truncate(end);
            self.begin()?;
            self.head.clear();
        }
        match &mut self.body {
            Some(Body::Sized(length, missing)) => {
                *missing = missing.checked_sub(body.len() as u64).ok_or("more body than was announced")?;
                Ok((*missing == 0).then_some(*length))
            }
            Some(Body::Chunked(chunks)) => Ok(chunks.take(body)?.then_some(chunks.content)),
            Some(Body::Unbounded(content)) => {
                *content += body.len() as u64;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Begins the body that a whole head announces (RFC 9112, section 6.3). None behind a head that is not the last
    /// (RFC 9110, section 15.2).
    fn begin(&mut self) -> Result<(), String> {
        let text = String::from_utf8_lossy(&self.head);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status: u16 = status
            .filter(|status| self.any || *status == 200)
            .ok_or_else(|| format!("the server answered `{}`", first.escape_debug()))?;
        let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
        let field = |wanted: &str| {
            let found = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.trim())
        };
        self.status = status;
        let closes = |value: &str| value.split(',').any(|word| word.trim().eq_ignore_ascii_case("close"));
        self.closes = field("connection").is_some_and(closes);
        let chunked = field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        let length = field("content-length").and_then(|value| value.parse().ok());
        self.body = match (status, length) {
            (100..=199, _) => None,
            (204 | 304, _) => Some(Body::Sized(0, 0)),
            _ if chunked => Some(Body::Chunked(Chunks::default())),
            (_, Some(length)) => Some(Body::Sized(length, length)),
            _ if self.any => Some(Body::Unbounded(0)),
            _ => return Err("an answer without Content-Length".to_owned()),
        };
        Ok(())
    }
}

impl Chunks {
    /// Takes bytes in; whether the last chunk has come.
    fn take(&mut self, mut bytes: &[u8]) -> Result<bool, String> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.missing > 0 {
                let some = self.missing.min(bytes.len() as u64);
                (self.missing, bytes) = (self.missing - some, &bytes[some as usize..]);
                continue;
            }
            bytes = rest;
            if byte != b'\n' {
                self.line.push(byte);
                if self.line.len() > 4096 {
                    return Err("a chunk without a size".to_owned());
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim().to_owned();
            self.line.clear();
            if self.last {
                // Behind the last chunk come trailers, and an empty line.
                match (line.is_empty(), bytes.is_empty()) {
                    (true, true) => return Ok(true),
                    (true, false) => return Err("more body than was announced".to_owned()),
                    _ => continue,
                }
            }
            let size = line.split(';').next().and_then(|size| u64::from_str_radix(size.trim(), 16).ok());
            let size = size.ok_or_else(|| format!("a chunk's size is `{}`", line.escape_debug()))?;
            (self.last, self.missing) = (size == 0, if size == 0 { 0 } else { size.saturating_add(2) });
            self.content = self.content.saturating_add(size);
        }
        Ok(false)
    }
}

fn write(connection: &mut Connection) -> Result<(), String> {
    let Some(tls) = &mut connection.tls else { return Ok(()) };
    while tls.wants_write() {
        match tls.write_tls(&mut connection.stream) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn whereabouts(connection: &Connection) -> &'static str {
    if connection.shaken { "" } else { ", in the handshake" }
}

/// Which of several shares is the furthest behind, after so many of each: the next one is of that sort. So the sorts are
/// spread evenly.
fn next(shares: impl Iterator<Item = f64>, so_far: &[u64]) -> Option<usize> {
    let all = so_far.iter().sum::<u64>() + 1;
    let behind = shares.zip(so_far).map(|(share, had)| share * all as f64 - *had as f64);
    behind.enumerate().max_by(|one, other| one.1.total_cmp(&other.1)).map(|(sort, _)| sort)
}

/// Whether a certificate's key is of an elliptic curve: it names id-ecPublicKey (RFC 5480, section 2.1.1).
fn is_ecdsa(certificate: &CertificateDer<'_>) -> bool {
    const ID: [u8; 9] = [6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
    certificate.windows(ID.len()).any(|bytes| bytes == ID)
}

fn elapsed(since: Instant) -> u64 {
    since.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_any_pieces_is_one_answer() {
        let whole = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 5\r\n\r\nhello";
        for cut in 0..whole.len() {
            let mut answer = Answer::default();
            assert_eq!(answer.take(&whole[..cut]).unwrap(), None, "{cut}");
            assert_eq!(answer.take(&whole[cut..]).unwrap(), Some(5), "{cut}");
        }
        assert!(Answer::default().take(b"HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(Answer::default().take(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy").is_err());
        assert!(Answer::default().take(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn a_visit_takes_any_answer() {
        let any = || Answer { any: true, ..Answer::default() };
        let mut answer = any();
        let hints = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno";
        assert_eq!(answer.take(hints), Ok(Some(2)));
        assert_eq!((answer.status, answer.closes), (404, false));
        let mut answer = any();
        assert_eq!(answer.take(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"), Ok(Some(0)));
        assert_eq!((answer.status, answer.closes), (204, true));
        let mut answer = any();
        assert_eq!(answer.take(b"HTTP/1.1 200 OK\r\n\r\nab"), Ok(None));
        assert!(matches!(answer.body, Some(Body::Unbounded(2))));
        assert!(any().take(b"HTTP/1.1 ok\r\n\r\n").is_err());
    }

    /// A server whose answers have this in their head; behind one that says no length, or that it closes, it closes.
    /// Each path has a status of its own.
    fn answering(head: &'static str) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move |mut stream: TcpStream| {
            let (mut request, mut piece) = (Vec::new(), [0; 1024]);
            while let Ok(read @ 1..) = stream.read(&mut piece) {
                request.extend_from_slice(&piece[..read]);
                let text = String::from_utf8_lossy(&request).into_owned();
                if !text.ends_with("\r\n\r\n") {
                    continue;
                }
                request.clear();
                let status = text.split(' ').nth(1).unwrap().trim_start_matches('/');
                let answer = format!("HTTP/1.1 {status} it\r\n{head}\r\nok");
                if stream.write_all(answer.as_bytes()).is_err()
                    || head.contains("close")
                    || !head.contains("Length")
                {
                    return;
                }
            }
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        address
    }

    #[test]
    fn every_path_of_a_visit_is_requested_though_the_server_closes() {
        let paths = ["/200", "/201", "/404"].map(str::to_owned);
        for head in [
            "Content-Length: 2\r\n",
            "Content-Length: 2\r\nConnection: close\r\n",
            "Content-Length: 2\r\nConnection: x, Close\r\nX: close\r\n",
            "",
        ] {
            let load = Load {
                address: answering(head),
                sorts: &[],
                connections: 4,
                paths: &paths,
                stays: false,
                head: "",
                time: Duration::from_millis(300),
                visit: Some(Visit { name: "a.example", proxied: false }),
            };
            let tally = drive(&load, &|| Ok(Duration::ZERO)).unwrap();
            assert_eq!(tally.failed, 0, "{head:?}: {:?}", tally.failure);
            // Counting begins and ends within a visit of each connection.
            let counts: Vec<u64> = [200, 201, 404].map(|status| tally.statuses[&status]).to_vec();
            let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
            assert!(spread <= 4 && tally.statuses.len() == 3, "{head:?}: {:?}", tally.statuses);
        }
    }

    #[test]
    fn a_body_in_chunks_is_counted_whatever_the_pieces() {
        let whole =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        for cut in 0..whole.len() {
            let mut answer = Answer::default();
            assert_eq!(answer.take(&whole[..cut]).unwrap(), None, "{cut}");
            assert_eq!(answer.take(&whole[cut..]).unwrap(), Some(15), "{cut}");
        }
        let wrong = |tail: &str| {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            Answer::default().take([head, tail].concat().as_bytes())
        };
        assert!(wrong("x\r\n").is_err() && wrong("0\r\n\r\nmore").is_err());
        assert_eq!(wrong("5\r\nhel"), Ok(None));
    }

    #[test]
    fn sorts_of_connections_are_spread_evenly() {
        for shares in [&[1.0][..], &[0.9, 0.1], &[0.75, 0.25], &[0.81, 0.09, 0.09, 0.01], &[0.0, 1.0]] {
            let mut had = vec![0; shares.len()];
            for all in 1..=1000 {
                let sort = next(shares.iter().copied(), &had).unwrap();
                had[sort] += 1;
                for (share, had) in shares.iter().zip(&had) {
                    assert!((share * f64::from(all) - *had as f64).abs() < 2.0, "{shares:?}: {had} of {all}");
                }
            }
        }
        assert_eq!(next([].into_iter(), &[]), None);
    }

    #[test]
    fn latencies_are_found_by_rank() {
        let tally = Tally { latencies: (1..=100).rev().map(|n| n * 1000).collect(), ..Tally::default() };
        assert_eq!((tally.latency_us(0.5), tally.latency_us(0.99)), (51.0, 100.0));
        assert_eq!(Tally::default().latency_us(0.99), 0.0);
    }
}
