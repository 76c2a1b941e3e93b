//! Parses the head of an HTTP/1.1 response.
//!
//! Pure. Each line is looked at once, as it is read: lines that concern the connection or frame the body are
//! interpreted and left out at once.
//!
//! # Invariants
//!
//! * A response whose length can be read in two ways is refused.
//! * Nothing that concerns the connection goes on to the client.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{StatusCode, Version};

use super::head_lines::HeadLines;
use crate::message::header_names::{KEEP_ALIVE, SEGUE_REASON, is_hop_by_hop};
use crate::message::headers::{MAX_OPTIONS, options};
use crate::message::local_reply::PodReason;
use crate::message::name_cache::header_name;

/// Most headers of a response.
const MAX_HEADERS: usize = 128;
/// Number of headers that most responses do not exceed. The space for them is on the stack and is cleared for each
/// head.
const FEW_HEADERS: usize = 16;
/// Largest head of a response. Generous, because pods are trusted more than clients, but bounded.
pub(crate) const MAX_HEAD_BYTES: usize = 256 << 10;

/// How the body of a response is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFraming {
    Length(u64),
    Chunked,
    UntilClose,
}

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

/// Why bytes are not a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("the pod's response is not HTTP/1")]
    Syntax,
    #[error("the head of the pod's response is too large")]
    TooLarge,
    #[error("the pod's response has no definite length")]
    Length,
    #[error("the pod's response has a transfer coding other than chunked")]
    Coding,
    #[error("the pod's response declares more than {MAX_OPTIONS} connection options")]
    Options,
}

/// The offsets in the head at which a header's name and its value begin and end.
pub(super) type Place = (u32, u32, u32, u32);

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
        && let Some((lines, said)) = HeadLines::encode(&bytes, places, version, status)?
    {
        return Ok(Some(said.head(version, status, HeaderMap::new(), Some(lines), reason)));
    }
    let mut headers = HeaderMap::with_capacity(count);
    let mut said = Said { to_head, ..Said::default() };
    for (name_start, name_end, value_start, value_end) in &*places {
        let name = &bytes[*name_start as usize..*name_end as usize];
        let name = header_name(name).map_err(|_| HeadError::Syntax)?;
        let value = bytes.slice(*value_start as usize..*value_end as usize);
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| HeadError::Syntax)?;
        if said.passes(version, status, &name, &value)? {
            headers.append(name, value);
        }
    }
    said.clean(&mut headers);
    Ok(Some(said.head(version, status, headers, None, reason)))
}

/// What the lines of a response declare about its connection and its length.
#[derive(Default)]
pub(super) struct Said {
    to_head: bool,
    close: bool,
    keep_alive: bool,
    keep_for: Option<Duration>,
    /// Further headers that concern the connection.
    declared: Vec<HeaderName>,
    chunked: bool,
    pub(super) length: Option<u64>,
    /// Number of lines that state the length.
    lengths: usize,
}

impl Said {
    /// Returns the head that says this.
    fn head(
        self,
        version: Version,
        status: StatusCode,
        mut headers: HeaderMap,
        lines: Option<HeadLines>,
        reason: Option<Bytes>,
    ) -> ResponseHead {
        let (framing, trusted) = self.framing(&mut headers, status);
        let keep_alive = trusted && framing != ResponseFraming::UntilClose && self.keeps_alive(version);
        let is_bodiless = self.to_head || status == StatusCode::NOT_MODIFIED || status == StatusCode::NO_CONTENT;
        ResponseHead { status, headers, lines, framing, keep_alive, keep_for: self.keep_for, is_bodiless, reason }
    }

    /// Returns whether each line stands for itself: none concerns another one, and none contradicts another one.
    pub(super) fn is_ordinary(&self) -> bool {
        self.declared.is_empty() && self.lengths <= 1 && !(self.chunked && self.length.is_some())
    }

    /// Interprets a line. Returns whether it goes on to the client.
    pub(super) fn passes(
        &mut self,
        version: Version,
        status: StatusCode,
        name: &HeaderName,
        value: &HeaderValue,
    ) -> Result<bool, HeadError> {
        if *name == CONTENT_LENGTH {
            let length = length(value)?;
            if self.length.is_some_and(|earlier| earlier != length) {
                return Err(HeadError::Length);
            }
            self.length = Some(length);
            self.lengths += 1;
            return Ok(self.lengths == 1);
        }
        if *name == TRANSFER_ENCODING {
            // Any other coding is refused: pods were not told that one is understood here, and without its header the
            // client would take the coded bytes for the content. HTTP/1.0 has no codings, so the meaning of one there
            // is unknown.
            let plain = version == Version::HTTP_11 && value.as_bytes().eq_ignore_ascii_case(b"chunked");
            if !plain || self.chunked {
                return Err(HeadError::Coding);
            }
            self.chunked = true;
        } else if *name == CONNECTION {
            options(value).try_for_each(|option| self.option(option))?;
        }
        let is_hop_by_hop = is_hop_by_hop(name);
        if is_hop_by_hop && *name == KEEP_ALIVE {
            self.keep_for = keep_for(value);
        }
        let switches = status == StatusCode::SWITCHING_PROTOCOLS && *name == UPGRADE;
        let forged = *name == SEGUE_REASON && PodReason::of(value).is_none();
        Ok(switches || !(is_hop_by_hop || forged))
    }

    fn option(&mut self, option: &[u8]) -> Result<(), HeadError> {
        if option.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
        } else if option.eq_ignore_ascii_case(b"close") {
            self.close = true;
        } else if let Ok(name) = HeaderName::from_bytes(option)
            && !is_hop_by_hop(&name)
        {
            if self.declared.len() == MAX_OPTIONS {
                return Err(HeadError::Options);
            }
            self.declared.push(name);
        }
        Ok(())
    }

    /// Removes what could not be recognised line by line.
    fn clean(&self, headers: &mut HeaderMap) {
        if let (Some(length), true) = (self.length, self.lengths > 1) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        for name in &self.declared {
            headers.remove(name);
        }
    }

    /// Returns how the body is delimited, and whether the connection can still be trusted.
    fn framing(&self, headers: &mut HeaderMap, status: StatusCode) -> (ResponseFraming, bool) {
        // In the response to a HEAD, and in a 304, length and coding describe what is not sent.
        if self.to_head {
            return (ResponseFraming::Length(0), true);
        }
        if status == StatusCode::NOT_MODIFIED {
            // hyper's server would drop it as well.
            headers.remove(CONTENT_LENGTH);
            return (ResponseFraming::Length(0), true);
        }
        if status.is_informational() || status == StatusCode::NO_CONTENT {
            headers.remove(CONTENT_LENGTH);
            // A pod that declares a body here may well send it.
            return (ResponseFraming::Length(0), !self.chunked && self.length.unwrap_or(0) == 0);
        }
        if self.chunked {
            // Both at once: the coding counts, the length is wrong, and so may be what follows on this connection.
            headers.remove(CONTENT_LENGTH);
            return (ResponseFraming::Chunked, self.length.is_none());
        }
        (self.length.map_or(ResponseFraming::UntilClose, ResponseFraming::Length), true)
    }

    fn keeps_alive(&self, version: Version) -> bool {
        !self.close && (self.keep_alive || version != Version::HTTP_10)
    }
}

/// Returns how long a connection may be idle whose pod sent `timeout=`: a second less, for what is in transit.
fn keep_for(value: &HeaderValue) -> Option<Duration> {
    let seconds = options(value).find_map(|option| {
        let (name, seconds) = std::str::from_utf8(option).ok()?.split_once('=')?;
        name.trim_end().eq_ignore_ascii_case("timeout").then(|| seconds.trim().parse::<u32>().ok())?
    });
    let timeout = Duration::from_secs(seconds?.into());
    Some(timeout.saturating_sub(Duration::from_secs(1)).max(timeout / 2))
}

fn length(value: &HeaderValue) -> Result<u64, HeadError> {
    let text = value.to_str().ok().filter(|text| !text.is_empty() && !text.starts_with('+'));
    text.and_then(|text| text.parse().ok()).ok_or(HeadError::Length)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::Method;

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
