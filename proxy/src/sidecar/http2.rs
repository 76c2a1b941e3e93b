//! A partition's HTTP/2 connection to a service. Its exchanges share it, and it is made anew once it has closed.
//!
//! hyper-util's client does not fit: it takes the host that a request names for the address too, and services refuse a
//! request whose `host` differs from its `:authority`.
//!
//! # Invariants
//!
//! * A request is sent again only if hyper hands it back.
//! * Nothing of a request has been sent while it has no [`UsedConnection`].
//! * One attempt to connect serves all exchanges that wait for it, even if it fails.
//! * Nobody keeps a sender of a connection that has ended.
//! * A head that is larger than the service has announced to accept is not sent.
//! * A request whose connection the service has ended with an error gets one of its own when its router sends it again, and
//!   is given back no more once the service has ended that one as well.

use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, PoisonError};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::connection::{CONNECT_TIMEOUT, ServiceConnection, ServiceStream};
use super::expect::ServiceRequestBody;
use super::faults::Faults;
use super::upstream::Upstream;
use crate::tls::{AlpnOffer, refuses_protocol};
use crate::upstream::{
    CONNECTION_WINDOW_BYTES, MAX_HEAD_BYTES, RefusalScope, SharingPolicy, head_size, says_unprocessed,
};

#[derive(Debug, Clone)]
pub(super) struct Http2 {
    upstream: Upstream,
    session: Arc<Mutex<ConnectionState>>,
    faults: Faults,
}

#[derive(Debug, Default)]
struct ConnectionState {
    open: Option<SharedConnection>,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, String)>,
    /// Whether exchanges share a connection, as far as the service has ended none with an error.
    sharing: SharingPolicy,
}

/// A connection, which exchanges share unless one has lately ended such a connection.
#[derive(Debug, Clone)]
struct SharedConnection {
    sender: SendRequest<ServiceRequestBody>,
    /// Cancelled once the connection accepts no further requests.
    ended: CancellationToken,
    handle: Arc<ServiceConnection>,
    /// Whether it was made for the exchange that holds this.
    fresh: bool,
    is_shared: bool,
}

/// The connection that an exchange may have been sent on.
pub(super) type UsedConnection = std::sync::Mutex<Option<Arc<ServiceConnection>>>;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectFailure {
    /// Nothing was sent.
    #[error("cannot connect to the service: {0}")]
    Unreachable(BoxError),
    /// The service reports that it has not processed the request.
    #[error("the service has not processed the request")]
    Unprocessed,
    /// Nothing was sent, or the service has not processed it: it does not take a head of this size.
    #[error("the request's head is larger than the service takes")]
    HeadTooLarge,
    /// The service reports that it has not processed the request, and has ended the request's own connection with an error.
    #[error("the service has ended the request's own connection with an error")]
    Rejected,
    /// The service may have acted on the request.
    #[error(transparent)]
    Broken(BoxError),
}

impl ConnectFailure {
    /// Returns the failure of a request that was sent before: the service may have acted on it then.
    pub(super) fn after_another(self) -> Self {
        match self {
            ConnectFailure::Unreachable(error) => ConnectFailure::Broken(error),
            unprocessed @ ConnectFailure::Unprocessed => ConnectFailure::Broken(unprocessed.into()),
            other => other,
        }
    }

    /// Returns whether the service has refused, by TLS, the version of HTTP that it was offered.
    pub(super) fn is_refused_protocol(&self) -> bool {
        let ConnectFailure::Unreachable(error) = self else { return false };
        let mut cause: Option<&(dyn Error + 'static)> = Some(&**error);
        while let Some(error) = cause {
            if error.downcast_ref().is_some_and(refuses_protocol) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl Http2 {
    pub(super) fn new(upstream: Upstream, faults: Faults) -> Self {
        Http2 { upstream, session: Arc::default(), faults }
    }

    pub(super) async fn request(
        &self,
        mut request: Request<ServiceRequestBody>,
        used: &UsedConnection,
    ) -> Result<Response<Incoming>, ConnectFailure> {
        loop {
            let SharedConnection { mut sender, ended, handle, fresh, is_shared } =
                self.session().await.map_err(ConnectFailure::Unreachable)?;
            // Without a bound the size is needed only where one may still arrive.
            let is_bounded = fresh || handle.most_head() < usize::MAX;
            let size = if is_bounded { head_size(&request) } else { 0 };
            if size > handle.most_head() {
                return Err(ConnectFailure::HeadTooLarge);
            }
            *used.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle.clone());
            let mut response = pin!(sender.try_send_request(request));
            let result = tokio::select! {
                biased;
                result = &mut response => result,
                // hyper keeps requests in a channel until the connection's task takes them. One that another thread
                // puts there at the moment at which the task ends stays there, and is handed back only when the last
                // sender is dropped.
                () = ended.cancelled() => {
                    drop(sender);
                    self.forget_ended().await;
                    response.await
                }
            };
            let mut error = match result {
                Ok(response) => {
                    self.faults.note_response();
                    return Ok(response);
                }
                Err(error) => error,
            };
            if handle.is_foreign() {
                self.faults.note_foreign(&self.upstream.address);
            }
            match error.take_message() {
                Some(unsent) if !fresh => {
                    used.lock().unwrap_or_else(PoisonError::into_inner).take();
                    request = unsent;
                }
                Some(_) => return Err(ConnectFailure::Unprocessed),
                None if handle.is_foreign() => return Err(ConnectFailure::Unprocessed),
                None => return Err(self.failure(error.into_error(), size > handle.most_head(), is_shared).await),
            }
        }
    }

    /// Returns why an exchange that was sent got no response.
    async fn failure(&self, error: hyper::Error, is_too_large: bool, was_shared: bool) -> ConnectFailure {
        self.faults.note_end(&self.upstream.address, &error);
        match says_unprocessed(&error) {
            None => ConnectFailure::Broken(error.into()),
            Some(RefusalScope::Alone) => ConnectFailure::Unprocessed,
            // The bound arrived when the head had left.
            Some(RefusalScope::WithItsConnection) if is_too_large => ConnectFailure::HeadTooLarge,
            Some(RefusalScope::WithItsConnection) => {
                tracing::debug!(%error, "the service ended a connection with an error; sharing none for a while");
                self.session.lock().await.sharing.note_harm(Instant::now());
                // Any exchange of a shared connection may be the cause. The one that is shows it by ending its own.
                if was_shared { ConnectFailure::Unprocessed } else { ConnectFailure::Rejected }
            }
        }
    }

    /// Returns the open connection, or a new one. While connections are not shared this is one for the caller alone.
    async fn session(&self) -> Result<SharedConnection, BoxError> {
        let asked = Instant::now();
        let mut shared = self.session.lock().await;
        let is_shared = shared.sharing.is_allowed(asked) && self.faults.may_share(asked);
        if let Some(open) = shared.open.as_ref().filter(|open| is_shared && !open.sender.is_closed()) {
            return Ok(open.clone());
        }
        if let Some((_, why)) = shared.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(why.clone().into());
        }
        let made = self.connect(is_shared).await;
        match &made {
            Ok(_) if !is_shared => {}
            Ok(made) => shared.open = Some(SharedConnection { fresh: false, ..made.clone() }),
            Err(error) => shared.failed = Some((Instant::now(), error.to_string())),
        }
        made
    }

    /// Drops the shared connection if it has ended.
    async fn forget_ended(&self) {
        let mut shared = self.session.lock().await;
        if shared.open.as_ref().is_some_and(|open| open.ended.is_cancelled()) {
            shared.open = None;
        }
    }

    async fn connect(&self, is_shared: bool) -> Result<SharedConnection, BoxError> {
        let Upstream { address, tls, traffic, .. } = &self.upstream;
        let dialled = address.dial(tls.as_ref(), AlpnOffer::Http2, CONNECT_TIMEOUT).await;
        let socket = dialled.inspect_err(|error| {
            if refuses_protocol(error) {
                self.faults.note_foreign(address);
            }
        })?;
        let stream = ServiceStream::http2(socket, traffic.clone());
        let handle = stream.handle();
        let mut builder = Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        builder.max_header_list_size(MAX_HEAD_BYTES as u32);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let (faults, upstream) = (self.faults.clone(), address.clone());
        tokio::spawn(async move {
            let _end = end;
            if let Err(error) = connection.await {
                faults.note_end(&upstream, &error);
                tracing::debug!(%error, "a connection to the service has ended");
            }
        });
        Ok(SharedConnection { sender, ended, handle, fresh: true, is_shared })
    }

    /// Makes later exchanges use another connection than this one, so that it closes when its last exchange has ended.
    /// Returns it.
    pub(super) async fn retire(&self, used: &UsedConnection) -> Option<Arc<ServiceConnection>> {
        let handle = used.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let mut shared = self.session.lock().await;
        if shared.open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.handle, &handle)) {
            shared.open = None;
        }
        Some(handle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::service::service_fn;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::sidecar::service_socket::ServiceSocket;
    use crate::sidecar::tests::deaf;
    use crate::tls::Stream;

    /// Returns a request as a router sends it, and its connection.
    async fn request() -> (Request<ServiceRequestBody>, impl Sized) {
        let (mut router, sidecar) = tokio::io::duplex(1 << 10);
        let (arrived, mut requests) = mpsc::unbounded_channel();
        let service = service_fn(move |request: Request<Incoming>| {
            arrived.send(request).unwrap();
            std::future::pending::<Result<Response<String>, BoxError>>()
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(sidecar), service));
        router.write_all(b"GET http://x/ HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let (mut request, _) =
            ServiceRequestBody::of(requests.recv().await.unwrap(), false, CancellationToken::new().cancelled_owned());
        *request.version_mut() = http::Version::HTTP_2;
        (request, router)
    }

    /// A request that is put into the channel when the connection's task has just emptied it for the last time cannot be
    /// had at will. So the task's part of the connection stays here: it too ends only when there is no sender.
    #[tokio::test]
    async fn an_exchange_keeps_no_sender_of_a_connection_that_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = Http2::new(Upstream::at(address.to_string().parse().unwrap()), Faults::default());
        let socket = ServiceSocket::Tcp(Stream::Plain(TcpStream::connect(address).await.unwrap()));
        let stream = ServiceStream::http2(socket, Arc::default());
        let handle = stream.handle();
        let (sender, connection) = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.unwrap();
        let ended = CancellationToken::new();
        client.session.lock().await.open =
            Some(SharedConnection { sender, ended: ended.clone(), handle, fresh: false, is_shared: true });
        let (request, _router) = request().await;
        let exchange = tokio::spawn(async move { client.request(request, &UsedConnection::default()).await.is_ok() });
        ended.cancel();
        timeout(Duration::from_secs(60), connection).await.expect("a sender is left").unwrap();
        assert!(!exchange.is_finished(), "the request has been sent and is not answered");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_to_connect_fails_for_all_who_wait_for_it() {
        let (_listener, _queued, address) = deaf().await;
        let client = Http2::new(Upstream::at(address.to_string().parse().unwrap()), Faults::default());
        let begun = Instant::now();
        let all = futures_util::future::join_all((0..5).map(|_| client.session())).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(begun.elapsed().as_secs(), CONNECT_TIMEOUT.as_secs());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(client.session().await.is_err());
        assert_eq!(begun.elapsed().as_secs(), 2 * CONNECT_TIMEOUT.as_secs(), "a later one is another attempt");
    }
}
