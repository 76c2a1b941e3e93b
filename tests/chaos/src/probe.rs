//! One HTTP request by hand, for what clients of the load do not look at: health, metrics, heads of answers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer; its head in lower case.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Asks; `headers` are whole lines. `None`: nobody answers within `patience`.
pub(crate) fn get(to: SocketAddr, path: &str, headers: &[&str], patience: Duration) -> Option<Answer> {
    ask(to, &format!("GET {path}"), headers, "", patience)
}

/// Posts JSON.
pub(crate) fn post(to: SocketAddr, path: &str, body: &str, patience: Duration) -> Option<Answer> {
    ask(to, &format!("POST {path}"), &[&format!("content-length: {}", body.len())], body, patience)
}

fn ask(to: SocketAddr, what: &str, headers: &[&str], body: &str, patience: Duration) -> Option<Answer> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    let more: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    // HTTP/1.0, so that the end of the answer is the end of the connection, and no body comes in chunks.
    write!(stream, "{what} HTTP/1.0\r\nhost: {to}\r\n{more}\r\n{body}").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

/// One value of a Prometheus page.
pub(crate) fn metric(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}
