//! Remembers which pods' lives are over, and since when this process knows.
//!
//! Two times are measured from here: the short grace in which the next life of a dead owner may register before its
//! partitions move elsewhere, and the bound on a dead owner's work. No timestamp of the store is used, so a new leader
//! measures both anew.
//!
//! # Invariants
//!
//! * A life counts as gone only from a view in which no key of it exists, readable or not.
//! * The measured time is never longer than the time that has passed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::handoff::advance::pending_bound;
use crate::ids::{Incarnation, PartitionId};
use crate::view::{PodLife, View};

/// How long a dead owner's partitions wait for the next life of the same pod.
pub const REBIRTH_GRACE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Gone {
    since: Duration,
    /// The planner has looked for moves of its partitions since the grace ended.
    handled: bool,
}

/// The owners that are gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Departures {
    /// The registered lives, as last seen.
    lives: Option<BTreeMap<String, Incarnation>>,
    /// The dead lives that assignments or handoffs still name.
    gone: BTreeMap<(String, Incarnation), Gone>,
}

impl Departures {
    /// Records which lives are over in this view.
    pub(super) fn observe(&mut self, view: &View, now: Duration) {
        let is_over = |pod: &str, life: Incarnation| view.life(pod, life) == PodLife::Over;
        // Unreadable registrations are included: nothing else would show their end.
        let lives = view.pod_lives();
        let old_owners = view.handoffs.values().filter_map(|handoff| {
            let record = &handoff.value;
            Some((record.old_owner.as_ref()?, record.old_incarnation))
        });
        let mut named: Vec<(&String, Incarnation)> = old_owners.filter(|(pod, life)| is_over(pod, *life)).collect();
        // There are many assignments: they are scanned only when a pod has come or gone.
        let changed = self.lives.as_ref() != Some(&lives);
        if changed {
            let owners = view.assignments.values().map(|it| (&it.value.owner, it.value.incarnation));
            named.extend(owners.filter(|(pod, life)| is_over(pod, *life)));
            named.sort_unstable();
            named.dedup();
            self.gone.retain(|(pod, life), _| named.binary_search(&(pod, *life)).is_ok());
            self.lives = Some(lives);
        }
        for (pod, life) in named {
            self.gone.entry((pod.clone(), life)).or_insert(Gone { since: now, handled: false });
        }
    }

    /// Returns until when this dead owner's partitions wait for its next life. `None` once they no longer wait.
    pub(super) fn grace_ends(&self, pod: &str, life: Incarnation, now: Duration) -> Option<Duration> {
        let gone = self.gone.get(&(pod.to_owned(), life))?;
        Some(gone.since + REBIRTH_GRACE).filter(|ends| *ends > now)
    }

    /// Returns whether a dead owner's partitions may move now and have not been planned yet. They count as planned
    /// afterwards.
    pub(super) fn take_due(&mut self, view: &View, now: Duration) -> bool {
        let mut is_due = false;
        for ((pod, _), gone) in self.gone.iter_mut().filter(|(_, gone)| !gone.handled) {
            if gone.since + REBIRTH_GRACE <= now || view.pods.contains_key(pod) {
                gone.handled = true;
                is_due = true;
            }
        }
        is_due
    }

    /// Returns when the next grace ends.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.gone.values().filter(|gone| !gone.handled).map(|gone| gone.since + REBIRTH_GRACE).min()
    }

    /// Returns when the bound ends that the partition's handoff waits for. `None` if it waits for none.
    pub(super) fn bound_ends(&self, view: &View, partition: PartitionId) -> Option<Duration> {
        let bound = pending_bound(view, partition)?;
        let record = &view.handoffs.get(&partition)?.value;
        let gone = self.gone.get(&(record.old_owner.clone()?, record.old_incarnation));
        // An owner that was not seen to go is recorded by the next `observe`.
        Some(gone.map_or(Duration::MAX, |gone| gone.since.saturating_add(bound)))
    }
}
