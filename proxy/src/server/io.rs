//! A client's connection as hyper reads and writes it.
//!
//! Puts back what was read to tell HTTP/1.1 from HTTP/2, notes when bytes arrive, writes informational responses, puts this
//! router's replies in the place of those that hyper makes by itself, and counts the streams that `h2` resets.
//!
//! # Invariants
//!
//! * Otherwise bytes pass unchanged, those of a response to a request that was served in any case.
//! * An HTTP/2 connection that is shut down on this side is read on, so that it is not reset.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::linger::{Linger, linger};
use super::own_replies;
use super::resets::Resets;
use super::unfinished_head::UnfinishedHead;
use crate::forward::client_presence::Presence;
use crate::message::interim::Interim;
use crate::message::local_reply::LocalReply;
use crate::tls::Stream;

/// Largest response, with its head, that is written in one piece.
const MAX_JOINED_BYTES: usize = 1 << 10;

/// Facts about what has arrived from a client, shared with its connection. `in_head` and `behind` are about HTTP/1.1.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// Whether it ends in the middle of a head, assuming that it is heads.
    in_head: AtomicBool,
    /// How many bytes have arrived behind the head of the request that is being served.
    behind: AtomicU64,
    /// About how many bytes a head that has not ended takes up in memory, assuming that HTTP/1.1 is heads.
    unfinished: AtomicUsize,
    /// Whether the rest of it is discarded: the connection is shut down on this side.
    discarded: AtomicBool,
    /// Whether a request is being served by HTTP/1.1.
    serving: AtomicBool,
    /// Whether what hyper writes next may belong to a request that was served.
    responds: AtomicBool,
    /// The number of the reply, from 1 on, that has taken the place of hyper's own; 0: none.
    replied: AtomicU8,
    /// How many streams `h2` has reset by its own decision, and how many of them because their requests were malformed.
    resets: AtomicU32,
    malformed: AtomicU32,
}

/// Value of `behind` while the end of the next head has not been seen.
const UNSEEN: u64 = u64::MAX;

impl Arrived {
    pub(super) fn is_in_head(&self) -> bool {
        self.in_head.load(Relaxed)
    }

    pub(super) fn set_in_head(&self, in_head: bool) {
        self.in_head.store(in_head, Relaxed);
    }

    /// Returns about how many bytes a head that has not ended takes up in memory.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.load(Relaxed)
    }

    pub(super) fn is_discarded(&self) -> bool {
        self.discarded.load(Relaxed)
    }

    /// Notes that hyper serves a request from here on.
    pub(super) fn begin_request(&self) {
        self.serving.store(true, Relaxed);
        self.responds.store(true, Relaxed);
    }

    /// Returns the reply that has taken the place of hyper's own.
    pub(super) fn replied(&self) -> Option<LocalReply> {
        LocalReply::ALL.get(usize::from(self.replied.load(Relaxed)).checked_sub(1)?).copied()
    }

    /// Returns how many streams `h2` has reset by its own decision.
    pub(super) fn resets(&self) -> u32 {
        self.resets.load(Relaxed)
    }

    /// Takes the number of malformed requests that `h2` has refused since the last call.
    pub(super) fn take_malformed(&self) -> u32 {
        match self.malformed.load(Relaxed) {
            0 => 0,
            malformed => {
                self.malformed.store(0, Relaxed);
                malformed
            }
        }
    }

    /// Notes that a request comes next.
    pub(super) fn await_head(&self) {
        self.serving.store(false, Relaxed);
        self.unfinished.store(0, Relaxed);
        self.behind.store(UNSEEN, Relaxed);
    }

    /// Notes that a request has been served whose body has this length. Bytes up to that length are the body, and any
    /// further ones begin a next request. Two more bytes are allowed: bodies in chunks end with an empty line, as heads
    /// do, and some clients send one behind any body.
    pub(super) fn end_body(&self, length: u64) {
        let behind = self.behind.load(Relaxed);
        if behind == UNSEEN || behind <= length.saturating_add(2) {
            self.set_in_head(false);
        }
    }

    fn note(&self, bytes: &[u8], ends_with_empty_line: bool) {
        self.set_in_head(!ends_with_empty_line);
        let unfinished = if ends_with_empty_line { 0 } else { self.unfinished().saturating_add(bytes.len()) };
        self.unfinished.store(unfinished, Relaxed);
        let behind = match self.behind.load(Relaxed) {
            UNSEEN if ends_with_empty_line => 0,
            UNSEEN => match end_of_head(bytes) {
                Some(end) => (bytes.len() - end) as u64,
                // An end that arrives in two pieces is missed. Then the latest bytes are taken for a body.
                None => return,
            },
            behind => behind + bytes.len() as u64,
        };
        self.behind.store(behind, Relaxed);
    }
}

/// Returns the offset after the first empty line. A head has few lines, so examining the ends of lines costs a fraction
/// of examining each byte.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut lines = memchr::memchr_iter(b'\n', bytes);
    lines.find(|end| bytes[end + 1..].starts_with(b"\r\n")).map(|end| end + 3)
}

pub(super) struct ClientIo {
    stream: Stream,
    /// Bytes that were read before hyper got the connection.
    ahead: Bytes,
    /// What replaces the current write, and how many bytes hyper asked to write.
    instead: Option<(Bytes, usize)>,
    /// An upgrade may move the connection to another thread, hence no `Rc`.
    arrived: Arc<Arrived>,
    /// The last three bytes that have arrived.
    last: [u8; 3],
    interim: Interim,
    presence: Presence,
    /// The informational responses that are being written.
    between: Bytes,
    /// The value of `is_write_vectored`, which `h2` reads when it takes the connection over. If it is false, `h2`
    /// copies data frames of up to 1 KiB, instead of 256 bytes, behind the frames before them. It then writes a small
    /// response with its trailers, or several small responses, at once. For larger frames `h2` reads the value again.
    is_vectored: bool,
    is_http2: bool,
    resets: Resets,
    unfinished: UnfinishedHead,
    /// Most bytes of a head that `h2` keeps decoded.
    most_decoded: usize,
    /// Reads on behind the shutdown of an HTTP/2 connection, which hyper never gives back.
    linger: Option<Linger>,
}

impl ClientIo {
    pub(super) fn new(
        stream: Stream,
        ahead: Bytes,
        arrived: Arc<Arrived>,
        interim: Interim,
        presence: Presence,
        is_http2: bool,
        max_header_bytes: usize,
    ) -> Self {
        let mut io = ClientIo {
            stream,
            ahead: Bytes::new(),
            instead: None,
            arrived,
            last: [0; 3],
            interim,
            presence,
            between: Bytes::new(),
            is_vectored: !is_http2,
            is_http2,
            resets: Resets::default(),
            unfinished: UnfinishedHead::default(),
            most_decoded: max_header_bytes.saturating_mul(4),
            linger: None,
        };
        io.arrived.responds.store(false, Relaxed);
        io.note(&ahead);
        io.ahead = ahead;
        io
    }

    /// Notes bytes that arrived. After an empty line, nothing of a next head has arrived.
    fn note(&mut self, bytes: &[u8]) {
        if self.is_http2 {
            let unfinished = self.unfinished.follow(bytes, self.most_decoded);
            return self.arrived.unfinished.store(unfinished, Relaxed);
        }
        match bytes {
            [] => return,
            [.., a, b, c] => self.last = [*a, *b, *c],
            short => {
                self.last.rotate_left(short.len());
                self.last[3 - short.len()..].copy_from_slice(short);
            }
        }
        self.arrived.note(bytes, matches!(self.last, [b'\n', b'\r', b'\n'] | [_, b'\n', b'\n']));
    }

    /// Notes frames that have been written.
    fn note_frames(&mut self, bytes: &[u8]) {
        let counts = self.resets.follow(bytes);
        if counts.by_h2 > 0 {
            self.arrived.resets.fetch_add(counts.by_h2, Relaxed);
            self.arrived.malformed.fetch_add(counts.malformed, Relaxed);
        }
    }

    /// Waits for the end of what an HTTP/1.1 client sends, as [`linger`] does.
    pub(super) async fn linger(self) {
        linger(self.stream).await;
    }

    fn poll_write_between(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.between.has_remaining() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.between))?;
            self.between.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes a local reply to a client that never finished a head, as far as that takes no waiting.
    pub(super) fn refuse(&mut self, own: LocalReply) {
        self.stream.write_now(&local_reply_bytes(own));
    }
}

/// Returns a local reply as HTTP/1.1 writes it, for where hyper cannot send it. The connection closes behind it.
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
        this.presence.reply(|| this.stream.is_closed_by_peer());
        ready!(this.poll_write_between(context))?;
        if this.is_http2 {
            let written = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
            this.note_frames(&bytes[..written]);
            return Poll::Ready(Ok(written));
        }
        if this.instead.is_none()
            && !this.arrived.responds.load(Relaxed)
            && let Some(reply) = own_replies::in_place_of(bytes)
        {
            this.arrived.replied.store(reply.index() as u8 + 1, Relaxed);
            this.instead = Some((local_reply_bytes(reply), bytes.len()));
        }
        if let Some((response, asked)) = &mut this.instead {
            while response.has_remaining() {
                let written = ready!(Pin::new(&mut this.stream).poll_write(context, response))?;
                response.advance(written);
            }
            let asked = *asked;
            this.instead = None;
            return Poll::Ready(Ok(asked));
        }
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = slices {
            return self.poll_write(context, only);
        }
        // Copying a small response behind its head costs less than a second slice costs the kernel.
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
        ready!(self.poll_write_between(context))?;
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        if self.is_http2 {
            let mut left = written;
            for slice in slices {
                let taken = &slice[..left.min(slice.len())];
                left -= taken.len();
                self.note_frames(taken);
            }
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.is_vectored
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.presence.reply(|| self.stream.is_closed_by_peer());
        // hyper flushes once it has written all that it had.
        if self.between.is_empty()
            && let Some(heads) = self.interim.take()
        {
            self.between = heads;
        }
        ready!(self.poll_write_between(context))?;
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        if !self.arrived.serving.load(Relaxed) {
            self.arrived.responds.store(false, Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let linger = match &mut this.linger {
            Some(linger) => linger,
            None => {
                ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
                if !this.is_http2 {
                    return Poll::Ready(Ok(()));
                }
                this.arrived.discarded.store(true, Relaxed);
                this.linger.insert(Linger::new())
            }
        };
        linger.poll(&mut this.stream, context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_its_first_empty_line() {
        for (text, end) in [
            ("GET / HTTP/1.1\r\nhost: h\r\n\r\n", Some(27)),
            ("a\r\nb\n\r\nbody\n\r\n", Some(7)),
            ("a\r\n\r", None),
            ("a\n\nb\n", None),
            ("\n", None),
            ("", None),
        ] {
            assert_eq!(end_of_head(text.as_bytes()), end, "{text:?}");
        }
    }
}
