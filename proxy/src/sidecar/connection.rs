//! A connection to the service that is read on after the client library has dropped it, so that the service's closing
//! of it can be seen.
//!
//! A library closes a connection as soon as an exchange on it has failed, for example when a router cuts an upload off.
//! The service may work on, and the only sign that it has stopped is that it closes the connection too.
//!
//! # Invariants
//!
//! * A dropped connection is closed on this side only, and read until the service closes it or no exchange holds its
//!   [`ServiceConnection`] any more. One that is reset is gone at once.
//! * What the kernel takes of a request is noted in [`Traffic`]; what keeps a connection alive, such as a ping, is not.
//! * A service that answers in another protocol than it is spoken to in, and the bound on heads that it announces, are noted
//!   before the library learns of the answer.
//! * [`ServiceConnection::closed`] returns after the service has closed the connection, never before.
//! * A connection counts as unanswered only if nothing has been read since something was written.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use http::Uri;
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use super::service_address::ServiceAddress;
use super::service_socket::ServiceSocket;
use super::traffic::Traffic;
use super::upstream::Upstream;
use crate::message::frame_follower::{CONTINUATION, DATA, FrameFollower, HEADERS};
use crate::tls::{AlpnOffer, Stream};
use crate::upstream::{SettingsReader, is_settings};

/// Time for the service to accept a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two checks whether an exchange can still wait for the end of a dropped connection.
const LINGER_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// A connection to the service as its exchanges see it. Each has it from the moment on that it has the connection.
#[derive(Debug)]
pub(super) struct ServiceConnection {
    made: Instant,
    /// Whether something has been read since the last write.
    answered: AtomicBool,
    finish: AtomicBool,
    reset: AtomicBool,
    reader: AtomicWaker,
    closed: CancellationToken,
    /// Whether the service has answered HTTP/2 in another protocol.
    foreign: AtomicBool,
    /// Whether the service has answered HTTP/1.1 in HTTP/2.
    speaks_http2: AtomicBool,
    /// The bound on heads that the service has announced, as HTTP/2 counts.
    most_head: OnceLock<usize>,
}

impl ServiceConnection {
    /// Returns the connection of an HTTP/1.1 exchange, once it has one.
    pub(super) fn of(captured: &CaptureConnection) -> Option<Arc<ServiceConnection>> {
        let mut extras = http::Extensions::new();
        captured.connection_metadata().as_ref()?.get_extras(&mut extras);
        extras.remove::<Arc<ServiceConnection>>()
    }

    fn new() -> Self {
        ServiceConnection {
            made: Instant::now(),
            answered: AtomicBool::default(),
            finish: AtomicBool::default(),
            reset: AtomicBool::default(),
            reader: AtomicWaker::default(),
            closed: CancellationToken::default(),
            foreign: AtomicBool::default(),
            speaks_http2: AtomicBool::default(),
            most_head: OnceLock::default(),
        }
    }

    /// Returns whether it was idle before `begun`, and nothing has been read since the last write. The service may have closed
    /// it because it was idle.
    pub(super) fn was_idle_and_is_unanswered(&self, begun: Instant) -> bool {
        self.made < begun && !self.answered.load(Relaxed)
    }

    /// Closes this side of the connection: the service learns that its response is not awaited any more.
    pub(super) fn finish(&self) {
        self.finish.store(true, SeqCst);
        self.reader.wake();
    }

    /// Ends the connection for both sides: the service learns by its next write that nobody reads it.
    pub(super) fn reset(&self) {
        self.reset.store(true, SeqCst);
        self.reader.wake();
    }

    /// Returns whether the service speaks another protocol than HTTP/2, so that it has read no request.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign.load(SeqCst)
    }

    /// Returns whether the service speaks HTTP/2 where it is spoken to in HTTP/1.1, so that it has read no request.
    pub(super) fn speaks_http2(&self) -> bool {
        self.speaks_http2.load(SeqCst)
    }

    /// Returns how large a head the service takes, as far as it has announced a bound.
    pub(super) fn most_head(&self) -> usize {
        self.most_head.get().copied().unwrap_or(usize::MAX)
    }

    /// Returns once the service has closed the connection.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

/// A connection to the service.
#[derive(Debug)]
pub(super) struct ServiceStream {
    /// `None` once this is dropped.
    stream: Option<ServiceSocket>,
    handle: Arc<ServiceConnection>,
    traffic: Arc<Traffic>,
    /// `None` for HTTP/1.1, where every byte belongs to a request.
    frames: Option<FrameFollower>,
    announced: SettingsReader,
    /// Whether anything has been read.
    heard: bool,
    /// Whether a part of a request may not have reached the kernel yet.
    held_back: bool,
}

impl ServiceStream {
    pub(super) fn http1(stream: ServiceSocket, traffic: Arc<Traffic>) -> Self {
        ServiceStream {
            stream: Some(stream),
            handle: Arc::new(ServiceConnection::new()),
            traffic,
            frames: None,
            announced: SettingsReader::default(),
            heard: false,
            held_back: false,
        }
    }

    pub(super) fn http2(stream: ServiceSocket, traffic: Arc<Traffic>) -> Self {
        let mut this = ServiceStream::http1(stream, traffic);
        this.frames = Some(FrameFollower::of_client());
        this
    }

    /// Notes what the kernel, or TLS before it, has taken.
    fn note(&mut self, bytes: &[u8]) {
        self.handle.answered.store(false, Relaxed);
        if self.frames.as_mut().map_or(!bytes.is_empty(), |frames| are_of_request(frames, bytes)) {
            self.traffic.sent();
            self.held_back = self.stream.as_ref().is_some_and(ServiceSocket::holds_back);
        }
    }

    /// Notes what the service says of itself.
    fn hear(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.handle.answered.store(true, Relaxed);
        }
        if self.frames.is_some() {
            if let Some(most) = self.announced.read(bytes) {
                let _ = self.handle.most_head.set(most);
            }
            if self.announced.is_foreign() {
                self.handle.foreign.store(true, SeqCst);
            }
        } else if !std::mem::replace(&mut self.heard, true) && is_settings(bytes) {
            self.handle.speaks_http2.store(true, SeqCst);
        }
    }

    pub(super) fn handle(&self) -> Arc<ServiceConnection> {
        self.handle.clone()
    }

    fn stream(&mut self) -> Pin<&mut ServiceSocket> {
        Pin::new(self.stream.as_mut().expect("taken by drop alone"))
    }
}

/// Follows the next bytes that are written by HTTP/2. Returns whether any of them belong to a request.
fn are_of_request(frames: &mut FrameFollower, mut bytes: &[u8]) -> bool {
    let mut some = false;
    while let Some(part) = frames.next(&mut bytes) {
        some |= matches!(part.kind, DATA | HEADERS | CONTINUATION);
    }
    some
}

impl Drop for ServiceStream {
    fn drop(&mut self) {
        let (Some(stream), Ok(runtime)) = (self.stream.take(), Handle::try_current()) else { return };
        if self.handle.reset.load(SeqCst) {
            stream.reset();
            return self.handle.closed.cancel();
        }
        runtime.spawn(linger(stream, self.handle.clone()));
    }
}

async fn linger(mut stream: ServiceSocket, handle: Arc<ServiceConnection>) {
    let _ = stream.shutdown().await;
    let mut unread = [0; 4096];
    let mut check = Instant::now() + LINGER_CHECK_INTERVAL;
    loop {
        match timeout_at(check, stream.read(&mut unread)).await {
            Ok(Ok(0) | Err(_)) => return handle.closed.cancel(),
            // No exchange holds the connection, and none can get it from here.
            _ if Instant::now() >= check && Arc::strong_count(&handle) == 1 => return,
            Ok(Ok(_)) => {}
            Err(_) => check += LINGER_CHECK_INTERVAL,
        }
    }
}

impl AsyncRead for ServiceStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.handle.reader.register(context.waker());
        if self.handle.reset.load(SeqCst) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.handle.finish.load(SeqCst)
            && let Poll::Ready(closed) = self.stream().poll_shutdown(context)
        {
            self.handle.finish.store(false, SeqCst);
            let _ = closed.inspect_err(|error| {
                tracing::debug!(%error, "cannot close a side of a connection to the service");
            });
        }
        let before = into.filled().len();
        ready!(self.stream().poll_read(context, into))?;
        self.hear(&into.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ServiceStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(self.stream().poll_write(context, bytes))?;
        self.note(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.stream().poll_write_vectored(context, bytes))?;
        let mut left = written;
        for slice in bytes {
            let taken = &slice[..left.min(slice.len())];
            left -= taken.len();
            self.note(taken);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream().poll_flush(context);
        if flushed.is_ready() && std::mem::take(&mut self.held_back) {
            self.traffic.sent();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}

impl Connection for ServiceStream {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.handle.clone())
    }
}

/// Makes [`ServiceStream`]s by HTTP/1.1.
#[derive(Debug, Clone)]
pub(super) struct ServiceConnector {
    pub(super) tcp: HttpConnector,
    pub(super) upstream: Arc<Upstream>,
}

impl Service<Uri> for ServiceConnector {
    type Response = TokioIo<ServiceStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Uri>::poll_ready(&mut self.tcp, context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let upstream = self.upstream.clone();
        if matches!(upstream.address, ServiceAddress::Tcp(_)) && upstream.tls.is_none() {
            let connecting = self.tcp.call(to);
            return Box::pin(async move {
                let socket = ServiceSocket::Tcp(Stream::Plain(connecting.await?.into_inner()));
                Ok(TokioIo::new(ServiceStream::http1(socket, upstream.traffic.clone())))
            });
        }
        Box::pin(async move {
            let socket = upstream.address.dial(upstream.tls.as_ref(), AlpnOffer::Http1, CONNECT_TIMEOUT).await?;
            Ok(TokioIo::new(ServiceStream::http1(socket, upstream.traffic.clone())))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;

    async fn pair() -> (ServiceStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let near = ServiceSocket::Tcp(Stream::Plain(near));
        (ServiceStream::http1(near, Arc::default()), listener.accept().await.unwrap().0)
    }

    /// Returns whether `written` after four seconds prolongs ten seconds of silence.
    async fn counts(mut near: ServiceStream, written: &[u8]) -> bool {
        let (begun, traffic) = (Instant::now(), near.traffic.clone());
        let silence = tokio::spawn(async move { traffic.silent_for(Duration::from_secs(10)).await });
        tokio::time::sleep(Duration::from_secs(4)).await;
        near.write_all(written).await.unwrap();
        silence.await.unwrap();
        begun.elapsed() > Duration::from_secs(13)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_written_of_a_request_counts_as_sent() {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let ((near, _service), (near2, _service2), (near3, _service3)) = (pair().await, pair().await, pair().await);
        assert!(counts(near, b"the rest of a body").await);
        let by_http2 = |mut near: ServiceStream| ServiceStream::http2(near.stream.take().unwrap(), Arc::default());
        let ping = b"\0\0\x08\x06\0\0\0\0\0pingping";
        assert!(!counts(by_http2(near2), &[PREFACE, ping].concat()).await);
        assert!(counts(by_http2(near3), &[PREFACE, ping, b"\0\0\x02\0\x01\0\0\0\x01hi"].concat()).await);
    }

    #[test]
    fn frames_are_told_apart_however_they_are_written() {
        let mut frames = FrameFollower::of_server();
        // A ping, data of three bytes, an empty end of data, settings without content.
        assert!(!are_of_request(&mut frames, b"\0\0\x08\x06\0\0\0\0\0ping"));
        assert!(!are_of_request(&mut frames, b"ping\0\0\x03\0\0"));
        assert!(are_of_request(&mut frames, b"\0\0\0\x01a"));
        assert!(are_of_request(&mut frames, b"b"));
        assert!(are_of_request(&mut frames, b"c\0\0\0\x04\0\0\0\0\0"));
        assert!(!are_of_request(&mut frames, b"\0\0\0\x04\0\0\0\0\0"));
        assert!(are_of_request(&mut frames, b"\0\0\0\0\x01\0\0\0\x01"));
    }

    #[tokio::test]
    async fn a_dropped_connection_is_closed_only_when_the_service_closes_it() {
        let (near, mut service) = pair().await;
        let handle = near.handle();
        drop(near);
        assert_eq!(service.read(&mut [0; 1]).await.unwrap(), 0, "the service is told");
        let closed = tokio::spawn(async move { handle.closed().await });
        service.write_all(b"it works on").await.unwrap();
        tokio::task::yield_now().await;
        assert!(!closed.is_finished());
        drop(service);
        closed.await.unwrap();
    }

    /// An exchange with a slow router learns late that its connection was dropped.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_connection_is_seen_also_by_one_who_begins_to_wait_late() {
        let (near, service) = pair().await;
        let handle = near.handle();
        drop(near);
        tokio::time::sleep(3 * LINGER_CHECK_INTERVAL).await;
        let closed = tokio::spawn(async move { handle.closed().await });
        drop(service);
        timeout(10 * LINGER_CHECK_INTERVAL, closed).await.unwrap().unwrap();
    }

    /// Otherwise a service that overlooks the end of its connection would be read for ever.
    #[tokio::test]
    async fn a_service_that_writes_on_is_read_only_while_an_exchange_waits_for_it() {
        let (near, mut service) = pair().await;
        tokio::time::pause();
        drop(near);
        for _ in 0..100 {
            tokio::time::advance(LINGER_CHECK_INTERVAL / 5).await;
            if service.write_all(b"event").await.is_err() {
                return;
            }
            // Never idle, or the clock would go on by itself.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
        panic!("it is read on");
    }

    #[tokio::test]
    async fn a_connection_that_is_reset_is_gone_for_both_sides() {
        let (mut near, mut service) = pair().await;
        let handle = near.handle();
        let read = tokio::spawn(async move { near.read(&mut [0; 1]).await.unwrap_err().kind() });
        tokio::task::yield_now().await;
        handle.reset();
        assert_eq!(read.await.unwrap(), io::ErrorKind::ConnectionReset);
        handle.closed().await;
        assert_eq!(service.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_connection_can_be_closed_on_this_side_while_it_is_read() {
        let (mut near, mut service) = pair().await;
        let handle = near.handle();
        let read = tokio::spawn(async move {
            let mut response = String::new();
            near.read_to_string(&mut response).await.unwrap();
            response
        });
        tokio::task::yield_now().await;
        handle.finish();
        assert_eq!(service.read(&mut [0; 1]).await.unwrap(), 0);
        service.write_all(b"the answer").await.unwrap();
        drop(service);
        assert_eq!(read.await.unwrap(), "the answer");
    }
}
