//! The connections of one worker to one pod, and the one that an exchange gets of them.
//!
//! Not here: making a connection ([`upstream`](super)), and how an exchange goes on ([`exchange`](super::exchange)).

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use http::request::Parts;
use segue_coordination::jitter;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::connect_retry::ConnectRetry;
use super::error::BackingOff;
use super::exchange::Exchange;
use super::http1::{self, PodConnection, ResponseKind};
use super::http2::{self, Sessions, StreamLease};
use super::pool::Pool;
use super::sharing::OddResponses;
use super::wanted::ConnectionKind;
use crate::message::header_scan::HeaderScan;
use crate::message::headers::RoutingHeaders;
use crate::message::local_reply::LocalReply;
use crate::message::request_body::Attempt;
use crate::runtime::coarse_timer::CoarseTimer;

/// Most connection attempts of a worker to one pod at a time. Servers usually queue 128 until they accept; the kernel drops
/// what exceeds that, and the pod would look unreachable.
const MAX_CONNECTING: usize = 16;

/// The connections of one worker to one pod.
pub(super) struct PodConnections {
    pub(super) pool: Rc<Pool<Box<PodConnection>>>,
    pub(super) whole: Sessions,
    pub(super) uploading: Sessions,
    pub(super) odd: Rc<OddResponses>,
    pub(super) back_off: Cell<ConnectRetry>,
    pub(super) connecting: Semaphore,
}

impl PodConnections {
    pub(super) fn new(pod: &str, max_idle: usize, timer: CoarseTimer) -> Self {
        let odd = Rc::new(OddResponses::of(pod));
        PodConnections {
            pool: Rc::new(Pool::new(max_idle, timer)),
            whole: Sessions::new(http2::WHOLE, odd.clone()),
            uploading: Sessions::new(http2::UPLOADING, odd.clone()),
            odd,
            back_off: Cell::default(),
            connecting: Semaphore::new(MAX_CONNECTING),
        }
    }

    /// Takes an open connection, if there is one.
    pub(super) fn open(&self, wanted: ConnectionKind) -> Option<Checkout> {
        match self.sessions(wanted).filter(|sessions| !sessions.is_declined()) {
            Some(sessions) => sessions.open().map(Checkout::Http2),
            None => self.pool.take().map(|connection| self.http1(connection, false)),
        }
    }

    pub(super) fn sessions(&self, wanted: ConnectionKind) -> Option<&Sessions> {
        match wanted {
            ConnectionKind::Http1 => None,
            ConnectionKind::Http2Whole => Some(&self.whole),
            ConnectionKind::Http2Uploading => Some(&self.uploading),
        }
    }

    pub(super) fn http1(&self, connection: Box<PodConnection>, fresh: bool) -> Checkout {
        Checkout::Http1 { connection, pool: self.pool.clone(), fresh }
    }

    pub(super) fn may_connect(&self) -> io::Result<()> {
        let mut back_off = self.back_off.get();
        let may = back_off.may_try(Instant::now(), jitter::unit());
        self.back_off.set(back_off);
        if may { Ok(()) } else { Err(BackingOff.into()) }
    }

    /// Records a failure. Returns whether it is the first since the last success.
    pub(super) fn failed(&self) -> bool {
        let mut back_off = self.back_off.get();
        let first = back_off.failed(Instant::now(), jitter::unit());
        self.back_off.set(back_off);
        first
    }
}

/// A connection to a pod, taken for one request.
pub(crate) enum Checkout {
    Http1 { connection: Box<PodConnection>, pool: Rc<Pool<Box<PodConnection>>>, fresh: bool },
    Http2(StreamLease),
}

impl Checkout {
    /// Returns whether the connection was made for this request.
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
        wanted: ResponseKind,
        max_header_bytes_http2: usize,
    ) -> Result<Exchange, LocalReply> {
        Ok(match self {
            Checkout::Http1 { connection, pool, .. } => {
                Exchange::Http1(http1::Exchange::new(connection, pool, head, scan, routing, attempt, wanted))
            }
            Checkout::Http2(lease) => {
                let exchange = http2::Exchange::new(lease, head, scan, routing, attempt, max_header_bytes_http2)?;
                Exchange::Http2(exchange)
            }
        })
    }
}
