//! A client's connection by HTTP/2 as hyper reads and writes it.
//!
//! Puts back what was read to tell HTTP/1.1 from HTTP/2, follows heads that do not end, and counts the streams that `h2`
//! resets.
//!
//! # Invariants
//!
//! * Bytes pass unchanged.
//! * A connection that is shut down on this side is read on, so that it is not reset.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::linger::Linger;
use super::resets::Resets;
use super::unfinished_head::UnfinishedHead;
use crate::message::local_reply::LocalReply;
use crate::tls::Stream;

/// Largest frames that are written in one piece.
const MAX_JOINED_BYTES: usize = 1 << 10;

/// Facts about what has arrived from a client, shared with its connection.
#[derive(Debug, Default)]
pub(super) struct UnreadInput {
    /// Whether it ends in the middle of a head. By HTTP/2, ahead of the first frames.
    in_head: Cell<bool>,
    /// About how many bytes a head by HTTP/2 that has not ended takes up in memory.
    unfinished: Cell<usize>,
    /// Whether the rest of it is discarded: the connection is shut down on this side.
    discarded: Cell<bool>,
    /// How many streams `h2` has reset by its own decision, and how many of them because their requests were malformed.
    resets: Cell<u32>,
    malformed: Cell<u32>,
}

impl UnreadInput {
    pub(super) fn is_in_head(&self) -> bool {
        self.in_head.get()
    }

    pub(super) fn set_in_head(&self, in_head: bool) {
        self.in_head.set(in_head);
    }

    /// Returns about how many bytes a head by HTTP/2 that has not ended takes up in memory.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.get()
    }

    pub(super) fn is_discarded(&self) -> bool {
        self.discarded.get()
    }

    /// Returns how many streams `h2` has reset by its own decision.
    pub(super) fn resets(&self) -> u32 {
        self.resets.get()
    }

    /// Takes the number of malformed requests that `h2` has refused since the last call.
    pub(super) fn take_malformed(&self) -> u32 {
        self.malformed.take()
    }
}

pub(super) struct ClientIo {
    stream: Stream,
    /// Bytes that were read before hyper got the connection.
    ahead: Bytes,
    arrived: Rc<UnreadInput>,
    /// The value of `is_write_vectored`, which `h2` reads when it takes the connection over. If it is false, `h2`
    /// copies data frames of up to 1 KiB, instead of 256 bytes, behind the frames before them. It then writes a small
    /// response with its trailers, or several small responses, at once. For larger frames `h2` reads the value again.
    is_vectored: bool,
    resets: Resets,
    unfinished: UnfinishedHead,
    /// Most bytes of a head that `h2` keeps decoded.
    most_decoded: usize,
    /// Reads on behind the shutdown of the connection, which hyper never gives back.
    linger: Option<Linger>,
}

impl ClientIo {
    pub(super) fn new(stream: Stream, ahead: Bytes, arrived: Rc<UnreadInput>, max_header_bytes: usize) -> Self {
        let mut io = ClientIo {
            stream,
            ahead: Bytes::new(),
            arrived,
            is_vectored: false,
            resets: Resets::default(),
            unfinished: UnfinishedHead::default(),
            most_decoded: max_header_bytes.saturating_mul(4),
            linger: None,
        };
        io.note(&ahead);
        io.ahead = ahead;
        io
    }

    /// Notes frames that have arrived.
    fn note(&mut self, bytes: &[u8]) {
        self.arrived.unfinished.set(self.unfinished.follow(bytes, self.most_decoded));
    }

    /// Notes frames that have been written.
    fn note_frames(&mut self, bytes: &[u8]) {
        let counts = self.resets.follow(bytes);
        if counts.by_h2 > 0 {
            self.arrived.resets.set(self.arrived.resets.get() + counts.by_h2);
            self.arrived.malformed.set(self.arrived.malformed.get() + counts.malformed);
        }
    }
}

/// Returns a local reply to bytes that never became a request, as HTTP/1.1 writes it. The connection closes behind it.
pub(super) fn local_reply_bytes(reply: LocalReply) -> Bytes {
    let response = reply.response(None, false);
    let status = response.status();
    let phrase = status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {phrase}\r\nconnection: close\r\n", status.as_u16()).into_bytes();
    for (name, value) in response.headers() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(response.body());
    Bytes::from(bytes)
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead.split_to(length));
            return Poll::Ready(Ok(()));
        }
        let filled = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.note(&buffer.filled()[filled..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.is_vectored = true;
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
        this.note_frames(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = slices {
            return self.poll_write(context, only);
        }
        // Copying a small frame behind others costs less than a second slice costs the kernel.
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if length <= MAX_JOINED_BYTES {
            let mut joined = [0; MAX_JOINED_BYTES];
            let mut end = 0;
            for slice in slices {
                joined[end..end + slice.len()].copy_from_slice(slice);
                end += slice.len();
            }
            return self.poll_write(context, &joined[..end]);
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        let mut left = written;
        for slice in slices {
            let taken = &slice[..left.min(slice.len())];
            left -= taken.len();
            self.note_frames(taken);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.is_vectored
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let linger = match &mut this.linger {
            Some(linger) => linger,
            None => {
                ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
                this.arrived.discarded.set(true);
                this.linger.insert(Linger::new())
            }
        };
        linger.poll(&mut this.stream, context).map(Ok)
    }
}
