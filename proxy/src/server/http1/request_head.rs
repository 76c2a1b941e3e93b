//! Reads the head of an HTTP/1.1 or HTTP/1.0 request.
//!
//! Pure.
//!
//! # Invariants
//!
//! * A head is read in one way, or refused: with two lengths, or a coding that does not end in `chunked`, it is refused.
//! * Of a length and a coding the coding counts, and the connection closes behind the request (RFC 9112, 6.3).
//! * hyper reads each head in the same way (`twin`).

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Uri, Version};

use crate::message::headers::options;
use crate::message::local_reply::LocalReply;
use crate::message::name_cache::header_name;

/// Most headers of a head.
const MAX_HEADERS: usize = 100;
/// Most bytes of a target: those that [`Uri`] takes.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;
/// Most bytes of a header's name: those that [`HeaderName`] takes.
const MAX_NAME_BYTES: usize = u16::MAX as usize;
/// Up to this size the beginning of a head is parsed with each piece that arrives, so that what is malformed is refused at
/// once. Beyond it a head is parsed at its end alone, which bounds the work that a client can cause.
const MAX_BYTES_PARSED_OFTEN: usize = 8 << 10;
/// The largest length of a body. hyper, with which heads are compared, uses larger numbers for other purposes.
const MAX_LENGTH: u64 = u64::MAX - 2;

/// The result of reading a head from some bytes.
#[derive(Debug)]
pub(super) enum HeadReading {
    /// A part of a head, or nothing.
    Partial,
    /// A head of this many bytes.
    Head(Box<RequestHead>, usize),
    /// No head that may be served.
    Refused(LocalReply),
}

/// The head of a request.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) parts: Parts,
    pub(super) framing: BodyFraming,
    /// Whether the connection closes after the response.
    pub(super) close: bool,
    /// Whether the client accepts trailers.
    pub(super) takes_trailers: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
    /// Whether the connection may switch to another protocol.
    pub(super) may_switch: bool,
}

/// How the body of a request is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    Length(u64),
    Chunked,
}

/// Reads the head at the beginning of `bytes`. A head of more than `most` bytes is refused.
pub(super) fn read_head(bytes: &[u8], most: usize) -> HeadReading {
    let mut slots = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_request_with_uninit_headers(&mut request, bytes, &mut slots);
    match parsed {
        Ok(httparse::Status::Complete(length)) if length <= most => match head(&request, bytes, length) {
            Ok(head) => HeadReading::Head(Box::new(head), length),
            Err(refused) => HeadReading::Refused(refused),
        },
        Ok(httparse::Status::Partial) if bytes.len() < most => HeadReading::Partial,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => HeadReading::Refused(LocalReply::HeadTooLarge),
        Err(_) => HeadReading::Refused(LocalReply::Malformed),
    }
}

/// Returns whether these bytes, of which the first `parsed` are the beginning of a head, are worth parsing again.
pub(super) fn may_end(bytes: &[u8], parsed: usize, most: usize) -> bool {
    bytes.len() <= MAX_BYTES_PARSED_OFTEN || bytes.len() >= most || has_empty_line(bytes, parsed)
}

/// Returns whether an empty line, which ends a head, ends in these bytes behind the first `searched` ones.
fn has_empty_line(bytes: &[u8], searched: usize) -> bool {
    let bytes = &bytes[searched.saturating_sub(2).min(bytes.len())..];
    memchr::memchr_iter(b'\n', bytes).any(|end| matches!(bytes[end + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

/// Returns the head that was parsed. `length`: how many of the bytes belong to it.
fn head(request: &httparse::Request<'_, '_>, bytes: &[u8], length: usize) -> Result<RequestHead, LocalReply> {
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(LocalReply::Malformed);
    };
    if target.len() > MAX_TARGET_BYTES {
        return Err(LocalReply::HeadTooLarge);
    }
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| LocalReply::Malformed)?;
    // One copy, which the target and all values share.
    let copy = Bytes::copy_from_slice(&bytes[..length]);
    let shared = |part: &[u8]| {
        let start = part.as_ptr() as usize - bytes.as_ptr() as usize;
        copy.slice(start..start + part.len())
    };
    let uri = Uri::from_maybe_shared(shared(target.as_bytes())).map_err(|_| LocalReply::Malformed)?;
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    let mut said = ClientFraming::new(if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 });
    for header in &*request.headers {
        let name = header_name(header.name.as_bytes()).map_err(|_| match header.name.len() {
            ..=MAX_NAME_BYTES => LocalReply::Malformed,
            _ => LocalReply::HeadTooLarge,
        })?;
        let value = HeaderValue::from_maybe_shared(shared(header.value)).map_err(|_| LocalReply::Malformed)?;
        if said.note(&name, &value)? {
            headers.append(name, value);
        }
    }
    let framing = said.framing()?;
    if framing == BodyFraming::Chunked && said.length.is_some() {
        headers.remove(CONTENT_LENGTH);
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.uri, parts.version, parts.headers) = (method, uri, said.version, headers);
    Ok(RequestHead {
        parts,
        framing,
        close: said.closes(),
        takes_trailers: said.takes_trailers,
        expects_continue: said.expects_continue,
        may_switch: said.may_switch,
    })
}

/// What the headers say about the connection and the body.
struct ClientFraming {
    version: Version,
    length: Option<u64>,
    /// Whether there is a coding, and whether the last one is `chunked`.
    coded: bool,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    takes_trailers: bool,
    expects_continue: bool,
    may_switch: bool,
}

impl ClientFraming {
    fn new(version: Version) -> Self {
        ClientFraming {
            version,
            length: None,
            coded: false,
            chunked: false,
            close: false,
            keep_alive: false,
            takes_trailers: false,
            expects_continue: false,
            may_switch: false,
        }
    }

    /// Interprets a header. Returns whether it is kept: a second length that is equal is not.
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<bool, LocalReply> {
        if *name == CONTENT_LENGTH {
            // Behind a coding, which counts alone, it may be anything.
            let length = if self.coded { Some(0) } else { length(value.as_bytes()) };
            let length = length.ok_or(LocalReply::Malformed)?;
            return match self.length.replace(length) {
                Some(earlier) if earlier != length && !self.coded => Err(LocalReply::Malformed),
                None if length > MAX_LENGTH => Err(LocalReply::HeadTooLarge),
                earlier => Ok(earlier.is_none()),
            };
        } else if *name == TRANSFER_ENCODING {
            if self.version == Version::HTTP_10 {
                return Err(LocalReply::Malformed);
            }
            self.coded = true;
            let last = value.to_str().ok().and_then(|codings| codings.rsplit(',').next());
            self.chunked = last.is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked"));
        } else if *name == UPGRADE {
            // HTTP/1.0 has no upgrades.
            self.may_switch = self.version == Version::HTTP_11;
        } else if *name == EXPECT {
            // HTTP/1.0 knows no informational responses.
            let expects = value.as_bytes().eq_ignore_ascii_case(b"100-continue");
            self.expects_continue = expects && self.version == Version::HTTP_11;
        } else if *name == CONNECTION && value.to_str().is_ok() {
            self.close |= options(value).any(|option| option.eq_ignore_ascii_case(b"close"));
            self.keep_alive |= options(value).any(|option| option.eq_ignore_ascii_case(b"keep-alive"));
        } else if *name == TE && value.to_str().is_ok() {
            self.takes_trailers |= options(value).any(|option| option.eq_ignore_ascii_case(b"trailers"));
        }
        Ok(true)
    }

    /// Returns how the body is delimited.
    fn framing(&self) -> Result<BodyFraming, LocalReply> {
        match (self.coded, self.chunked) {
            (true, true) => Ok(BodyFraming::Chunked),
            (true, false) => Err(LocalReply::Malformed),
            (false, _) => Ok(BodyFraming::Length(self.length.unwrap_or(0))),
        }
    }

    fn closes(&self) -> bool {
        let is_implied = self.version == Version::HTTP_10 && !self.keep_alive;
        self.close || is_implied || (self.coded && self.length.is_some())
    }
}

/// Returns a length that consists of digits alone.
pub(super) fn length(digits: &[u8]) -> Option<u64> {
    let append = |length: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, append) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> HeadReading {
        read_head(text.as_bytes(), 64 << 10)
    }

    fn whole_head(text: &str) -> RequestHead {
        match read(text) {
            HeadReading::Head(head, length) => {
                assert_eq!(length, text.find("\r\n\r\n").unwrap() + 4);
                *head
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[track_caller]
    fn is_refused(text: &str, expected: LocalReply) {
        let reading = read(text);
        assert!(matches!(reading, HeadReading::Refused(reply) if reply == expected), "{text:?}: {reading:?}");
    }

    #[test]
    fn a_head_says_what_its_lines_say() {
        let head =
            whole_head("POST /a?b=c HTTP/1.1\r\nHost: h\r\nX-Two: 1\r\nx-two:  2 \r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!((head.parts.method, head.parts.uri), (Method::POST, Uri::from_static("/a?b=c")));
        assert_eq!(head.parts.headers.get_all("x-two").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!((head.framing, head.close, head.takes_trailers), (BodyFraming::Length(5), false, false));
    }

    #[test]
    fn framing_and_connection_are_read_from_the_head() {
        let of = |fields: &str| {
            let head = whole_head(&format!("PUT / HTTP/1.1\r\nhost: h\r\n{fields}\r\n"));
            (head.framing, head.close, head.takes_trailers)
        };
        assert_eq!(of(""), (BodyFraming::Length(0), false, false));
        assert_eq!(of("Transfer-Encoding: Chunked\r\n"), (BodyFraming::Chunked, false, false));
        assert_eq!(of("connection: te, Close\r\nte: trailers\r\n"), (BodyFraming::Length(0), true, true));
        assert_eq!(of("connection: close\r\nconnection: keep-alive\r\n"), (BodyFraming::Length(0), true, false));
        assert_eq!(of("te: gzip, Trailers\r\n"), (BodyFraming::Length(0), false, true));
    }

    #[test]
    fn http10_closes_unless_asked_not_to() {
        let of = |fields: &str| {
            let head = whole_head(&format!("GET / HTTP/1.0\r\n{fields}\r\n"));
            (head.parts.version, head.close, head.expects_continue, head.may_switch)
        };
        assert_eq!(of(""), (Version::HTTP_10, true, false, false));
        assert_eq!(of("connection: x, Keep-Alive\r\n"), (Version::HTTP_10, false, false, false));
        assert_eq!(of("connection: keep-alive\r\nconnection: close\r\n"), (Version::HTTP_10, true, false, false));
        assert_eq!(of("expect: 100-continue\r\nupgrade: websocket\r\n"), (Version::HTTP_10, true, false, false));
    }

    #[test]
    fn a_client_may_wait_for_its_body_and_ask_for_another_protocol() {
        let of = |fields: &str| {
            let head = whole_head(&format!("POST / HTTP/1.1\r\nhost: h\r\n{fields}\r\n"));
            (head.expects_continue, head.may_switch)
        };
        assert_eq!(of(""), (false, false));
        assert_eq!(of("expect: 100-Continue\r\ncontent-length: 5\r\n"), (true, false));
        assert_eq!(of("expect: 200-ok\r\n"), (false, false));
        assert_eq!(of("connection: upgrade\r\nupgrade: websocket\r\n"), (false, true));
    }

    #[test]
    fn of_a_length_and_a_coding_the_coding_counts_and_the_connection_closes() {
        for fields in [
            "content-length: 5\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ncontent-length: 5",
            "transfer-encoding: chunked\r\ncontent-length: x",
            "content-length: 5\r\ntransfer-encoding: chunked\r\ncontent-length: 6",
        ] {
            let head = whole_head(&format!("POST / HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n"));
            assert_eq!((head.framing, head.close), (BodyFraming::Chunked, true), "{fields:?}");
            assert!(!head.parts.headers.contains_key(CONTENT_LENGTH), "{fields:?}");
        }
        // The data path refuses other codings, behind which it would not know where the request ends.
        for coding in ["gzip, chunked", "chunked, chunked", "x\r\ntransfer-encoding: chunked"] {
            let head = whole_head(&format!("POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: {coding}\r\n\r\n"));
            assert_eq!((head.framing, head.close), (BodyFraming::Chunked, false), "{coding}");
        }
    }

    #[test]
    fn equal_lengths_are_one() {
        let head = whole_head("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\ncontent-length: 05\r\n\r\n");
        assert_eq!(head.framing, BodyFraming::Length(5));
        assert_eq!(head.parts.headers.get_all(CONTENT_LENGTH).iter().count(), 1);
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for fields in [
            "content-length: 5\r\ncontent-length: 6",
            "transfer-encoding: chunked\r\ntransfer-encoding: x",
            "transfer-encoding: chunked, gzip",
            "transfer-encoding: chunked;q=1",
            "transfer-encoding: \"chunked\"",
            "transfer-encoding: ",
            "content-length: +5",
            "content-length: 5, 5",
            "content-length: -1",
            "content-length: 0x5",
            "content-length: ",
            "content-length: 18446744073709551616",
            "content-length : 5",
            "x: a\r\n b",
            " x: a",
            "x y: a",
            "x\"y: a",
            "x",
            ": a",
            "x: \0",
            "x: a\rb",
        ] {
            is_refused(&format!("POST / HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n"), LocalReply::Malformed);
        }
        is_refused("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", LocalReply::Malformed);
        for line in [
            "GET / HTTP/2.0",
            "GET / HTTP/1.2",
            "GET /",
            "GET  / HTTP/1.1",
            "GET / HTTP/1.1 ",
            "G(T / HTTP/1.1",
            "GET /\x7f HTTP/1.1",
            "GET /a<b HTTP/1.1",
            "PRI * HTTP/2.0",
        ] {
            is_refused(&format!("{line}\r\nhost: h\r\n\r\n"), LocalReply::Malformed);
        }
    }

    #[test]
    fn a_head_is_partial_until_its_empty_line() {
        let text = "GET / HTTP/1.1\r\nhost: h\r\n\r\n";
        for cut in 0..text.len() {
            assert!(matches!(read(&text[..cut]), HeadReading::Partial), "cut at {cut}");
        }
        whole_head(text);
    }

    #[test]
    fn a_bound_holds_however_the_bytes_arrive() {
        let text = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(1000));
        let too_large =
            |bytes: &[u8], most| matches!(read_head(bytes, most), HeadReading::Refused(LocalReply::HeadTooLarge));
        assert!(matches!(read_head(text.as_bytes(), text.len()), HeadReading::Head(..)));
        assert!(too_large(text.as_bytes(), text.len() - 1));
        assert!(too_large(&text.as_bytes()[..text.len() - 2], text.len() - 2));
        whole_head(&format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(MAX_HEADERS)));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(MAX_HEADERS + 1));
        assert!(too_large(many.as_bytes(), 64 << 10));
        for most in [MAX_TARGET_BYTES, MAX_TARGET_BYTES + 1] {
            let text = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(most - 1));
            assert_eq!(too_large(text.as_bytes(), 1 << 20), most > MAX_TARGET_BYTES, "{most}");
        }
        is_refused("POST / HTTP/1.1\r\ncontent-length: 18446744073709551615\r\n\r\n", LocalReply::HeadTooLarge);
    }

    #[test]
    fn an_empty_line_is_found_wherever_the_bytes_were_cut() {
        for text in ["a\r\n\r\n", "a\n\n", "a\n\r\n"] {
            for searched in 0..text.len() {
                assert!(has_empty_line(text.as_bytes(), searched), "{text:?}, {searched}");
            }
            assert!(!has_empty_line(&text.as_bytes()[..text.len() - 1], 0), "{text:?}");
        }
    }
}
