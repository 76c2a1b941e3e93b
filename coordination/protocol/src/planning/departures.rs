//! Lives of pods that are over, and for how long, as this process has seen it.
//!
//! Two things are measured from here: the short grace in which a next life of a dead owner's name may register before its
//! partitions move elsewhere, and the bound on what a dead owner may still be working on. No timestamp of the store is
//! used, so a new leader measures both anew.
//!
//! # Invariants
//!
//! * A life counts as gone only from a view in which no key of it stands, readable or not.
//! * The time that is measured is never longer than the time that has passed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::handoff::advance::pending_bound;
use crate::ids::{Incarnation, PartitionId};
use crate::view::{PodLife, View};

/// How long a dead owner's partitions wait for a next life under its name.
pub const REBIRTH_GRACE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Gone {
    since: Duration,
    /// Moves of its partitions have been looked for since its grace was over.
    answered: bool,
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
    /// Takes note of who has gone.
    pub(super) fn observe(&mut self, view: &View, now: Duration) {
        let is_over = |pod: &str, life: Incarnation| view.life(pod, life) == PodLife::Over;
        // An unreadable registration belongs here as well: that it is gone shows in nothing else.
        let lives = view.pod_lives();
        let old_owners = view.handoffs.values().filter_map(|handoff| {
            let record = &handoff.value;
            Some((record.old_owner.as_ref()?, record.old_incarnation))
        });
        let mut named: Vec<(&String, Incarnation)> = old_owners.filter(|(pod, life)| is_over(pod, *life)).collect();
        // Owners are many: they are looked through only when somebody has come or gone.
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
            self.gone.entry((pod.clone(), life)).or_insert(Gone { since: now, answered: false });
        }
    }

    /// Until when the partitions of this dead owner wait for its next life. `None`: they wait no longer.
    pub(super) fn grace_ends(&self, pod: &str, life: Incarnation, now: Duration) -> Option<Duration> {
        let gone = self.gone.get(&(pod.to_owned(), life))?;
        Some(gone.since + REBIRTH_GRACE).filter(|ends| *ends > now)
    }

    /// Whether there are owners whose partitions may move now and have not been looked at. They are from now on.
    pub(super) fn take_due(&mut self, view: &View, now: Duration) -> bool {
        let mut is_due = false;
        for ((pod, _), gone) in self.gone.iter_mut().filter(|(_, gone)| !gone.answered) {
            if gone.since + REBIRTH_GRACE <= now || view.pods.contains_key(pod) {
                gone.answered = true;
                is_due = true;
            }
        }
        is_due
    }

    /// When the next grace is over.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.gone.values().filter(|gone| !gone.answered).map(|gone| gone.since + REBIRTH_GRACE).min()
    }

    /// When the bound is over that the partition's handoff waits out. `None`: it waits for none.
    pub(super) fn bound_ends(&self, view: &View, partition: PartitionId) -> Option<Duration> {
        let bound = pending_bound(view, partition)?;
        let record = &view.handoffs.get(&partition)?.value;
        let gone = self.gone.get(&(record.old_owner.clone()?, record.old_incarnation));
        // An owner that was not seen to go is seen by the next look.
        Some(gone.map_or(Duration::MAX, |gone| gone.since.saturating_add(bound)))
    }
}
