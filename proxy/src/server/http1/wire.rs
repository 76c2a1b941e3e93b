//! An HTTP/1.1 connection as bytes: its socket, what has been read from it, and the body of the current request.
//!
//! # Invariants
//!
//! * While a body is being read, only its reader reads from the socket. Otherwise only the connection's task does.
//! * A body yields no bytes of another request.
//! * A body that its connection has not delivered in full is cut off when the connection closes.
//! * The work for a head that arrives in pieces is bounded.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Frame;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::sync::oneshot;

use super::super::scratch::Scratch;
use super::request_head::{BodyFraming, HeadReading, RequestHead, may_end, read_head};
use crate::message::client_body::{BodyReadError, ClientBody, ClientSwitch, ReadBody};
use crate::message::local_reply::LocalReply;
use crate::tls::Stream;
use crate::upstream::{DecodedPart, Decoder};

/// Chunks up to this size are copied. A request may be kept for another attempt, and each of its frames keeps alive what
/// was read with it, such as the extensions of chunks.
const MAX_COPIED_BYTES: usize = 4 << 10;

/// How much is read behind a request that is being served, by TLS sealed. An end of TLS takes 24 bytes.
const BYTES_BEHIND: usize = 64;

/// What comes next on a connection.
pub(super) enum NextInput {
    Request(Box<RequestHead>),
    /// Bytes that are no request, or not one that is served.
    Refused(LocalReply),
    /// The client has closed its side.
    End,
}

/// A connection as bytes.
pub(super) struct Wire {
    scratch: Scratch,
    state: RefCell<WireState>,
}

struct WireState {
    /// `None` once closed.
    stream: Option<Stream>,
    /// Bytes that were read and are not part of a head or body yet.
    input: BytesMut,
    /// How many bytes of `input` are the beginning of a head that goes on.
    parsed: usize,
    /// The number of the current request.
    request: u64,
    body: Decoder,
    /// Whether the client waits for `100 Continue`, which is due once the body is read.
    expects_continue: bool,
    is_continue_due: bool,
    /// Whoever takes the connection over if it switches to another protocol.
    switch: Option<oneshot::Sender<(Stream, BytesMut)>>,
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
        let state = RefCell::new(WireState {
            stream: Some(stream),
            input,
            parsed: 0,
            request: 0,
            body: Decoder::of_length(0),
            expects_continue: false,
            is_continue_due: false,
            switch: None,
            behind: BYTES_BEHIND,
            broken: None,
            is_held: false,
            reader: None,
            connection: None,
        });
        Rc::new(Wire { scratch, state })
    }

    /// Reads the head of the next request. A head of more than `most` bytes is refused.
    pub(super) fn poll_head(&self, context: &mut Context<'_>, most: usize) -> Poll<NextInput> {
        let state = &mut *self.state.borrow_mut();
        let mut next = state.next(most);
        loop {
            match next {
                Some(next) => return Poll::Ready(next),
                None => next = ready!(state.poll_read(context, &self.scratch, most)),
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
    pub(super) fn begin(self: &Rc<Self>, head: &RequestHead) -> ClientBody {
        let state = &mut *self.state.borrow_mut();
        state.request += 1;
        state.behind = BYTES_BEHIND;
        state.switch = None;
        state.body = match head.framing {
            BodyFraming::Length(length) => Decoder::of_length(length),
            BodyFraming::Chunked => Decoder::of_chunks(),
        };
        state.is_held = !state.body.is_done();
        state.expects_continue = head.expects_continue && state.is_held;
        match state.is_held || head.may_switch {
            true => ClientBody::of_connection(self.clone(), state.request),
            false => ClientBody::empty(),
        }
    }

    /// Returns whether `100 Continue` has to be written now, once.
    pub(super) fn take_continue(&self) -> bool {
        std::mem::take(&mut self.state.borrow_mut().is_continue_due)
    }

    /// Notes that the response begins, behind which no `100 Continue` may come. Returns whether one has to be written before.
    pub(super) fn begin_response(&self) -> bool {
        self.state.borrow_mut().expects_continue = false;
        self.take_continue()
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
        let WireState { stream: Some(stream), input, behind, .. } = state else { return Poll::Ready(()) };
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

    /// Makes the end of the connection a reset, by which the client notices that something is missing.
    pub(super) fn throw_away(&self) {
        if let Some(stream) = &self.state.borrow().stream {
            stream.throw_away();
        }
    }

    /// Shuts this side of the connection down.
    pub(super) fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_stream(|stream| stream.poll_shutdown(context))
    }

    /// Gives the connection to whoever takes it over, with the bytes behind the request. Returns whether there is anybody.
    pub(super) fn switch(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        let (Some(taker), Some(stream)) = (state.switch.take(), state.stream.take()) else { return false };
        taker.send((stream, std::mem::take(&mut state.input))).is_ok()
    }

    /// Ends the connection, and cuts off a body that is still being read. Returns its stream.
    pub(super) fn close(&self) -> Option<Stream> {
        let (stream, reader) = {
            let state = &mut *self.state.borrow_mut();
            (state.switch, state.input) = (None, BytesMut::new());
            (state.stream.take(), state.reader.take())
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        stream
    }
}

impl WireState {
    /// Returns what has arrived of a next request, unless that goes on.
    fn next(&mut self, most: usize) -> Option<NextInput> {
        self.skip_empty_lines();
        if self.input.is_empty() {
            return None;
        }
        let parsed = std::mem::replace(&mut self.parsed, self.input.len());
        if parsed == self.input.len() || (parsed > 0 && !may_end(&self.input, parsed, most)) {
            return None;
        }
        match read_head(&self.input, most) {
            HeadReading::Partial => None,
            HeadReading::Head(head, length) => {
                self.input.advance(length);
                self.parsed = 0;
                Some(NextInput::Request(head))
            }
            HeadReading::Refused(reply) => Some(NextInput::Refused(reply)),
        }
    }

    /// Some clients send an empty line behind a body.
    fn skip_empty_lines(&mut self) {
        while self.input.starts_with(b"\r\n") {
            self.input.advance(2);
            self.parsed = 0;
        }
        if self.input.is_empty() && self.input.capacity() > 0 {
            self.input = BytesMut::new();
        }
    }

    /// Reads once, and returns what has arrived of a next request, unless that goes on. What arrives where nothing waited
    /// before is usually one head, which is parsed in place.
    fn poll_read(&mut self, context: &mut Context<'_>, scratch: &Scratch, most: usize) -> Poll<Option<NextInput>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Some(NextInput::End)) };
        let mut scratch = scratch.read();
        let mut buffer = ReadBuf::new(&mut scratch);
        let read = ready!(Pin::new(stream).poll_read(context, &mut buffer));
        let bytes = buffer.filled();
        if read.is_err() || bytes.is_empty() {
            return Poll::Ready(Some(NextInput::End));
        }
        if self.input.is_empty() {
            match read_head(bytes, most) {
                HeadReading::Head(head, length) => {
                    append(&mut self.input, &bytes[length..]);
                    return Poll::Ready(Some(NextInput::Request(head)));
                }
                HeadReading::Refused(reply) => return Poll::Ready(Some(NextInput::Refused(reply))),
                HeadReading::Partial => self.parsed = bytes.len(),
            }
        }
        append(&mut self.input, bytes);
        Poll::Ready(self.next(most))
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
        if std::mem::take(&mut self.expects_continue) {
            self.is_continue_due = true;
            if let Some(connection) = self.connection.take() {
                connection.wake();
            }
        }
        loop {
            if let Some(error) = self.broken {
                return Poll::Ready(Some(Err(error)));
            }
            match self.body.decode(&mut self.input) {
                Ok(DecodedPart::Data(data)) => {
                    let is_small_chunk = self.body.left().is_none() && data.len() <= MAX_COPIED_BYTES;
                    let data = if is_small_chunk { Bytes::copy_from_slice(&data) } else { data };
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(DecodedPart::Trailers(trailers)) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Ok(DecodedPart::End) => return Poll::Ready(None),
                Ok(DecodedPart::Starved) => {
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

    fn on_switch(&self, request: u64) -> ClientSwitch {
        let (taker, switch) = oneshot::channel();
        let state = &mut *self.state.borrow_mut();
        if state.request == request {
            state.switch = Some(taker);
        }
        switch
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
        let NextInput::Request(head) = next else { panic!("no request") };
        let mut body = wire.begin(&head);
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
        let NextInput::Request(head) = next else { panic!("no request") };
        drop(wire.begin(&head));
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
        let NextInput::Request(head) = next else { panic!("no request") };
        drop(wire.begin(&head));
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
