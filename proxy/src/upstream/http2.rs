//! HTTP/2 connections of one worker to one pod, and exchanges over them.
//!
//! hyper's client does the framing. What must stay true: a request is called not sent only if hyper hands it back,
//! or the pod itself says that it did not process it (`REFUSED_STREAM`, or a `GOAWAY` below its stream).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TE, VIA};
use http::request::Parts;
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Broken, SendError};
use crate::deadline::GRPC_TIMEOUT;
use crate::headers::{
    Declared, SEGUE_EPOCH, SEGUE_KEYSPACE, SEGUE_PARTITION, SEGUE_ROUTER, Stamps, X_FORWARDED_FOR, X_FORWARDED_PROTO,
    continued, passes_to_pod, takes_trailers, via,
};
use crate::local::LocalExecutor;
use crate::noted::Noted;
use crate::request_body::Attempt;
use crate::tls::Stream;

/// Streams on one connection before another is made: few servers allow fewer than 100 (RFC 9113 asks for no less), and
/// beyond their bound hyper would queue.
const STREAMS: usize = 100;
/// What a pod may send ahead on a stream: 64 MB/s at 1 ms. A client that does not read has as much of each of its streams
/// kept here.
const STREAM_WINDOW: u32 = 64 << 10;
/// Much more than all streams of a connection together may hold, so that clients who do not read never use up what those
/// need who share the connection with them. As much more because `h2` takes from it how many small frames may lie unread
/// before it breaks the connection off: each costs 256 bytes less its length of a half of this.
pub(crate) const CONNECTION_WINDOW: u32 = 128 << 20;
/// A pod that does not answer a ping for so long while it owes answers is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(5);

/// The connections.
#[derive(Default)]
pub(super) struct Sessions {
    open: RefCell<Vec<Session>>,
    connecting: Cell<bool>,
    changed: Notify,
    failures: Cell<u64>,
    /// The pod has chosen HTTP/1.1.
    declined: Cell<bool>,
}

/// A connection on which HTTP/2 was offered, by what the pod has chosen.
pub(super) enum Agreed {
    Http1(Stream),
    Http2(Stream),
}

/// What came of asking for a place.
pub(super) enum Leased {
    Lease(Lease),
    /// The pod has chosen HTTP/1.1: the connection on which it did, if this request is the one that made it.
    Declined(Option<Stream>),
}

#[derive(Clone)]
struct Session {
    sender: SendRequest<Attempt>,
    secure: bool,
    load: Rc<Cell<usize>>,
    used: Rc<Cell<Instant>>,
}

/// A place for one stream on a connection.
pub(crate) struct Lease {
    session: Session,
    /// The connection was made for this very request.
    pub(crate) fresh: bool,
}

impl Lease {
    fn of(session: &Session, fresh: bool) -> Self {
        session.load.set(session.load.get() + 1);
        Lease { session: session.clone(), fresh }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.session.load.set(self.session.load.get() - 1);
        self.session.used.set(Instant::now());
    }
}

impl Sessions {
    /// A place on a connection that is open.
    pub(super) fn open(&self) -> Option<Lease> {
        let mut open = self.open.borrow_mut();
        open.retain(|session| !session.sender.is_closed());
        open.iter().rev().find(|session| session.load.get() < STREAMS).map(|session| Lease::of(session, false))
    }

    /// Whether the pod has chosen HTTP/1.1.
    pub(super) fn is_declined(&self) -> bool {
        self.declined.get()
    }

    /// A place on an open connection, or on a new one. One connection is made at a time; those who wait for it share its
    /// fate.
    pub(super) async fn lease(
        &self,
        connect: impl AsyncFn() -> io::Result<Agreed>,
        mut fresh_only: bool,
    ) -> io::Result<Leased> {
        loop {
            if self.declined.get() {
                return Ok(Leased::Declined(None));
            }
            if !fresh_only && let Some(lease) = self.open() {
                return Ok(Leased::Lease(lease));
            }
            if self.connecting.get() {
                let failures = self.failures.get();
                self.changed.notified().await;
                if self.failures.get() != failures {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                // Made while this one waited, so as good as its own.
                fresh_only = false;
                continue;
            }
            let _connecting = Connecting::begin(self);
            let made = match connect().await {
                Ok(Agreed::Http1(stream)) => {
                    self.declined.set(true);
                    return Ok(Leased::Declined(Some(stream)));
                }
                Ok(Agreed::Http2(stream)) => open_session(stream).await,
                Err(error) => Err(error),
            };
            return match made {
                Ok(session) => {
                    let lease = Lease::of(&session, true);
                    self.open.borrow_mut().push(session);
                    Ok(Leased::Lease(lease))
                }
                Err(error) => {
                    self.failures.set(self.failures.get() + 1);
                    Err(error)
                }
            };
        }
    }

    /// Lets go of connections that nobody has used for `age`.
    pub(super) fn sweep(&self, now: Instant, age: Duration) {
        self.open.borrow_mut().retain(|session| {
            let idle = session.load.get() == 0 && now.saturating_duration_since(session.used.get()) > age;
            !session.sender.is_closed() && !idle
        });
    }

    /// The pod has to be asked again what it speaks.
    pub(super) fn forget_choice(&self) {
        self.declined.set(false);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.borrow().is_empty() && !self.connecting.get()
    }
}

/// Whoever makes the connection; the others wait until this is dropped, in whatever way.
struct Connecting<'sessions>(&'sessions Sessions);

impl<'sessions> Connecting<'sessions> {
    fn begin(sessions: &'sessions Sessions) -> Self {
        sessions.connecting.set(true);
        Connecting(sessions)
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.connecting.set(false);
        self.0.changed.notify_waiters();
    }
}

async fn open_session(stream: Stream) -> io::Result<Session> {
    let secure = stream.is_secure();
    let (sender, connection) = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a pod has ended");
        }
    });
    Ok(Session { sender, secure, load: Rc::default(), used: Rc::new(Cell::new(Instant::now())) })
}

type Sent = Result<Response<Incoming>, TrySendError<Request<Attempt>>>;

/// A request being sent, until the head of its answer is there.
pub(crate) struct Exchange {
    sending: Pin<Box<dyn Future<Output = Sent>>>,
    lease: Option<Lease>,
}

impl Exchange {
    pub(super) fn new(mut lease: Lease, head: &Parts, noted: Noted, stamps: &Stamps<'_>, attempt: Attempt) -> Self {
        let mut request = Request::new(attempt);
        *request.method_mut() = head.method.clone();
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = target(head, lease.session.secure);
        *request.headers_mut() = pod_headers(head, noted, stamps);
        let sending = Box::pin(lease.session.sender.try_send_request(request));
        Exchange { sending, lease: Some(lease) }
    }

    pub(crate) fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Response<Incoming>, Lease), SendError>> {
        let answered = ready!(self.sending.as_mut().poll(context));
        let Some(lease) = self.lease.take() else {
            return Poll::Ready(Err(SendError::Failed(Broken::Closed)));
        };
        Poll::Ready(match answered {
            Ok(answer) => Ok((answer, lease)),
            Err(error) if error.message().is_some() || says_unprocessed(error.error()) => {
                Err(SendError::NotSent(io::Error::other(error.into_error())))
            }
            Err(error) => {
                tracing::debug!(error = %error.error(), "an exchange with a pod has failed");
                Err(SendError::Failed(Broken::Closed))
            }
        })
    }
}

/// The pod says that it has not processed the request at all.
pub(crate) fn says_unprocessed(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        // h2 gives a remote GOAWAY only to streams above the last one that it names.
        cause.is_remote()
            && (cause.is_go_away() || (cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM)))
    })
}

/// HTTP/2 wants scheme and authority in the target.
fn target(head: &Parts, secure: bool) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if secure { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP });
    let host = || {
        let host = head.headers.get(http::header::HOST)?;
        http::uri::Authority::try_from(host.as_bytes()).ok()
    };
    parts.authority =
        head.uri.authority().cloned().or_else(host).or_else(|| Some(http::uri::Authority::from_static("localhost")));
    parts.path_and_query =
        head.uri.path_and_query().cloned().or_else(|| Some(http::uri::PathAndQuery::from_static("/")));
    Uri::from_parts(parts).unwrap_or_default()
}

fn pod_headers(head: &Parts, noted: Noted, stamps: &Stamps<'_>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(head.headers.len() + 8);
    let declared = Declared::of(&head.headers, noted);
    for (name, value) in &head.headers {
        if *name != CONTENT_LENGTH && passes_to_pod(name, &declared) {
            headers.append(name, value.clone());
        }
    }
    headers.insert(SEGUE_PARTITION, HeaderValue::from(stamps.partition));
    headers.insert(SEGUE_EPOCH, HeaderValue::from(stamps.epoch));
    headers.insert(SEGUE_ROUTER, stamps.identity.router.clone());
    headers.insert(SEGUE_KEYSPACE, stamps.identity.keyspace.clone());
    if let Some(left) = stamps.grpc_timeout {
        headers.insert(GRPC_TIMEOUT, left.clone());
    }
    headers.insert(X_FORWARDED_FOR, list(head, &X_FORWARDED_FOR, stamps.peer));
    headers.entry(X_FORWARDED_PROTO).or_insert_with(|| HeaderValue::from_static(stamps.scheme));
    headers.insert(VIA, list(head, &VIA, &HeaderValue::from_static(via(head.version))));
    if noted.te && takes_trailers(&head.headers) {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    headers
}

fn list(head: &Parts, name: &HeaderName, last: &HeaderValue) -> HeaderValue {
    if !head.headers.contains_key(name) {
        return last.clone();
    }
    let mut text = Vec::new();
    continued(&head.headers, name).for_each(|part| text.extend_from_slice(part));
    text.extend_from_slice(last.as_bytes());
    // Values that were valid, and commas.
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).unwrap_or_else(|_| last.clone())
}
