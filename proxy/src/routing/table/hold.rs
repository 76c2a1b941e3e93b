//! The state of a partition whose gate is closed: the requests that wait, why and since when, and the progress of the
//! cutover.
//!
//! Plain data under the partition's lock; the [`table`](super) drives it.

use std::time::Duration;

use segue_coordination::router::{CutoverTimes, DrainEnd};
use segue_protocol::back_off::BackOff;
use segue_protocol::handoff::router::HoldCause;
use tokio::time::Instant;

use super::refusals::{OwnerRefusals, TRIES_IN_A_ROW};
use super::route::GateRoute;
use crate::routing::partition_state::PartitionState;
use crate::routing::sync::oneshot;

/// Wait before a pod is tried again that refused a partition or could not be reached. The same for both, so that
/// neither waits for the other.
pub(crate) const POD_RETRY: BackOff = BackOff { first: Duration::from_millis(5), longest: Duration::from_millis(250) };

/// The state of a partition whose gate is closed, or was until just now.
#[derive(Debug)]
pub(super) struct ClosedGate {
    pub(super) state: PartitionState<Waiter>,
    pub(super) cause: HoldCause,
    pub(super) stopped_at: Instant,
    pub(super) drained_at: Option<Instant>,
    pub(super) switched_at: Option<Instant>,
    /// When the drain ends what is in flight, once the control side has said so.
    pub(super) drain_end: Option<DrainEnd>,
    pub(super) stashed: u64,
    bounces: u32,
    /// Most requests at a time for a pod that has refused.
    places: usize,
    /// Number of held requests that the pod has accepted.
    pub(super) taken: u32,
    pub(super) retry_at: Option<Instant>,
    /// Whether requests flow. The gate may not be open yet: requests that still wait then do so behind slow ones of
    /// their key.
    flows: bool,
    /// Set when requests flow again, for the acknowledgement.
    pub(super) times: Option<CutoverTimes>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) worker: usize,
    /// The refusals that the request has met so far.
    pub(super) refusals: Option<OwnerRefusals>,
    /// Sends where the request may go, once it may.
    pub(super) granted: oneshot::Sender<GateRoute>,
}

impl ClosedGate {
    pub(super) fn new(cause: HoldCause) -> Self {
        ClosedGate {
            state: PartitionState::default(),
            cause,
            stopped_at: Instant::now(),
            drained_at: None,
            switched_at: None,
            drain_end: None,
            stashed: 0,
            bounces: 0,
            places: 1,
            taken: 0,
            retry_at: None,
            flows: false,
            times: None,
        }
    }

    /// Backs off from a pod that refused, for longer each time.
    pub(super) fn back_off(&mut self) {
        let back_off = POD_RETRY.after(self.bounces + 1);
        self.retry_at = Some(Instant::now() + back_off);
        self.bounces += 1;
    }

    /// Returns whether the pod has refused and has accepted no request since.
    pub(super) fn is_refused(&self) -> bool {
        self.bounces > 0
    }

    /// Resets the back-off: the pod has accepted a request, or is another one.
    pub(super) fn forgive(&mut self) {
        self.bounces = 0;
    }

    /// Records that the pod accepted a held request: it is no longer probed by one request at a time.
    pub(super) fn took(&mut self, flush_concurrency: usize) {
        self.taken = self.taken.saturating_add(1);
        if self.is_refused() {
            self.forgive();
            self.state.limit_flush(flush_concurrency);
        }
    }

    /// Bounds the flush that begins now. A pod that has refused gets one request, and more once it has accepted one.
    /// After [`TRIES_IN_A_ROW`], every other probe takes the newest request, so that requests which are refused for
    /// what they are cannot keep the others from being tried.
    pub(super) fn try_pod(&mut self) {
        self.places = 1;
        if self.is_refused() {
            self.state.probe(self.bounces >= TRIES_IN_A_ROW && self.bounces % 2 == 1);
        }
    }

    /// Allows more requests at a time to a pod that has refused others and now keeps one waiting. A pod that accepts
    /// nothing refuses sooner. One at a time, slow requests would hold up the others for the sum of their times.
    pub(super) fn was_not_refused_at_once(&mut self, flush_concurrency: usize) {
        if self.is_refused() {
            self.places = (4 * self.places).min(flush_concurrency);
            self.state.limit_flush(self.places);
        }
    }

    pub(super) fn flows(&self) -> bool {
        self.flows
    }

    /// Records that requests flow if they do. Returns whether that has just begun.
    pub(super) fn begins_to_flow(&mut self) -> bool {
        let begins = !self.flows && !self.is_refused() && self.state.stash().is_under_way();
        if begins {
            self.flows = true;
            self.times = Some(self.times_until(Instant::now()));
        }
        begins
    }

    /// Records that the gate is about to close: from open if `was_open`, otherwise in the middle of a flush.
    pub(super) fn stops(&mut self, was_open: bool) {
        if was_open || self.flows {
            self.restart();
        } else {
            // The pod refused, or is the wrong one by now: the pause goes on until the partition leads to another one.
            self.switched_at = None;
        }
        self.flows = false;
        self.drain_end = None;
    }

    /// Begins a new pause.
    fn restart(&mut self) {
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
