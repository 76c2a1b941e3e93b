//! Heads of HTTP/1.1 messages: a request's as bytes, an answer's from bytes.
//!
//! Pure. The request's own head is read in place, so it costs no copy and is still there for another attempt.
//! What must stay true: the framing that is written is the framing of the body that follows; an answer whose length can
//! be read in two ways is refused.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE, VIA};
use http::request::Parts;
use http::{Method, StatusCode, Version};

use crate::deadline::GRPC_TIMEOUT;
use crate::headers::{
    Declared, Stamps, X_FORWARDED_FOR, X_FORWARDED_PROTO, continued, passes_to_pod, takes_trailers, via,
};

/// Most headers of an answer.
const MAX_HEADERS: usize = 128;
/// Largest head of an answer. Generous: pods are trusted more than clients, but not without bound.
pub(crate) const MAX_HEAD_BYTES: usize = 256 << 10;

/// How the body of a request is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// How the body of an answer is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerFraming {
    Length(u64),
    Chunked,
    UntilClose,
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) framing: AnswerFraming,
    /// The connection may serve another request after this one.
    pub(crate) keep_alive: bool,
    pub(crate) reason: Option<Bytes>,
}

/// Why bytes are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("the pod's answer is not HTTP/1")]
    Syntax,
    #[error("the head of the pod's answer is too large")]
    TooLarge,
    #[error("the pod's answer has no definite length")]
    Length,
    #[error("the pod's answer has a transfer coding other than chunked")]
    Coding,
}

/// Writes the head of a request; `upgrade`: it asks for another protocol.
pub(crate) fn encode_request(out: &mut BytesMut, head: &Parts, stamps: &Stamps<'_>, framing: Framing, upgrade: bool) {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    out.reserve(256 + path.len() + 64 * head.headers.len());
    out.put_slice(head.method.as_str().as_bytes());
    out.put_u8(b' ');
    // What asks about the host as a whole is written as `*`, which the URI has as its path.
    out.put_slice(path.as_bytes());
    out.put_slice(b" HTTP/1.1\r\n");
    let host = match head.uri.authority() {
        Some(authority) => {
            let host = authority.as_str();
            host.rsplit_once('@').map_or(host, |(_, host)| host).as_bytes()
        }
        None => head.headers.get(http::header::HOST).map(HeaderValue::as_bytes).unwrap_or_default(),
    };
    line(out, b"host", &[host]);
    let declared = Declared::of(&head.headers);
    let mut proto = false;
    let mut length = false;
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH {
            length = true;
        } else if *name == GRPC_TIMEOUT && stamps.grpc_timeout.is_some() {
            // Said below.
        } else if passes_to_pod(name, &declared) {
            proto |= *name == X_FORWARDED_PROTO;
            line(out, name.as_str().as_bytes(), &[value.as_bytes()]);
        }
    }
    let mut digits = itoa::Buffer::new();
    line(out, b"segue-partition", &[digits.format(stamps.partition).as_bytes()]);
    line(out, b"segue-epoch", &[digits.format(stamps.epoch).as_bytes()]);
    line(out, b"segue-router", &[stamps.router.as_bytes()]);
    line(out, b"segue-keyspace", &[stamps.keyspace.as_bytes()]);
    if let Some(left) = stamps.grpc_timeout {
        line(out, b"grpc-timeout", &[left.as_bytes()]);
    }
    list(out, head, &X_FORWARDED_FOR, stamps.peer.as_bytes());
    if !proto {
        line(out, b"x-forwarded-proto", &[stamps.scheme.as_bytes()]);
    }
    list(out, head, &VIA, via(head.version).as_bytes());
    if takes_trailers(&head.headers) {
        line(out, b"te", &[b"trailers"]);
        if !upgrade {
            line(out, b"connection", &[b"te"]);
        }
    }
    if upgrade {
        line(out, b"connection", &[b"upgrade"]);
        for value in head.headers.get_all(UPGRADE) {
            line(out, b"upgrade", &[value.as_bytes()]);
        }
    }
    match framing {
        Framing::Length(bytes) => line(out, b"content-length", &[digits.format(bytes).as_bytes()]),
        Framing::Chunked => line(out, b"transfer-encoding", &[b"chunked"]),
        Framing::None if length || [Method::POST, Method::PUT, Method::PATCH].contains(&head.method) => {
            line(out, b"content-length", &[b"0"]);
        }
        Framing::None => {}
    }
    out.put_slice(b"\r\n");
}

fn line(out: &mut BytesMut, name: &[u8], value: &[&[u8]]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    for part in value {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

fn list(out: &mut BytesMut, head: &Parts, name: &HeaderName, last: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    for part in continued(&head.headers, name) {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(last);
    out.extend_from_slice(b"\r\n");
}

/// Takes the head of an answer off the front of `buffer`. `Ok(None)`: it has not all arrived. Informational answers come
/// back like any other.
pub(crate) fn parse_answer(buffer: &mut BytesMut, method: &Method) -> Result<Option<AnswerHead>, HeadError> {
    let mut slots = [const { std::mem::MaybeUninit::uninit() }; MAX_HEADERS];
    let mut places = [(0u32, 0u32, 0u32, 0u32); MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut answer, buffer, &mut slots);
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
        // Also where it came in one piece: what a bound refuses must not depend on how bytes arrive.
        Ok(httparse::Status::Complete(_)) => return Err(HeadError::TooLarge),
        Ok(httparse::Status::Partial) if buffer.len() > MAX_HEAD_BYTES => return Err(HeadError::TooLarge),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(_) => return Err(HeadError::Syntax),
    };
    let version = match answer.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let status = StatusCode::from_u16(answer.code.unwrap_or_default()).map_err(|_| HeadError::Syntax)?;
    let reason = answer.reason.unwrap_or_default();
    let reason = (!reason.is_empty() && status.canonical_reason() != Some(reason))
        .then(|| Bytes::copy_from_slice(reason.as_bytes()));
    let base = buffer.as_ptr() as usize;
    let count = answer.headers.len();
    for (place, header) in places.iter_mut().zip(answer.headers.iter()) {
        let name = header.name.as_ptr() as usize - base;
        let value = header.value.as_ptr() as usize - base;
        *place = (name as u32, (name + header.name.len()) as u32, value as u32, (value + header.value.len()) as u32);
    }
    let bytes = buffer.split_to(length).freeze();
    let mut headers = HeaderMap::with_capacity(count);
    for (name_start, name_end, value_start, value_end) in &places[..count] {
        let name = &bytes[*name_start as usize..*name_end as usize];
        let name = HeaderName::from_bytes(name).map_err(|_| HeadError::Syntax)?;
        let value = bytes.slice(*value_start as usize..*value_end as usize);
        headers.append(name, HeaderValue::from_maybe_shared(value).map_err(|_| HeadError::Syntax)?);
    }
    let (framing, trusted) = answer_framing(&mut headers, version, status, method)?;
    let keep_alive = trusted && framing != AnswerFraming::UntilClose && keeps_alive(version, &headers);
    Ok(Some(AnswerHead { status, headers, framing, keep_alive, reason }))
}

/// How long the answer's body is, and whether one can go on trusting the connection.
fn answer_framing(
    headers: &mut HeaderMap,
    version: Version,
    status: StatusCode,
    method: &Method,
) -> Result<(AnswerFraming, bool), HeadError> {
    let chunked = is_chunked(headers, version)?;
    let length = one_length(headers)?;
    // In the answer to a HEAD, and in a 304, both are those of what is not sent.
    if *method == Method::HEAD {
        return Ok((AnswerFraming::Length(0), true));
    }
    if status == StatusCode::NOT_MODIFIED {
        // hyper's server would drop it as well.
        headers.remove(CONTENT_LENGTH);
        return Ok((AnswerFraming::Length(0), true));
    }
    if status.is_informational() || status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
        // A pod that declares a body here may well send it.
        return Ok((AnswerFraming::Length(0), !chunked && length.unwrap_or(0) == 0));
    }
    if chunked {
        // Both at once: the coding counts, the length is a lie, and what follows on this connection may be one too.
        let trusted = headers.remove(CONTENT_LENGTH).is_none();
        return Ok((AnswerFraming::Chunked, trusted));
    }
    Ok((length.map_or(AnswerFraming::UntilClose, AnswerFraming::Length), true))
}

/// Whether the body is chunked. Any other coding is refused: pods were not told that one is understood here, and without
/// its header, which does not cross the router, the client would take the coded bytes for the content.
fn is_chunked(headers: &HeaderMap, version: Version) -> Result<bool, HeadError> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(line) = lines.next() else { return Ok(false) };
    // HTTP/1.0 has no codings, so who sent this meant something else or nothing.
    let plain = line.as_bytes().eq_ignore_ascii_case(b"chunked") && lines.next().is_none();
    if plain && version == Version::HTTP_11 { Ok(true) } else { Err(HeadError::Coding) }
}

/// The length that all of the `Content-Length` lines agree on; one line of them is left.
fn one_length(headers: &mut HeaderMap) -> Result<Option<u64>, HeadError> {
    let mut length = None;
    let mut lines = 0;
    for line in headers.get_all(CONTENT_LENGTH) {
        lines += 1;
        let text = line.to_str().ok().filter(|text| !text.is_empty() && !text.starts_with('+'));
        let bytes: u64 = text.and_then(|text| text.parse().ok()).ok_or(HeadError::Length)?;
        if length.is_some_and(|earlier| earlier != bytes) {
            return Err(HeadError::Length);
        }
        length = Some(bytes);
    }
    if let (Some(bytes), true) = (length, lines > 1) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    Ok(length)
}

fn keeps_alive(version: Version, headers: &HeaderMap) -> bool {
    let says = |what: &[u8]| {
        headers.get_all(CONNECTION).iter().any(|line| {
            line.as_bytes().split(|byte| *byte == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(what))
        })
    };
    match version {
        Version::HTTP_10 => says(b"keep-alive") && !says(b"close"),
        _ => !headers.contains_key(CONNECTION) || !says(b"close"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, method: Method) -> Result<Option<AnswerHead>, HeadError> {
        parse_answer(&mut BytesMut::from(text), &method)
    }

    fn framing(text: &str) -> (AnswerFraming, bool) {
        let head = answer(text, Method::GET).unwrap().unwrap();
        (head.framing, head.keep_alive)
    }

    #[test]
    fn the_framing_of_an_answer_is_what_the_standard_says() {
        use AnswerFraming::*;
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
        let head = answer("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Method::HEAD).unwrap().unwrap();
        assert_eq!((head.framing, &head.headers[CONTENT_LENGTH]), (Length(0), &HeaderValue::from(5)));
    }

    #[test]
    fn an_answer_with_a_length_and_a_coding_ends_its_connection() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(framing(text), (AnswerFraming::Chunked, false));
        assert!(!answer(text, Method::GET).unwrap().unwrap().headers.contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn an_answer_that_has_no_body_and_declares_one_ends_its_connection() {
        for field in ["content-length: 5", "transfer-encoding: chunked"] {
            let text = format!("HTTP/1.1 204 No Content\r\n{field}\r\n\r\n");
            assert_eq!(framing(&text), (AnswerFraming::Length(0), false));
        }
    }

    #[test]
    fn a_coding_that_the_client_would_not_be_told_of_is_refused() {
        for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity", "xchunked", "chunked;q=1", ""] {
            let text = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n");
            assert_eq!(answer(&text, Method::GET).unwrap_err(), HeadError::Coding, "{coding:?}");
        }
        let twice = "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(answer(twice, Method::GET).unwrap_err(), HeadError::Coding);
        let old = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(answer(old, Method::GET).unwrap_err(), HeadError::Coding);
    }

    #[test]
    fn an_answer_with_contradicting_lengths_is_refused() {
        for lengths in ["content-length: 5\r\ncontent-length: 6", "content-length: 5, 5", "content-length: +5"] {
            let text = format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n");
            assert_eq!(answer(&text, Method::GET).unwrap_err(), HeadError::Length);
            // Nothing follows the answer to a HEAD, but its client would get the contradiction.
            assert_eq!(answer(&text, Method::HEAD).unwrap_err(), HeadError::Length);
        }
    }

    #[test]
    fn a_partial_head_is_left_where_it_is() {
        let mut buffer = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-len");
        assert!(parse_answer(&mut buffer, &Method::GET).unwrap().is_none());
        assert_eq!(buffer.len(), 28);
        buffer.extend_from_slice(b"gth: 2\r\n\r\nhi");
        assert!(parse_answer(&mut buffer, &Method::GET).unwrap().is_some());
        assert_eq!(&buffer[..], b"hi");
    }

    #[test]
    fn a_head_without_end_is_refused_at_its_bound() {
        let mut buffer = BytesMut::from("HTTP/1.1 200 OK\r\nx: ");
        buffer.resize(MAX_HEAD_BYTES + 1, b'x');
        assert_eq!(parse_answer(&mut buffer, &Method::GET).unwrap_err(), HeadError::TooLarge);
        buffer.extend_from_slice(b"\r\n\r\n");
        assert_eq!(parse_answer(&mut buffer, &Method::GET).unwrap_err(), HeadError::TooLarge, "in one piece");
    }

    fn encoded(request: http::request::Builder, framing: Framing, upgrade: bool) -> String {
        let (head, ()) = request.body(()).unwrap().into_parts();
        let (router, keyspace) = (HeaderValue::from_static("r0"), HeaderValue::from_static("default"));
        let peer = HeaderValue::from_static("10.0.0.9");
        let stamps = Stamps {
            partition: 7,
            epoch: 3,
            router: &router,
            keyspace: &keyspace,
            peer: &peer,
            grpc_timeout: None,
            scheme: "http",
        };
        let mut out = BytesMut::new();
        encode_request(&mut out, &head, &stamps, framing, upgrade);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn a_request_is_stamped_and_keeps_its_host() {
        let request = http::Request::get("/a?b=1")
            .header("host", "example.org")
            .header("segue-epoch", "99")
            .header("x-forwarded-for", "1.2.3.4")
            .header("te", "trailers, gzip");
        assert_eq!(
            encoded(request, Framing::None, false),
            "GET /a?b=1 HTTP/1.1\r\nhost: example.org\r\nsegue-partition: 7\r\nsegue-epoch: 3\r\nsegue-router: r0\r\n\
             segue-keyspace: default\r\nx-forwarded-for: 1.2.3.4, 10.0.0.9\r\nx-forwarded-proto: http\r\n\
             via: 1.1 segue\r\nte: trailers\r\nconnection: te\r\n\r\n"
        );
    }

    #[test]
    fn the_host_of_an_absolute_target_counts() {
        let text =
            encoded(http::Request::get("http://user@example.org:81/a").header("host", "other"), Framing::None, false);
        assert!(text.starts_with("GET /a HTTP/1.1\r\nhost: example.org:81\r\n"), "{text}");
        assert!(!text.contains("other"));
    }

    #[test]
    fn the_length_written_is_that_of_the_body_not_that_of_the_header() {
        let request = || http::Request::post("/").header("content-length", "5").header("transfer-encoding", "x");
        assert!(encoded(request(), Framing::Chunked, false).contains("transfer-encoding: chunked\r\n"));
        assert!(!encoded(request(), Framing::Chunked, false).contains("content-length"));
        assert!(encoded(request(), Framing::Length(6), false).contains("content-length: 6\r\n"));
        assert!(encoded(http::Request::post("/"), Framing::None, false).contains("content-length: 0\r\n"));
        assert!(!encoded(http::Request::get("/"), Framing::None, false).contains("content-length"));
    }

    #[test]
    fn an_upgrade_is_asked_for_anew() {
        let request = http::Request::get("/").header("connection", "upgrade").header("upgrade", "websocket");
        let text = encoded(request, Framing::None, true);
        assert!(text.contains("connection: upgrade\r\nupgrade: websocket\r\n"), "{text}");
    }
}
