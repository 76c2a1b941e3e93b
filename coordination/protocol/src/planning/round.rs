//! When a round of planning is due: changes settle first, rounds keep their distance, and one comes now and then anyway.
//!
//! Knows times and who is a member, nothing of placement. Must stay true: a change is answered by a round at most
//! `settle_max` later (or `min_interval` after the last round, if that is later); a storm of changes makes one round.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Policy, Strategy};
use crate::ids::Incarnation;
use crate::records::{PodRecord, PodStatus, Thousandths};
use crate::view::{Stamped, View};

/// Why a round was begun: the first cause, if several fell together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoundCause {
    /// The first view of a new leader.
    Election,
    /// A pod came, went, or changed its status, weight or zone.
    Membership,
    /// The settings of the keyspace or the strategy changed.
    Config,
    /// Nothing; it was time.
    Heartbeat,
}

impl RoundCause {
    /// The cause as metrics and logs name it.
    pub fn as_str(self) -> &'static str {
        match self {
            RoundCause::Election => "election",
            RoundCause::Membership => "membership",
            RoundCause::Config => "config",
            RoundCause::Heartbeat => "heartbeat",
        }
    }
}

/// What placement depends on. A pod's load, capabilities and heartbeats are no part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Membership {
    pods: BTreeMap<String, (Incarnation, PodStatus, Thousandths, Option<String>)>,
    partitions: Option<u32>,
    strategy: Strategy,
}

impl Membership {
    fn of(view: &View, policy: &Policy) -> Self {
        let member = |(name, pod): (&String, &Stamped<PodRecord>)| {
            let record = &pod.value;
            let facts = (pod.incarnation(), record.status, record.weight, record.zone.clone());
            (name.clone(), facts)
        };
        Membership {
            pods: view.pods.iter().map(member).collect(),
            partitions: super::partitions(view),
            strategy: policy.strategy,
        }
    }
}

/// Changes that have not been answered by a round yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Settling {
    cause: RoundCause,
    first: Duration,
    last: Duration,
}

/// The timers of rounds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Rounds {
    seen: Option<Membership>,
    settling: Option<Settling>,
    closed: Option<Duration>,
}

impl Rounds {
    /// Takes note of what has changed since the last call.
    pub(super) fn observe(&mut self, view: &View, policy: &Policy, now: Duration) {
        let is = Membership::of(view, policy);
        let cause = match &self.seen {
            None => RoundCause::Election,
            Some(was) if *was == is => return,
            Some(was) if was.pods != is.pods => RoundCause::Membership,
            Some(_) => RoundCause::Config,
        };
        self.seen = Some(is);
        let begun = self.settling.map_or((cause, now), |open| (open.cause, open.first));
        self.settling = Some(Settling { cause: begun.0, first: begun.1, last: now });
    }

    /// Whether a change waits for its round. Meanwhile no move is created: the change may undo its reason.
    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    /// Closes the round that is due, if one is.
    pub(super) fn close(&mut self, policy: &Policy, now: Duration) -> Option<RoundCause> {
        self.next_wake(policy).filter(|due| *due <= now)?;
        self.closed = Some(now);
        let settled = self.settling.take();
        Some(settled.map_or(RoundCause::Heartbeat, |changes| changes.cause))
    }

    /// When the next round is due, as far as is known.
    pub(super) fn next_wake(&self, policy: &Policy) -> Option<Duration> {
        let Some(changes) = self.settling else {
            return self.closed.map(|closed| closed + policy.heartbeat.max(policy.min_interval));
        };
        let settled = (changes.last + policy.settle).min(changes.first + policy.settle_max);
        let spaced = self.closed.map_or(Duration::ZERO, |closed| closed + policy.min_interval);
        Some(settled.max(spaced))
    }
}
