//! The end of a connection that is shut down on this side while its client still sends.
//!
//! Closed with unread bytes, a connection is reset, and its client may lose what was sent to it last: a response, or the
//! GOAWAY that says what was wrong.
//!
//! # Invariants
//!
//! * A client that never stops sending is read for a bounded time, and a bounded number of bytes.

use std::future::{Future as _, poll_fn};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::time::Sleep;

use crate::tls::Stream;

/// A client that reads what was sent to it stops within a round trip.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_LINGER_BYTES: usize = 8 << 20;
const READ_BYTES: usize = 4 << 10;

/// The bytes and the time that are left for reading.
pub(super) struct Linger {
    bytes_left: usize,
    timeout: Pin<Box<Sleep>>,
}

impl Linger {
    pub(super) fn new() -> Self {
        Linger { bytes_left: MAX_LINGER_BYTES, timeout: Box::pin(tokio::time::sleep(LINGER_TIMEOUT)) }
    }

    /// Reads and discards until the client closes its side, or a bound is reached.
    pub(super) fn poll(&mut self, stream: &mut Stream, context: &mut Context<'_>) -> Poll<()> {
        let mut unread = [MaybeUninit::uninit(); READ_BYTES];
        while self.bytes_left > 0 {
            let mut buffer = ReadBuf::uninit(&mut unread);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.bytes_left = self.bytes_left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => break,
                Poll::Pending => return self.timeout.as_mut().poll(context),
            }
        }
        Poll::Ready(())
    }
}

/// Waits for the end of what the client sends, within the bounds of [`Linger`].
pub(super) async fn linger(mut stream: Stream) {
    let mut linger = Linger::new();
    poll_fn(|context| linger.poll(&mut stream, context)).await;
}
