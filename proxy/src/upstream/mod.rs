//! Connections to pods: for each worker its own, found without a lock.
//!
//! This file makes connections and keeps them by pod. Elsewhere: the connections to one pod (`connections`), exchanges over
//! them (`exchange`), and how those fail (`error`).
//! Not here: what to do when a pod cannot be reached or breaks an exchange ([`forward`](crate::forward)).

mod addresses;
mod connect_retry;
mod connections;
mod dead_peers;
mod error;
mod exchange;
mod http1;
mod http2;
mod pool;
mod rest;
mod sharing;
mod wanted;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::routing::table::Pod;
use crate::runtime::coarse_timer::CoarseTimer;
use crate::runtime::repeated_line::RepeatedLine;
use crate::runtime::shortage::is_shortage;
use crate::settings::{UpstreamProtocol, UpstreamSettings};
use crate::tls::{AlpnOffer, Stream};
pub(crate) use addresses::connect;
use connect_retry::ConnectRetry;
pub(crate) use connections::Checkout;
use connections::PodConnections;
pub(crate) use dead_peers::end_without_peer;
pub(crate) use error::{Broken, SendError, is_backing_off, is_not_http2};
pub(crate) use exchange::{Exchange, PodResponse, ResponseStream};
#[cfg(feature = "fuzzing")]
pub(crate) use http1::fuzzing;
pub(crate) use http1::{DecodedPart, Decoder, HeadLines, ResponseHead, ResponseKind, chunk_size};
use http1::{MAX_IDLE_AGE, PodConnection};
pub(crate) use http2::{
    CONNECTION_WINDOW_BYTES, RefusalScope, SettingsReader, h2_cause, head_size, is_settings, says_unprocessed,
};
use http2::{LeaseOutcome, NegotiatedConnection, Sessions};
pub(crate) use rest::ExchangeGuard;
pub(crate) use sharing::{SharingPolicy, is_odd_response};
pub(crate) use wanted::{ConnectionKind, Which};

/// Largest head of a response. Generous, because pods are trusted more than clients, but bounded.
pub(crate) const MAX_HEAD_BYTES: usize = 256 << 10;
/// Interval between two looks at idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// One worker's connections to all pods.
pub(crate) struct Upstream {
    settings: UpstreamSettings,
    timer: CoarseTimer,
    pods: RefCell<Vec<Option<Rc<PodConnections>>>>,
    swept: RefCell<Instant>,
    /// Which of [`ConnectionKind::ALL`] requests have wanted so far.
    spoken: [Cell<bool>; 3],
    shortage_noted: RepeatedLine,
    http2_noted: RepeatedLine,
    not_http2_noted: RepeatedLine,
}

impl Upstream {
    pub(crate) fn new(settings: UpstreamSettings, timer: CoarseTimer) -> Self {
        Upstream {
            settings,
            swept: RefCell::new(timer.now()),
            timer,
            pods: RefCell::default(),
            spoken: Default::default(),
            shortage_noted: RepeatedLine::default(),
            http2_noted: RepeatedLine::default(),
            not_http2_noted: RepeatedLine::default(),
        }
    }

    /// Returns whether a request goes to pods by HTTP/2.
    pub(crate) fn by_http2(&self, is_grpc: impl FnOnce() -> bool) -> bool {
        self.settings.protocol.is_http2(is_grpc)
    }

    /// Takes an open connection to the pod. Returns `None` if [`checkout`](Self::checkout) has to make one.
    #[inline]
    pub(crate) fn take_open(&self, pod: &Arc<Pod>, wanted: ConnectionKind) -> Option<Checkout> {
        let connections = self.connections_to(pod);
        if wanted != ConnectionKind::Http1 && !connections.odd.may_share(self.timer.now()) {
            return None;
        }
        connections.open(wanted)
    }

    /// Takes a connection to the pod, making one if need be.
    pub(crate) async fn checkout(&self, pod: &Arc<Pod>, wanted: ConnectionKind, which: Which) -> io::Result<Checkout> {
        let connections = self.connections_to(pod);
        self.spoken[wanted as usize].set(true);
        let is_shared = wanted == ConnectionKind::Http1 || connections.odd.may_share(self.timer.now());
        let which = if which == Which::Any && !is_shared { Which::Exclusive } else { which };
        if which == Which::Any
            && let Some(checkout) = connections.open(wanted)
        {
            return Ok(checkout);
        }
        // Boxed: otherwise every request would reserve room for it.
        Box::pin(self.make_checkout(pod, connections, wanted, which)).await
    }

    async fn make_checkout(
        &self,
        pod: &Pod,
        connections: Rc<PodConnections>,
        wanted: ConnectionKind,
        which: Which,
    ) -> io::Result<Checkout> {
        if let Some(sessions) = connections.sessions(wanted) {
            match sessions.lease(async || self.offer_http2(pod, &connections).await, which).await? {
                LeaseOutcome::Lease(lease) => return Ok(Checkout::Http2(lease)),
                LeaseOutcome::Declined(Some(stream)) => {
                    return Ok(connections.http1(PodConnection::new(stream, self.timer.now()), true));
                }
                LeaseOutcome::Declined(None) if which != Which::Any => {}
                LeaseOutcome::Declined(None) => {
                    // Only now is it known that an HTTP/1.1 connection will do.
                    if let Some(connection) = connections.pool.take() {
                        return Ok(connections.http1(connection, false));
                    }
                }
            }
        }
        let stream = self.connect(pod, &connections, AlpnOffer::Http1).await?;
        Ok(connections.http1(PodConnection::new(stream, self.timer.now()), true))
    }

    /// Makes a connection to the pod for each of the kinds that requests have wanted, where there is none.
    pub(crate) async fn prepare(&self, pod: &Arc<Pod>) {
        let connections = self.connections_to(pod);
        for wanted in ConnectionKind::ALL {
            let missing = connections.sessions(wanted).map_or_else(|| connections.pool.is_empty(), Sessions::is_empty);
            // If it cannot be made now, the request that needs it makes it, and handles the failure.
            if self.spoken[wanted as usize].get()
                && missing
                && let Ok(Checkout::Http1 { connection, pool, .. }) = self.checkout(pod, wanted, Which::Any).await
            {
                pool.give_back(connection);
            }
        }
    }

    async fn offer_http2(&self, pod: &Pod, connections: &PodConnections) -> io::Result<NegotiatedConnection> {
        // With `protocol = "http2"` a pod that does not negotiate is taken to speak HTTP/2.
        let (offer, unsaid) = match self.settings.protocol {
            UpstreamProtocol::Auto => (AlpnOffer::Either, self.settings.tls.is_none()),
            UpstreamProtocol::Http1 | UpstreamProtocol::Http2 => (AlpnOffer::Http2, true),
        };
        let stream = self.connect(pod, connections, offer).await?;
        let http2 = stream.agreed_on_http2().unwrap_or(unsaid);
        Ok(if http2 { NegotiatedConnection::Http2(stream) } else { NegotiatedConnection::Http1(stream) })
    }

    fn connections_to(&self, pod: &Pod) -> Rc<PodConnections> {
        let mut pods = self.pods.borrow_mut();
        let slot = pod.slot as usize;
        if pods.len() <= slot {
            pods.resize_with(slot + 1, || None);
        }
        let make = || Rc::new(PodConnections::new(&pod.name, self.settings.max_idle_per_pod, self.timer.clone()));
        pods[slot].get_or_insert_with(make).clone()
    }

    async fn connect(&self, pod: &Pod, connections: &PodConnections, offer: AlpnOffer) -> io::Result<Stream> {
        let _place = connections.connecting.acquire().await.map_err(io::Error::other)?;
        connections.may_connect()?;
        let connected = tokio::time::timeout(self.settings.connect_timeout, async {
            let stream = self.reach(pod).await?;
            match &self.settings.tls {
                None => Ok(Stream::Plain(stream)),
                // Boxed: otherwise every request would reserve room for a handshake, also those in clear text.
                Some(tls) => Box::pin(tls.connect(&pod.address, stream, offer)).await,
            }
        });
        let connected = connected.await.unwrap_or_else(|elapsed| Err(elapsed.into()));
        match &connected {
            Ok(_) => connections.back_off.set(ConnectRetry::default()),
            Err(error) if is_shortage(error) => self.note_shortage(error),
            Err(error) => {
                // The process that takes its place may speak another version.
                connections.whole.forget_choice();
                connections.uploading.forget_choice();
                if connections.failed() {
                    note_unreachable(pod, error);
                }
            }
        }
        connected
    }

    async fn reach(&self, pod: &Pod) -> io::Result<TcpStream> {
        let timeout = self.settings.connect_timeout;
        let stream = match connect(&pod.address, timeout).await {
            Err(error) if is_shortage(&error) && self.close_idle() > 0 => connect(&pod.address, timeout).await,
            connected => connected,
        }?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Closes idle HTTP/1.1 connections to all pods, for lack of files or ports. Returns their number.
    pub(crate) fn close_idle(&self) -> usize {
        self.pods.borrow().iter().flatten().map(|connections| connections.pool.clear()).sum()
    }

    fn note_shortage(&self, error: &io::Error) {
        if let Some(times) = self.shortage_noted.note() {
            tracing::warn!(%error, times, "no files or ports left for connections to pods; responding 503 overload");
        }
    }

    /// Logs that a pod does not speak HTTP/2, in which its requests have to be sent.
    #[cold]
    pub(crate) fn note_not_http2(&self, pod: &Pod) {
        if let Some(requests) = self.not_http2_noted.note() {
            tracing::warn!(pod = pod.name, address = pod.address, requests, "pod does not speak HTTP/2; retrying");
        }
    }

    /// Logs that a pod answers HTTP/1.1 in HTTP/2.
    #[cold]
    pub(crate) fn note_http2(&self, pod: &Pod) {
        if let Some(requests) = self.http2_noted.note() {
            tracing::warn!(
                pod = pod.name,
                address = pod.address,
                requests,
                "pod speaks HTTP/2 only; responding 502; set router.upstream.protocol to http2"
            );
        }
    }

    /// Closes connections that have been idle for too long. To be called at every tick.
    pub(crate) fn sweep(&self) {
        let now = self.timer.now();
        if now.saturating_duration_since(*self.swept.borrow()) < SWEEP_INTERVAL {
            return;
        }
        *self.swept.borrow_mut() = now;
        for slot in self.pods.borrow_mut().iter_mut() {
            let Some(connections) = slot else { continue };
            connections.pool.sweep();
            connections.whole.sweep(now, MAX_IDLE_AGE);
            connections.uploading.sweep(now, MAX_IDLE_AGE);
            let unused = Rc::strong_count(connections) == 1 && Rc::strong_count(&connections.pool) == 1;
            if unused && connections.pool.is_empty() && connections.whole.is_empty() && connections.uploading.is_empty()
            {
                *slot = None;
            }
        }
    }
}

/// Logs that a pod, or a service that is none, cannot be reached.
#[cold]
fn note_unreachable(pod: &Pod, error: &io::Error) {
    if pod.is_upstream {
        tracing::warn!(address = pod.address, %error, "the service of a route cannot be reached; retrying");
    } else {
        tracing::warn!(pod = pod.name, address = pod.address, %error, "pod cannot be reached; retrying");
    }
}
