//! One request's head: what is asked for, or the status that refuses it. Bodies are not read.

use httparse::{EMPTY_HEADER, Status};

use crate::host::Hosts;

/// Most bytes of a request's head, and most header lines.
pub(crate) const MOST_BYTES: usize = 8192;
const MOST_LINES: usize = 64;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The path, without a query; or the status that refuses the request.
    pub(crate) path: Result<String, u16>,
    /// Whether only the head of the answer is wanted.
    pub(crate) head: bool,
    /// Whether the connection serves for another request.
    pub(crate) again: bool,
    /// Bytes of its head.
    pub(crate) length: usize,
}

impl Request {
    fn refused(status: u16) -> Request {
        Request { path: Err(status), head: false, again: false, length: 0 }
    }
}

/// The first request in these bytes; `None` if it is not whole yet.
pub(crate) fn first(bytes: &[u8], hosts: &Hosts) -> Option<Request> {
    let mut lines = [EMPTY_HEADER; MOST_LINES];
    let mut parsed = httparse::Request::new(&mut lines);
    let length = match parsed.parse(bytes) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if bytes.len() < MOST_BYTES => return None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Some(Request::refused(431)),
        Err(httparse::Error::Version) => return Some(Request::refused(505)),
        Err(_) => return Some(Request::refused(400)),
    };
    let newer = parsed.version == Some(1);
    let named = |name: &'static str| {
        let lines = parsed.headers.iter().filter(move |line| line.name.eq_ignore_ascii_case(name));
        lines.map(|line| std::str::from_utf8(line.value).unwrap_or("\u{fffd}").trim())
    };
    let words = |name| named(name).flat_map(|value| value.split(',')).map(str::trim);
    let says = |word: &str| words("connection").any(|one| one.eq_ignore_ascii_case(word));
    let mut hosts_named = named("host");
    let path = match (parsed.method, parsed.path, hosts_named.next(), hosts_named.next()) {
        (.., Some(_)) => Err(400),
        // A browser always says it.
        (_, _, None, _) if newer => Err(400),
        (_, _, Some(host), _) if !hosts.allow(host) => Err(421),
        (Some("GET" | "HEAD"), Some(target), ..) if target.starts_with('/') => {
            Ok(target.split(['?', '#']).next().unwrap_or("/").to_owned())
        }
        (Some("GET" | "HEAD"), ..) => Err(400),
        _ => Err(405),
    };
    // What would be taken for a next request is this one's body.
    let body =
        named("transfer-encoding").next().is_some() || named("content-length").any(|length| length != "0");
    let again = path.as_ref().is_ok_and(|_| !body) && !says("close") && (newer || says("keep-alive"));
    Some(Request { path, head: parsed.method == Some("HEAD"), again, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Option<Request> {
        first(text.replace('\n', "\r\n").as_bytes(), &Hosts::default())
    }

    fn status(text: &str) -> u16 {
        asked(text).unwrap().path.unwrap_err()
    }

    #[test]
    fn a_request_is_a_path_and_whether_another_follows() {
        let whole = "GET /metrics?x=1 HTTP/1.1\nHost: localhost\n\n";
        let request = asked(whole).unwrap();
        assert_eq!((request.path.as_deref(), request.head, request.again), (Ok("/metrics"), false, true));
        assert_eq!(request.length, whole.replace('\n', "\r\n").len());
        assert!(asked("GET /metrics HTTP/1.1\nHost: local").is_none());
        for (text, again) in [
            ("GET / HTTP/1.0\n\n", false),
            ("GET / HTTP/1.0\nConnection: Keep-Alive\n\n", true),
            ("GET / HTTP/1.1\nhost: [::1]:80\nconnection: x, Close\n\n", false),
            ("GET / HTTP/1.1\nHost: localhost\nContent-Length: 5\n\nhello", false),
            ("GET / HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n", false),
            ("GET / HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n", true),
        ] {
            let request = asked(text).unwrap();
            assert_eq!((request.path.as_deref(), request.again), (Ok("/"), again), "{text}");
        }
        assert!(asked("HEAD / HTTP/1.1\nHost: localhost\n\n").unwrap().head);
    }

    #[test]
    fn everything_else_has_a_status() {
        assert_eq!(status("GET / HTTP/1.1\n\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\nHost: localhost\nHost: localhost\n\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\nHost: evil.example\n\n"), 421);
        assert_eq!(status("GET http://localhost/ HTTP/1.1\nHost: localhost\n\n"), 400);
        assert_eq!(status("POST / HTTP/1.1\nHost: localhost\n\n"), 405);
        assert_eq!(status("OPTIONS * HTTP/1.1\nHost: localhost\n\n"), 405);
        assert_eq!(status("GET / HTTP/2.0\nHost: localhost\n\n"), 505);
        assert_eq!(status("\0\u{1}\n\n"), 400);
        let long = format!("GET /{} HTTP/1.1\n", "x".repeat(MOST_BYTES));
        assert_eq!(status(&long), 431);
        let many = format!("GET / HTTP/1.1\nHost: localhost\n{}\n", "a: b\n".repeat(100));
        assert_eq!(status(&many), 431);
        assert!(!asked(&many).unwrap().again);
    }

    /// Bytes changed at random (a fixed sequence): none of it panics, and what is answered has a path of ours.
    #[test]
    fn a_mangled_request_is_answered_or_refused() {
        let whole = b"GET /metrics HTTP/1.1\r\nHost: localhost:19469\r\nConnection: close\r\n\r\n";
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut bytes = whole.to_vec();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            match first(&bytes, &Hosts::default()).map(|request| request.path) {
                Some(Ok(path)) => assert!(path.starts_with('/')),
                Some(Err(_)) => refused += 1,
                None => {}
            }
        }
        assert!(refused > 1000);
    }
}
