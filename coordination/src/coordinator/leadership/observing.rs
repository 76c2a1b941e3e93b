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
use segue_protocol::records::{Handoff, Phase};
use segue_protocol::view::{Versioned, View};
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::{EndedPhase, HandoffResult};
use super::summary::EndedMoves;
use super::{Leadership, Throttle, lost_pods};

/// A handoff as last observed.
#[derive(Debug, Clone)]
struct SeenHandoff {
    id: HandoffId,
    /// The record, as first observed.
    record: Arc<Handoff>,
    began: Instant,
    phase: Phase,
    since: Instant,
    /// Why it was planned, as of when it was first observed.
    cause: MoveCause,
}

impl SeenHandoff {
    fn new(handoff: &Versioned<Handoff>, cause: MoveCause, now: Instant) -> Self {
        let record = Arc::new(handoff.value.clone());
        SeenHandoff { id: handoff.id(), began: now, phase: record.phase, since: now, record, cause }
    }

    fn in_phase(&self, phase: Phase, now: Instant) -> Self {
        let since = if phase == self.phase { self.since } else { now };
        SeenHandoff { phase, since, ..self.clone() }
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
        for partition in std::mem::take(&mut self.handoffs.changed) {
            let known = self.handoffs.seen.remove(&partition);
            let seen = self.view.handoffs.get(&partition).map(|handoff| match &known {
                Some(known) if known.id == handoff.id() => known.in_phase(handoff.value.phase, now),
                _ => SeenHandoff::new(handoff, MoveCause::of(&self.view, strategy, &handoff.value), now),
            });
            let goes_on = |known: &SeenHandoff| seen.as_ref().is_some_and(|seen| seen.id == known.id);
            if known.as_ref().is_some_and(|known| !goes_on(known)) {
                self.duties.iter().for_each(|duties| duties.history.handoff_ended());
            }
            // The process that acts for the partition reports the end of a handoff; no other process does.
            if let Some(known) = known.filter(|_| self.acts_for(Some(partition))) {
                let same = seen.as_ref().filter(|seen| seen.id == known.id);
                let result = same.is_none().then(|| self.result(partition, &known));
                if same.is_none_or(|seen| seen.phase != known.phase) {
                    let SeenHandoff { id, phase, ref record, .. } = known;
                    let (lasted, age) = (now - known.since, now - known.began);
                    self.observer.phase_ended(phase, lasted);
                    self.observer.traced_phase(&EndedPhase { handoff: id, record, phase, lasted, age, result });
                }
                if let Some(result) = result {
                    self.observer.handoff_ended(partition, result);
                    self.handoffs.ended.add(&known.record, result, known.began);
                }
            }
            if let Some(seen) = seen {
                self.handoffs.seen.insert(partition, seen);
            }
            self.pending.insert(partition);
        }
        if let Some(line) = self.handoffs.ended.line(self.handoffs.seen.len(), now) {
            info!("{line}");
        }
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
