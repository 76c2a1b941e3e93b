//! A socket below TLS that counts: the bytes that the kernel has taken, and those that have arrived and are still sealed.
//!
//! rustls keeps what has arrived of a record or of a message of the handshake until all of it has. It does not say how much
//! that is.
//! Not here: who bounds the sealed bytes of all clients (`server::registry`).
//!
//! # Invariants
//!
//! * A record that has not ended is counted.
//! * A message that has not ended is counted, but for what came of it in one read with data: less than 20 KiB.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that are read at most from a refused client.
const MAX_DISCARDED_BYTES: usize = 64 << 10;

/// rustls has room for so many bytes on each connection, and asks for as many more whenever it reads.
const ROOM_BYTES: usize = 4 << 10;
/// rustls takes no message of the handshake that is larger.
const MOST_BYTES: usize = 64 << 10;
/// The kind, version and length of a record.
const HEAD_BYTES: usize = 5;

/// How many bytes of a connection are sealed: they have arrived, and TLS can open none of them before others arrive.
#[derive(Debug, Clone, Default)]
pub(crate) struct SealedBytes(Arc<AtomicUsize>);

impl SealedBytes {
    /// Returns about how much memory they take up, beyond what each connection takes up.
    pub(crate) fn memory(&self) -> usize {
        match self.0.load(Relaxed) {
            0..=ROOM_BYTES => 0,
            // A vector grows by doubling.
            bytes => (bytes + ROOM_BYTES).next_power_of_two().min(MOST_BYTES),
        }
    }
}

/// The records of one direction.
#[derive(Debug, Default)]
struct Records {
    /// Number of bytes of the present record that have been seen, with its head.
    seen: usize,
    /// Number of bytes behind its head that have not been seen.
    left: usize,
    /// Number of bytes of whole records since TLS has last opened something.
    whole: usize,
}

impl Records {
    fn follow(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = bytes {
            if self.seen < HEAD_BYTES {
                if self.seen >= HEAD_BYTES - 2 {
                    self.left = self.left << 8 | usize::from(*first);
                }
                self.seen += 1;
                bytes = rest;
            } else {
                let taken = self.left.min(bytes.len());
                self.seen += taken;
                self.left -= taken;
                bytes = &bytes[taken..];
            }
            if self.seen >= HEAD_BYTES && self.left == 0 {
                self.whole += std::mem::take(&mut self.seen);
            }
        }
    }
}

pub(crate) struct CountingSocket {
    pub(super) io: TcpStream,
    pub(super) sent: u64,
    /// How many bytes may be read for now.
    most: usize,
    /// Where the sealed bytes are counted, if anywhere.
    sealed: Option<(Records, SealedBytes)>,
}

impl CountingSocket {
    pub(super) fn new(io: TcpStream) -> Self {
        CountingSocket { io, sent: 0, most: usize::MAX, sealed: None }
    }

    /// Counts the sealed bytes too.
    pub(super) fn watched(io: TcpStream, sealed: SealedBytes) -> Self {
        CountingSocket { sealed: Some((Records::default(), sealed)), ..CountingSocket::new(io) }
    }

    /// Notes that TLS has opened what it could: only a record that has not ended is sealed.
    pub(super) fn opened(&mut self) {
        if let Some((records, sealed)) = &mut self.sealed {
            records.whole = 0;
            sealed.0.store(records.seen, Relaxed);
        }
    }

    /// Bounds how many bytes may be read. Behind them the socket looks as if nothing had arrived, and nobody is woken when
    /// something does. Returns how many bytes of the last bound are left.
    pub(super) fn bound(&mut self, most: usize) -> usize {
        std::mem::replace(&mut self.most, most)
    }

    /// Ends a connection whose client may still be sending. Closed with unread bytes, the kernel would send a reset,
    /// which may overtake the alert.
    pub(super) async fn close_gently(mut self) {
        if self.io.shutdown().await.is_ok() {
            let _ = tokio::io::copy(&mut self.io.take(MAX_DISCARDED_BYTES as u64), &mut tokio::io::sink()).await;
        }
    }

    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.sent += *bytes as u64;
        }
        written
    }
}

impl AsyncRead for CountingSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.most == 0 {
            return Poll::Pending;
        }
        // rustls reads into initialized memory, so this initializes nothing.
        let length = this.most.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(length));
        ready!(Pin::new(&mut this.io).poll_read(context, &mut part))?;
        let bytes = part.filled();
        if this.most != usize::MAX {
            this.most -= bytes.len();
        }
        if let Some((records, sealed)) = &mut this.sealed {
            records.follow(bytes);
            sealed.0.store(records.whole + records.seen, Relaxed);
        }
        let arrived = bytes.len();
        buffer.advance(arrived);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountingSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_followed_however_their_bytes_are_divided() {
        let whole = [&[22, 3, 1, 1, 2][..], &[0; 0x102], &[23, 3, 3, 0, 0]].concat();
        let all = [&whole[..], &[23, 3, 3, 0x40, 0], &[0; 1000]].concat();
        for size in 1..=all.len() {
            let mut records = Records::default();
            all.chunks(size).for_each(|piece| records.follow(piece));
            assert_eq!((records.whole, records.seen), (whole.len(), 1005), "in pieces of {size} bytes");
        }
    }
}
