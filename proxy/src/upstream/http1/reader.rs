//! Reads the body of a response and gives its connection back.
//!
//! # Invariants
//!
//! * The connection is given back only if the response was read to its end, the request was sent to its end, and
//!   nothing is left over. Dropping the reader before that closes it.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::Frame;
use tokio::io::AsyncRead;

use super::connection::{MAX_IDLE_AGE, PodConnection, READ_BYTES};
use super::decoder::{DecodedPart, Decoder};
use super::framing_headers::ResponseFraming;
use super::response_head::ResponseHead;
use crate::tls::ReadHalf;
use crate::upstream::error::Broken;
use crate::upstream::pool::Pool;

/// Bounds of the room for one read, which grows while reads fill it.
const MAX_ROOM_BYTES: usize = 64 << 10;
const MIN_ROOM_BYTES: usize = 1 << 10;

/// The body of a response.
pub(crate) enum Body {
    /// It has arrived already. Its connection has been given back or closed.
    Whole(Bytes),
    Reader(BodyReader),
}

impl Body {
    /// `pool` gets the connection afterwards, if it can be used again.
    pub(super) fn new(
        mut connection: Box<PodConnection>,
        head: &ResponseHead,
        pool: Option<Rc<Pool<Box<PodConnection>>>>,
    ) -> Self {
        connection.upload.clear();
        connection.is_first = false;
        connection.is_doubtful = head.is_bodiless;
        connection.keep_for = head.keep_for.unwrap_or(MAX_IDLE_AGE).min(MAX_IDLE_AGE);
        // Many servers close a connection behind an exception, without a word. The next request on it would be lost.
        let pool = pool.filter(|_| head.keep_alive && head.status != StatusCode::INTERNAL_SERVER_ERROR);
        if let ResponseFraming::Length(length) = head.framing
            && let Ok(length) = usize::try_from(length)
            && length <= connection.read.len()
        {
            let whole = connection.read.split_to(length).freeze();
            give_back(connection, pool);
            return Body::Whole(whole);
        }
        let decoder = Decoder::new(head.framing);
        Body::Reader(BodyReader { side: ReadSide::Whole(connection, pool), decoder, room: READ_BYTES })
    }
}

/// Reads the body of a response.
pub(crate) struct BodyReader {
    side: ReadSide,
    decoder: Decoder,
    /// Bytes of room for the next read.
    room: usize,
}

enum ReadSide {
    /// The whole connection, and the pool that gets it afterwards.
    Whole(Box<PodConnection>, Option<Rc<Pool<Box<PodConnection>>>>),
    /// The reading half, and what has been read from it, while the request is still being sent.
    Half(ReadHalf, BytesMut),
    /// The body has been read. Its connection has been given back or closed.
    Gone,
}

impl ReadSide {
    /// Returns what has been read.
    fn read(&mut self) -> Option<&mut BytesMut> {
        match self {
            ReadSide::Whole(connection, _) => Some(&mut connection.read),
            ReadSide::Half(_, read) => Some(read),
            ReadSide::Gone => None,
        }
    }
}

impl BodyReader {
    pub(super) fn half(stream: ReadHalf, read: BytesMut, head: &ResponseHead) -> Self {
        BodyReader { side: ReadSide::Half(stream, read), decoder: Decoder::new(head.framing), room: READ_BYTES }
    }

    /// Returns the half that was read, if the other one is still being written to.
    pub(crate) fn into_half(self) -> Option<ReadHalf> {
        match self.side {
            ReadSide::Half(stream, _) => Some(stream),
            ReadSide::Whole(..) | ReadSide::Gone => None,
        }
    }

    /// Returns whether everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Returns how much is left, where that is known.
    pub(crate) fn left(&self) -> Option<u64> {
        self.decoder.left()
    }

    /// Returns the whole body if it has arrived and its length is known. That frees the connection.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        let left = usize::try_from(self.decoder.left()?).ok()?;
        let Some(read) = self.side.read() else { return Some(Bytes::new()) };
        if left > read.len() {
            return None;
        }
        let data = read.split_to(left).freeze();
        self.decoder = Decoder::Done;
        self.give_back_if_done();
        Some(data)
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            let Some(read) = self.side.read() else { return Poll::Ready(None) };
            let decoded = match self.decoder.decode(read) {
                Ok(decoded) => decoded,
                Err(_) => return Poll::Ready(Some(Err(Broken::Garbled))),
            };
            self.give_back_if_done();
            match decoded {
                DecodedPart::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                DecodedPart::Trailers(trailers) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                DecodedPart::End => return Poll::Ready(None),
                DecodedPart::Starved => {}
            }
            let filled = match &mut self.side {
                ReadSide::Whole(connection, _) => {
                    let PodConnection { stream, read, .. } = &mut **connection;
                    poll_fill(stream, read, self.room, context)
                }
                ReadSide::Half(stream, read) => poll_fill(stream, read, self.room, context),
                ReadSide::Gone => Poll::Ready(Ok(0)),
            };
            match filled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    if self.decoder.end_of_input().is_err() {
                        return Poll::Ready(Some(Err(Broken::Closed)));
                    }
                }
                Poll::Ready(Ok(read)) if read >= self.room => self.room = (2 * self.room).min(MAX_ROOM_BYTES),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Some(Err(Broken::Closed))),
            }
        }
    }

    fn give_back_if_done(&mut self) {
        if !self.decoder.is_done() || matches!(self.side, ReadSide::Half(..)) {
            return;
        }
        if let ReadSide::Whole(connection, pool) = std::mem::replace(&mut self.side, ReadSide::Gone) {
            give_back(connection, pool);
        }
    }
}

/// Gives a connection back whose response has been read, or closes it.
fn give_back(mut connection: Box<PodConnection>, pool: Option<Rc<Pool<Box<PodConnection>>>>) {
    if let Some(pool) = pool
        && connection.read.is_empty()
        && !connection.upload.has_trailers
    {
        connection.idle_since = pool.now();
        pool.give_back(connection);
    }
}

/// Reads once. Makes room for `room` bytes if there is too little left to be worth a system call.
pub(super) fn poll_fill<R: AsyncRead + Unpin>(
    io: &mut R,
    buffer: &mut BytesMut,
    room: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    if buffer.capacity() - buffer.len() < MIN_ROOM_BYTES.max(room / 2) {
        // Most of what was handed out is free by now, and this reclaims it instead of allocating.
        buffer.reserve(room);
    }
    tokio_util::io::poll_read_buf(Pin::new(io), context, buffer)
}
