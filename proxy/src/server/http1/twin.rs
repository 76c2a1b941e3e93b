//! Reads requests from bytes alone, once as this half of the server does and once by hyper, so that both readings can be
//! compared: here with random requests, and in `tests/fuzz`.
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
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::request_head::{Framing, Reading, read_head};
use crate::upstream::{Decoded, Decoder};

/// A request as far as it has been read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// The method.
    pub(crate) method: Method,
    /// The target.
    pub(crate) uri: Uri,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body, or its beginning.
    pub(crate) body: Vec<u8>,
    /// The trailers.
    pub(crate) trailers: Option<HeaderMap>,
    /// Whether the body has been read to its end.
    pub(crate) is_whole: bool,
}

/// Why no further request has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// More bytes are needed.
    Starved,
    /// The last request asks for the end of the connection.
    Close,
    /// A head is left to hyper.
    NotPlain,
    /// A body is not framed as its head says.
    Garbled,
}

/// Reads requests from these pieces as this half of the server does. `most` bounds their heads.
pub(crate) fn read(pieces: &[&[u8]], most: usize) -> (Vec<ReadRequest>, Stop) {
    let mut pieces = pieces.iter();
    let (mut input, mut requests) = (BytesMut::new(), Vec::new());
    loop {
        while input.starts_with(b"\r\n") {
            input.advance(2);
        }
        let (head, length) = match read_head(&input, most) {
            Reading::Plain(head, length) => (head, length),
            Reading::Other => return (requests, Stop::NotPlain),
            Reading::Partial => match pieces.next() {
                Some(piece) => {
                    input.extend_from_slice(piece);
                    continue;
                }
                None => return (requests, Stop::Starved),
            },
        };
        input.advance(length);
        let parts = head.parts;
        let mut request =
            ReadRequest { method: parts.method, uri: parts.uri, headers: parts.headers, ..ReadRequest::default() };
        let mut decoder = match head.framing {
            Framing::Length(length) => Decoder::of_length(length),
            Framing::Chunked => Decoder::of_chunks(),
        };
        let stop = loop {
            match decoder.decode(&mut input) {
                Ok(Decoded::Data(data)) => request.body.extend_from_slice(&data),
                Ok(Decoded::Trailers(trailers)) => request.trailers = Some(trailers),
                Ok(Decoded::Starved) => match pieces.next() {
                    Some(piece) => input.extend_from_slice(piece),
                    None => break Some(Stop::Starved),
                },
                Ok(Decoded::End) => {
                    request.is_whole = true;
                    break head.close.then_some(Stop::Close);
                }
                Err(_) => break Some(Stop::Garbled),
            }
        };
        requests.push(request);
        if let Some(stop) = stop {
            return (requests, stop);
        }
    }
}

/// Reads requests from these pieces by hyper's server.
pub(crate) fn read_by_hyper(pieces: &[&[u8]], most: usize) -> Vec<ReadRequest> {
    let requests = Rc::new(RefCell::new(Vec::new()));
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let requests = requests.clone();
        async move {
            let (head, mut body) = request.into_parts();
            let index = requests.borrow().len();
            let (method, uri, headers) = (head.method, head.uri, head.headers);
            requests.borrow_mut().push(ReadRequest { method, uri, headers, ..ReadRequest::default() });
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
            Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
        }
    });
    let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.header_read_timeout(None).max_header_size(most).max_buf_size(most.saturating_mul(2).max(16 << 10));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(Pieces(pieces)), service));
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    // Without a further byte nothing wakes the connection in the end.
    while woken.0.swap(false, Relaxed) {
        if connection.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            break;
        }
    }
    requests.take()
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// A connection on which these pieces arrive and nothing else, not even an end.
struct Pieces(VecDeque<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(mut piece) = self.0.pop_front() else { return Poll::Pending };
        let rest = piece.split_off(piece.len().min(buffer.remaining()));
        buffer.put_slice(&piece);
        if !rest.is_empty() {
            self.0.push_front(rest);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Checks that hyper reads everything that this half reads, and reads it in the same way.
///
/// # Panics
///
/// If it does not.
pub(crate) fn compare(pieces: &[&[u8]], most: usize) {
    let (ours, stop) = read(pieces, most);
    let hypers = read_by_hyper(pieces, most);
    assert!(ours.len() <= hypers.len(), "hyper refuses what is read as {ours:?}");
    for (index, (own, hyper)) in ours.iter().zip(&hypers).enumerate() {
        assert_eq!((&own.method, &own.uri, &own.headers), (&hyper.method, &hyper.uri, &hyper.headers));
        if stop == Stop::Garbled && index + 1 == ours.len() {
            // Then hyper may accept more than this half does.
            assert!(hyper.body.starts_with(&own.body));
        } else {
            assert_eq!((own.is_whole, &own.body), (hyper.is_whole, &hyper.body), "{own:?}");
            assert_eq!(own.trailers, hyper.trailers);
        }
    }
    if matches!(stop, Stop::Starved | Stop::Close) {
        assert_eq!(ours.len(), hypers.len(), "hyper finds more requests than {ours:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::RngSeed;

    use super::*;

    const MOST: usize = 64 << 10;

    /// Lines of heads and pieces of bodies, valid and not.
    const TEXTS: &[&str] = &[
        "GET / HTTP/1.1\r\n",
        "POST /a?b=c HTTP/1.1\r\n",
        "HEAD * HTTP/1.1\r\n",
        "GET http://h:1/a HTTP/1.1\r\n",
        "GET h HTTP/1.1\r\n",
        "get / HTTP/1.1\n",
        "GET / HTTP/1.0\r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "host: h\r\n",
        "Host : h\r\n",
        " folded\r\n",
        "content-length: 5\r\n",
        "Content-Length: 05\r\n",
        "content-length: 5, 5\r\n",
        "content-length: +5\r\n",
        "content-length:5 \r\n",
        "transfer-encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "transfer-encoding: Chunked\n",
        "connection: close\r\n",
        "connection: keep-alive, Close\r\n",
        "connection: upgrade\r\nupgrade: websocket\r\n",
        "expect: 100-continue\r\n",
        "te: trailers\r\n",
        "x: \t y z \r\n",
        "x: \u{e9}\r\n",
        "x:\r\n",
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
        let request = (texts(&TEXTS[..4], 1..2), texts(&TEXTS[10..29], 0..4), texts(&TEXTS[29..], 0..4));
        let request = request.prop_map(|(start, lines, body)| [start, lines, b"\r\n".to_vec(), body].concat());
        prop_oneof![request, texts(TEXTS, 1..8)]
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
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
            compare(&pieces, MOST);
            assert_eq!(read(&pieces, MOST), read(&[&bytes], MOST), "the same bytes, cut differently");
        }
    }
}
