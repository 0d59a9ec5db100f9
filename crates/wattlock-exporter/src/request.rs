//! What a request asks for, or the status that refuses it. Bodies are not read.

use std::time::Instant;

use http_body_util::Full;
use hyper::body::{Body, Bytes};
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};

use crate::content::{Answer, Content};
use crate::host::Hosts;

/// The answer to a request.
pub(crate) fn answer(
    request: &Request<impl Body>,
    content: &mut Content,
    hosts: &Hosts,
) -> Response<Full<Bytes>> {
    let path = path(request, hosts);
    // What could be taken for a next request is this one's body.
    let is_last = path.is_err() || !request.body().is_end_stream();
    let answer = path.map_or_else(Answer::refusal, |path| content.answer(path, Instant::now()));
    let mut response = answer.response();
    if is_last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The path, without a query.
fn path<'a>(request: &'a Request<impl Body>, hosts: &Hosts) -> Result<&'a str, StatusCode> {
    let mut named = request.headers().get_all(HOST).iter();
    match (named.next(), named.next()) {
        (_, Some(_)) => return Err(StatusCode::BAD_REQUEST),
        // A browser always says it.
        (None, _) if request.version() != Version::HTTP_10 => return Err(StatusCode::BAD_REQUEST),
        (Some(host), _) if !hosts.allow(host.to_str().unwrap_or_default()) => {
            return Err(StatusCode::MISDIRECTED_REQUEST);
        }
        _ => {}
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    // A target with a host of its own would be for a proxy.
    let target = request.uri();
    let is_ours = target.authority().is_none() && target.path().starts_with('/');
    if is_ours { Ok(target.path()) } else { Err(StatusCode::BAD_REQUEST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, target: &str, hosts: &[&str]) -> Result<String, StatusCode> {
        let mut request = Request::builder().method(method).uri(target);
        for host in hosts {
            request = request.header(HOST, HeaderValue::from_bytes(host.as_bytes()).unwrap());
        }
        let request = request.body(String::new()).unwrap();
        path(&request, &Hosts::default()).map(str::to_owned)
    }

    #[test]
    fn a_request_is_a_path_or_has_a_status() {
        for target in ["/metrics", "/metrics?x=1", "/metrics#x"] {
            assert_eq!(asked("GET", target, &["localhost:80"]).as_deref(), Ok("/metrics"), "{target}");
            assert_eq!(asked("HEAD", target, &["[::1]"]).as_deref(), Ok("/metrics"), "{target}");
        }
        let refused = |method, target, hosts: &[&str]| asked(method, target, hosts).unwrap_err().as_u16();
        assert_eq!(refused("GET", "/", &[]), 400);
        assert_eq!(refused("GET", "/", &["localhost", "localhost"]), 400);
        assert_eq!(refused("GET", "/", &["localhost", "evil.example"]), 400);
        for host in ["evil.example", "", "\u{fffd}", "localhost, evil.example"] {
            assert_eq!(refused("GET", "/", &[host]), 421, "{host}");
        }
        for target in ["http://localhost/", "http://evil.example/", "*", "localhost:80"] {
            assert_eq!(refused("GET", target, &["localhost"]), 400, "{target}");
        }
        for (method, target) in
            [("POST", "/"), ("OPTIONS", "*"), ("CONNECT", "localhost:80"), ("get", "/"), ("X", "/")]
        {
            assert_eq!(refused(method, target, &["localhost"]), 405, "{method}");
        }
    }

    #[test]
    fn a_refusal_and_a_request_with_a_body_are_the_last_of_their_connection() {
        let mut content = Content::new();
        for (method, target, body, status, is_last) in [
            ("GET", "/healthz", "", 200, false),
            ("GET", "/healthz", "hello", 200, true),
            ("GET", "/nothing", "", 404, false),
            ("POST", "/healthz", "", 405, true),
        ] {
            let request = Request::builder().method(method).uri(target).header(HOST, "localhost");
            let request = request.body(body.to_owned()).unwrap();
            let response = answer(&request, &mut content, &Hosts::default());
            assert_eq!(response.status(), status, "{method} {target}");
            assert_eq!(response.headers().contains_key(CONNECTION), is_last, "{method} {target}");
            let allow = response.headers().get("allow").map(HeaderValue::as_bytes);
            assert_eq!(allow, (status == 405).then_some(&b"GET, HEAD"[..]));
            assert_eq!(response.headers()["cache-control"], "no-store");
            let policy = response.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("  "), "{policy}");
        }
    }
}
