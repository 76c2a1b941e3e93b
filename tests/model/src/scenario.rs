//! What a search starts from: the processes and their capabilities, the requests to come, and the faults that may
//! happen.

use segue_protocol::handoff::router::OnStoreLoss;
use segue_protocol::records::{Capabilities, Mode};

use crate::rules::Rule;
use crate::state::{Budget, Reached};

/// A request that a client will send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) router: u8,
    pub(crate) partition: u8,
    pub(crate) key: u64,
}

/// What a search is expected to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No counterexample.
    Holds,
    /// One of this property, as short as this.
    Violates {
        /// The property.
        property: &'static str,
        /// Steps of the shortest counterexample.
        steps: usize,
    },
}

/// How long a search takes, and so when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    /// Seconds, even unoptimised: with every test run.
    Quick,
    /// Part of the usual suite.
    Usual,
    /// On demand.
    Large,
}

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// In words, for the table and the documentation.
    pub(crate) about: &'static str,
    pub(crate) pods: Vec<Capabilities>,
    /// How many pods run at the beginning; the rest start when the budget lets them.
    pub(crate) pods_up: usize,
    pub(crate) routers: usize,
    pub(crate) routers_up: usize,
    pub(crate) partitions: u8,
    /// Processes that take part in assignment rounds. 0: the keyspace has a leader.
    pub(crate) participants: u8,
    /// How many of them run at the beginning, in a round of their own.
    pub(crate) participants_up: u8,
    /// A leader of a keyspace with rounds ends them before it acts.
    pub(crate) leader_knows_rounds: bool,
    /// Pod 0 owns everything at the beginning; otherwise no partition has an owner yet.
    pub(crate) is_placed: bool,
    /// The pods say that they have nothing to warm, so that a new keyspace is assigned without handoffs.
    pub(crate) nothing_to_warm: bool,
    /// Pod 0 is draining, so that its partitions have to move.
    pub(crate) drains: bool,
    /// The leader has written its plan already.
    pub(crate) is_planned: bool,
    pub(crate) mode: Mode,
    pub(crate) on_store_loss: OnStoreLoss,
    pub(crate) requests: Vec<Planned>,
    pub(crate) budget: Budget,
    /// The service of pod 0 outlives its sidecar, and its work ends within a bound.
    pub(crate) is_bounded: bool,
    /// The pods make checkpoints, and new owners wait for them.
    pub(crate) checkpoints: bool,
    /// Of the pods only the old owner fails.
    pub(crate) spares_new_owner: bool,
    pub(crate) verdict: Verdict,
    /// What the search must have seen.
    pub(crate) reaches: Vec<Reached>,
    pub(crate) size: Size,
    /// The rule that is taken out.
    pub(crate) without: Option<Rule>,
}

impl Scenario {
    /// Two routers that are up and get one request each, of the same key: every life of the cluster is also one with
    /// the two exchanged.
    pub(crate) fn routers_are_alike(&self) -> bool {
        let alike = |planned: &[Planned]| match planned {
            [one, other] => one.router != other.router && (one.partition, one.key) == (other.partition, other.key),
            _ => false,
        };
        self.routers == 2 && self.routers_up == 2 && alike(&self.requests)
    }

    /// Some requests of a router are of one key, and so have an order.
    pub(crate) fn has_lines(&self) -> bool {
        let line = |it: &Planned| (it.router, it.partition, it.key);
        (1..self.requests.len())
            .any(|index| self.requests[..index].iter().any(|it| line(it) == line(&self.requests[index])))
    }

    /// More rounds than these faults are a reason for.
    pub(crate) fn most_rounds(&self) -> u64 {
        let Budget { participant_crashes, participant_starts, stuck_participants, .. } = self.budget;
        let Budget { windows, heartbeats, leaders, delays, .. } = self.budget;
        let comings = participant_crashes + participant_starts + stuck_participants + self.participants;
        u64::from(2 * (1 + comings + windows + heartbeats + leaders + delays))
    }

    pub(crate) fn is_without(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }
}
