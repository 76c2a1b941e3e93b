//! What operators want of a keyspace. Each intention is a key of its own that no participant writes, so that it outlives
//! every process and never edits a participant's record.
//!
//! A standing intention (a drain, a pin, a pause) holds until its key is deleted. An [`Operation`] is done once: the
//! leader writes its [`Answer`] in the transaction that acts on it.

use serde::{Deserialize, Serialize};

use crate::ids::{HandoffId, Incarnation, PartitionId};

/// Who wants something, why, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The operator.
    pub who: String,
    /// The operator's reason. Empty if none was given.
    #[serde(default)]
    pub why: String,
    /// Unix milliseconds. Informational.
    #[serde(default)]
    pub at: u64,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.why.as_str() {
            "" => out.write_str(&self.who),
            why => write!(out, "{} ({why})", self.who),
        }
    }
}

/// `operator/drains/{pod}`: the pod gives up its partitions and gets no more, in this life and in later ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Drain {
    /// Who wants it.
    #[serde(flatten)]
    pub origin: Origin,
}

/// `operator/pause`: no planned move begins. A pause with an end is attached to a lease that nobody renews.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pause {
    /// Who wants it.
    #[serde(flatten)]
    pub origin: Origin,
    /// When the pause ends by itself, in Unix milliseconds. Informational: the lease ends it.
    #[serde(default)]
    pub until: Option<u64>,
}

/// `operator/pins/{partition}`: the partition belongs on this pod, whatever the strategy says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pin {
    /// The pod.
    pub to: String,
    /// The life of the pod that is meant. 0 means every life: the pin stands until it is removed. Any other pin comes
    /// from a move, and is void once that life is over.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// Who wants it.
    #[serde(flatten)]
    pub origin: Origin,
}

impl Pin {
    /// Returns whether the pin ends with a life of its pod.
    pub fn ends_with_the_pod(&self) -> bool {
        self.incarnation != Incarnation::NONE
    }
}

/// What an operation asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Request {
    /// Move a partition.
    Move {
        /// The partition.
        partition: PartitionId,
        /// The pod that gets it.
        to: String,
        /// Whether the partition belongs there from then on, also in later lives of the pod.
        #[serde(default)]
        pin: bool,
    },
    /// Keep a partition where it is.
    Pin {
        /// The partition.
        partition: PartitionId,
    },
    /// Cancel a handoff.
    Cancel {
        /// The partition.
        partition: PartitionId,
        /// The handoff that was seen. A later one is not cancelled.
        handoff: HandoffId,
    },
}

impl std::fmt::Display for Request {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Request::Move { partition, to, pin: false } => write!(out, "move partition {partition} to {to}"),
            Request::Move { partition, to, pin: true } => write!(out, "move partition {partition} to {to} and pin it"),
            Request::Pin { partition } => write!(out, "pin partition {partition}"),
            Request::Cancel { partition, handoff } => write!(out, "cancel handoff {handoff} of partition {partition}"),
        }
    }
}

impl Request {
    /// Returns the partition.
    pub fn partition(&self) -> PartitionId {
        match self {
            Request::Move { partition, .. } | Request::Pin { partition } | Request::Cancel { partition, .. } => {
                *partition
            }
        }
    }
}

/// The leader's answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the operation was carried out.
    pub accepted: bool,
    /// What happens now, or why nothing does.
    pub text: String,
    /// Unix milliseconds. Informational.
    #[serde(default)]
    pub at: u64,
}

/// `operations/{id}`: something to be done once. The id makes it idempotent: the key is only ever created.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// What is asked for.
    #[serde(flatten)]
    pub request: Request,
    /// Who asks.
    #[serde(flatten)]
    pub origin: Origin,
    /// `None` until a leader has acted.
    #[serde(default)]
    pub answer: Option<Answer>,
}
