//! The headers of a response as lines for an HTTP/1.1 client.
//!
//! A map of headers is built to be looked into. For a response that goes from one HTTP/1.1 connection to another, nobody
//! does: its lines are copied, as far as they go on. A response with anything out of the ordinary gets a map.
//!
//! Pure.
//!
//! # Invariants
//!
//! * Lines and map have the same headers, but for `content-length`, which the writer adds.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, HeaderValue, TRAILER};
use http::{StatusCode, Version};

use super::framing_headers::{FramingHeaders, HeadError};
use crate::message::header_names::{SEGUE_MISDIRECTED, SEGUE_REASON, is_hop_by_hop};
use crate::message::name_cache::header_name;
use crate::message::stream_kind::is_stream;

/// The offsets in the head at which a header's name and its value begin and end.
pub(super) type Place = (u32, u32, u32, u32);

/// The headers of a response, encoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeadLines {
    /// Without `content-length`.
    pub(crate) lines: Vec<u8>,
    pub(crate) length: Option<u64>,
    pub(crate) has_date: bool,
    /// Whether the response is a stream by its content type.
    pub(crate) is_stream: bool,
}

impl HeadLines {
    /// Encodes the headers at these places of a head. Returns `None` if the response needs a map.
    pub(super) fn encode(
        head: &Bytes,
        places: &[Place],
        version: Version,
        status: StatusCode,
    ) -> Result<Option<(Self, FramingHeaders)>, HeadError> {
        let has_body =
            !status.is_informational() && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        if !has_body || status == StatusCode::MISDIRECTED_REQUEST {
            return Ok(None);
        }
        let mut framing = FramingHeaders::default();
        let lines = Vec::with_capacity(head.len() + places.len());
        let mut encoded = HeadLines { lines, length: None, has_date: false, is_stream: false };
        for (name_start, name_end, value_start, value_end) in places {
            let name = &head[*name_start as usize..*name_end as usize];
            let name = header_name(name).map_err(|_| HeadError::Syntax)?;
            let value = *value_start as usize..*value_end as usize;
            if is_plain(&name) {
                encoded.push(&name, &head[value]);
                continue;
            }
            let value = HeaderValue::from_maybe_shared(head.slice(value)).map_err(|_| HeadError::Syntax)?;
            let passes = framing.passes(version, status, &name, &value)?;
            if passes && name != CONTENT_LENGTH {
                encoded.push(&name, value.as_bytes());
            }
            if name == SEGUE_MISDIRECTED || name == TRAILER || (passes && name == SEGUE_REASON) {
                return Ok(None);
            }
        }
        encoded.length = framing.length;
        Ok(framing.is_ordinary().then_some((encoded, framing)))
    }

    #[inline]
    fn push(&mut self, name: &HeaderName, value: &[u8]) {
        let name_text = name.as_str().as_bytes();
        let lines = &mut self.lines;
        lines.reserve(name_text.len() + value.len() + 4);
        lines.extend_from_slice(name_text);
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value);
        lines.extend_from_slice(b"\r\n");
        self.has_date |= *name == DATE;
        self.is_stream |= *name == CONTENT_TYPE && is_stream(value);
    }
}

/// Returns whether the header goes on, whatever its value is, and says nothing to the router.
fn is_plain(name: &HeaderName) -> bool {
    !(*name == CONTENT_LENGTH
        || *name == TRAILER
        || *name == SEGUE_MISDIRECTED
        || *name == SEGUE_REASON
        || is_hop_by_hop(name))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use http::HeaderMap;
    use proptest::prelude::*;

    use super::*;
    use crate::upstream::http1::response_head::{ResponseHead, parse_response_head};

    fn parsed(text: &[u8], as_lines: bool) -> Result<Option<ResponseHead>, HeadError> {
        parse_response_head(&mut BytesMut::from(text), false, as_lines)
    }

    /// Reads encoded lines as a client does.
    fn read(lines: &HeadLines) -> HeaderMap {
        let text = [b"HTTP/1.1 200 OK\r\n", &lines.lines[..], b"\r\n"].concat();
        let mut slots = [httparse::EMPTY_HEADER; 128];
        let mut response = httparse::Response::new(&mut slots);
        assert!(response.parse(&text).unwrap().is_complete());
        let mut map = HeaderMap::new();
        for header in &*response.headers {
            let name = HeaderName::from_bytes(header.name.as_bytes()).unwrap();
            assert_eq!(name.as_str(), header.name, "a name is written in lower case");
            map.append(name, HeaderValue::from_bytes(header.value).unwrap());
        }
        map.extend(lines.length.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
        map
    }

    /// Checks that both forms of a head state the same. Returns whether it has been read as lines.
    fn check(text: &[u8]) -> bool {
        let (map, lines) = (parsed(text, false), parsed(text, true));
        let (Ok(Some(map)), Ok(Some(lines))) = (&map, &lines) else {
            assert_eq!(format!("{map:?}"), format!("{lines:?}"));
            return false;
        };
        let declared = |head: &ResponseHead| {
            (head.status, head.framing, head.keep_alive, head.keep_for, head.is_bodiless, head.reason.clone())
        };
        assert_eq!(declared(map), declared(lines));
        let Some(encoded) = &lines.lines else {
            assert_eq!(map.headers, lines.headers);
            return false;
        };
        assert!(lines.headers.is_empty());
        let mut expected = map.headers.clone();
        if let Some(length) = expected.get_mut(CONTENT_LENGTH) {
            *length = HeaderValue::from(length.to_str().unwrap().parse::<u64>().unwrap());
        }
        assert_eq!(read(encoded), expected, "{:?}", String::from_utf8_lossy(text));
        assert_eq!(encoded.has_date, map.headers.contains_key(DATE));
        true
    }

    #[test]
    fn an_ordinary_head_is_copied_line_by_line() {
        let text =
            b"HTTP/1.1 200 Fine\r\nServer: a\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nDATE: today\r\nX-Empty:\r\n\
                     Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 05\r\n\r\n";
        assert!(check(text));
        let lines = parsed(text, true).unwrap().unwrap().lines.unwrap();
        assert_eq!(
            String::from_utf8(lines.lines).unwrap(),
            "server: a\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ndate: today\r\nx-empty: \r\n"
        );
        assert!(check(b"HTTP/1.1 500 Oh\r\ntransfer-encoding: chunked\r\nsegue-reason: fenced\r\n\r\n"));
        assert!(check(b"HTTP/1.0 200 OK\r\na: b\r\n\r\n"));
    }

    #[test]
    fn a_head_out_of_the_ordinary_gets_a_map() {
        for lines in [
            "connection: x-hop\r\nx-hop: 1",
            "content-length: 5\r\ncontent-length: 5",
            "content-length: 5\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntrailer: x-sum",
            "segue-misdirected: 0",
            "segue-reason: upstream-failed",
            "segue-misdirected: 1\r\ngrpc-status: 9",
        ] {
            assert!(!check(format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n").as_bytes()), "{lines}");
        }
        for status in
            ["100 Continue", "101 Switching Protocols", "204 No Content", "304 Not Modified", "421 Misdirected"]
        {
            assert!(!check(format!("HTTP/1.1 {status}\r\na: b\r\n\r\n").as_bytes()), "{status}");
        }
        let text = &b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"[..];
        let to_head = parse_response_head(&mut BytesMut::from(text), true, true).unwrap().unwrap();
        assert!(to_head.lines.is_none());
    }

    /// Values are copied without a look at them, so the parser has to refuse what a map would refuse.
    #[test]
    fn the_parser_accepts_no_value_that_a_map_would_refuse() {
        for byte in 0..=u8::MAX {
            check(&[b"HTTP/1.1 200 OK\r\nx: a", &[byte][..], b"b\r\n\r\n"].concat());
            check(&[b"HTTP/1.1 200 OK\r\nx", &[byte][..], b"y: b\r\n\r\n"].concat());
        }
    }

    const LINES: &[&str] = &[
        "connection: close",
        "connection: keep-alive",
        "Connection: X-Hop",
        "x-hop: 1",
        "content-length: 5",
        "content-length: 6",
        "content-length: x",
        "transfer-encoding: chunked",
        "transfer-encoding: gzip",
        "trailer: a",
        "keep-alive: timeout=3",
        "upgrade: h2c",
        "te: trailers",
        "proxy-authenticate: Basic",
        "segue-reason: fenced",
        "segue-reason: x",
        "segue-reason: lease-lost",
        "segue-misdirected: 1",
        "date: today",
        "x-a: 1",
        "X-A: 2",
        "set-cookie: a",
        "x-e:",
    ];

    proptest! {
        #[test]
        fn lines_and_map_state_the_same(
            status in prop::sample::select(&["200 OK", "200 Fine", "204 No", "304 Not", "404 Not Found", "421 No", "101 S"][..]),
            version in prop::sample::select(&["1.0", "1.1"][..]),
            lines in prop::collection::vec(prop::sample::select(LINES), 0..6),
        ) {
            let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            check(format!("HTTP/{version} {status}\r\n{lines}\r\n").as_bytes());
        }
    }
}
