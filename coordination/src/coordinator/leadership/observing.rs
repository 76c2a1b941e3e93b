//! Tells the observer what the view shows, each phase and each handoff that has ended, and the operator what the plan
//! notices.
//!
//! # Invariants
//!
//! * Of all processes only the one that acts for a partition tells the ends of its handoffs, and only the one that acts
//!   for the keyspace as a whole shows its view.

use std::sync::Arc;

use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::planning::{Assurance, MoveCause, Notice, Strategy};
use segue_protocol::records::{Handoff, Phase};
use segue_protocol::view::Versioned;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::history::HistoryPruner;
use super::super::{EndedPhase, HandoffResult};
use super::{Leadership, MIN_REFRESH_INTERVAL};

/// A handoff as last observed.
#[derive(Debug, Clone)]
pub(super) struct SeenHandoff {
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

impl Leadership<'_> {
    pub(super) fn observe(&mut self, strategy: Strategy) {
        let now = Instant::now();
        let recently = self.shown.map(|shown| shown + MIN_REFRESH_INTERVAL).filter(|due| now < *due);
        match recently.filter(|_| !self.membership) {
            _ if !self.unshown => {}
            Some(due) => self.show_at = Some(due),
            None => {
                (self.shown, self.show_at, self.unshown) = (Some(now), None, false);
                if self.speaks() {
                    self.observer.view_changed(&self.view);
                }
            }
        }
        for partition in std::mem::take(&mut self.changed) {
            let known = self.handoffs.remove(&partition);
            let seen = self.view.handoffs.get(&partition).map(|handoff| match &known {
                Some(known) if known.id == handoff.id() => known.in_phase(handoff.value.phase, now),
                _ => SeenHandoff::new(handoff, MoveCause::of(&self.view, strategy, &handoff.value), now),
            });
            let goes_on = |known: &SeenHandoff| seen.as_ref().is_some_and(|seen| seen.id == known.id);
            if known.as_ref().is_some_and(|known| !goes_on(known)) {
                self.history.iter().for_each(HistoryPruner::handoff_ended);
            }
            // Each end is told by one process.
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
                }
            }
            if let Some(seen) = seen {
                self.handoffs.insert(partition, seen);
            }
            self.pending.insert(partition);
        }
    }

    /// Returns how a handoff that is gone has ended.
    fn result(&mut self, partition: PartitionId, ended: &SeenHandoff) -> HandoffResult {
        let moved = self.view.assignments.get(&partition).is_some_and(|at| at.value.epoch >= ended.record.epoch);
        let cancelled = self.cancels.remove(&partition).filter(|(id, _)| *id == ended.id);
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
        self.status.send_modify(|status| status.notices = notices.iter().map(ToString::to_string).collect());
        self.notices = notices;
    }
}
