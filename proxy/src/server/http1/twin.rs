//! Reads requests from bytes alone, once as this server does and once by hyper, so that both readings can be compared: here
//! with random requests, and in `tests/fuzz`.
//!
//! # Invariants
//!
//! * The steps of [`read`] are those of [`Wire`](super::wire::Wire), so that what holds here holds there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Buf as _, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::request_head::{BodyFraming, HeadReading, RequestHead, may_end, read_head};
use crate::message::local_reply::LocalReply;
use crate::upstream::{DecodedPart, Decoder};

/// A request as far as it has been read.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReadRequest {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    /// Whether the connection may switch protocols.
    may_switch: bool,
    /// The body, or its beginning.
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// Whether the body has been read to its end.
    is_whole: bool,
}

/// Why no further request has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopCause {
    /// More bytes are needed.
    Starved,
    /// The last request asks for the end of the connection.
    Close,
    /// What comes next is refused.
    Refused(LocalReply),
    /// A body is not framed as its head says.
    Garbled,
}

/// What has been read from a connection.
#[derive(Debug, PartialEq, Eq)]
struct ReadConnection {
    requests: Vec<ReadRequest>,
    stop: StopCause,
    /// How many requests have been answered `100 Continue`.
    continued: usize,
}

/// Reads requests from these pieces as this server does. `most` bounds their heads.
fn read(pieces: &[&[u8]], most: usize) -> ReadConnection {
    let mut pieces = pieces.iter();
    let (mut input, mut parsed) = (BytesMut::new(), 0);
    let mut connection = ReadConnection { requests: Vec::new(), stop: StopCause::Starved, continued: 0 };
    while connection.stop == StopCause::Starved {
        while input.starts_with(b"\r\n") {
            input.advance(2);
            parsed = 0;
        }
        let goes_on = parsed > 0 && !may_end(&input, parsed, most);
        let reading = if goes_on { HeadReading::Partial } else { read_head(&input, most) };
        parsed = input.len();
        match reading {
            HeadReading::Head(head, length) => {
                input.advance(length);
                parsed = 0;
                connection.continued += usize::from(head.expects_continue && head.framing != BodyFraming::Length(0));
                let (request, stop) = read_request(*head, &mut input, &mut pieces);
                connection.requests.push(request);
                match stop {
                    Some(stop) => connection.stop = stop,
                    None => continue,
                }
                break;
            }
            HeadReading::Refused(reply) => connection.stop = StopCause::Refused(reply),
            HeadReading::Partial => match pieces.next() {
                Some(piece) => input.extend_from_slice(piece),
                None => break,
            },
        }
    }
    connection
}

/// Reads the body of a request. Returns why nothing can be read behind it.
fn read_request(
    head: RequestHead,
    input: &mut BytesMut,
    pieces: &mut std::slice::Iter<'_, &[u8]>,
) -> (ReadRequest, Option<StopCause>) {
    let RequestHead { parts, framing, close, may_switch, .. } = head;
    let (method, uri, version, headers) = (parts.method, parts.uri, parts.version, parts.headers);
    // hyper offers a tunnel to each CONNECT.
    let may_switch = may_switch && method != Method::CONNECT;
    let mut request = ReadRequest { method, uri, version, headers, may_switch, ..ReadRequest::default() };
    let mut decoder = match framing {
        BodyFraming::Length(length) => Decoder::of_length(length),
        BodyFraming::Chunked => Decoder::of_chunks(),
    };
    let stop = loop {
        match decoder.decode(input) {
            Ok(DecodedPart::Data(data)) => request.body.extend_from_slice(&data),
            Ok(DecodedPart::Trailers(trailers)) => request.trailers = Some(trailers),
            Ok(DecodedPart::Starved) => match pieces.next() {
                Some(piece) => input.extend_from_slice(piece),
                None => break Some(StopCause::Starved),
            },
            Ok(DecodedPart::End) => {
                request.is_whole = true;
                break close.then_some(StopCause::Close);
            }
            Err(_) => break Some(StopCause::Garbled),
        }
    };
    (request, stop)
}

/// Reads requests from these pieces by hyper's server. Returns what it has written, too.
fn read_by_hyper(pieces: &[&[u8]], most: usize) -> (Vec<ReadRequest>, Vec<u8>) {
    let requests = Rc::new(RefCell::new(Vec::new()));
    let service = |request: Request<Incoming>| {
        let requests = requests.clone();
        async move {
            let (head, mut body) = request.into_parts();
            let index = requests.borrow().len();
            let may_switch = head.extensions.get::<OnUpgrade>().is_some() && head.method != Method::CONNECT;
            // A success would end the connection.
            let status = if head.method == Method::CONNECT { StatusCode::NOT_FOUND } else { StatusCode::OK };
            let (method, uri, version, headers) = (head.method, head.uri, head.version, head.headers);
            let begun = ReadRequest { method, uri, version, headers, may_switch, ..ReadRequest::default() };
            requests.borrow_mut().push(begun);
            loop {
                let frame = body.frame().await;
                let request = &mut requests.borrow_mut()[index];
                match frame.map(|frame| frame.map(hyper::body::Frame::into_data)) {
                    Some(Ok(Ok(data))) => request.body.extend_from_slice(&data),
                    Some(Ok(Err(frame))) => request.trailers = frame.into_trailers().ok(),
                    Some(Err(_)) => break,
                    None => {
                        request.is_whole = true;
                        break;
                    }
                }
            }
            let mut response = Response::new(Empty::<bytes::Bytes>::new());
            *response.status_mut() = status;
            response
        }
    };
    let written = serve_by_hyper(pieces, most, service);
    (requests.take(), written)
}

/// Serves a connection on which these pieces arrive by hyper. Returns what it has written.
fn serve_by_hyper<B>(pieces: &[&[u8]], most: usize, service: impl AsyncFn(Request<Incoming>) -> Response<B>) -> Vec<u8>
where
    B: Body<Data: 'static, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + 'static,
{
    let written = Rc::new(RefCell::new(Vec::new()));
    let pieces = Pieces { left: pieces.iter().map(|piece| piece.to_vec()).collect(), written: written.clone() };
    let service = &service;
    let service = hyper::service::service_fn(|request| async move { Ok::<_, Infallible>(service(request).await) });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.header_read_timeout(None).max_header_size(most).max_buf_size(most.saturating_mul(2).max(16 << 10));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(pieces), service));
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    // Without a further byte nothing wakes the connection in the end.
    while woken.0.swap(false, Relaxed) {
        if connection.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            break;
        }
    }
    written.take()
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// A connection on which these pieces arrive and nothing else, not even an end.
struct Pieces {
    left: VecDeque<Vec<u8>>,
    written: Rc<RefCell<Vec<u8>>>,
}

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(mut piece) = self.left.pop_front() else { return Poll::Pending };
        let rest = piece.split_off(piece.len().min(buffer.remaining()));
        buffer.put_slice(&piece);
        if !rest.is_empty() {
            self.left.push_front(rest);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the reply that stands for what hyper has refused by itself.
fn refusal(written: &[u8]) -> Option<LocalReply> {
    let last = written.windows(7).rposition(|bytes| bytes == b"HTTP/1.")?;
    match written.get(last + 9..last + 12)? {
        b"400" => Some(LocalReply::Malformed),
        // The target alone may be larger than hyper takes.
        b"414" | b"431" => Some(LocalReply::HeadTooLarge),
        _ => None,
    }
}

/// Checks that hyper reads these requests in the same way, and refuses what is refused.
///
/// # Panics
///
/// If it does not.
pub(crate) fn compare(pieces: &[&[u8]], most: usize) {
    let ReadConnection { requests: ours, stop, continued } = read(pieces, most);
    let (hypers, written) = read_by_hyper(pieces, most);
    // Behind a body that is not framed as its head says, hyper may accept more than this server does.
    assert!(
        ours.len() == hypers.len() || (stop == StopCause::Garbled && ours.len() < hypers.len()),
        "{stop:?}: {ours:?}, by hyper {hypers:?}"
    );
    for (index, (own, hyper)) in ours.iter().zip(&hypers).enumerate() {
        let head = |read: &ReadRequest| (read.method.clone(), read.uri.clone(), read.version, read.may_switch);
        assert_eq!((head(own), &own.headers), (head(hyper), &hyper.headers));
        if stop == StopCause::Garbled && index + 1 == ours.len() {
            assert!(hyper.body.starts_with(&own.body));
        } else {
            assert_eq!((own.is_whole, &own.body), (hyper.is_whole, &hyper.body), "{own:?}");
            assert_eq!(own.trailers, hyper.trailers);
        }
    }
    if stop == StopCause::Garbled {
        return;
    }
    let by_hyper = written.windows(13).filter(|bytes| *bytes == b"HTTP/1.1 100 ").count();
    assert_eq!(continued, by_hyper, "{}", written.escape_ascii());
    match (stop, refusal(&written)) {
        // hyper closes the connection silently where HTTP/2 begins, and does not look at what comes behind an empty line
        // before it is whole.
        (_, None) => {}
        (stop, Some(refused)) => assert_eq!(stop, StopCause::Refused(refused)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::RngSeed;

    use super::super::response_head::{ResponseTerms, write_head};
    use super::*;

    const MOST: usize = 64 << 10;

    /// Beginnings of heads, their lines, and pieces of bodies, valid and not.
    const STARTS: &[&str] = &[
        "GET / HTTP/1.1\r\n",
        "POST /a?b=c HTTP/1.1\r\n",
        "POST /a HTTP/1.0\r\n",
        "HEAD * HTTP/1.1\r\n",
        "GET http://h:1/a HTTP/1.1\r\n",
        "CONNECT h:80 HTTP/1.1\r\n",
        "GET h HTTP/1.1\r\n",
        "get / HTTP/1.1\n",
        "GET /a<b HTTP/1.1\r\n",
        "GET / HTTP/1.2\r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
    ];
    const FIELDS: &[&str] = &[
        "host: h\r\n",
        "Host : h\r\n",
        " folded\r\n",
        "content-length: 5\r\n",
        "Content-Length: 05\r\n",
        "content-length: 0000000000000000000000005\r\n",
        "content-length: 6\r\n",
        "content-length: 5, 5\r\n",
        "content-length: +5\r\n",
        "content-length:5 \r\n",
        "content-length: 18446744073709551614\r\n",
        "content-length: 18446744073709551616\r\n",
        "transfer-encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked, gzip\r\n",
        "transfer-encoding: x,\tCHUNKED\r\n",
        "transfer-encoding: Chunked\n",
        "connection: close\r\n",
        "connection: keep-alive, Close\r\n",
        "connection: Keep-Alive\r\n",
        "connection: close, \u{e9}\r\n",
        "connection: upgrade\r\nupgrade: websocket\r\n",
        "expect: 100-Continue\r\n",
        "expect: 200-ok\r\n",
        "te: trailers\r\n",
        "x: \t y z \r\n",
        "x: \u{e9}\r\n",
        "x: y\rz\r\n",
        "x\"y: z\r\n",
        "x:\r\n",
    ];
    const BODIES: &[&str] = &[
        "hello",
        "5\r\nhello\r\n",
        "5;a=b\r\nhello\r\n",
        "05 \r\nhello\r\n",
        "5\nhello\r\n",
        "0\r\n\r\n",
        "0\r\nx-sum: 7\r\n\r\n",
        "0\r\ncontent-length: 7\n\r\n",
        "-5\r\n",
        "0x5\r\n",
        "ffffffffffffffff\r\n",
    ];

    fn texts(texts: &'static [&'static str], count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(select(texts), count).prop_map(|texts| texts.concat().into_bytes())
    }

    /// A request that is valid but for what its lines contradict, or any texts.
    fn request() -> impl Strategy<Value = Vec<u8>> {
        let request = (texts(&STARTS[..6], 1..2), texts(FIELDS, 0..4), texts(BODIES, 0..4));
        let request = request.prop_map(|(start, lines, body)| [start, lines, b"\r\n".to_vec(), body].concat());
        let any = prop_oneof![texts(STARTS, 0..3), texts(FIELDS, 0..4), texts(BODIES, 0..3)];
        prop_oneof![request, prop::collection::vec(any, 1..4).prop_map(|texts| texts.concat())]
    }

    /// Returns the same requests each time. `PROPTEST_RNG_SEED` and `PROPTEST_CASES` name others and more.
    fn config() -> ProptestConfig {
        let mut config = ProptestConfig::default();
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = 3_000;
        }
        if config.rng_seed == RngSeed::Random {
            config.rng_seed = RngSeed::Fixed(1);
        }
        config
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn hyper_reads_the_same_requests(
            requests in prop::collection::vec(request(), 1..4),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            piece in 1_usize..200,
        ) {
            let mut bytes = requests.concat();
            let length = bytes.len();
            for (index, byte) in changes.into_iter().filter(|_| length > 0) {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
            compare(&pieces, MOST);
            assert_eq!(read(&pieces, MOST), read(&[&bytes], MOST), "the same bytes, cut differently");
        }
    }

    /// Returns the lines of a head in alphabetical order, without the date and what is behind the head.
    fn lines(written: &[u8]) -> Vec<String> {
        let end = written.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(written[..end].to_vec()).unwrap();
        let mut lines: Vec<_> =
            head.split("\r\n").filter(|line| !line.starts_with("date: ")).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    /// Returns the head of a response to this request as this server writes it.
    fn head_of_response(request: &[u8], response: Response<AnyBody>) -> Vec<u8> {
        let HeadReading::Head(asked, _) = read_head(request, MOST) else { panic!("{}", request.escape_ascii()) };
        let (head, body) = response.into_parts();
        let terms = ResponseTerms {
            method: &asked.parts.method,
            version: asked.parts.version,
            closes: asked.close,
            is_close_implied: asked.close && asked.parts.version == Version::HTTP_10,
        };
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        let mut out = Vec::new();
        write_head(&mut out, (&head, None), length, terms, || http::HeaderValue::from_static("today")).unwrap();
        out
    }

    type AnyBody = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, Infallible>;

    /// Returns a body that has this length or, if that is `None`, a length that is not known.
    fn body(length: Option<usize>) -> AnyBody {
        let bytes = bytes::Bytes::from("x".repeat(length.unwrap_or(5)));
        match length {
            Some(_) => http_body_util::Full::new(bytes).boxed_unsync(),
            None => http_body_util::StreamBody::new(futures_util::stream::once(async {
                Ok(hyper::body::Frame::data(bytes))
            }))
            .boxed_unsync(),
        }
    }

    #[test]
    fn heads_of_responses_are_written_as_by_hyper() {
        let methods = ["GET", "HEAD", "POST", "CONNECT"];
        let ends = [
            ("HTTP/1.1", ""),
            ("HTTP/1.1", "connection: close\r\n"),
            ("HTTP/1.1", "te: trailers\r\n"),
            ("HTTP/1.0", ""),
            ("HTTP/1.0", "connection: keep-alive\r\n"),
        ];
        let heads: [(u16, &[(&str, &str)]); 9] = [
            (200, &[]),
            (200, &[("x-a", "1"), ("x-a", "2")]),
            (200, &[("content-length", "5")]),
            (200, &[("trailer", "x-sum")]),
            (204, &[]),
            (304, &[("content-length", "5")]),
            (404, &[("date", "then")]),
            (599, &[]),
            (101, &[("connection", "upgrade"), ("upgrade", "websocket")]),
        ];
        for (method, (version, fields)) in methods.into_iter().flat_map(|method| ends.map(|end| (method, end))) {
            let target = if method == "CONNECT" { "h:80" } else { "/" };
            let request = format!("{method} {target} {version}\r\nhost: h\r\n{fields}\r\n");
            for ((status, headers), length) in
                heads.iter().flat_map(|head| [Some(0), Some(5), None].map(|length| (head, length)))
            {
                let states_length = headers.iter().any(|(name, _)| *name == "content-length");
                // What hyper makes of these differs with the build, or is a mistake of the service.
                if *status == 101 && (version == "HTTP/1.0" || fields.contains("close")) {
                    continue;
                }
                let has_no_body = [101, 204, 304].contains(status) || method == "HEAD" || method == "CONNECT";
                if (states_length && length == Some(0) && method != "HEAD") || (has_no_body && length != Some(0)) {
                    continue;
                }
                let response = || {
                    let mut response = Response::builder().status(*status);
                    for (name, value) in *headers {
                        response = response.header(*name, *value);
                    }
                    response.body(body(length)).unwrap()
                };
                let by_hyper = serve_by_hyper(&[request.as_bytes()], MOST, async |_| response());
                let mut expected = lines(&by_hyper);
                let closes = length.is_none() && version == "HTTP/1.0" && !states_length;
                if closes {
                    // The end of such a body is that of the connection.
                    for line in &mut expected {
                        *line = line.replace("connection: keep-alive", "connection: close");
                    }
                }
                let own = head_of_response(request.as_bytes(), response());
                assert_eq!(lines(&own), expected, "{request:?} {status} {headers:?} {length:?}");
            }
        }
    }
}
