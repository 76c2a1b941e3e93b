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
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::io::AsyncRead;

use super::connection::{Connection, MAX_IDLE_AGE, READ_BYTES};
use super::decoder::{Decoded, Decoder};
use super::response_head::ResponseHead;
use crate::tls::{ReadHalf, Stream};
use crate::upstream::error::Broken;
use crate::upstream::pool::Pool;

/// Bounds of the room for one read, which grows while reads fill it.
const MAX_ROOM_BYTES: usize = 64 << 10;
const MIN_ROOM_BYTES: usize = 1 << 10;

/// The body of a response.
pub(crate) struct Reader {
    side: Side,
    read: BytesMut,
    decoder: Decoder,
    /// Bytes of room for the next read.
    room: usize,
    /// How long the connection may be idle afterwards.
    keep_for: Duration,
    is_doubtful: bool,
}

enum Side {
    /// The whole connection, with the buffer for its next request and the pool that gets it afterwards.
    Whole(Stream, BytesMut, Option<Rc<Pool<Connection>>>),
    /// The reading half, while the request is still being sent.
    Half(ReadHalf),
    /// The connection has been given back or closed.
    Gone,
}

impl Reader {
    /// `pool` gets the connection afterwards, if it can be used again.
    pub(super) fn new(
        stream: Stream,
        read: BytesMut,
        write: BytesMut,
        head: &ResponseHead,
        pool: Option<Rc<Pool<Connection>>>,
    ) -> Self {
        let mut reader = Reader {
            side: Side::Whole(stream, write, pool.filter(|_| head.keep_alive)),
            read,
            decoder: Decoder::new(head.framing),
            room: READ_BYTES,
            keep_for: head.keep_for.unwrap_or(MAX_IDLE_AGE).min(MAX_IDLE_AGE),
            is_doubtful: head.is_bodiless,
        };
        reader.give_back_if_done();
        reader
    }

    pub(super) fn half(stream: ReadHalf, read: BytesMut, head: &ResponseHead) -> Self {
        Reader {
            side: Side::Half(stream),
            read,
            decoder: Decoder::new(head.framing),
            room: READ_BYTES,
            keep_for: MAX_IDLE_AGE,
            is_doubtful: false,
        }
    }

    /// Returns the half that was read, if the other one is still being written to.
    pub(crate) fn into_half(self) -> Option<ReadHalf> {
        match self.side {
            Side::Half(stream) => Some(stream),
            Side::Whole(..) | Side::Gone => None,
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
        if left > self.read.len() {
            return None;
        }
        let data = self.read.split_to(left).freeze();
        self.decoder = Decoder::Done;
        self.give_back_if_done();
        Some(data)
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            let decoded = match self.decoder.decode(&mut self.read) {
                Ok(decoded) => decoded,
                Err(_) => return Poll::Ready(Some(Err(Broken::Garbled))),
            };
            self.give_back_if_done();
            match decoded {
                Decoded::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Decoded::Trailers(trailers) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Decoded::End => return Poll::Ready(None),
                Decoded::Starved => {}
            }
            let filled = match &mut self.side {
                Side::Whole(stream, ..) => poll_fill(stream, &mut self.read, self.room, context),
                Side::Half(stream) => poll_fill(stream, &mut self.read, self.room, context),
                Side::Gone => Poll::Ready(Ok(0)),
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
        if !self.decoder.is_done() {
            return;
        }
        if matches!(self.side, Side::Half(_)) {
            return;
        }
        if let Side::Whole(stream, mut write, Some(pool)) = std::mem::replace(&mut self.side, Side::Gone)
            && self.read.is_empty()
        {
            write.clear();
            let (read, idle_since) = (std::mem::take(&mut self.read), pool.now());
            let (keep_for, is_doubtful) = (self.keep_for, self.is_doubtful);
            pool.give_back(Connection { stream, read, write, idle_since, keep_for, is_first: false, is_doubtful });
        }
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
