//! Connections to pods: for each worker its own, found without a lock.
//!
//! Not here: what to do when a pod cannot be reached or breaks an exchange ([`forward`](crate::forward)). What must stay
//! true: every failure says whether a byte of the request can have reached the pod; only if not is it
//! [`SendError::NotSent`].

mod backoff;
mod http1;
mod http2;
mod pool;
mod rest;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{Response, Version};
use http_body::{Frame, SizeHint};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::message::header_scan::HeaderScan;
use crate::message::headers::{RoutingHeaders, clean_answer, clean_answer_trailers};
use crate::message::local_reply::LocalReply;
use crate::message::request_body::Attempt;
use crate::routing::table::Pod;
use crate::runtime::coarse_timer::CoarseTimer;
use crate::runtime::shortage::is_shortage;
use crate::settings::{UpstreamProtocol, UpstreamSettings};
use crate::tls::{Offer, Stream};
use backoff::BackOff;
use http1::Connection;
#[cfg(fuzzing)]
pub(crate) use http1::fuzzing;
pub(crate) use http1::{MAX_HEAD_BYTES, ResponseHead};
use http2::{Agreed, Lease, Leased, Sessions};
pub(crate) use http2::{CONNECTION_WINDOW, says_unprocessed};
use pool::Pool;
pub(crate) use rest::Counted;
use rest::Rest;

/// How many connections a worker makes to a pod at a time. Servers usually let 128 wait to be accepted; what comes on top
/// is dropped without a word, and the pod would look as if it could not be reached.
const CONNECTING: usize = 16;
/// How often idle connections are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const NOTE_SHORTAGE_EVERY: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// It is certain that no pod acted on the request.
    NotSent(io::Error),
    /// It is certain here too, but the pod has ended the whole connection with an error, and the request may be the cause.
    Rejected(io::Error),
    /// A pod may have.
    Failed(Broken),
}

/// How an exchange broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// The client did not send its whole request.
    #[error("the client cut its request off")]
    CutOff,
    /// The request's trailers are larger than pods take.
    #[error("the request's trailers are too large")]
    TrailersTooLarge,
    /// The pod closed the connection before the end.
    #[error("the pod closed the connection before the end of the exchange")]
    Closed,
    /// The pod's answer makes no sense.
    #[error("the pod's answer is not valid HTTP")]
    Garbled,
}

/// No connection was tried, as one has just failed.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("a connection has just failed; not tried again yet")]
struct Spared;

impl From<Spared> for io::Error {
    fn from(spared: Spared) -> Self {
        io::Error::new(io::ErrorKind::ResourceBusy, spared)
    }
}

/// Whether the pod was not even tried.
pub(crate) fn was_spared(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Spared>())
}

/// One worker's connections.
pub(crate) struct Upstream {
    settings: UpstreamSettings,
    watch: CoarseTimer,
    pods: RefCell<Vec<Option<Rc<PodConnections>>>>,
    swept: RefCell<Instant>,
    /// In which ways pods were spoken to so far, in the order of [`Wanted::ALL`].
    spoken: [Cell<bool>; 3],
    shortage_noted: Cell<Option<Instant>>,
}

/// How a request is to reach its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Http1,
    /// HTTP/2, for a request that has arrived completely.
    Http2Whole,
    /// HTTP/2, for a request whose body is still arriving.
    Http2Uploading,
}

impl Wanted {
    const ALL: [Wanted; 3] = [Wanted::Http1, Wanted::Http2Whole, Wanted::Http2Uploading];
}

/// Which connections will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Any,
    /// One that was made from now on.
    New,
    /// One that nobody else uses.
    LocalReply,
}

/// The connections to one pod.
struct PodConnections {
    pool: Rc<Pool<Connection>>,
    whole: Sessions,
    uploading: Sessions,
    back_off: Cell<BackOff>,
    connecting: Semaphore,
}

/// A way to a pod for one request.
pub(crate) enum Checkout {
    Http1 { connection: Connection, pool: Rc<Pool<Connection>>, fresh: bool },
    Http2(Lease),
}

impl Upstream {
    pub(crate) fn new(settings: UpstreamSettings, watch: CoarseTimer) -> Self {
        Upstream {
            settings,
            swept: RefCell::new(watch.now()),
            watch,
            pods: RefCell::default(),
            spoken: Default::default(),
            shortage_noted: Cell::default(),
        }
    }

    /// Whether a request that came by `version` goes to pods by HTTP/2.
    pub(crate) fn by_http2(&self, version: Version) -> bool {
        match self.settings.protocol {
            UpstreamProtocol::Auto => version == Version::HTTP_2,
            UpstreamProtocol::Http1 => false,
            UpstreamProtocol::Http2 => true,
        }
    }

    /// A connection to the pod that is open; none means that [`line`](Self::line) has to wait for one.
    #[inline]
    pub(crate) fn open_line(&self, pod: &Arc<Pod>, wanted: Wanted) -> Option<Checkout> {
        self.lines(pod.slot).open(wanted)
    }

    /// A connection to the pod, which may have to be made.
    pub(crate) async fn line(&self, pod: &Arc<Pod>, wanted: Wanted, which: Which) -> io::Result<Checkout> {
        let lines = self.lines(pod.slot);
        self.spoken[wanted as usize].set(true);
        if which == Which::Any
            && let Some(line) = lines.open(wanted)
        {
            return Ok(line);
        }
        // In a box, as every request would have room for it otherwise.
        Box::pin(self.new_line(pod, lines, wanted, which)).await
    }

    async fn new_line(
        &self,
        pod: &Pod,
        lines: Rc<PodConnections>,
        wanted: Wanted,
        which: Which,
    ) -> io::Result<Checkout> {
        if let Some(sessions) = lines.sessions(wanted) {
            match sessions.lease(async || self.offer_http2(pod, &lines).await, which).await? {
                Leased::Lease(lease) => return Ok(Checkout::Http2(lease)),
                Leased::Declined(Some(stream)) => {
                    return Ok(lines.http1(Connection::new(stream, self.watch.now()), true));
                }
                Leased::Declined(None) if which != Which::Any => {}
                Leased::Declined(None) => {
                    // Only now is it known that one of these may do.
                    if let Some(connection) = lines.pool.take() {
                        return Ok(lines.http1(connection, false));
                    }
                }
            }
        }
        let stream = self.connect(pod, &lines, Offer::Http1).await?;
        Ok(lines.http1(Connection::new(stream, self.watch.now()), true))
    }

    /// Has a connection to the pod made if there is none, for each way in which pods are spoken to here.
    pub(crate) async fn prepare(&self, pod: &Arc<Pod>) {
        let lines = self.lines(pod.slot);
        for wanted in Wanted::ALL {
            let missing = lines.sessions(wanted).map_or_else(|| lines.pool.is_empty(), Sessions::is_empty);
            // One that cannot be made now is made by the request that needs it, which also knows what to do if it cannot.
            if self.spoken[wanted as usize].get()
                && missing
                && let Ok(Checkout::Http1 { connection, pool, .. }) = self.line(pod, wanted, Which::Any).await
            {
                pool.give_back(connection);
            }
        }
    }

    async fn offer_http2(&self, pod: &Pod, lines: &PodConnections) -> io::Result<Agreed> {
        // Where nothing but HTTP/2 is to be spoken, a pod that says nothing about it is taken by its operator's word.
        let (offer, unsaid) = match self.settings.protocol {
            UpstreamProtocol::Auto => (Offer::Either, self.settings.tls.is_none()),
            UpstreamProtocol::Http1 | UpstreamProtocol::Http2 => (Offer::Http2, true),
        };
        let stream = self.connect(pod, lines, offer).await?;
        let http2 = stream.agreed_on_http2().unwrap_or(unsaid);
        Ok(if http2 { Agreed::Http2(stream) } else { Agreed::Http1(stream) })
    }

    fn lines(&self, slot: u32) -> Rc<PodConnections> {
        let mut pods = self.pods.borrow_mut();
        let slot = slot as usize;
        if pods.len() <= slot {
            pods.resize_with(slot + 1, || None);
        }
        let make = || {
            Rc::new(PodConnections {
                pool: Rc::new(Pool::new(self.settings.max_idle_per_pod, self.watch.clone())),
                whole: Sessions::new(http2::WHOLE),
                uploading: Sessions::new(http2::UPLOADING),
                back_off: Cell::default(),
                connecting: Semaphore::new(CONNECTING),
            })
        };
        pods[slot].get_or_insert_with(make).clone()
    }

    async fn connect(&self, pod: &Pod, lines: &PodConnections, offer: Offer) -> io::Result<Stream> {
        let _place = lines.connecting.acquire().await.map_err(io::Error::other)?;
        lines.may_connect()?;
        let connected = tokio::time::timeout(self.settings.connect_timeout, async {
            let stream = self.reach(pod).await?;
            match &self.settings.tls {
                None => Ok(Stream::Plain(stream)),
                // In a box, as every request would have room for a handshake otherwise, also those in clear text.
                Some(tls) => Box::pin(tls.connect(&pod.address, stream, offer)).await,
            }
        });
        let connected = connected.await.unwrap_or_else(|elapsed| Err(elapsed.into()));
        match &connected {
            Ok(_) => lines.back_off.set(BackOff::default()),
            Err(error) if is_shortage(error) => self.note_shortage(error),
            Err(error) => {
                // What comes up in its place may speak something else.
                lines.whole.forget_choice();
                lines.uploading.forget_choice();
                if lines.failed() {
                    tracing::warn!(pod = pod.name, address = pod.address, %error, "pod cannot be reached; retrying");
                }
            }
        }
        connected
    }

    async fn reach(&self, pod: &Pod) -> io::Result<TcpStream> {
        let stream = match TcpStream::connect(&pod.address).await {
            Err(error) if is_shortage(&error) && self.close_idle() > 0 => TcpStream::connect(&pod.address).await,
            connected => connected,
        }?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Closes idle connections by HTTP/1.1 to all pods, for want of files or ports; how many those were.
    pub(crate) fn close_idle(&self) -> usize {
        self.pods.borrow().iter().flatten().map(|lines| lines.pool.clear()).sum()
    }

    fn note_shortage(&self, error: &io::Error) {
        let now = Instant::now();
        if self.shortage_noted.get().is_none_or(|scan| now.saturating_duration_since(scan) > NOTE_SHORTAGE_EVERY) {
            self.shortage_noted.set(Some(now));
            tracing::warn!(%error, "no connection to a pod can be made; requests are answered with 503 overload");
        }
    }

    /// Closes what is idle for too long; to be called at every tick.
    pub(crate) fn sweep(&self) {
        let now = self.watch.now();
        if now.saturating_duration_since(*self.swept.borrow()) < SWEEP_EVERY {
            return;
        }
        *self.swept.borrow_mut() = now;
        for slot in self.pods.borrow_mut().iter_mut() {
            let Some(lines) = slot else { continue };
            lines.pool.sweep();
            lines.whole.sweep(now, http1::MAX_IDLE_AGE);
            lines.uploading.sweep(now, http1::MAX_IDLE_AGE);
            let unused = Rc::strong_count(lines) == 1 && Rc::strong_count(&lines.pool) == 1;
            if unused && lines.pool.is_empty() && lines.whole.is_empty() && lines.uploading.is_empty() {
                *slot = None;
            }
        }
    }
}

impl PodConnections {
    /// A connection that is open.
    fn open(&self, wanted: Wanted) -> Option<Checkout> {
        match self.sessions(wanted).filter(|sessions| !sessions.is_declined()) {
            Some(sessions) => sessions.open().map(Checkout::Http2),
            None => self.pool.take().map(|connection| self.http1(connection, false)),
        }
    }

    fn sessions(&self, wanted: Wanted) -> Option<&Sessions> {
        match wanted {
            Wanted::Http1 => None,
            Wanted::Http2Whole => Some(&self.whole),
            Wanted::Http2Uploading => Some(&self.uploading),
        }
    }

    fn http1(&self, connection: Connection, fresh: bool) -> Checkout {
        Checkout::Http1 { connection, pool: self.pool.clone(), fresh }
    }

    fn may_connect(&self) -> io::Result<()> {
        let mut back_off = self.back_off.get();
        let may = back_off.may_try(Instant::now(), rand::random());
        self.back_off.set(back_off);
        if may { Ok(()) } else { Err(Spared.into()) }
    }

    /// True: for the first time.
    fn failed(&self) -> bool {
        let mut back_off = self.back_off.get();
        let first = back_off.failed(Instant::now(), rand::random());
        self.back_off.set(back_off);
        first
    }
}

impl Checkout {
    /// The connection was made for this request.
    pub(crate) fn is_fresh(&self) -> bool {
        match self {
            Checkout::Http1 { fresh, .. } => *fresh,
            Checkout::Http2(lease) => lease.fresh,
        }
    }

    /// Begins to send a request, unless its head is more than a pod takes.
    pub(crate) fn begin(
        self,
        head: &Parts,
        scan: HeaderScan,
        routing: &RoutingHeaders<'_>,
        attempt: Attempt,
        upgrade: bool,
        max_header_bytes_http2: usize,
    ) -> Result<Exchange, LocalReply> {
        Ok(match self {
            Checkout::Http1 { connection, pool, .. } => {
                Exchange::Http1(http1::Exchange::new(connection, pool, head, scan, routing, attempt, upgrade))
            }
            Checkout::Http2(lease) => {
                let exchange = http2::Exchange::new(lease, head, scan, routing, attempt, max_header_bytes_http2)?;
                Exchange::Http2(exchange)
            }
        })
    }
}

/// A request on its way, until the head of its answer is there. Dropped, it is broken off.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one; a box would be one more allocation")]
pub(crate) enum Exchange {
    Http1(http1::Exchange),
    Http2(http2::Exchange),
}

/// What a pod answered.
pub(crate) enum Answer {
    /// An answer whose body is to be read.
    Response(Response<ResponseStream>),
    /// It switched protocols: its head, the bare connection, and what had been read of it.
    Switched(Response<()>, Stream, BytesMut),
}

impl Exchange {
    /// `interim`: gets what a pod answers before its answer.
    pub(crate) fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
        interim: &mut dyn FnMut(&http1::ResponseHead),
    ) -> Poll<Result<Answer, SendError>> {
        Poll::Ready(match self {
            Exchange::Http1(exchange) => ready!(exchange.poll_answer(context, interim)).map(|answer| match answer {
                http1::Answer::Response(head, reader, rest) => {
                    let body = ResponseStream { source: Source::Http1(reader), rest: rest.map(Rest::new) };
                    Answer::Response(response(head, body))
                }
                http1::Answer::Switched(head, stream, read) => Answer::Switched(response(head, ()), stream, read),
            }),
            Exchange::Http2(exchange) => ready!(exchange.poll_answer(context)).map(|(response, rest)| {
                let (mut parts, reader) = response.into_parts();
                // The client's connection decides about the version.
                parts.version = Version::HTTP_11;
                clean_answer(&mut parts.headers);
                let body = ResponseStream { source: Source::Http2(reader), rest: rest.map(Rest::new) };
                Answer::Response(Response::from_parts(parts, body))
            }),
        })
    }
}

fn response<B>(head: http1::ResponseHead, body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    if let Some(reason) = head.reason.and_then(|reason| hyper::ext::ReasonPhrase::try_from(reason.as_ref()).ok()) {
        response.extensions_mut().insert(reason);
    }
    response
}

/// The body of an answer as it comes from the pod, and what is still to be sent of its request. Dropped before its end, the
/// exchange is broken off.
pub(crate) struct ResponseStream {
    // First, so that it is broken off before its connection is closed.
    rest: Option<Rest>,
    source: Source,
}

enum Source {
    Http1(http1::Reader),
    Http2(http2::Reader),
}

impl ResponseStream {
    /// Everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        match &self.source {
            Source::Http1(reader) => reader.is_done(),
            Source::Http2(reader) => reader.is_done(),
        }
    }

    /// The whole body, if it is already here.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        match &mut self.source {
            Source::Http1(reader) => reader.take_whole(),
            Source::Http2(reader) => reader.is_done().then(Bytes::new),
        }
    }

    /// Everything has been read, so the exchange is over once its request has been sent.
    pub(crate) fn finish(self, counted: Box<impl Counted>) {
        let ResponseStream { rest, source } = self;
        let Some(rest) = rest else { return drop(counted) };
        let read = match source {
            Source::Http1(reader) => reader.into_half(),
            Source::Http2(_) => None,
        };
        rest.finish(read, counted);
    }

    /// How much is left, where that is known.
    pub(crate) fn left(&self) -> Option<u64> {
        match &self.source {
            Source::Http1(reader) => reader.left(),
            Source::Http2(reader) => reader.left(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut frame = ready!(match &mut self.source {
            Source::Http1(reader) => reader.poll_frame(context),
            Source::Http2(reader) => reader.poll_frame(context),
        });
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            clean_answer_trailers(trailers);
        }
        Poll::Ready(frame)
    }
}
