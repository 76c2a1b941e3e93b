//! Tells the observer what the view shows, each phase and each handoff that has ended, and the operator what the plan
//! notices.
//!
//! # Invariants
//!
//! * Of all processes only the one that acts for a partition tells the ends of its handoffs, and only the one that acts
//!   for the keyspace as a whole shows its view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::planning::{Assurance, MoveCause, Notice, Strategy};
use segue_protocol::records::Handoff;
use segue_protocol::view::{Versioned, View};
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::{EndedPhase, HandoffResult};
use super::phase_clock::{PhaseClock, PhaseTimes};
use super::summary::EndedMoves;
use super::{Leadership, Throttle, lost_pods};

/// A handoff as last observed.
#[derive(Debug, Clone)]
struct SeenHandoff {
    id: HandoffId,
    /// The record, as first observed.
    record: Arc<Handoff>,
    began: Instant,
    phases: PhaseClock,
    /// Why it was planned, as of when it was first observed.
    cause: MoveCause,
}

impl SeenHandoff {
    fn new(handoff: &Versioned<Handoff>, cause: MoveCause, now: Instant) -> Self {
        let record = Arc::new(handoff.value.clone());
        SeenHandoff { id: handoff.id(), began: now, phases: PhaseClock::new(now), record, cause }
    }
}

/// When the observer is shown the view.
pub(super) struct ViewShowing {
    throttle: Throttle,
    /// More than heartbeats has changed since the view was shown.
    pub(super) has_news: bool,
    /// When the view is shown, if the news have to wait for that.
    due_at: Option<Instant>,
}

impl Default for ViewShowing {
    fn default() -> Self {
        ViewShowing { throttle: Throttle::default(), has_news: true, due_at: None }
    }
}

impl ViewShowing {
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// Returns whether there are news that are to be shown now.
    fn take(&mut self, now: Instant, is_urgent: bool) -> bool {
        if !self.has_news {
            return false;
        }
        self.due_at = self.throttle.take(now, is_urgent);
        self.has_news = self.due_at.is_some();
        !self.has_news
    }
}

/// The handoffs as last observed, and what is to be observed.
#[derive(Default)]
pub(super) struct HandoffObservation {
    /// Partitions that have changed since they were last observed.
    pub(super) changed: BTreeSet<PartitionId>,
    /// Handoffs that have ended since then, as they stood last.
    pub(super) gone: Vec<Versioned<Handoff>>,
    seen: BTreeMap<PartitionId, SeenHandoff>,
    /// Why this leader has decided to cancel a handoff.
    pub(super) cancels: BTreeMap<PartitionId, (HandoffId, &'static str)>,
    /// Those that have ended and were not told.
    ended: EndedMoves,
}

impl HandoffObservation {
    /// Has all handoffs observed again, those that are gone from the view included.
    pub(super) fn all_changed(&mut self, view: &View) {
        self.changed.extend(view.handoffs.keys().chain(self.seen.keys()));
    }
}

impl Leadership<'_> {
    pub(super) fn observe(&mut self, strategy: Strategy) {
        let now = Instant::now();
        if self.showing.take(now, self.membership) && self.speaks() {
            self.observer.view_changed(&self.view);
            self.observer.clocks(&self.clocks.offsets());
        }
        if self.membership || self.pods.await_owners() {
            let news = self.pods.news(&self.view, now);
            if self.speaks() {
                lost_pods::tell(news);
            }
        }
        let begun = |view: &View, handoff: &Versioned<Handoff>| {
            SeenHandoff::new(handoff, MoveCause::of(view, strategy, &handoff.value), now)
        };
        for last in std::mem::take(&mut self.handoffs.gone) {
            let partition = last.value.partition;
            let known = self.handoffs.seen.remove(&partition).filter(|known| known.id == last.id());
            // It may have begun and ended since the view was last looked at.
            let known = known.unwrap_or_else(|| begun(&self.view, &last));
            self.handoff_ended(partition, known, &last.value, now);
        }
        for partition in std::mem::take(&mut self.handoffs.changed) {
            let known = self.handoffs.seen.remove(&partition);
            let standing = self.view.handoffs.get(&partition).cloned();
            let (same, other) = match known {
                Some(known) if standing.as_ref().is_some_and(|standing| standing.id() == known.id) => {
                    (Some(known), None)
                }
                other => (None, other),
            };
            if let Some(other) = other {
                // A snapshot does not tell how it stood last.
                let last = other.record.clone();
                self.handoff_ended(partition, other, &last, now);
            }
            if let Some(standing) = standing {
                let mut seen = same.unwrap_or_else(|| begun(&self.view, &standing));
                for ended in seen.phases.ended(&standing.value, now) {
                    self.phase_ended(&seen, ended, now, None);
                }
                self.handoffs.seen.insert(partition, seen);
            }
            self.pending.insert(partition);
        }
        if let Some(line) = self.handoffs.ended.line(self.handoffs.seen.len(), now) {
            info!("{line}");
        }
    }

    /// Tells the end of a handoff that stood last as `last`. The process that acts for the partition does; no other process.
    fn handoff_ended(&mut self, partition: PartitionId, mut known: SeenHandoff, last: &Handoff, now: Instant) {
        self.duties.iter().for_each(|duties| duties.history.handoff_ended());
        if !self.acts_for(Some(partition)) {
            return;
        }
        let result = self.result(partition, &known);
        let mut phases = known.phases.all(last, now);
        let with_last = phases.pop();
        phases.into_iter().for_each(|ended| self.phase_ended(&known, ended, now, None));
        with_last.into_iter().for_each(|ended| self.phase_ended(&known, ended, now, Some(result)));
        self.observer.handoff_ended(partition, result);
        self.handoffs.ended.add(&known.record, result, known.began);
    }

    fn phase_ended(&self, seen: &SeenHandoff, ended: PhaseTimes, now: Instant, result: Option<HandoffResult>) {
        let SeenHandoff { id, ref record, began, .. } = *seen;
        if !self.acts_for(Some(record.partition)) {
            return;
        }
        let PhaseTimes { phase, lasted, ago } = ended;
        self.observer.phase_ended(phase, lasted);
        let age = (now - began).max(lasted + ago);
        self.observer.traced_phase(&EndedPhase { handoff: id, record, phase, lasted, ago, age, result });
    }

    /// Returns how a handoff that is gone has ended.
    fn result(&mut self, partition: PartitionId, ended: &SeenHandoff) -> HandoffResult {
        let moved = self.view.assignments.get(&partition).is_some_and(|at| at.value.epoch >= ended.record.epoch);
        let cancelled = self.handoffs.cancels.remove(&partition).filter(|(id, _)| *id == ended.id);
        match cancelled {
            _ if moved => HandoffResult::Completed(ended.cause),
            Some((_, cause)) => HandoffResult::Cancelled(cause),
            None => HandoffResult::Cancelled(HandoffResult::NOT_HERE),
        }
    }

    /// Tells the operator what has come up since the last plan.
    pub(super) fn tell(&mut self, notices: Vec<Notice>) {
        if notices == self.notices {
            return;
        }
        for notice in notices.iter().filter(|notice| !self.notices.contains(notice)) {
            match notice {
                Notice::Assurance(Assurance::Full) | Notice::Roll { .. } => info!("{notice}"),
                // It has been told when it was learnt.
                Notice::WritesRefused { .. } => {}
                _ => warn!("{notice}"),
            }
        }
        self.status.send_modify(|status| {
            status.notices = notices.iter().map(ToString::to_string).collect();
            status.warnings = notices.iter().filter(|notice| notice.is_warning()).map(ToString::to_string).collect();
        });
        self.notices = notices;
    }
}
