//! Remembers which pods' lives are over, and since when this process knows.
//!
//! Three times are measured from here: the short grace in which the next life of a dead owner may register before its
//! partitions move elsewhere, the longer one for owners that were cut off, and the bound on a dead owner's work. No timestamp
//! of the store is used, so a new leader measures all of them anew.
//!
//! Owners that were cut off from the store may return, one after the other: what the first one took would move back. So their
//! partitions wait for `settle` after the last of them has gone or come back, at most for `settle_max`, and then go to all pods
//! that are there. Lives are taken to be cut off
//!
//! * if they ended while this leader did not see the store, before its first view, or within `settle` after either;
//! * if most of the registered pods lose their lives within `settle_max`.
//!
//! # Invariants
//!
//! * A life counts as gone only from a view in which no key of it exists, readable or not.
//! * The measured time is never longer than the time that has passed.
//! * What an owner had that is back waits for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Policy;
use super::notice::Notice;
use crate::handoff::advance::pending_bound;
use crate::ids::{Incarnation, PartitionId};
use crate::view::{PodLife, View};

/// How long a dead owner's partitions wait for the next life of the same pod.
pub const REBIRTH_GRACE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct DeadOwner {
    since: Duration,
    /// When its partitions may move to other pods.
    grace_ends: Duration,
    /// The planner has looked for moves of its partitions since the grace ended.
    handled: bool,
}

/// Lives that were cut off from the store together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CutOffLives {
    began: Duration,
    /// When the last of them ended, or the last pod came back.
    last: Duration,
    settle: Duration,
    settle_max: Duration,
    /// This process did not see the store either.
    was_blind: bool,
}

impl CutOffLives {
    fn ends(&self) -> Duration {
        (self.last + self.settle).min(self.began + self.settle_max)
    }
}

/// The owners that are gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Departures {
    /// The registered lives, as last seen.
    lives: Option<BTreeMap<String, Incarnation>>,
    /// The dead lives that assignments or handoffs still name.
    gone: BTreeMap<(String, Incarnation), DeadOwner>,
    /// The pods whose lives have ended or begun lately, each with when.
    ended: BTreeMap<String, Duration>,
    begun: BTreeMap<String, Duration>,
    /// This process has not seen the store since the last view.
    was_blind: bool,
    /// Since when this process has seen the store.
    sighted: Duration,
    cut_off: Option<CutOffLives>,
}

impl Departures {
    /// Records that this process did not see the store for a while.
    pub(super) fn regained_sight(&mut self) {
        self.was_blind = true;
    }

    /// Records which lives are over in this view.
    pub(super) fn observe(&mut self, view: &View, policy: &Policy, now: Duration) {
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
        }
        for (pod, life) in named {
            let gone = DeadOwner { since: now, grace_ends: now + REBIRTH_GRACE, handled: false };
            self.gone.entry((pod.clone(), life)).or_insert(gone);
        }
        if std::mem::take(&mut self.was_blind) || self.lives.is_none() {
            self.sighted = now;
        }
        if changed {
            self.follow(lives, policy, now);
        }
    }

    /// Records which lives have ended and begun, and whether those that ended were cut off.
    fn follow(&mut self, lives: BTreeMap<String, Incarnation>, policy: &Policy, now: Duration) {
        let Policy { settle, settle_max, .. } = *policy;
        let is_first = self.lives.is_none();
        let before = self.lives.replace(lives.clone()).unwrap_or_default();
        let differs =
            |is: &BTreeMap<String, Incarnation>, (pod, life): &(&String, &Incarnation)| is.get(*pod) != Some(*life);
        let ended: Vec<&String> = before.iter().filter(|it| differs(&lives, it)).map(|(pod, _)| pod).collect();
        let begun: Vec<&String> =
            lives.iter().filter(|it| !is_first && differs(&before, it)).map(|(pod, _)| pod).collect();
        for lately in [&mut self.ended, &mut self.begun] {
            lately.retain(|_, at| *at + settle_max > now);
        }
        self.ended.extend(ended.iter().map(|pod| ((*pod).clone(), now)));
        self.begun.extend(begun.iter().map(|pod| ((*pod).clone(), now)));
        let stayed = lives.keys().filter(|pod| !self.begun.contains_key(*pod)).count();
        let most_ended = self.ended.len() > 1 && self.ended.len() > stayed;
        let was_blind = now <= self.sighted + settle;

        self.cut_off = self.cut_off.take().filter(|cut_off| cut_off.ends() > now);
        if (is_first || !ended.is_empty()) && (was_blind || most_ended) && !self.gone.is_empty() {
            let cut_off = CutOffLives { began: now, last: now, settle, settle_max, was_blind };
            self.cut_off.get_or_insert(cut_off).was_blind |= was_blind;
        }
        let Some(cut_off) = &mut self.cut_off else { return };
        cut_off.last = now;
        let ends = cut_off.ends();
        for gone in self.gone.values_mut().filter(|gone| gone.since + settle_max > now) {
            gone.grace_ends = gone.grace_ends.max(ends);
            gone.handled &= gone.grace_ends <= now;
        }
    }

    /// Returns until when this dead owner's partitions wait for its next life. `None` once they no longer wait.
    pub(super) fn grace_ends(&self, pod: &str, life: Incarnation, now: Duration) -> Option<Duration> {
        let gone = self.gone.get(&(pod.to_owned(), life))?;
        Some(gone.grace_ends).filter(|ends| *ends > now)
    }

    /// Returns whether lives that end now may have been cut off from the store.
    pub(super) fn are_cut_off(&self, now: Duration) -> bool {
        self.cut_off.as_ref().is_some_and(|cut_off| cut_off.ends() > now)
    }

    /// Returns whether the end of a life says nothing against its pod now: this process did not see the store either. That most
    /// pods die is no excuse, because a partition may end one after the other.
    pub(super) fn are_blameless(&self, now: Duration) -> bool {
        self.are_cut_off(now) && self.cut_off.as_ref().is_some_and(|cut_off| cut_off.was_blind)
    }

    /// Returns a notice about the owners that are waited for because they were cut off.
    pub(super) fn notices(&self, view: &View, now: Duration) -> Option<Notice> {
        let is_away = |((pod, _), gone): &(&(String, Incarnation), &DeadOwner)| {
            gone.grace_ends > now && view.pod_key(pod).is_none()
        };
        let pods: BTreeSet<String> = self.gone.iter().filter(is_away).map(|((pod, _), _)| pod.clone()).collect();
        (self.are_cut_off(now) && !pods.is_empty()).then_some(Notice::CutOff { pods })
    }

    /// Returns whether a dead owner's partitions may move now and have not been planned yet. They count as planned
    /// afterwards.
    pub(super) fn take_due(&mut self, view: &View, now: Duration) -> bool {
        let mut is_due = false;
        for ((pod, _), gone) in self.gone.iter_mut().filter(|(_, gone)| !gone.handled) {
            if gone.grace_ends <= now || view.pods.contains_key(pod) {
                gone.handled = true;
                is_due = true;
            }
        }
        is_due
    }

    /// Returns when the next grace ends.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.gone.values().filter(|gone| !gone.handled).map(|gone| gone.grace_ends).min()
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
