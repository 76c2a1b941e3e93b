//! Drains that take too long: what is severed, when, and when the router gives up instead.
//!
//! Not here: the decision whether a drain's end severs ([`drain_timed_out`]), and the severing itself, which is the data
//! plane's.
//!
//! # Invariants
//!
//! * A stop that was postponed for a long exchange makes the drain shorter rather than the whole longer than other routers hold.
//! * Streams are severed earlier than the rest only where the drain's end would sever, too.

use std::time::Duration;

use segue_protocol::handoff::router::{DrainTimeout, Route, Stage, dead_owner_patience, drain_timed_out};
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::DrainEnd;
use super::acks::AckKind;
use super::driver::{EXCHANGE_CHECK_INTERVAL, Router};

/// Time for the rest of a handoff after the drain, beside its parties' own work: the second after which a sidecar resets what was
/// severed, and the delays of machines and the store.
const REST_OF_A_HANDOFF: Duration = Duration::from_secs(3);

/// A drain in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    since: Instant,
    /// Since when the stop was due. Other routers hold requests since then.
    due_since: Instant,
    /// When the owner's key was first seen to be gone.
    owner_gone_since: Option<Instant>,
}

impl Drain {
    fn begin(due_since: Instant) -> Self {
        Drain { since: Instant::now(), due_since, owner_gone_since: None }
    }

    /// Returns when the drain times out. What other routers hold is refused after `max_wait`, so a stop that came late leaves the
    /// drain less time, but never less than if it had begun when it was due.
    fn times_out_at(self, timeout: Duration, max_wait: Duration) -> Instant {
        let outlasted = max_wait.saturating_sub(REST_OF_A_HANDOFF).max(timeout);
        (self.since + timeout).min(self.due_since + outlasted)
    }
}

impl Router {
    /// Records that the partition has been stopped. The stop was due at `due_since`.
    pub(super) fn stopped(&mut self, partition: PartitionId, due_since: Instant) {
        self.drains.entry(partition).or_insert_with(|| Drain::begin(due_since));
    }

    /// Acts on a drain that takes too long. `wanted` is where the partition's requests belong.
    pub(super) fn watch_drain(&mut self, partition: PartitionId, wanted: &Route) {
        let (Stage::Draining(from), retry_at) = self.plane.stage(partition) else {
            self.drains.remove(&partition);
            return;
        };
        let is_gone = self.view.incarnation_of(&from.pod) != from.incarnation;
        // A live owner that refused requests gets a pause; nothing has to be severed. One that has to give the partition up
        // gets no further request.
        if retry_at.is_some() && !is_gone && *wanted == Route::To(from.clone()) {
            return;
        }
        let now = Instant::now();
        let drain = self.drains.entry(partition).or_insert_with(|| Drain::begin(now));
        if is_gone {
            drain.owner_gone_since.get_or_insert(now);
        }
        let Drain { since, owner_gone_since, .. } = *drain;
        let times_out_at = drain.times_out_at(self.settings.drain.timeout, self.settings.max_wait);
        let had_fence = self.capabilities.get(&partition).is_some_and(|capabilities| capabilities.fence);
        let patience = dead_owner_patience(had_fence, self.settings.request_timeout);
        let sever_at = owner_gone_since.map(|since| since + patience);
        let at_timeout = drain_timed_out(&self.view, partition, self.settings.drain.on_timeout, had_fence);
        self.plane
            .drain_ends(partition, drain_end(since + self.settings.drain.streams, times_out_at, sever_at, at_timeout));
        let is_due = |at: Instant| at <= now;
        if !is_due(times_out_at) && !sever_at.is_some_and(is_due) {
            let next = sever_at.map_or(times_out_at, |at| at.min(times_out_at));
            let streams_next = self.watch_streams(partition, &from.pod, since, at_timeout);
            self.timers.insert((streams_next.map_or(next, |at| at.min(next)), partition));
            return;
        }
        let timed_out = match sever_at {
            Some(at) if is_due(at) => DrainTimeout::Sever,
            _ => at_timeout,
        };
        match timed_out {
            DrainTimeout::Sever => {
                let severed = self.plane.sever(partition);
                if severed > 0 {
                    warn!(
                        partition = partition.get(),
                        pod = from.pod,
                        severed,
                        "drain timed out; exchanges in flight severed"
                    );
                }
                *self.severed.entry(partition).or_default() += severed;
                self.timers.insert((now + EXCHANGE_CHECK_INTERVAL, partition));
            }
            DrainTimeout::GiveUp => {
                let said = |handoff| self.view.drained_ack(partition, &self.settings.name, handoff).is_some();
                let handoff = self.view.handoffs.get(&partition).map(|handoff| handoff.id());
                if let Some(handoff) = handoff.filter(|handoff| !said(*handoff)) {
                    self.write((partition, handoff, AckKind::GaveUp));
                }
            }
            DrainTimeout::Wait => {
                self.timers.insert((sever_at.unwrap_or(now + self.settings.drain.timeout), partition));
            }
        }
    }

    /// Severs the streams of a drain that has lasted since `since`, once their time is up. Returns when to look again.
    fn watch_streams(
        &mut self,
        partition: PartitionId,
        pod: &str,
        since: Instant,
        at_timeout: DrainTimeout,
    ) -> Option<Instant> {
        let (now, due) = (Instant::now(), since + self.settings.drain.streams);
        if now < due {
            return Some(due);
        }
        // Where a drain's end would not sever, its streams are not severed either: the old owner might go on with them.
        if at_timeout != DrainTimeout::Sever {
            return None;
        }
        let severed = self.plane.sever_streams(partition);
        if severed > 0 {
            debug!(partition = partition.get(), pod, severed, "streams severed, because their partition moves");
        }
        *self.severed.entry(partition).or_default() += severed;
        // Exchanges may still become streams.
        Some(now + EXCHANGE_CHECK_INTERVAL)
    }
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
            let drain = Drain { since: due_since + seconds(late), due_since, owner_gone_since: None };
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
