//! A connection in clear text or in TLS.
//!
//! An enum, so that clear text costs one comparison and no more.
//!
//! # Invariants
//!
//! * It is known whether any byte of a request has been handed to the kernel, even where TLS buffers. That decides
//!   whether the request may be sent again.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;
use tokio_util::either::Either;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::alpn::HTTP2;
use super::counted::CountingSocket;

/// The event that the peer has closed its direction. Other systems than Linux report only that both are closed.
#[cfg(target_os = "linux")]
const CLOSED: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const CLOSED: PollFlags = PollFlags::HUP;

pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<CountingSocket>>),
}

impl Stream {
    pub(super) fn secure(mut stream: TlsStream<CountingSocket>) -> Self {
        // No message of the handshake is unfinished now.
        stream.get_mut().0.opened();
        Stream::Tls(Box::new(stream))
    }

    pub(crate) fn is_secure(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Returns whether ALPN selected HTTP/2, or `None` if no protocol was selected.
    pub(crate) fn agreed_on_http2(&self) -> Option<bool> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => stream.get_ref().1.alpn_protocol().map(|protocol| protocol == HTTP2),
        }
    }

    /// Returns how many bytes the kernel has taken; 0 in clear text.
    pub(crate) fn handed_over(&self) -> u64 {
        match self {
            Stream::Plain(_) => 0,
            Stream::Tls(stream) => stream.get_ref().0.sent,
        }
    }

    /// Returns whether nothing has arrived, and no end either, as far as events have shown. Usually takes no system
    /// call.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            Stream::Plain(stream) => would_block(stream.try_read(&mut [0])),
            Stream::Tls(stream) => {
                let mut byte = [0];
                // Reading through TLS consumes its own records, such as session tickets.
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }

    /// Returns whether the kernel's receive buffer is empty.
    pub(crate) fn is_silent(&self) -> bool {
        would_block(socket2::SockRef::from(self.socket()).peek(&mut [MaybeUninit::uninit()]))
    }

    /// Returns whether the peer has closed its direction, as far as the kernel knows.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        let mut asked = [PollFd::new(self.socket(), CLOSED)];
        // Errors and hang-ups are always reported.
        rustix::event::poll(&mut asked, Some(&Timespec::default())).is_ok_and(|told| told > 0)
    }

    /// Reads few bytes: by TLS at most `most` of the socket, which it takes off `most`. Nobody is woken when more arrive.
    /// In clear text the size of the buffer is the bound.
    pub(crate) fn poll_read_few(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        most: &mut usize,
    ) -> Poll<io::Result<()>> {
        if let Stream::Tls(stream) = self {
            stream.get_mut().0.bound(*most);
        }
        let read = Pin::new(&mut *self).poll_read(context, buffer);
        if let Stream::Tls(stream) = self {
            *most = stream.get_mut().0.bound(usize::MAX);
        }
        read
    }

    /// Writes as much as possible without waiting.
    pub(crate) fn write_now(&mut self, bytes: &[u8]) {
        match self {
            Stream::Plain(stream) => drop(stream.try_write(bytes)),
            Stream::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                let mut stream = Pin::new(stream);
                if let Poll::Ready(Ok(_)) = stream.as_mut().poll_write(&mut context, bytes) {
                    let _ = stream.poll_shutdown(&mut context);
                }
            }
        }
    }

    /// Makes closing the connection discard what the kernel has not sent, and end with a reset.
    pub(crate) fn throw_away(&self) {
        // Fails only for a socket that is gone.
        let _ = socket2::SockRef::from(self.socket()).set_linger(Some(Duration::ZERO));
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => &stream.get_ref().0.io,
        }
    }

    pub(crate) fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Stream::Plain(stream) => {
                let (read, write) = stream.into_split();
                (Either::Left(read), Either::Left(write))
            }
            Stream::Tls(stream) => {
                let (read, write) = tokio::io::split(stream);
                (Either::Right(read), Either::Right(write))
            }
        }
    }
}

fn would_block<T>(result: io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// The half for reading.
pub(crate) type ReadHalf = Either<OwnedReadHalf, tokio::io::ReadHalf<Box<TlsStream<CountingSocket>>>>;

/// The half for writing.
pub(crate) type WriteHalf = Either<OwnedWriteHalf, tokio::io::WriteHalf<Box<TlsStream<CountingSocket>>>>;

/// Drops a half without touching the other one. In clear text, dropping it otherwise shuts it down.
pub(crate) fn forget(half: WriteHalf) {
    if let Either::Left(half) = half {
        half.forget();
    }
}

/// Closes a half, and in clear text makes the kernel discard what it has not sent. Below TLS the socket is out of
/// reach; what is unsent there is no whole request.
pub(crate) fn throw_away(half: WriteHalf) {
    if let Either::Left(half) = &half {
        let stream: &TcpStream = half.as_ref();
        let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
    }
}

/// Returns whether the peer speaks none of the versions of HTTP that it was offered.
pub(crate) fn refuses_protocol(error: &io::Error) -> bool {
    use rustls::AlertDescription::NoApplicationProtocol;
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::AlertReceived(NoApplicationProtocol)))
}

/// Returns whether the peer has rejected this side's certificate. It does so before it reads anything that is sent
/// after the handshake.
pub(crate) fn refuses_certificate(error: &io::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(
        cause,
        Some(rustls::Error::AlertReceived(
            Alert::CertificateRequired
                | Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
        ))
    )
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => {
                let read = Pin::new(&mut *stream).poll_read(context, buffer);
                if read.is_ready() {
                    stream.get_mut().0.opened();
                }
                read
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use segue_tests::certificates::Authority;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::super::{AlpnOffer, ClientFiles, ClientTls, SealedBytes, ServerFiles, ServerTls};
    use super::*;

    /// Returns both sides of a connection in TLS.
    pub(crate) async fn pair() -> (Stream, Stream) {
        let folder = tempfile::TempDir::new().unwrap();
        let authority = Authority::new(folder.path(), "ours");
        let own = authority.issue("pod");
        let server = ServerTls::load(ServerFiles {
            cert: own.cert,
            key: own.key,
            client_ca: None,
            client_cert_is_optional: false,
            others: Vec::new(),
        })
        .unwrap();
        let client = ClientFiles { ca: authority.file, identity: None, server_name: None };
        let client = ClientTls::load(client).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted =
            async { server.accept(listener.accept().await.unwrap().0, SealedBytes::default()).await.unwrap() };
        let connected = async {
            let stream = TcpStream::connect(address).await.unwrap();
            client.connect(&address.to_string(), stream, AlpnOffer::Http1).await.unwrap()
        };
        tokio::join!(connected, accepted)
    }

    /// Closes the connection with a reset.
    fn reset(stream: Stream) {
        let Stream::Tls(stream) = stream else { panic!("in clear text") };
        socket2::SockRef::from(&stream.get_ref().0.io).set_linger(Some(Duration::ZERO)).unwrap();
    }

    #[tokio::test]
    async fn what_fails_before_a_byte_has_left_is_known_from_what_fails_later() {
        let (mut ours, theirs) = pair().await;
        let before = ours.handed_over();
        reset(theirs);
        let failed = async { ours.write_all(b"request").await.and(ours.flush().await) }.await;
        assert!(failed.is_err());
        assert_eq!(ours.handed_over(), before, "nothing has left");

        let (mut ours, mut theirs) = pair().await;
        let before = ours.handed_over();
        let large = vec![0; 16 << 20];
        let read = async {
            theirs.read_exact(&mut [0; 100_000]).await.unwrap();
            reset(theirs);
        };
        let (written, ()) = tokio::join!(ours.write_all(&large), read);
        assert!(written.is_err());
        assert!(ours.handed_over() >= before + 100_000, "more than was read has left");
    }

    #[tokio::test]
    async fn tickets_are_not_taken_for_an_answer_and_an_end_is_noticed() {
        let (mut ours, mut theirs) = pair().await;
        // TLS 1.3 sends tickets after the handshake.
        while ours.is_silent() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // `is_quiet` consumes them.
        while !ours.is_silent() {
            assert!(ours.is_quiet(), "a ticket is taken for an answer");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        theirs.write_all(b"answer").await.unwrap();
        ours.read_exact(&mut [0; 6]).await.unwrap();
        assert!(ours.is_quiet());
        theirs.shutdown().await.unwrap();
        while ours.is_quiet() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (ours, theirs) = pair().await;
        drop(theirs);
        while ours.is_silent() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
