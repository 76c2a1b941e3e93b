//! Checks that a handoff has begun for a reason that is true: each record names the kind of its reason, and heartbeats are
//! never a reason by themselves.
//!
//! Whoever plans has seen the store as it was, late or not at all while cut off, and remembers nothing of the time before
//! it took its seat. So a reason holds here if anyone could have seen it.
//!
//! # Invariants
//!
//! * No function that decides for production is asked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::Handoff;
use segue_protocol::view::{Versioned, View};
use tokio::time::Instant;

use crate::trace::Trace;

/// Heartbeats in a row that show an overload before a partition moves for it.
const OVERLOADS: usize = 3;
/// A pod is overloaded with more than this percentage of its share.
const OVERLOAD_PERCENT: u128 = 125;
/// Heartbeats that are remembered of a pod.
const REMEMBERED: usize = 24;
/// How late a planner may have seen a heartbeat: the longest pause or silence of a watch that a fault makes.
const LATEST: Duration = Duration::from_secs(20);
/// How long before its commit a transaction may have been decided on, and how late it arrives.
const DECIDED: Duration = Duration::from_millis(2_000);

/// What is known of heartbeats and moves.
#[derive(Debug, Default)]
pub(crate) struct Causes {
    /// The shortest time between a partition's move and its next one for balance or load.
    cool_down: Duration,
    beats: BTreeMap<String, Beats>,
    /// When each partition last went from one owner to another.
    moved: BTreeMap<PartitionId, Instant>,
    /// Since when the same processes plan.
    planned_since: Option<(Option<Revision>, Instant)>,
}

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
    pub(crate) fn new(cool_down: Duration) -> Self {
        Causes { cool_down, ..Causes::default() }
    }

    /// Follows the store, and checks the handoffs that have begun.
    pub(crate) fn look(&mut self, before: &View, after: &View, trace: &Trace) {
        let now = Instant::now();
        let seat = after.leader.as_ref().map(|leader| leader.create_revision);
        let seat = seat.max(after.rounds.current.as_ref().map(|round| round.mod_revision));
        if self.planned_since.is_none_or(|(known, _)| known != seat) {
            self.planned_since = Some((seat, now));
        }
        self.follow_heartbeats(after, now);
        for (partition, handoff) in &after.handoffs {
            let is_new =
                before.handoffs.get(partition).is_none_or(|known| known.create_revision != handoff.create_revision);
            if is_new && let Err(why) = self.check(before, &handoff.value, now, trace) {
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
    }

    fn check(&self, view: &View, handoff: &Handoff, now: Instant, trace: &Trace) -> Result<(), String> {
        let Handoff { partition, old_owner, old_incarnation, new_owner, cause, .. } = handoff;
        let since = self.planned_since.map_or(now, |(_, since)| since);
        let is_optional = matches!(&**cause, "balance" | "load");
        // Partitions that have to move go to a suspected pod if there is no other.
        let beats = self.beats.get(new_owner).filter(|beats| beats.incarnation == handoff.new_incarnation);
        if let Some(beats) = beats.filter(|_| is_optional) {
            let suspected = beats.last_at.max(since) + LATEST + beats.interval.saturating_mul(3);
            if suspected < now {
                return Err(format!("its last heartbeat is {:?} old", now - beats.last_at));
            }
        }
        let Some(old_owner) = old_owner else {
            return if cause == "first_placement" { Ok(()) } else { Err("it has no old owner".into()) };
        };
        match cause.as_str() {
            "dead_owner" if view.live_pod(old_owner, *old_incarnation).is_some() => {
                return Err(format!("{old_owner} lives"));
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
        match moved.filter(|moved| **moved + self.cool_down > now + DECIDED) {
            Some(moved) => Err(format!("it has moved {:?} ago", now - *moved)),
            None => Ok(()),
        }
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
