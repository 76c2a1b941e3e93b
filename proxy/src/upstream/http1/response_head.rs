//! Parses the head of an HTTP/1.1 response.
//!
//! Pure. Elsewhere: the headers that concern the connection or frame the body (`framing_headers`), and the headers as lines
//! (`head_lines`).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderValue};
use http::{StatusCode, Version};

use super::framing_headers::{FramingHeaders, HeadError, ResponseFraming};
use super::head_lines::{HeadLines, Place};
use crate::message::name_cache::header_name;
use crate::upstream::MAX_HEAD_BYTES;

/// Most headers of a response.
const MAX_HEADERS: usize = 128;
/// Number of headers that most responses do not exceed. The space for them is on the stack and is cleared for each
/// head.
const FEW_HEADERS: usize = 16;

/// The head of a response.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    /// The headers that go on to the client. Of those that concern the connection only `Upgrade`, if it switches
    /// protocols.
    pub(crate) headers: HeaderMap,
    /// The headers in another form, if that is what was asked for; there is no map then.
    pub(crate) lines: Option<HeadLines>,
    pub(crate) framing: ResponseFraming,
    /// Whether the connection may serve another request after this one.
    pub(crate) keep_alive: bool,
    /// How long the connection may be idle before that, if the pod states it.
    pub(crate) keep_for: Option<Duration>,
    /// Whether the response has no body, whatever its head declares. A pod that gets this wrong sends one all the same.
    pub(crate) is_bodiless: bool,
    pub(crate) reason: Option<Bytes>,
}

impl ResponseHead {
    fn new(
        declared: &FramingHeaders,
        version: Version,
        status: StatusCode,
        mut headers: HeaderMap,
        lines: Option<HeadLines>,
        reason: Option<Bytes>,
    ) -> Self {
        let (framing, trusted) = declared.framing(&mut headers, status);
        let keep_alive = trusted && framing != ResponseFraming::UntilClose && declared.keeps_alive(version);
        let is_bodiless = declared.to_head || status == StatusCode::NOT_MODIFIED || status == StatusCode::NO_CONTENT;
        ResponseHead { status, headers, lines, framing, keep_alive, keep_for: declared.keep_for, is_bodiless, reason }
    }
}

/// Takes the head of a response off the front of `buffer`. Returns `None` if it has not all arrived. Informational
/// responses are returned like any other. `to_head`: the request was a HEAD. `as_lines`: the headers are wanted as lines
/// if they are ordinary.
pub(crate) fn parse_response_head(
    buffer: &mut BytesMut,
    to_head: bool,
    as_lines: bool,
) -> Result<Option<ResponseHead>, HeadError> {
    let mut slots = [const { std::mem::MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, buffer, &mut slots);
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
        // Also if it came in one piece: what a bound refuses must not depend on how bytes arrive.
        Ok(httparse::Status::Complete(_)) => return Err(HeadError::TooLarge),
        Ok(httparse::Status::Partial) if buffer.len() > MAX_HEAD_BYTES => return Err(HeadError::TooLarge),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(_) => return Err(HeadError::Syntax),
    };
    let version = match response.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let status = StatusCode::from_u16(response.code.unwrap_or_default()).map_err(|_| HeadError::Syntax)?;
    let reason = response.reason.unwrap_or_default();
    let reason = (!reason.is_empty() && status.canonical_reason() != Some(reason))
        .then(|| Bytes::copy_from_slice(reason.as_bytes()));
    let base = buffer.as_ptr() as usize;
    let count = response.headers.len();
    let (mut few, mut many) = ([Place::default(); FEW_HEADERS], Vec::new());
    let places = if count <= FEW_HEADERS {
        &mut few[..count]
    } else {
        many.resize(count, Place::default());
        &mut many[..]
    };
    for (place, header) in places.iter_mut().zip(response.headers.iter()) {
        let name = header.name.as_ptr() as usize - base;
        let value = header.value.as_ptr() as usize - base;
        *place = (name as u32, (name + header.name.len()) as u32, value as u32, (value + header.value.len()) as u32);
    }
    let bytes = buffer.split_to(length).freeze();
    if as_lines
        && !to_head
        && let Some((lines, framing)) = HeadLines::encode(&bytes, places, version, status)?
    {
        return Ok(Some(ResponseHead::new(&framing, version, status, HeaderMap::new(), Some(lines), reason)));
    }
    let mut headers = HeaderMap::with_capacity(count);
    let mut framing = FramingHeaders::default();
    framing.to_head = to_head;
    for (name_start, name_end, value_start, value_end) in &*places {
        let name = &bytes[*name_start as usize..*name_end as usize];
        let name = header_name(name).map_err(|_| HeadError::Syntax)?;
        let value = bytes.slice(*value_start as usize..*value_end as usize);
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| HeadError::Syntax)?;
        if framing.passes(version, status, &name, &value)? {
            headers.append(name, value);
        }
    }
    framing.clean(&mut headers);
    Ok(Some(ResponseHead::new(&framing, version, status, headers, None, reason)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::Method;
    use http::header::{CONTENT_LENGTH, HeaderName};

    use super::*;

    fn parsed(text: &str, method: Method) -> Result<Option<ResponseHead>, HeadError> {
        parse_response_head(&mut BytesMut::from(text), method == Method::HEAD, false)
    }

    fn framing(text: &str) -> (ResponseFraming, bool) {
        let head = parsed(text, Method::GET).unwrap().unwrap();
        (head.framing, head.keep_alive)
    }

    #[test]
    fn how_long_a_connection_may_be_idle_is_what_its_pod_says_less_a_margin() {
        let said = |text: &str| {
            let head = parsed(&format!("HTTP/1.1 200 OK\r\nkeep-alive: {text}\r\n\r\n"), Method::GET).unwrap().unwrap();
            assert!(!head.headers.contains_key("keep-alive"));
            head.keep_for.map(|keep_for| keep_for.as_millis())
        };
        assert_eq!(said("timeout=5, max=100"), Some(4_000));
        assert_eq!(said("max=100, Timeout = 1"), Some(500));
        assert_eq!(said("timeout=0"), Some(0));
        for nonsense in ["max=100", "timeout=-1", "timeout", "timeout=99999999999"] {
            assert_eq!(said(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_framing_of_an_answer_is_what_the_standard_says() {
        use ResponseFraming::*;
        assert_eq!(framing("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"), (Length(5), true));
        assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nconnection: Close\r\n\r\n"), (Length(5), false));
        assert_eq!(framing("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"), (Chunked, true));
        assert_eq!(framing("HTTP/1.1 200 OK\r\n\r\n"), (UntilClose, false));
        assert_eq!(framing("HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"), (Length(0), true));
        assert_eq!(framing("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"), (Length(0), true));
        assert_eq!(framing("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n"), (Length(0), false));
        assert_eq!(
            framing("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n"),
            (Length(0), true)
        );
        let head = parsed("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Method::HEAD).unwrap().unwrap();
        assert_eq!((head.framing, &head.headers[CONTENT_LENGTH]), (Length(0), &HeaderValue::from(5)));
    }

    #[test]
    fn an_answer_with_a_length_and_a_coding_ends_its_connection() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(framing(text), (ResponseFraming::Chunked, false));
        assert!(!parsed(text, Method::GET).unwrap().unwrap().headers.contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn an_answer_that_has_no_body_and_declares_one_ends_its_connection() {
        for field in ["content-length: 5", "transfer-encoding: chunked"] {
            let text = format!("HTTP/1.1 204 No Content\r\n{field}\r\n\r\n");
            assert_eq!(framing(&text), (ResponseFraming::Length(0), false));
        }
    }

    #[test]
    fn a_coding_that_the_client_would_not_be_told_of_is_refused() {
        for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity", "xchunked", "chunked;q=1", ""] {
            let text = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n");
            assert_eq!(parsed(&text, Method::GET).unwrap_err(), HeadError::Coding, "{coding:?}");
        }
        let twice = "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(parsed(twice, Method::GET).unwrap_err(), HeadError::Coding);
        let old = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(parsed(old, Method::GET).unwrap_err(), HeadError::Coding);
    }

    #[test]
    fn an_answer_with_contradicting_lengths_is_refused() {
        for lengths in ["content-length: 5\r\ncontent-length: 6", "content-length: 5, 5", "content-length: +5"] {
            let text = format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n");
            assert_eq!(parsed(&text, Method::GET).unwrap_err(), HeadError::Length);
            // Nothing follows the response to a HEAD, but its client would get the contradiction.
            assert_eq!(parsed(&text, Method::HEAD).unwrap_err(), HeadError::Length);
        }
    }

    #[test]
    fn what_is_about_the_connection_is_not_taken_in() {
        let text = "x-hop: 1\r\nconnection: keep-alive, X-Hop\r\nkeep-alive: timeout=5\r\nte: trailers\r\n\
                    upgrade: h2c\r\nproxy-authenticate: Basic\r\nsegue-reason: fenced\r\ncontent-length: 0\r\nx-end: 1";
        let names = |status: &str| {
            let head = parsed(&format!("HTTP/1.1 {status}\r\n{text}\r\n\r\n"), Method::GET).unwrap().unwrap();
            head.headers.keys().map(HeaderName::to_string).collect::<BTreeSet<_>>()
        };
        let names_of = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        assert_eq!(names("200 OK"), names_of(&["content-length", "x-end"]));
        // The client has to know the protocol that was switched to.
        assert_eq!(names("101 Switching Protocols"), names_of(&["upgrade", "x-end"]));
    }

    #[test]
    fn an_answer_with_many_connection_options_is_refused() {
        let head = |count| format!("HTTP/1.1 200 OK\r\nconnection: close, {}\r\n\r\n", vec!["x"; count].join(","));
        assert!(parsed(&head(32), Method::GET).unwrap().is_some());
        assert_eq!(parsed(&head(33), Method::GET).unwrap_err(), HeadError::Options);
    }

    #[test]
    fn a_length_that_is_said_twice_goes_on_once() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 05\r\n\r\n";
        let head = parsed(text, Method::GET).unwrap().unwrap();
        assert_eq!(head.headers.get_all(CONTENT_LENGTH).iter().collect::<Vec<_>>(), [&HeaderValue::from(5)]);
    }

    #[test]
    fn a_partial_head_is_left_where_it_is() {
        let mut buffer = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-len");
        assert!(parse_response_head(&mut buffer, false, false).unwrap().is_none());
        assert_eq!(buffer.len(), 28);
        buffer.extend_from_slice(b"gth: 2\r\n\r\nhi");
        assert!(parse_response_head(&mut buffer, false, false).unwrap().is_some());
        assert_eq!(&buffer[..], b"hi");
    }

    #[test]
    fn a_head_without_end_is_refused_at_its_bound() {
        let mut buffer = BytesMut::from("HTTP/1.1 200 OK\r\nx: ");
        buffer.resize(MAX_HEAD_BYTES + 1, b'x');
        assert_eq!(parse_response_head(&mut buffer, false, false).unwrap_err(), HeadError::TooLarge);
        buffer.extend_from_slice(b"\r\n\r\n");
        assert_eq!(parse_response_head(&mut buffer, false, false).unwrap_err(), HeadError::TooLarge, "in one piece");
    }
}
