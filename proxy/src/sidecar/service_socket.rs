//! A socket connected to a service: TCP in clear text or in TLS, or a Unix socket.
//!
//! An enum, so that TCP costs one comparison and no more. Not here: making one ([`service_address`](super::service_address)).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use crate::tls::Stream;

pub(super) enum ServiceSocket {
    Tcp(Stream),
    Unix(UnixStream),
}

impl std::fmt::Debug for ServiceSocket {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            ServiceSocket::Tcp(stream) if stream.is_secure() => "ServiceSocket::Tls",
            ServiceSocket::Tcp(_) => "ServiceSocket::Tcp",
            ServiceSocket::Unix(_) => "ServiceSocket::Unix",
        })
    }
}

impl ServiceSocket {
    /// Returns whether what was written may not have reached the kernel yet.
    pub(super) fn holds_back(&self) -> bool {
        matches!(self, ServiceSocket::Tcp(stream) if stream.is_secure())
    }

    /// Returns whether ALPN selected HTTP/2, or `None` if no protocol was selected.
    pub(super) fn agreed_on_http2(&self) -> Option<bool> {
        match self {
            ServiceSocket::Tcp(stream) => stream.agreed_on_http2(),
            ServiceSocket::Unix(_) => None,
        }
    }

    /// Ends the connection for both sides. By TCP the service is told by a reset: the kernel would otherwise send the end of the
    /// stream, which the service may overlook. The next write to a Unix socket fails in any case.
    pub(super) fn reset(self) {
        if let ServiceSocket::Tcp(stream) = &self {
            stream.throw_away();
        }
    }
}

/// Calls a method of the stream within.
macro_rules! within {
    ($socket:expr, $method:ident, $($argument:expr),*) => {
        match $socket.get_mut() {
            ServiceSocket::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            ServiceSocket::Unix(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for ServiceSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        within!(self, poll_read, context, into)
    }
}

impl AsyncWrite for ServiceSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        within!(self, poll_write, context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        within!(self, poll_write_vectored, context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, poll_shutdown, context)
    }
}
