//! Reads the head of a plain HTTP/1.1 request.
//!
//! Pure. A request is plain if its head has no upgrade, no `Expect` and at most one framing. Any other head, valid or
//! not, is left to hyper, so that one place judges it.
//!
//! # Invariants
//!
//! * hyper reads a plain head in the same way.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Uri};

use crate::message::headers::options;
use crate::message::name_cache::header_name;

/// Most headers of a plain head.
const MAX_HEADERS: usize = 64;
/// Largest plain head. A partial head is parsed again with each piece that arrives, so this bounds the work that a
/// client can cause.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// What stands at the beginning of some bytes.
#[derive(Debug)]
pub(super) enum Reading {
    /// A part of a head, or nothing.
    Partial,
    /// A plain head, of this many bytes.
    Plain(Box<RequestHead>, usize),
    /// Something else.
    Other,
}

/// The head of a plain request.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) parts: Parts,
    pub(super) framing: Framing,
    /// Whether the client wants the connection to close after the response.
    pub(super) close: bool,
    /// Whether the client accepts trailers.
    pub(super) takes_trailers: bool,
}

/// How the body of a plain request is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
}

/// Reads the head at the beginning of `bytes`. A head of more than `most` bytes is not plain.
pub(super) fn read_head(bytes: &[u8], most: usize) -> Reading {
    let most = most.min(MAX_HEAD_BYTES);
    let mut slots = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_request_with_uninit_headers(&mut request, bytes, &mut slots);
    match parsed {
        Ok(httparse::Status::Complete(length)) if length <= most => match plain(&request, bytes, length) {
            Some(head) => Reading::Plain(Box::new(head), length),
            None => Reading::Other,
        },
        Ok(httparse::Status::Partial) if bytes.len() <= most => Reading::Partial,
        Ok(_) | Err(_) => Reading::Other,
    }
}

/// Returns the head if it is plain. `length`: how many of the bytes belong to it.
fn plain(request: &httparse::Request<'_, '_>, bytes: &[u8], length: usize) -> Option<RequestHead> {
    let (Some(method), Some(target), Some(1)) = (request.method, request.path, request.version) else { return None };
    let method = Method::from_bytes(method.as_bytes()).ok().filter(|method| *method != Method::CONNECT)?;
    // One copy, which the target and all values share.
    let copy = Bytes::copy_from_slice(&bytes[..length]);
    let shared = |part: &[u8]| {
        let start = part.as_ptr() as usize - bytes.as_ptr() as usize;
        copy.slice(start..start + part.len())
    };
    let uri = Uri::from_maybe_shared(shared(target.as_bytes())).ok()?;
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    let mut said = Said::default();
    for header in &*request.headers {
        let name = header_name(header.name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(shared(header.value)).ok()?;
        said.note(&name, &value)?;
        headers.append(name, value);
    }
    let framing = said.framing()?;
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.uri, parts.headers) = (method, uri, headers);
    Some(RequestHead { parts, framing, close: said.close, takes_trailers: said.takes_trailers })
}

/// What the headers say about the connection and the body.
#[derive(Default)]
struct Said {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    takes_trailers: bool,
}

impl Said {
    /// Interprets a header. Returns `None` if a head with it is not plain.
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) -> Option<()> {
        if *name == CONTENT_LENGTH {
            let length = length(value.as_bytes())?;
            return self.length.replace(length).is_none().then_some(());
        } else if *name == TRANSFER_ENCODING {
            let is_plain = !self.chunked && value.as_bytes().eq_ignore_ascii_case(b"chunked");
            self.chunked = true;
            return is_plain.then_some(());
        } else if *name == UPGRADE || *name == EXPECT {
            return None;
        } else if *name == CONNECTION {
            // hyper takes such a value for none at all.
            value.to_str().ok()?;
            self.close |= options(value).any(|option| option.eq_ignore_ascii_case(b"close"));
        } else if *name == TE {
            value.to_str().ok()?;
            self.takes_trailers |= options(value).any(|option| option.eq_ignore_ascii_case(b"trailers"));
        }
        Some(())
    }

    /// Returns how the body is delimited, or `None` if the headers state two ways.
    fn framing(&self) -> Option<Framing> {
        match (self.length, self.chunked) {
            (Some(_), true) => None,
            (None, true) => Some(Framing::Chunked),
            (length, false) => Some(Framing::Length(length.unwrap_or(0))),
        }
    }
}

/// Returns a length that consists of digits alone. hyper uses the largest numbers for other purposes.
pub(super) fn length(digits: &[u8]) -> Option<u64> {
    let only_digits = !digits.is_empty() && digits.len() < 20 && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| only_digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Reading {
        read_head(text.as_bytes(), 64 << 10)
    }

    fn plain_head(text: &str) -> RequestHead {
        match read(text) {
            Reading::Plain(head, length) => {
                assert_eq!(length, text.find("\r\n\r\n").unwrap() + 4);
                *head
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_plain_head_says_what_its_lines_say() {
        let head =
            plain_head("POST /a?b=c HTTP/1.1\r\nHost: h\r\nX-Two: 1\r\nx-two:  2 \r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!((head.parts.method, head.parts.uri), (Method::POST, Uri::from_static("/a?b=c")));
        assert_eq!(head.parts.headers.get_all("x-two").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!((head.framing, head.close, head.takes_trailers), (Framing::Length(5), false, false));
    }

    #[test]
    fn framing_and_connection_are_read_from_the_head() {
        let of = |fields: &str| {
            let head = plain_head(&format!("PUT / HTTP/1.1\r\nhost: h\r\n{fields}\r\n"));
            (head.framing, head.close, head.takes_trailers)
        };
        assert_eq!(of(""), (Framing::Length(0), false, false));
        assert_eq!(of("Transfer-Encoding: Chunked\r\n"), (Framing::Chunked, false, false));
        assert_eq!(of("connection: te, Close\r\nte: trailers\r\n"), (Framing::Length(0), true, true));
        assert_eq!(of("connection: close\r\nconnection: keep-alive\r\n"), (Framing::Length(0), true, false));
        assert_eq!(of("te: gzip, Trailers\r\n"), (Framing::Length(0), false, true));
    }

    #[test]
    fn whatever_is_unusual_is_not_plain() {
        for fields in [
            "upgrade: websocket",
            "expect: 100-continue",
            "content-length: 5\r\ncontent-length: 5",
            "content-length: 5\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ncontent-length: 5",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked;q=1",
            "transfer-encoding: ",
            "content-length: +5",
            "content-length: 5, 5",
            "content-length: -1",
            "content-length: 0x5",
            "content-length: ",
            "content-length: 18446744073709551615",
            "content-length : 5",
            "x: a\r\n b",
            " x: a",
            "x y: a",
            "x",
            ": a",
            "x: \0",
            "x: a\rb",
        ] {
            let text = format!("POST / HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n");
            assert!(matches!(read(&text), Reading::Other), "{fields:?}: {:?}", read(&text));
        }
        for line in [
            "CONNECT h:80 HTTP/1.1",
            "GET / HTTP/1.0",
            "GET / HTTP/2.0",
            "GET /",
            "GET  / HTTP/1.1",
            "GET / HTTP/1.1 ",
            "G(T / HTTP/1.1",
            "GET /\x7f HTTP/1.1",
            "PRI * HTTP/2.0",
        ] {
            let text = format!("{line}\r\nhost: h\r\n\r\n");
            assert!(matches!(read(&text), Reading::Other), "{line:?}: {:?}", read(&text));
        }
    }

    #[test]
    fn a_head_is_partial_until_its_empty_line() {
        let text = "GET / HTTP/1.1\r\nhost: h\r\n\r\n";
        for cut in 0..text.len() {
            assert!(matches!(read(&text[..cut]), Reading::Partial), "cut at {cut}");
        }
        plain_head(text);
    }

    #[test]
    fn a_bound_holds_however_the_bytes_arrive() {
        let text = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(1000));
        assert!(matches!(read_head(text.as_bytes(), text.len()), Reading::Plain(..)));
        assert!(matches!(read_head(text.as_bytes(), text.len() - 1), Reading::Other));
        assert!(matches!(read_head(&text.as_bytes()[..text.len() - 2], text.len() - 3), Reading::Other));
        let many = "x: y\r\n".repeat(MAX_HEADERS + 1);
        assert!(matches!(read(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Reading::Other));
        let long = format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(MAX_HEAD_BYTES));
        assert!(matches!(read(&long), Reading::Other));
    }
}
