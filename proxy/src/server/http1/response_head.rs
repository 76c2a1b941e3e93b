//! Writes the head of an HTTP/1.1 response, and its trailers.
//!
//! Pure.
//!
//! # Invariants
//!
//! * The framing that is written is the framing of the body that follows.
//! * The lines are those that hyper would write.

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, TRAILER, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, Method, StatusCode, Version};
use hyper::ext::ReasonPhrase;

use super::request_head::length;
use crate::message::header_names::is_for_heads_alone;
use crate::message::headers::options;
use crate::upstream::HeadLines;

/// What a response responds to, and what becomes of its connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResponseTerms<'request> {
    pub(super) method: &'request Method,
    pub(super) version: Version,
    /// Whether the connection closes after it.
    pub(super) closes: bool,
    /// Whether the client expects that without being told: it speaks HTTP/1.0, and has not asked for more.
    pub(super) is_close_implied: bool,
}

/// How the body of a response is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WrittenFraming {
    Length(u64),
    Chunked,
    /// It ends with its connection, because HTTP/1.0 knows no chunks.
    UntilClose,
}

/// The length that a response states is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the response states a length that is no number")]
pub(super) struct BadLength;

/// Writes a head whose body has this length, if that is known. Its headers are those of its map and its lines. `date`
/// returns the value of `Date`, for a response that has none. Returns how the body is delimited.
pub(super) fn write_head(
    out: &mut Vec<u8>,
    (head, lines): (&Parts, Option<&HeadLines>),
    body: Option<u64>,
    terms: ResponseTerms<'_>,
    date: impl FnOnce() -> HeaderValue,
) -> Result<WrittenFraming, BadLength> {
    let to_head = *terms.method == Method::HEAD;
    let by_http10 = terms.version == Version::HTTP_10;
    let framing = match body {
        _ if to_head || is_bodiless(terms.method, head.status) => None,
        Some(length) => Some(WrittenFraming::Length(length)),
        None => match (lines.and_then(|lines| lines.length), head.headers.get(CONTENT_LENGTH)) {
            (Some(stated), _) => Some(WrittenFraming::Length(stated)),
            (None, Some(stated)) => Some(WrittenFraming::Length(length(stated.as_bytes()).ok_or(BadLength)?)),
            (None, None) if by_http10 => Some(WrittenFraming::UntilClose),
            (None, None) => Some(WrittenFraming::Chunked),
        },
    };
    out.reserve(128 + 48 * head.headers.len() + lines.map_or(0, |lines| lines.lines.len()));
    status_line(out, head, by_http10);
    let (mut has_length, mut has_close, mut has_date) = (false, false, false);
    if let Some(lines) = lines {
        out.extend_from_slice(&lines.lines);
        has_date = lines.has_date;
    }
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH {
            if std::mem::replace(&mut has_length, true) {
                continue;
            }
            match framing {
                Some(WrittenFraming::Length(length)) => length_line(out, length),
                // The length of the body that a GET would have got.
                None if to_head || body != Some(0) => line(out, name, value.as_bytes()),
                _ => {}
            }
            continue;
        }
        if *name == TRANSFER_ENCODING || (*name == TRAILER && (framing.is_none() || by_http10)) {
            continue;
        }
        has_close |= *name == CONNECTION && options(value).any(|option| option.eq_ignore_ascii_case(b"close"));
        has_date |= *name == DATE;
        line(out, name, value.as_bytes());
    }
    match framing {
        Some(WrittenFraming::Length(length)) if !has_length => length_line(out, length),
        Some(WrittenFraming::Chunked) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        _ => {}
    }
    let is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
    if terms.closes || framing == Some(WrittenFraming::UntilClose) {
        if !(has_close || terms.is_close_implied || is_switch) {
            out.extend_from_slice(b"connection: close\r\n");
        }
    } else if by_http10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    if !has_date {
        line(out, &DATE, date().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    Ok(framing.unwrap_or(WrittenFraming::Length(0)))
}

/// Returns whether no body follows a response with this status.
fn is_bodiless(method: &Method, status: StatusCode) -> bool {
    status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || (*method == Method::CONNECT && status.is_success())
}

#[inline]
fn status_line(out: &mut Vec<u8>, head: &Parts, by_http10: bool) {
    let reason = head.extensions.get::<ReasonPhrase>();
    if head.status == StatusCode::OK && reason.is_none() && !by_http10 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(if by_http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(match reason {
        Some(reason) => reason.as_bytes(),
        None => head.status.canonical_reason().unwrap_or("<none>").as_bytes(),
    });
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn length_line(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn line(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    let name = name.as_str().as_bytes();
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes the end of a chunked body. `trailers`: the headers of the response and its trailers. Those are written that the
/// headers declare and that may stand there.
pub(super) fn write_end_of_chunks(out: &mut Vec<u8>, trailers: Option<(&HeaderMap, &HeaderMap)>) {
    out.extend_from_slice(b"0\r\n");
    if let Some((headers, trailers)) = trailers {
        let is_declared = |name: &HeaderName| {
            let mut declared = headers.get_all(TRAILER).iter().flat_map(options);
            declared.any(|other| other.eq_ignore_ascii_case(name.as_str().as_bytes()))
        };
        for (name, value) in trailers {
            if is_declared(name) && !is_for_heads_alone(name) {
                line(out, name, value.as_bytes());
            }
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn terms(to_head: bool, closes: bool) -> ResponseTerms<'static> {
        let method = if to_head { &Method::HEAD } else { &Method::GET };
        ResponseTerms { method, version: Version::HTTP_11, closes, is_close_implied: false }
    }

    fn written(
        response: http::response::Builder,
        body: Option<u64>,
        to_head: bool,
        closes: bool,
    ) -> (String, WrittenFraming) {
        let (head, ()) = response.header("date", "today").body(()).unwrap().into_parts();
        let mut out = Vec::new();
        let date = || HeaderValue::from_static("never asked for");
        let framing = write_head(&mut out, (&head, None), body, terms(to_head, closes), date).unwrap();
        (String::from_utf8(out).unwrap(), framing)
    }

    #[test]
    fn a_body_of_known_length_is_announced_with_it() {
        let (text, framing) = written(Response::builder().header("x-a", "1"), Some(5), false, false);
        assert_eq!(text, "HTTP/1.1 200 OK\r\nx-a: 1\r\ndate: today\r\ncontent-length: 5\r\n\r\n");
        assert_eq!(framing, WrittenFraming::Length(5));
        let (text, _) = written(Response::builder().header("content-length", "5"), Some(5), false, true);
        assert_eq!(text, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ndate: today\r\nconnection: close\r\n\r\n");
    }

    #[test]
    fn a_body_of_unknown_length_is_chunked_unless_the_head_states_one() {
        let (text, framing) = written(Response::builder(), None, false, false);
        assert_eq!(text, "HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(framing, WrittenFraming::Chunked);
        let (text, framing) = written(Response::builder().header("content-length", "7"), None, false, false);
        assert_eq!(text, "HTTP/1.1 200 OK\r\ncontent-length: 7\r\ndate: today\r\n\r\n");
        assert_eq!(framing, WrittenFraming::Length(7));
    }

    #[test]
    fn lines_are_written_as_they_are() {
        let (head, ()) = Response::builder().header("connection", "close").body(()).unwrap().into_parts();
        let written = |length, has_date, body| {
            let lines = HeadLines { lines: b"x-a: 1\r\n".to_vec(), length, has_date, is_stream: false };
            let (mut out, terms) = (Vec::new(), terms(false, true));
            let date = || HeaderValue::from_static("today");
            write_head(&mut out, (&head, Some(&lines)), body, terms, date).unwrap();
            String::from_utf8(out).unwrap()
        };
        let begin = "HTTP/1.1 200 OK\r\nx-a: 1\r\nconnection: close\r\n";
        assert_eq!(written(None, true, Some(5)), format!("{begin}content-length: 5\r\n\r\n"));
        assert_eq!(written(Some(5), false, None), format!("{begin}content-length: 5\r\ndate: today\r\n\r\n"));
        assert_eq!(written(None, true, None), format!("{begin}transfer-encoding: chunked\r\n\r\n"));
    }

    #[test]
    fn no_body_follows_a_response_that_has_none() {
        let length = || Response::builder().header("content-length", "5");
        let (text, framing) = written(length(), Some(0), true, false);
        assert_eq!(
            (text.as_str(), framing),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ndate: today\r\n\r\n", WrittenFraming::Length(0))
        );
        for status in [204, 304] {
            let (text, framing) = written(length().status(status), Some(0), false, false);
            assert!(!text.contains("content-length") && framing == WrittenFraming::Length(0), "{text}");
        }
        let (text, framing) = written(Response::builder(), None, true, false);
        assert_eq!((text.as_str(), framing), ("HTTP/1.1 200 OK\r\ndate: today\r\n\r\n", WrittenFraming::Length(0)));
    }

    #[test]
    fn a_status_has_its_reason() {
        let (text, _) = written(Response::builder().status(503), Some(0), false, false);
        assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{text}");
        let (text, _) = written(Response::builder().status(799), Some(0), false, false);
        assert!(text.starts_with("HTTP/1.1 799 <none>\r\n"), "{text}");
        let reason = ReasonPhrase::try_from(&b"Fine"[..]).unwrap();
        let (text, _) = written(Response::builder().extension(reason), Some(0), false, false);
        assert!(text.starts_with("HTTP/1.1 200 Fine\r\n"), "{text}");
    }

    #[test]
    fn a_length_that_is_no_number_is_refused() {
        let (head, ()) = Response::builder().header("content-length", "5x").body(()).unwrap().into_parts();
        let result =
            write_head(&mut Vec::new(), (&head, None), None, terms(false, false), || HeaderValue::from_static(""));
        assert_eq!(result, Err(BadLength));
    }

    #[test]
    fn only_declared_trailers_that_may_stand_there_are_written() {
        let map = |lines: &[(&'static str, &'static str)]| -> HeaderMap {
            lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
        };
        let mut out = Vec::new();
        let trailers = map(&[("x-sum", "7"), ("x-other", "8"), ("content-length", "9")]);
        write_end_of_chunks(&mut out, Some((&map(&[("trailer", "X-Sum, content-length")]), &trailers)));
        assert_eq!(&out[..], b"0\r\nx-sum: 7\r\n\r\n");
    }
}
