//! A plain HTTP/1.1 connection as bytes: its socket, what has been read from it, and the body of the current request.
//!
//! # Invariants
//!
//! * While a body is being read, only its reader reads from the socket. Otherwise only the connection's task does.
//! * A body yields no bytes of another request.
//! * A body that its connection has not delivered in full is cut off when the connection closes.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Frame;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use super::request_head::{Framing, Reading, RequestHead, read_head};
use super::scratch::Scratch;
use crate::message::client_body::{BodyReadError, ClientBody, ReadBody};
use crate::tls::Stream;
use crate::upstream::{Decoded, Decoder};

/// Chunks up to this size are copied. A request may be kept for another attempt, and each of its frames keeps alive what
/// was read with it, such as the extensions of chunks.
const MAX_COPIED_BYTES: usize = 4 << 10;

/// How much is read behind a request that is being served, by TLS sealed. An end of TLS takes 24 bytes.
const BYTES_BEHIND: usize = 64;

/// What comes next on a connection.
pub(super) enum Next {
    Request(Box<RequestHead>),
    /// Something that only hyper may judge.
    Other,
    /// The client has closed its side.
    End,
}

/// A connection as bytes.
pub(super) struct Wire {
    scratch: Scratch,
    state: RefCell<State>,
}

struct State {
    /// `None` once closed.
    stream: Option<Stream>,
    /// Bytes that were read and belong to nothing yet.
    input: BytesMut,
    /// The number of the current request.
    request: u64,
    body: Decoder,
    /// How many bytes may still be read behind it, where that is not seen from `input`.
    behind: usize,
    /// Why the body can go on no further.
    broken: Option<BodyReadError>,
    /// Whether something still refers to the body.
    is_held: bool,
    /// Waits for more of the body.
    reader: Option<Waker>,
    /// Waits until the body is not read any further.
    connection: Option<Waker>,
}

impl Wire {
    /// `input`: what has been read from the stream already.
    pub(super) fn new(stream: Stream, input: BytesMut, scratch: Scratch) -> Rc<Self> {
        let state = RefCell::new(State {
            stream: Some(stream),
            input,
            request: 0,
            body: Decoder::of_length(0),
            behind: BYTES_BEHIND,
            broken: None,
            is_held: false,
            reader: None,
            connection: None,
        });
        Rc::new(Wire { scratch, state })
    }

    /// Reads the head of the next request. A head of more than `most` bytes is left to hyper.
    pub(super) fn poll_head(&self, context: &mut Context<'_>, most: usize) -> Poll<Next> {
        let state = &mut *self.state.borrow_mut();
        loop {
            // Some clients send an empty line behind a body.
            while state.input.starts_with(b"\r\n") {
                state.input.advance(2);
            }
            if state.input.is_empty() {
                state.input = BytesMut::new();
            } else {
                match read_head(&state.input, most) {
                    Reading::Plain(head, length) => {
                        state.input.advance(length);
                        return Poll::Ready(Next::Request(head));
                    }
                    Reading::Other => return Poll::Ready(Next::Other),
                    Reading::Partial => {}
                }
            }
            match ready!(state.poll_read(context, &self.scratch, most)) {
                Ok(Arrived::Request(head)) => return Poll::Ready(Next::Request(head)),
                Ok(Arrived::Bytes) => {}
                Ok(Arrived::End) | Err(_) => return Poll::Ready(Next::End),
            }
        }
    }

    /// Returns whether nothing of a next request has arrived.
    pub(super) fn is_between_requests(&self) -> bool {
        self.state.borrow().input.is_empty()
    }

    /// Returns how many bytes of memory hold what has arrived and belongs to nothing yet.
    pub(super) fn memory(&self) -> usize {
        self.state.borrow().input.capacity()
    }

    /// Begins a request. Returns its body.
    pub(super) fn begin(self: &Rc<Self>, framing: Framing) -> ClientBody {
        let state = &mut *self.state.borrow_mut();
        state.request += 1;
        state.behind = BYTES_BEHIND;
        state.body = match framing {
            Framing::Length(length) => Decoder::of_length(length),
            Framing::Chunked => Decoder::of_chunks(),
        };
        state.is_held = !state.body.is_done();
        if state.is_held { ClientBody::of_connection(self.clone(), state.request) } else { ClientBody::empty() }
    }

    /// Ready when the client has closed its side. Notices that only between the end of a body and the next request,
    /// because bytes that wait to be interpreted stop the reading. A few of them do: requests that are held have to be small.
    pub(super) fn poll_gone(&self, context: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.state.borrow_mut();
        if !state.body.is_done() {
            // The end of the body may be read in another task.
            state.connection = Some(context.waker().clone());
            return Poll::Pending;
        }
        if !state.input.is_empty() {
            return Poll::Pending;
        }
        // An empty handle still holds the memory of the request that was read.
        state.input = BytesMut::new();
        let State { stream: Some(stream), input, behind, .. } = state else { return Poll::Ready(()) };
        let mut scratch = self.scratch.read();
        let mut buffer = ReadBuf::new(&mut scratch[..BYTES_BEHIND]);
        let read = ready!(stream.poll_read_few(context, &mut buffer, behind));
        if read.is_err() || buffer.filled().is_empty() {
            return Poll::Ready(());
        }
        append(input, buffer.filled());
        Poll::Pending
    }

    /// Ready when the body of the current request is not read any further. Returns whether all of it was read.
    pub(super) fn poll_settled(&self, context: &mut Context<'_>) -> Poll<bool> {
        let state = &mut *self.state.borrow_mut();
        if state.is_held && !state.body.is_done() && state.broken.is_none() {
            state.connection = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.body.is_done())
    }

    /// Returns whether the client has closed its side, as far as the kernel knows.
    pub(super) fn is_closed_by_peer(&self) -> bool {
        self.state.borrow().stream.as_ref().is_none_or(Stream::is_closed_by_peer)
    }

    /// Returns the buffers of the connection's worker.
    pub(super) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Runs `work` on the stream.
    pub(super) fn poll_stream<T>(
        &self,
        work: impl FnOnce(Pin<&mut Stream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.state.borrow_mut().stream {
            Some(stream) => work(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Shuts this side of the connection down.
    pub(super) fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_stream(|stream| stream.poll_shutdown(context))
    }

    /// Ends the connection, and cuts off a body that is still being read. Returns its stream, and the bytes that were
    /// read and belong to no request.
    pub(super) fn close(&self) -> Option<(Stream, Bytes)> {
        let (stream, input, reader) = {
            let state = &mut *self.state.borrow_mut();
            (state.stream.take(), std::mem::take(&mut state.input), state.reader.take())
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        Some((stream?, input.freeze()))
    }
}

/// What a read has brought.
enum Arrived {
    /// A plain request's head, and perhaps bytes behind it.
    Request(Box<RequestHead>),
    Bytes,
    End,
}

impl State {
    /// Reads once. What arrives where nothing waited before is usually one head, which is parsed in place.
    fn poll_read(&mut self, context: &mut Context<'_>, scratch: &Scratch, most: usize) -> Poll<io::Result<Arrived>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(Arrived::End)) };
        let mut scratch = scratch.read();
        let mut buffer = ReadBuf::new(&mut scratch);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let bytes = buffer.filled();
        if bytes.is_empty() {
            return Poll::Ready(Ok(Arrived::End));
        }
        if self.input.is_empty()
            && let Reading::Plain(head, length) = read_head(bytes, most)
        {
            append(&mut self.input, &bytes[length..]);
            return Poll::Ready(Ok(Arrived::Request(head)));
        }
        append(&mut self.input, bytes);
        Poll::Ready(Ok(Arrived::Bytes))
    }

    /// Reads once and appends. Returns how many bytes have arrived, 0 at the end.
    fn poll_bytes(&mut self, context: &mut Context<'_>, scratch: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(0)) };
        let mut buffer = ReadBuf::new(scratch);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        append(&mut self.input, buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn poll_body(
        &mut self,
        context: &mut Context<'_>,
        scratch: &Scratch,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyReadError>>> {
        loop {
            if let Some(error) = self.broken {
                return Poll::Ready(Some(Err(error)));
            }
            match self.body.decode(&mut self.input) {
                Ok(Decoded::Data(data)) => {
                    let is_small_chunk = self.body.left().is_none() && data.len() <= MAX_COPIED_BYTES;
                    let data = if is_small_chunk { Bytes::copy_from_slice(&data) } else { data };
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(Decoded::Trailers(trailers)) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Ok(Decoded::End) => return Poll::Ready(None),
                Ok(Decoded::Starved) => {
                    if self.input.is_empty() {
                        // An empty handle still holds the memory of what was read.
                        self.input = BytesMut::new();
                    }
                    let Poll::Ready(read) = self.poll_bytes(context, &mut scratch.read()) else {
                        self.reader = Some(context.waker().clone());
                        return Poll::Pending;
                    };
                    if !matches!(read, Ok(1..)) {
                        self.broken = Some(BodyReadError::CutOff);
                    }
                }
                Err(_) => self.broken = Some(BodyReadError::Malformed),
            }
        }
    }
}

/// Appends bytes. An empty buffer is replaced by one of their size: it would grow to the size that it once had.
fn append(buffer: &mut BytesMut, bytes: &[u8]) {
    if buffer.is_empty() {
        *buffer = BytesMut::from(bytes);
    } else {
        buffer.extend_from_slice(bytes);
    }
}

impl ReadBody for Wire {
    fn poll_frame(&self, request: u64, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyReadError>>> {
        let state = &mut *self.state.borrow_mut();
        if state.request != request {
            // A next request begins only behind the end of this one.
            return Poll::Ready(None);
        }
        let frame = state.poll_body(context, &self.scratch);
        if (state.body.is_done() || state.broken.is_some())
            && let Some(connection) = state.connection.take()
        {
            connection.wake();
        }
        frame
    }

    fn is_ended(&self, request: u64) -> bool {
        let state = self.state.borrow();
        state.request != request || state.body.is_done()
    }

    fn left(&self, request: u64) -> Option<u64> {
        let state = self.state.borrow();
        if state.request == request { state.body.left() } else { Some(0) }
    }

    fn buffered(&self) -> usize {
        self.state.borrow().input.len()
    }

    fn release(&self, request: u64) {
        let state = &mut *self.state.borrow_mut();
        if state.request == request {
            state.is_held = false;
            if let Some(connection) = state.connection.take() {
                connection.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt as _;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_body_whose_rest_has_not_arrived_holds_nothing_of_what_was_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 20\r\n\r\n0123456789").await.unwrap();

        let wire = Wire::new(Stream::Plain(server), BytesMut::new(), Scratch::default());
        let next = std::future::poll_fn(|context| wire.poll_head(context, 64 << 10)).await;
        let Next::Request(head) = next else { panic!("no request") };
        let mut body = wire.begin(head.framing);
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(data, "0123456789");
        let mut starved = Pin::new(&mut body);
        assert!(std::future::poll_fn(|context| Poll::Ready(starved.as_mut().poll_frame(context).is_pending())).await);
        assert!(data.is_unique());
    }

    #[tokio::test]
    async fn little_is_read_behind_a_request_that_is_being_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();

        let wire = Wire::new(Stream::Plain(server), BytesMut::new(), Scratch::default());
        let next = std::future::poll_fn(|context| wire.poll_head(context, 64 << 10)).await;
        let Next::Request(head) = next else { panic!("no request") };
        drop(wire.begin(head.framing));
        client.write_all(&[b'x'; 100 << 10]).await.unwrap();
        while wire.buffered() == 0 {
            assert!(std::future::poll_fn(|context| Poll::Ready(wire.poll_gone(context).is_pending())).await);
            tokio::task::yield_now().await;
        }
        assert!(std::future::poll_fn(|context| Poll::Ready(wire.poll_gone(context).is_pending())).await);
        assert!(wire.buffered() <= 100, "{}", wire.buffered());
    }

    #[tokio::test]
    async fn as_little_is_read_by_tls() {
        /// As many bytes, and in TLS 1.3 for each record 22 more.
        const SEALED: usize = (40 << 10) + 3 * 22;
        let (mut client, server) = crate::tls::pair().await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();

        let wire = Wire::new(server, BytesMut::new(), Scratch::default());
        let next = std::future::poll_fn(|context| wire.poll_head(context, 64 << 10)).await;
        let Next::Request(head) = next else { panic!("no request") };
        drop(wire.begin(head.framing));
        let in_kernel = || {
            let state = wire.state.borrow();
            let mut bytes = vec![std::mem::MaybeUninit::uninit(); 2 * SEALED];
            socket2::SockRef::from(state.stream.as_ref().unwrap().socket()).peek(&mut bytes).unwrap_or(0)
        };
        client.write_all(&[b'x'; 40 << 10]).await.unwrap();
        client.flush().await.unwrap();
        while in_kernel() < SEALED {
            tokio::task::yield_now().await;
        }
        while in_kernel() == SEALED {
            assert!(std::future::poll_fn(|context| Poll::Ready(wire.poll_gone(context).is_pending())).await);
            tokio::task::yield_now().await;
        }
        for _ in 0..1000 {
            assert!(std::future::poll_fn(|context| Poll::Ready(wire.poll_gone(context).is_pending())).await);
        }
        assert_eq!(in_kernel(), SEALED - BYTES_BEHIND);
        assert_eq!(wire.buffered(), 0, "nothing of it can be opened");
        // What was left is read as the next request.
        while wire.buffered() == 0 {
            let _ = std::future::poll_fn(|context| Poll::Ready(wire.poll_head(context, 64 << 10))).await;
        }
    }
}
