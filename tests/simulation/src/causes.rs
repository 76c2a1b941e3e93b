//! Checks that a handoff has begun for a reason that is true, and within the limits on handoffs: each record names the kind
//! of its reason, and heartbeats that are missing are none.
//!
//! Whoever plans has seen the store as it was, late or not at all while cut off, and remembers nothing of the time before
//! it took its seat. So a reason holds here if it was true in any state of the store that it may have seen.
//!
//! # Invariants
//!
//! * No function that decides for production is asked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::planning::{Policy, Strategy};
use segue_protocol::records::{Handoff, Phase};
use segue_protocol::view::{Versioned, View};
use tokio::time::Instant;

use crate::trace::Trace;

/// Heartbeats in a row that show an overload before a partition moves for it.
const OVERLOADS: usize = 3;
/// A pod is overloaded with more than this percentage of its share.
const OVERLOAD_PERCENT: u128 = 125;
/// Heartbeats that are remembered of a pod: those, and as many as a planner may have missed.
const REMEMBERED: usize = 8;
/// How late a planner may have seen a heartbeat: the longest pause or silence of a watch that a fault makes.
const LATEST: Duration = Duration::from_secs(20);
/// How long a planner may bar a pod after a move to it that came to nothing.
const BARRED: Duration = Duration::from_secs(600);
/// How long before its commit a transaction may have been decided on, and how late it arrives.
const DECIDED: Duration = Duration::from_millis(2_000);

/// What is known of heartbeats and moves.
#[derive(Debug, Default)]
pub(crate) struct Causes {
    policy: Policy,
    beats: BTreeMap<String, Beats>,
    /// When each partition last went from one owner to another.
    moved: BTreeMap<PartitionId, Instant>,
    /// When each pod was last draining.
    draining: BTreeMap<String, Instant>,
    /// When each pod last registered.
    registered: BTreeMap<String, (Incarnation, Instant)>,
    /// When a move to each pod last came to nothing.
    failed: BTreeMap<String, Instant>,
    /// When the first of two pods last had or got more partitions than the second.
    uneven: BTreeMap<(String, String), Instant>,
    /// Who plans, and since when.
    planned_since: Option<(Seat, Instant)>,
    /// When the store last went back.
    anew: Option<Instant>,
}

/// The leader's election, or the participants of the round.
type Seat = (Option<Revision>, BTreeMap<String, Incarnation>);

/// The heartbeats of one life of a pod.
#[derive(Debug)]
struct Beats {
    incarnation: Incarnation,
    last: Revision,
    last_at: Instant,
    interval: Duration,
    /// Whether some view showed an overload while this was the last one.
    over: VecDeque<bool>,
}

impl Causes {
    pub(crate) fn new(policy: Policy) -> Self {
        Causes { policy, ..Causes::default() }
    }

    /// Takes note that the store has gone back. What was decided before may still be written, by reasons that were true then.
    pub(crate) fn begin_anew(&mut self) {
        *self = Causes { policy: self.policy.clone(), anew: Some(Instant::now()), ..Causes::default() };
    }

    /// Follows the store, and checks the handoffs that have begun.
    pub(crate) fn look(&mut self, before: &View, after: &View, trace: &Trace) {
        let now = Instant::now();
        let round = after.rounds.current.as_ref().map(|round| round.value.participants.clone());
        let seat = (after.leader.as_ref().map(|leader| leader.create_revision), round.unwrap_or_default());
        if self.planned_since.as_ref().is_none_or(|(known, _)| *known != seat) {
            self.planned_since = Some((seat, now));
        }
        self.follow_heartbeats(after, now);
        for (partition, handoff) in &after.handoffs {
            let is_new =
                before.handoffs.get(partition).is_none_or(|known| known.create_revision != handoff.create_revision);
            if !is_new || self.anew.is_some_and(|since| now < since + LATEST) {
                continue;
            }
            let checked = self.check_limits(after, &handoff.value);
            if let Err(why) = checked.and_then(|()| self.check(before, &handoff.value, now, trace)) {
                let Handoff { new_owner, cause, .. } = &handoff.value;
                trace.violation("causes", format!("partition {partition} moves to {new_owner} for {cause}: {why}"));
            }
        }
        for (partition, assignment) in &after.assignments {
            let was = before.assignments.get(partition);
            if was.is_some_and(|was| was.value.epoch != assignment.value.epoch) {
                self.moved.insert(*partition, now);
            }
        }
        for (partition, handoff) in &before.handoffs {
            let stands = after.handoffs.get(partition).is_some_and(|it| it.create_revision == handoff.create_revision);
            let has_moved = after.assignments.get(partition).is_some_and(|it| it.value.epoch == handoff.value.epoch);
            if !stands && !has_moved {
                self.failed.insert(handoff.value.new_owner.clone(), now);
            }
        }
        self.registered.retain(|pod, _| after.pods.contains_key(pod));
        for (pod, record) in &after.pods {
            let life = self.registered.entry(pod.clone()).or_insert((record.incarnation(), now));
            if life.0 != record.incarnation() {
                *life = (record.incarnation(), now);
            }
        }
        self.follow_owners(after, now);
    }

    /// What speaks for a move, for as long as somebody may take it for the present.
    fn follow_owners(&mut self, view: &View, now: Instant) {
        let mut counts: BTreeMap<&String, usize> = view.pods.keys().map(|pod| (pod, 0)).collect();
        for partition in PartitionId::all(view.partitions()) {
            let owner = view.assignments.get(&partition).map(|it| &it.value.owner);
            let owner = view.handoffs.get(&partition).map(|it| &it.value.new_owner).or(owner);
            if let Some(count) = owner.and_then(|owner| counts.get_mut(owner)) {
                *count += 1;
            }
        }
        for (pod, count) in &counts {
            if view.is_draining(pod) {
                self.draining.insert((*pod).clone(), now);
            }
            for (other, _) in counts.iter().filter(|(_, of_other)| *count > **of_other) {
                self.uneven.insert(((*pod).clone(), (*other).clone()), now);
            }
        }
    }

    /// A leader keeps to the limits on handoffs. Participants of a round may exceed them by less than their number.
    fn check_limits(&self, after: &View, handoff: &Handoff) -> Result<(), String> {
        let most = self.policy.max_concurrent_handoffs;
        let round = after.rounds.current.as_ref().filter(|_| after.leader.is_none());
        let beyond = round.map_or(0, |round| round.value.participants.len().saturating_sub(1));
        let all = after.handoffs.len();
        if all > most + beyond {
            return Err(format!("{all} handoffs stand, of {most}, and {beyond} for a round"));
        }
        let is_planned = |it: &Handoff| {
            let old = it.old_owner.as_deref();
            old.is_some_and(|old| after.live_pod(old, it.old_incarnation).is_some())
        };
        let (planned, half) = (after.handoffs.values().filter(|it| is_planned(&it.value)).count(), (most / 2).max(1));
        if is_planned(handoff) && planned > half + beyond {
            return Err(format!("{planned} planned handoffs stand, of {half}, and {beyond} for a round"));
        }
        let is_warming =
            |it: &&Versioned<Handoff>| it.value.phase == Phase::Warming && it.value.new_owner == handoff.new_owner;
        let (warming, most) = (after.handoffs.values().filter(is_warming).count(), self.policy.max_warming_per_pod);
        match &*handoff.cause {
            "balance" | "load" if warming > most + beyond => {
                Err(format!("the pod warms {warming} partitions, of {most}, and {beyond} for a round"))
            }
            _ => Ok(()),
        }
    }

    fn follow_heartbeats(&mut self, view: &View, now: Instant) {
        let (mut load, mut weight) = (0, 0);
        for (pod, record) in view.pods.iter().filter(|(pod, _)| !view.is_draining(pod)) {
            let Some(its) = view.load(pod) else { continue };
            load += u128::from(its.total.0);
            weight += u128::from(record.value.weight.0);
        }
        for (pod, Versioned { value, mod_revision, .. }) in &view.loads {
            let Some(record) = view.live_pod(pod, value.incarnation) else { continue };
            let known = self.beats.remove(pod).filter(|known| known.incarnation == value.incarnation);
            let mut beats = known.unwrap_or_else(|| Beats {
                incarnation: value.incarnation,
                last: Revision::ZERO,
                last_at: now,
                interval: Duration::ZERO,
                over: VecDeque::new(),
            });
            if beats.last != *mod_revision {
                (beats.last, beats.last_at) = (*mod_revision, now);
                beats.interval = Duration::from_millis(value.interval_ms).max(Duration::from_secs(1));
                beats.over.push_back(false);
                if beats.over.len() > REMEMBERED {
                    beats.over.pop_front();
                }
            }
            let share = load * u128::from(record.weight.0) / weight.max(1);
            if u128::from(value.total.0) * 100 > share * OVERLOAD_PERCENT
                && let Some(over) = beats.over.back_mut()
            {
                *over = true;
            }
            self.beats.insert(pod.clone(), beats);
        }
        // Whoever sees that a heartbeat is unreadable, or of another life, knows of none.
        for (_, beats) in self.beats.iter_mut().filter(|(pod, _)| view.load(pod).is_none()) {
            beats.last_at = now;
        }
    }

    fn check(&self, view: &View, handoff: &Handoff, now: Instant, trace: &Trace) -> Result<(), String> {
        let Handoff { partition, old_owner, old_incarnation, new_owner, cause, .. } = handoff;
        let since = self.planned_since.as_ref().map_or(now, |(_, since)| *since);
        let is_optional = matches!(&**cause, "balance" | "load");
        // Partitions that have to move go to a suspected pod if there is no other.
        let beats = self.beats.get(new_owner).filter(|beats| beats.incarnation == handoff.new_incarnation);
        let suspected = |beats: &&Beats| beats.last_at.max(since) + LATEST + beats.interval.saturating_mul(3) < now;
        if let Some(beats) = beats.filter(suspected) {
            if is_optional {
                return Err(format!("its last heartbeat is {:?} old", now - beats.last_at));
            }
            if let Some(other) = view.pods.keys().find(|pod| self.is_open(view, pod, now)) {
                return Err(format!("its last heartbeat is {:?} old, and {other} is free", now - beats.last_at));
            }
        }
        let Some(old_owner) = old_owner else {
            return if cause == "first_placement" { Ok(()) } else { Err("it has no old owner".into()) };
        };
        match cause.as_str() {
            "dead_owner" if view.live_pod(old_owner, *old_incarnation).is_some() => {
                return Err(format!("{old_owner} lives"));
            }
            "draining_owner" if self.draining.get(old_owner).is_none_or(|at| *at + LATEST < now) => {
                return Err(format!("{old_owner} does not drain"));
            }
            // The other strategies choose a pod by a hash, and say so in the same way.
            "balance" if self.policy.strategy == Strategy::Sticky && self.was_even(old_owner, new_owner, now) => {
                return Err(format!("{old_owner} does not have more than {new_owner}"));
            }
            "load" => {
                trace.seen("a partition moved for load");
                if !self.was_overloaded(old_owner) && !self.was_overloaded(new_owner) {
                    return Err(format!("neither {old_owner} nor {new_owner} was overloaded for long"));
                }
            }
            _ => {}
        }
        let moved = self.moved.get(partition).filter(|moved| is_optional && **moved > since);
        match moved.filter(|moved| **moved + self.policy.cool_down > now + DECIDED) {
            Some(moved) => Err(format!("it has moved {:?} ago", now - *moved)),
            None => Ok(()),
        }
    }

    /// Returns whether every planner knows this pod as one that may be given partitions.
    fn is_open(&self, view: &View, pod: &str, now: Instant) -> bool {
        let Some(record) = view.pods.get(pod).filter(|record| record.lease.is_some()) else { return false };
        let is_old = |at: &Instant| *at + LATEST < now;
        let is_known = self.registered.get(pod).is_some_and(|(life, at)| *life == record.incarnation() && is_old(at));
        let may_be_suspected = self.beats.get(pod).is_some_and(|beats| beats.last_at + beats.interval < now);
        let may_be_barred = self.failed.get(pod).is_some_and(|at| *at + BARRED > now);
        let is_leaving = self.draining.get(pod).is_some_and(|at| !is_old(at));
        let warms = view.handoffs.values().any(|it| it.value.new_owner == pod && it.value.phase == Phase::Warming);
        is_known && !may_be_suspected && !may_be_barred && !is_leaving && !warms
    }

    fn was_even(&self, old_owner: &str, new_owner: &str, now: Instant) -> bool {
        let pair = (old_owner.to_owned(), new_owner.to_owned());
        self.uneven.get(&pair).is_none_or(|at| *at + LATEST < now)
    }

    fn was_overloaded(&self, pod: &str) -> bool {
        let mut in_a_row = 0;
        self.beats.get(pod).is_some_and(|beats| {
            beats.over.iter().any(|over| {
                in_a_row = if *over { in_a_row + 1 } else { 0 };
                in_a_row >= OVERLOADS
            })
        })
    }
}
