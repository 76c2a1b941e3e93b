//! What is known of a partition whose gate is closed: who waits, why, since when, and how the cutover goes.
//!
//! Plain data under the partition's lock; the [`table`](super) drives it.

use std::time::Duration;

use segue_coordination::protocol::router::HoldCause;
use segue_coordination::router::CutoverTimes;
use tokio::time::Instant;

use super::Way;
use crate::stash::Stash;
use crate::sync::oneshot;

/// First wait before a pod that refused a partition is tried again; doubles up to [`LONGEST_BACK_OFF`].
const FIRST_BACK_OFF: Duration = Duration::from_millis(5);
const LONGEST_BACK_OFF: Duration = Duration::from_millis(250);

/// What is known of a partition whose gate is closed, or was until just now.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) stash: Stash<Waiter>,
    pub(super) cause: HoldCause,
    pub(super) stopped_at: Instant,
    pub(super) drained_at: Option<Instant>,
    pub(super) switched_at: Option<Instant>,
    pub(super) stashed: u64,
    bounces: u32,
    pub(super) retry_at: Option<Instant>,
    /// Set when the gate opens, for the acknowledgement.
    pub(super) times: Option<CutoverTimes>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) worker: usize,
    /// Where it may go, once it may.
    pub(super) granted: oneshot::Sender<Way>,
}

impl Closed {
    pub(super) fn new(cause: HoldCause) -> Self {
        Closed {
            stash: Stash::default(),
            cause,
            stopped_at: Instant::now(),
            drained_at: None,
            switched_at: None,
            stashed: 0,
            bounces: 0,
            retry_at: None,
            times: None,
        }
    }

    /// The pod refused: it is left alone for a while, longer each time.
    pub(super) fn back_off(&mut self) {
        let back_off = FIRST_BACK_OFF.saturating_mul(1 << self.bounces.min(6)).min(LONGEST_BACK_OFF);
        self.retry_at = Some(Instant::now() + back_off);
        self.bounces += 1;
    }

    /// The pod has refused, and has taken nothing since.
    pub(super) fn is_refused(&self) -> bool {
        self.bounces > 0
    }

    /// The pod has taken something, or it is another.
    pub(super) fn forgive(&mut self) {
        self.bounces = 0;
    }

    /// The gate has opened: what the cutover was like, for the acknowledgement.
    pub(super) fn opened(&mut self) {
        self.times = Some(self.times_until(Instant::now()));
        self.bounces = 0;
        self.stash.end_flush();
    }

    /// Another pause begins.
    pub(super) fn restart(&mut self) {
        self.stopped_at = Instant::now();
        self.drained_at = None;
        self.switched_at = None;
        self.stashed = 0;
        self.times = None;
    }

    fn times_until(&self, opened: Instant) -> CutoverTimes {
        let since_stop =
            |at: Option<Instant>| at.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.stopped_at));
        CutoverTimes {
            stashed: self.stashed,
            drain: since_stop(self.drained_at),
            pause: since_stop(self.switched_at),
            flush: self.switched_at.map_or(Duration::ZERO, |at| opened.saturating_duration_since(at)),
        }
    }
}
