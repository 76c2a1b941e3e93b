//! Decides when a round of planning is due: after changes have settled, at a minimum distance, and periodically.
//!
//! Rounds depend on times, membership and operators' intentions, not on placement.
//!
//! # Invariants
//!
//! * A round follows a change within `settle_max`, or within `min_interval` of the last round if that is later.
//! * A burst of changes causes a single round.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Policy, Strategy};
use crate::ids::{Incarnation, PartitionId, Revision};
use crate::records::{PodRecord, Thousandths};
use crate::view::{Versioned, View};

/// The cause of a round: the first one, if several coincided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoundCause {
    /// The first view of a new leader.
    Election,
    /// A pod came, went, or changed its status, weight or zone.
    Membership,
    /// The settings of the keyspace, or the owners that the strategy follows, changed.
    Config,
    /// An operator pinned, unpinned, paused or resumed.
    Operator,
    /// No change: the period has passed.
    Heartbeat,
}

impl RoundCause {
    /// All causes.
    pub const ALL: [RoundCause; 5] =
        [RoundCause::Election, RoundCause::Membership, RoundCause::Config, RoundCause::Operator, RoundCause::Heartbeat];

    /// Returns the cause's name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            RoundCause::Election => "election",
            RoundCause::Membership => "membership",
            RoundCause::Config => "config",
            RoundCause::Operator => "operator",
            RoundCause::Heartbeat => "heartbeat",
        }
    }
}

/// The inputs of placement. A pod's load, capabilities and heartbeats are not among them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PlacementInputs {
    /// Its life, whether it gives up its partitions, its weight and its zone.
    pods: BTreeMap<String, (Incarnation, bool, Thousandths, Option<String>)>,
    partitions: Option<u32>,
    policy: Policy,
    pins: BTreeMap<PartitionId, Revision>,
    is_paused: bool,
    /// When the owners that the strategy follows were last written.
    wanted: Option<Revision>,
}

impl PlacementInputs {
    fn of(view: &View, policy: &Policy) -> Self {
        let member = |(name, pod): (&String, &Versioned<PodRecord>)| {
            let record = &pod.value;
            let facts = (pod.incarnation(), view.is_draining(name), record.weight, record.zone.clone());
            (name.clone(), facts)
        };
        PlacementInputs {
            pods: view.pods.iter().map(member).collect(),
            partitions: view.settings().map(|settings| settings.partitions),
            policy: policy.clone(),
            pins: view.intentions.pins.keys().map(|partition| (*partition, view.pin_revision(*partition))).collect(),
            is_paused: view.intentions.pause.is_some(),
            wanted: view.wanted.as_ref().filter(|_| policy.strategy == Strategy::External).map(|it| it.mod_revision),
        }
    }
}

/// Changes that no round has followed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SettlingChanges {
    cause: RoundCause,
    first: Duration,
    last: Duration,
}

/// The timers of rounds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct RoundTimers {
    seen: Option<PlacementInputs>,
    settling: Option<SettlingChanges>,
    closed: Option<Duration>,
}

impl RoundTimers {
    /// Records what has changed since the last call.
    pub(super) fn observe(&mut self, view: &View, policy: &Policy, now: Duration) {
        let is = PlacementInputs::of(view, policy);
        let cause = match &self.seen {
            None => RoundCause::Election,
            Some(was) if *was == is => return,
            Some(was) if was.pods != is.pods => RoundCause::Membership,
            Some(was) if (was.partitions, was.wanted) != (is.partitions, is.wanted) => RoundCause::Config,
            Some(was) if was.policy != is.policy => RoundCause::Config,
            Some(_) => RoundCause::Operator,
        };
        self.seen = Some(is);
        let begun = self.settling.map_or((cause, now), |open| (open.cause, open.first));
        self.settling = Some(SettlingChanges { cause: begun.0, first: begun.1, last: now });
    }

    /// Returns whether a change waits for its round. No move is created meanwhile: the change may remove its reason.
    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    /// Closes the round that is due, if there is one. Returns its cause.
    pub(super) fn close(&mut self, policy: &Policy, now: Duration) -> Option<RoundCause> {
        self.next_wake(policy).filter(|due| *due <= now)?;
        self.closed = Some(now);
        let settled = self.settling.take();
        Some(settled.map_or(RoundCause::Heartbeat, |changes| changes.cause))
    }

    /// Returns when the next round is due, as far as is known.
    pub(super) fn next_wake(&self, policy: &Policy) -> Option<Duration> {
        let Some(changes) = self.settling else {
            return self.closed.map(|closed| closed + policy.heartbeat.max(policy.min_interval));
        };
        let settled = (changes.last + policy.settle).min(changes.first + policy.settle_max);
        let spaced = self.closed.map_or(Duration::ZERO, |closed| closed + policy.min_interval);
        Some(settled.max(spaced))
    }
}
