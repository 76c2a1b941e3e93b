//! HTTP requests by hand, each on a connection of its own: what tests ask admin endpoints, metrics pages and routers.
//!
//! Calls block their thread. Responses are text; those with bytes that are no UTF-8 count as missing.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A whole response; its head in lower case.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body, without the framing of its chunks.
    pub body: String,
}

/// A request that is put together step by step.
#[derive(Debug)]
pub struct Request {
    line: String,
    headers: String,
    body: String,
    timeout: Duration,
}

impl Request {
    /// Returns a `GET`.
    pub fn get(path: &str) -> Self {
        Request { line: format!("GET {path}"), headers: String::new(), body: String::new(), timeout: READ_TIMEOUT }
    }

    /// Returns a `POST` with this body.
    pub fn post(path: &str, body: &str) -> Self {
        let post = Request { line: format!("POST {path}"), body: body.to_owned(), ..Self::get(path) };
        post.header("content-length", body.len())
    }

    /// Returns a request with this method and, unless it is empty, this body of JSON.
    pub fn json(method: &str, path: &str, body: &str) -> Self {
        let request = Request { line: format!("{method} {path}"), body: body.to_owned(), ..Self::get(path) };
        match body {
            "" => request,
            _ => request.header("content-type", "application/json").header("content-length", body.len()),
        }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    /// Sets how long each read of the response may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        Request { timeout, ..self }
    }

    /// Sends it. Returns `None` unless a whole response comes back.
    pub fn send(&self, to: SocketAddr) -> Option<Response> {
        let Request { line, headers, body, timeout } = self;
        let mut stream = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT).ok()?;
        stream.set_read_timeout(Some(*timeout)).ok()?;
        write!(stream, "{line} HTTP/1.1\r\nhost: {to}\r\n{headers}connection: close\r\n\r\n{body}").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Response::parse(&text)
    }
}

impl Response {
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let body = if value("transfer-encoding: ").is_some_and(|coding| coding.contains("chunked")) {
            join_chunks(body)?
        } else {
            let length = value("content-length: ").and_then(|length| length.trim().parse().ok());
            body.get(..length.unwrap_or(body.len()))?.to_owned()
        };
        Some(Response { status, head, body })
    }
}

/// Returns the content of a chunked body, if it is complete.
fn join_chunks(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, content) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body += content.get(..size)?;
        rest = content.get(size..)?.strip_prefix("\r\n")?;
    }
}

/// Returns the status and body of `GET path`, if a whole response comes back.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let response = Request::get(path).send(address)?;
    Some((response.status, response.body))
}

/// Returns whether the process behind this admin endpoint is ready.
pub fn is_ready(admin: SocketAddr) -> bool {
    get(admin, "/ready").is_some_and(|(status, _)| status == 200)
}

/// Returns the value of a series, named with its labels, on a Prometheus page.
pub fn metric(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_that_was_cut_off_is_none() {
        let body = |text: &str| Response::parse(text).map(|response| response.body);
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").as_deref(), Some("ok"));
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"), None);
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(body(&format!("{chunked}2\r\nok\r\na\r\n, complete\r\n0\r\n\r\n")).as_deref(), Some("ok, complete"));
        assert_eq!(body(&format!("{chunked}2\r\nok\r\n")), None);
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# TYPE a counter\na_total{k=\"v\"} 3\na_total 4.5\n";
        assert_eq!(metric(page, "a_total"), Some(4.5));
        assert_eq!(metric(page, "a_total{k=\"v\"}"), Some(3.0));
        assert_eq!(metric(page, "a"), None);
    }
}
