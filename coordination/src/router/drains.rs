//! Drains that take too long: what is severed, when, and when the router gives up instead.
//!
//! Not here: the decision whether a drain's end severs ([`drain_timed_out`]), and the severing itself, which is the data
//! plane's.
//!
//! # Invariants
//!
//! * Streams are severed earlier than the rest only where the drain's end would sever, too.

use segue_protocol::handoff::router::{DrainTimeout, Route, Stage, dead_owner_patience, drain_timed_out};
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::acks::AckKind;
use super::driver::{EXCHANGE_CHECK_INTERVAL, Router};

/// A drain in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    since: Instant,
    /// When the owner's key was first seen to be gone.
    owner_gone_since: Option<Instant>,
}

impl Router {
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
        let drain = self.drains.entry(partition).or_insert(Drain { since: now, owner_gone_since: None });
        if is_gone {
            drain.owner_gone_since.get_or_insert(now);
        }
        let Drain { since, owner_gone_since } = *drain;
        let had_fence = self.capabilities.get(&partition).is_some_and(|capabilities| capabilities.fence);
        let patience = dead_owner_patience(had_fence, self.settings.request_timeout);
        let sever_at = owner_gone_since.map(|since| since + patience);
        let times_out_at = since + self.settings.drain.timeout;
        let is_due = |at: Instant| at <= now;
        if !is_due(times_out_at) && !sever_at.is_some_and(is_due) {
            let next = sever_at.map_or(times_out_at, |at| at.min(times_out_at));
            let streams_next = self.watch_streams(partition, &from.pod, since, had_fence);
            self.timers.insert((streams_next.map_or(next, |at| at.min(next)), partition));
            return;
        }
        let timed_out = match sever_at {
            Some(at) if is_due(at) => DrainTimeout::Sever,
            _ => drain_timed_out(&self.view, partition, self.settings.drain.on_timeout, had_fence),
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
    fn watch_streams(&mut self, partition: PartitionId, pod: &str, since: Instant, had_fence: bool) -> Option<Instant> {
        let (now, due) = (Instant::now(), since + self.settings.drain.streams);
        if now < due {
            return Some(due);
        }
        // Where a drain's end would not sever, its streams are not severed either: the old owner might go on with them.
        if drain_timed_out(&self.view, partition, self.settings.drain.on_timeout, had_fence) != DrainTimeout::Sever {
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
