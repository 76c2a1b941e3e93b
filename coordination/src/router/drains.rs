//! Drains that take too long: what is severed, when, and when the router gives up instead.
//!
//! Not here: the decision whether a drain's end severs ([`drain_timed_out`]), and the severing itself, which is the data
//! plane's.
//!
//! # Invariants
//!
//! * A stop that was postponed for a long exchange makes the drain shorter rather than the whole longer than other routers hold.
//! * Streams are severed earlier than the rest only where the drain's end would sever, too.

use std::collections::HashMap;
use std::time::Duration;

use segue_protocol::handoff::router::{DrainTimeout, GateStage, Route, Target, dead_owner_patience, drain_timed_out};
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Capabilities;
use segue_protocol::view::View;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{DataPlane, DrainEnd, RouterSettings};

/// Time between two checks for long exchanges while a stop waits for them, and between two severings while a drain lasts
/// too long.
pub(super) const EXCHANGE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Time for the rest of a handoff after the drain, beside its parties' own work: the second after which a sidecar resets what was
/// severed, and the delays of machines and the store.
const REST_OF_A_HANDOFF: Duration = Duration::from_secs(3);

/// A drain in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrainInProgress {
    since: Instant,
    /// Since when the stop was due. Other routers hold requests since then.
    due_since: Instant,
    /// When the owner's key was first seen to be gone.
    owner_gone_since: Option<Instant>,
}

impl DrainInProgress {
    fn begin(due_since: Instant) -> Self {
        DrainInProgress { since: Instant::now(), due_since, owner_gone_since: None }
    }

    /// Returns when the drain times out. What other routers hold is refused after `max_wait`, so a stop that came late leaves the
    /// drain less time, but never less than if it had begun when it was due.
    fn times_out_at(self, timeout: Duration, max_wait: Duration) -> Instant {
        let outlasted = max_wait.saturating_sub(REST_OF_A_HANDOFF).max(timeout);
        (self.since + timeout).min(self.due_since + outlasted)
    }
}

/// The drains in progress.
#[derive(Debug)]
pub(super) struct Drains {
    settings: RouterSettings,
    drains: HashMap<PartitionId, DrainInProgress>,
    /// The capabilities of the pod that a partition's requests last went to, as of then.
    capabilities: HashMap<PartitionId, Capabilities>,
}

/// The router's step in a drain.
#[derive(Debug, Default)]
pub(super) struct DrainStep {
    /// Number of exchanges that have been severed.
    pub(super) severed: u64,
    /// The router asks for the handoff to be cancelled.
    pub(super) gives_up: bool,
    /// When to look again.
    pub(super) again: Option<Instant>,
}

impl Drains {
    pub(super) fn new(settings: RouterSettings) -> Self {
        Drains { settings, drains: HashMap::new(), capabilities: HashMap::new() }
    }

    /// Returns the partitions that drain.
    pub(super) fn partitions(&self) -> impl Iterator<Item = &PartitionId> {
        self.drains.keys()
    }

    /// Records that the partition has been stopped. The stop was due at `due_since`.
    pub(super) fn stopped(&mut self, partition: PartitionId, due_since: Instant) {
        self.drains.entry(partition).or_insert_with(|| DrainInProgress::begin(due_since));
    }

    /// Records the capabilities of the pod that the partition's requests go to from now on.
    pub(super) fn switched(&mut self, partition: PartitionId, capabilities: Capabilities) {
        self.capabilities.insert(partition, capabilities);
    }

    /// Acts on a drain that takes too long. `wanted` is where the partition's requests belong.
    pub(super) fn watch(
        &mut self,
        plane: &dyn DataPlane,
        view: &View,
        partition: PartitionId,
        wanted: &Route,
    ) -> DrainStep {
        let (GateStage::Draining(from), retry_at) = plane.stage(partition) else {
            self.drains.remove(&partition);
            return DrainStep::default();
        };
        let is_gone = view.incarnation_of(&from.pod) != from.incarnation;
        // A live owner that refused requests gets a pause; nothing has to be severed. One that has to give the partition up
        // gets no further request.
        if retry_at.is_some() && !is_gone && *wanted == Route::To(from.clone()) {
            return DrainStep::default();
        }
        let now = Instant::now();
        let drain = self.drains.entry(partition).or_insert_with(|| DrainInProgress::begin(now));
        if is_gone {
            drain.owner_gone_since.get_or_insert(now);
        }
        let DrainInProgress { since, owner_gone_since, .. } = *drain;
        let settings = &self.settings.drain;
        let times_out_at = drain.times_out_at(settings.timeout, self.settings.max_wait);
        let had_fence = self.capabilities.get(&partition).is_some_and(|capabilities| capabilities.fence);
        let patience = dead_owner_patience(had_fence, self.settings.request_timeout);
        let sever_at = owner_gone_since.map(|since| since + patience);
        let at_timeout = drain_timed_out(view, partition, settings.on_timeout, had_fence);
        let streams_at = since + settings.streams;
        plane.drain_ends(partition, drain_end(streams_at, times_out_at, sever_at, at_timeout));
        let is_due = |at: Instant| at <= now;
        if !is_due(times_out_at) && !sever_at.is_some_and(is_due) {
            let next = sever_at.map_or(times_out_at, |at| at.min(times_out_at));
            return watch_streams(plane, partition, &from, streams_at, at_timeout).within(next);
        }
        let timed_out = match sever_at {
            Some(at) if is_due(at) => DrainTimeout::Sever,
            _ => at_timeout,
        };
        match timed_out {
            DrainTimeout::Sever => {
                let severed = plane.sever(partition);
                if severed > 0 {
                    warn!(
                        partition = partition.get(),
                        pod = from.pod,
                        severed,
                        "drain timed out; exchanges in flight severed"
                    );
                }
                DrainStep { severed, again: Some(now + EXCHANGE_CHECK_INTERVAL), ..DrainStep::default() }
            }
            DrainTimeout::GiveUp => DrainStep { gives_up: true, ..DrainStep::default() },
            DrainTimeout::Wait => {
                DrainStep { again: Some(sever_at.unwrap_or(now + settings.timeout)), ..DrainStep::default() }
            }
        }
    }
}

impl DrainStep {
    /// Returns this step with a look no later than `at`.
    fn within(self, at: Instant) -> Self {
        DrainStep { again: Some(self.again.map_or(at, |again| again.min(at))), ..self }
    }
}

/// Severs the streams of a drain once they have had their time, which is up at `due`.
fn watch_streams(
    plane: &dyn DataPlane,
    partition: PartitionId,
    from: &Target,
    due: Instant,
    at_timeout: DrainTimeout,
) -> DrainStep {
    let now = Instant::now();
    if now < due {
        return DrainStep::default().within(due);
    }
    // Where a drain's end would not sever, its streams are not severed either: the old owner might go on with them.
    if at_timeout != DrainTimeout::Sever {
        return DrainStep::default();
    }
    let severed = plane.sever_streams(partition);
    if severed > 0 {
        debug!(partition = partition.get(), pod = from.pod, severed, "streams severed, because their partition moves");
    }
    // Exchanges may still become streams.
    DrainStep { severed, again: Some(now + EXCHANGE_CHECK_INTERVAL), ..DrainStep::default() }
}

/// Returns when a drain ends what is in flight. `sever_at`: when it severs because the owner is gone.
fn drain_end(
    streams_at: Instant,
    times_out_at: Instant,
    sever_at: Option<Instant>,
    at_timeout: DrainTimeout,
) -> DrainEnd {
    let is = |end| at_timeout == end;
    let severs = is(DrainTimeout::Sever).then_some(times_out_at).into_iter().chain(sever_at).min();
    let severs_streams = is(DrainTimeout::Sever).then_some(streams_at).into_iter().chain(severs).min();
    let gives_up = is(DrainTimeout::GiveUp).then_some(times_out_at);
    DrainEnd { severs_streams, severs, gives_up: gives_up.filter(|at| severs.is_none_or(|severs| *at < severs)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_began_late_ends_before_other_routers_refuse_what_they_hold() {
        let seconds = Duration::from_secs;
        let (due_since, max_wait) = (Instant::now(), seconds(30));
        for (late, timeout, ends) in [(0, 20, 20), (5, 20, 25), (10, 20, 27), (10, 29, 29), (0, 29, 29)] {
            let drain = DrainInProgress { since: due_since + seconds(late), due_since, owner_gone_since: None };
            let times_out_at = drain.times_out_at(seconds(timeout), max_wait);
            assert_eq!(times_out_at - due_since, seconds(ends), "{late} s late, {timeout} s");
        }
    }

    #[test]
    fn the_end_of_a_drain_is_that_of_its_policy_unless_the_owner_is_gone_before() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let end = |sever_at, at_timeout| {
            let DrainEnd { severs_streams, severs, gives_up } = drain_end(at(2), at(20), sever_at, at_timeout);
            [severs_streams, severs, gives_up].map(|at| at.map(|at| (at - now).as_secs()))
        };
        assert_eq!(end(None, DrainTimeout::Sever), [Some(2), Some(20), None]);
        assert_eq!(end(None, DrainTimeout::GiveUp), [None, None, Some(20)]);
        assert_eq!(end(None, DrainTimeout::Wait), [None, None, None]);
        assert_eq!(end(Some(at(1)), DrainTimeout::Sever), [Some(1), Some(1), None]);
        assert_eq!(end(Some(at(30)), DrainTimeout::Sever), [Some(2), Some(20), None]);
        assert_eq!(end(Some(at(5)), DrainTimeout::GiveUp), [Some(5), Some(5), None]);
        assert_eq!(end(Some(at(30)), DrainTimeout::Wait), [Some(30), Some(30), None]);
    }
}
