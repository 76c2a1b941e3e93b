//! An HTTP/1.1 connection to a pod, between two exchanges.
//!
//! # Invariants
//!
//! * A connection on which anything is unread is not used again.

use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Instant;

use super::upload::Upload;
use crate::tls::Stream;
use crate::upstream::pool::Idle;

pub(super) const READ_BYTES: usize = 8 << 10;
/// A connection that was idle for longer is examined before it is used: its pod may have closed it, and the event may not have
/// been seen yet.
const MAX_UNCHECKED_IDLE: Duration = Duration::from_secs(1);
/// Idle connections older than this are closed, unless the pod has named a time. Services close theirs after a minute or more,
/// and a request that is on its way at that moment is lost.
pub(in crate::upstream) const MAX_IDLE_AGE: Duration = Duration::from_secs(50);

/// A connection to a pod.
pub(crate) struct PodConnection {
    pub(super) stream: Stream,
    pub(super) read: BytesMut,
    /// The request of the current exchange. Kept with the connection, so that an exchange is no more than a pointer.
    pub(super) upload: Upload,
    pub(super) idle_since: Instant,
    /// How long it may be idle.
    pub(super) keep_for: Duration,
    /// Whether no request has been sent on it yet.
    pub(super) is_first: bool,
    /// Whether the pod may have sent something after its last response.
    pub(super) is_doubtful: bool,
}

impl PodConnection {
    pub(in crate::upstream) fn new(stream: Stream, now: Instant) -> Box<Self> {
        Box::new(PodConnection {
            stream,
            read: BytesMut::with_capacity(READ_BYTES),
            upload: Upload::none(),
            idle_since: now,
            keep_for: MAX_IDLE_AGE,
            is_first: true,
            is_doubtful: false,
        })
    }
}

impl Idle for Box<PodConnection> {
    /// Returns whether another request may be sent on it: the pod has left it open, as far as can be told, and is not about
    /// to close it.
    fn is_open(&mut self, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.idle_since);
        let trusted = idle < MAX_UNCHECKED_IDLE && !self.is_doubtful;
        idle < self.keep_for && self.stream.is_quiet() && (trusted || self.stream.is_silent())
    }
}
