//! One page of a server on this machine, over HTTP or HTTPS: nginx's status page.
//!
//! TLS is the system's: `libssl`, loaded when a page is fetched (`sys`), in a library context of its own, so that no
//! `openssl.cnf` is read and no provider of Wattlock's is asked about Wattlock.
//!
//! It trusts everybody: whatever certificate is shown is accepted. Nothing secret may be sent this way or believed.

#[allow(unsafe_code)]
mod sys;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Time after which a server without an answer is a failure.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any status page has.
const MOST: u64 = 16 << 20;

/// Fetches a page over HTTPS, whatever certificate is shown.
///
/// # Errors
/// No libssl, no connection, no handshake, no answer within ten seconds, or another answer than 200.
pub fn fetch(address: SocketAddr, path: &str) -> Result<String> {
    let stream = connect(address)?;
    let mut tls = sys::Tls::handshake(&stream, c"localhost").with_context(|| address.to_string())?;
    read(&mut tls, path).with_context(|| format!("https://{address}{path}"))
}

/// The same over HTTP.
///
/// # Errors
/// As [`fetch`].
pub fn fetch_plain(address: SocketAddr, path: &str) -> Result<String> {
    read(&mut &connect(address)?, path).with_context(|| format!("http://{address}{path}"))
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(|| address.to_string())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Requests a page over a stream and returns its body.
fn read(stream: &mut (impl Read + Write), path: &str) -> Result<String> {
    let until = Instant::now() + PATIENCE;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut piece = [0; 16 << 10];
    // nginx closes an HTTP/1.0 connection; whether it says so in TLS does not matter once the length is right.
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(answer.len() as u64 <= MOST, "the answer does not end");
        ensure!(Instant::now() < until, "the answer has not ended in ten seconds");
    }
    body(&answer)
}

/// The body of an answer that says 200 and has the length that it says.
fn body(answer: &[u8]) -> Result<String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no HTTP answer")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("the server answered `{}`", status.escape_debug());
    }
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|(_, value)| value.trim().parse::<usize>().ok());
    let body = &answer[end + 4..];
    ensure!(length.context("an answer without Content-Length")? == body.len(), "the answer was cut off");
    Ok(String::from_utf8_lossy(body).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_answer_that_says_200_is_a_page() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 5\r\n\r\nhello").unwrap(), "hello");
        for (wrong, words) in [
            (&b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"[..], "404 Not Found"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx", "cut off"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "without Content-Length"),
            (b"HTTP/1.1 200 OK\r\n", "no HTTP answer"),
        ] {
            assert!(body(wrong).unwrap_err().to_string().contains(words), "{words}");
        }
    }

    /// A server that takes the hello and says what is no TLS.
    #[test]
    fn a_server_without_tls_is_refused_with_openssls_words() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0, "a hello");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
        });
        let error = format!("{:#}", fetch(address, "/").unwrap_err());
        answering.join().unwrap();
        assert!(error.contains("wrong version number") || error.contains("no libssl.so.3"), "{error}");
    }
}
