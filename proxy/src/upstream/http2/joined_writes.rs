//! Writes the head of a request together with the body that is about to follow.
//!
//! `h2` accepts a body only once it has opened the request's stream, and by then it has written the head. A request
//! whose body is available would take two system calls and wake its pod twice. While such a body is expected, the
//! writes of `h2` are therefore deferred by one poll of the task that drives the connection. In between, the request's
//! own task is polled and passes the body to `h2`.
//!
//! # Invariants
//!
//! * A flush is deferred by at most one poll, and only while a body is expected.
//! * Bytes leave in the order in which they were written.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls::Stream;

/// Most bytes that are deferred. More bytes are worth a system call of their own.
const MAX_HELD_BYTES: usize = 4 << 10;
/// Most slices that are written in one call behind the deferred bytes.
const MAX_SLICES: usize = 4;

/// The bodies that are about to follow their heads.
#[derive(Debug, Clone, Default)]
pub(super) struct ExpectedBodies(Rc<Cell<usize>>);

/// A body that is about to follow its head. Dropped once `h2` has the body, or if `h2` cannot accept it yet.
#[derive(Debug)]
pub(super) struct ExpectedBody(ExpectedBodies);

impl ExpectedBodies {
    pub(super) fn expect(&self) -> ExpectedBody {
        self.0.set(self.0.get() + 1);
        ExpectedBody(self.clone())
    }

    fn any(&self) -> bool {
        self.0.get() > 0
    }
}

impl Drop for ExpectedBody {
    fn drop(&mut self) {
        let bodies = &self.0.0;
        bodies.set(bodies.get() - 1);
    }
}

pub(super) struct JoinedWrites {
    stream: Stream,
    expected: ExpectedBodies,
    held: BytesMut,
    /// Whether the flush of the held bytes has been deferred.
    is_put_off: bool,
}

impl JoinedWrites {
    pub(super) fn new(stream: Stream, expected: ExpectedBodies) -> Self {
        JoinedWrites { stream, expected, held: BytesMut::new(), is_put_off: false }
    }

    /// Keeps bytes that wait for the body behind them. Returns whether they were kept.
    fn holds(&mut self, bytes: &[u8]) -> bool {
        let waits = self.expected.any() && !self.is_put_off && self.held.len() + bytes.len() <= MAX_HELD_BYTES;
        if waits {
            self.held.extend_from_slice(bytes);
        }
        waits
    }

    fn poll_write_held(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.held))?;
            self.forget(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Forgets held bytes that have been written.
    fn forget(&mut self, written: usize) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.held.advance(written);
        self.is_put_off &= !self.held.is_empty();
        Ok(())
    }
}

impl AsyncRead for JoinedWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for JoinedWrites {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let [only] = slices
            && this.holds(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        while !this.held.is_empty() {
            let mut all = [IoSlice::new(&[]); 1 + MAX_SLICES];
            all[0] = IoSlice::new(&this.held);
            all.iter_mut().skip(1).zip(slices).for_each(|(place, slice)| *place = *slice);
            let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, &all))?;
            let of_held = written.min(this.held.len());
            this.forget(of_held)?;
            if written > of_held {
                return Poll::Ready(Ok(written - of_held));
            }
        }
        Pin::new(&mut this.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() && self.expected.any() && !self.is_put_off {
            self.is_put_off = true;
            context.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_write_held(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_held(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns a connection to a pod, and the pod's side of it.
    async fn pair() -> (JoinedWrites, ExpectedBodies, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (ours, theirs) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let expected = ExpectedBodies::default();
        let ours = JoinedWrites::new(Stream::Plain(ours.unwrap()), expected.clone());
        (ours, expected, Stream::Plain(theirs.unwrap().0))
    }

    async fn read(stream: &mut Stream, bytes: usize) -> String {
        let mut read = vec![0; bytes];
        stream.read_exact(&mut read).await.unwrap();
        String::from_utf8(read).unwrap()
    }

    #[tokio::test]
    async fn a_head_leaves_with_the_body_that_was_expected() {
        let (mut ours, expected, mut theirs) = pair().await;
        let body = expected.expect();
        let written = poll_fn(|context| Pin::new(&mut ours).poll_write_vectored(context, &[IoSlice::new(b"head")]));
        assert_eq!(written.await.unwrap(), 4);
        ours.flush().await.unwrap();
        assert!(theirs.is_silent());
        drop(body);
        let slices = [IoSlice::new(b"bo"), IoSlice::new(b"dy")];
        let written = poll_fn(|context| Pin::new(&mut ours).poll_write_vectored(context, &slices)).await.unwrap();
        assert_eq!(written, 4);
        assert_eq!(read(&mut theirs, 8).await, "headbody");
        ours.write_all(b"next").await.unwrap();
        assert_eq!(read(&mut theirs, 4).await, "next");
    }

    #[tokio::test]
    async fn a_head_whose_body_does_not_come_leaves_at_the_next_turn() {
        let (mut ours, expected, mut theirs) = pair().await;
        let _body = expected.expect();
        for text in ["head", "another"] {
            ours.write_all(text.as_bytes()).await.unwrap();
            ours.flush().await.unwrap();
            assert!(theirs.is_silent(), "{text}");
            ours.flush().await.unwrap();
            assert_eq!(read(&mut theirs, text.len()).await, text);
        }
    }

    #[tokio::test]
    async fn nothing_waits_unless_a_body_was_expected() {
        let (mut ours, expected, mut theirs) = pair().await;
        drop(expected.expect());
        ours.write_all(b"head").await.unwrap();
        assert_eq!(read(&mut theirs, 4).await, "head");
    }

    #[tokio::test]
    async fn more_than_is_put_off_leaves_at_once_and_in_order() {
        let (mut ours, expected, mut theirs) = pair().await;
        let _body = expected.expect();
        let large = "x".repeat(MAX_HELD_BYTES);
        ours.write_all(b"head").await.unwrap();
        ours.write_all(large.as_bytes()).await.unwrap();
        assert_eq!(read(&mut theirs, 4 + large.len()).await, format!("head{large}"));
    }
}
