//! Operators' intentions for a keyspace. Each intention has a key of its own, which only operators' commands and the
//! leader write. It therefore outlives every process, and never edits a participant's record.
//!
//! A standing intention (a drain, a pin, a pause) holds until its key is deleted. An [`Operation`] is carried out once:
//! the leader writes its [`Answer`] in the transaction that acts on it.

use serde::{Deserialize, Serialize};

use crate::ids::{HandoffId, Incarnation, PartitionId};

/// The operator behind an intention, the reason and the time.
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
            "" => out.write_str(&on_one_line(&self.who)),
            why => write!(out, "{} ({})", on_one_line(&self.who), on_one_line(why)),
        }
    }
}

/// Escapes control characters: a line feed would begin a line that nobody has written.
fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// `operator/drains/{pod}`: the pod gives up its partitions and gets no more, in this life and in later ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Drain {
    /// Who wants it.
    #[serde(flatten)]
    pub origin: Origin,
}

/// `operator/pause`: no planned move begins. A pause with an end is attached to a lease that is never renewed.
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
    /// The incarnation of the pod that the pin is for. A pin for 0 holds for every incarnation until it is removed. Any
    /// other pin comes from a move, and is void once that incarnation is over.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// Who wants it.
    #[serde(flatten)]
    pub origin: Origin,
}

impl Pin {
    /// Returns whether the pin ends with an incarnation of its pod.
    pub fn ends_with_the_pod(&self) -> bool {
        self.incarnation != Incarnation::NONE
    }
}

/// The request of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Request {
    /// Move a partition.
    Move {
        /// The partition.
        partition: PartitionId,
        /// The pod that gets it.
        to: String,
        /// Whether the partition stays pinned there, also for later incarnations of the pod.
        #[serde(default)]
        pin: bool,
    },
    /// Keep a partition where it is.
    Pin {
        /// The partition.
        partition: PartitionId,
        /// The pod on which the operator saw the partition. It is not pinned to another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Cancel a handoff.
    Cancel {
        /// The partition.
        partition: PartitionId,
        /// The handoff that the operator saw. A later one is not cancelled.
        handoff: HandoffId,
    },
    /// Change a standing intention, such as a drain. The transaction that changes it writes this operation with its
    /// answer, and only for an operator who gave it an id.
    Change {
        /// The change, in words. A repeated id must repeat it.
        what: String,
    },
}

impl std::fmt::Display for Request {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Request::Move { partition, to, pin: false } => write!(out, "move partition {partition} to {to}"),
            Request::Move { partition, to, pin: true } => write!(out, "move partition {partition} to {to} and pin it"),
            Request::Pin { partition, to: None } => write!(out, "pin partition {partition}"),
            Request::Pin { partition, to: Some(to) } => write!(out, "pin partition {partition} to {to}"),
            Request::Cancel { partition, handoff } => write!(out, "cancel handoff {handoff} of partition {partition}"),
            Request::Change { what } => out.write_str(what),
        }
    }
}

impl Request {
    /// Returns the partition, if the request is for a single one.
    pub fn partition(&self) -> Option<PartitionId> {
        match self {
            Request::Move { partition, .. } | Request::Pin { partition, .. } | Request::Cancel { partition, .. } => {
                Some(*partition)
            }
            Request::Change { .. } => None,
        }
    }
}

/// The leader's answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the operation was carried out.
    pub accepted: bool,
    /// The consequence, or the reason of a refusal.
    pub text: String,
    /// Unix milliseconds. Informational.
    #[serde(default)]
    pub at: u64,
}

/// `operations/{id}`: a request to be carried out once. The id makes it idempotent, because operators only ever create
/// the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// The request.
    #[serde(flatten)]
    pub request: Request,
    /// The operator who asks.
    #[serde(flatten)]
    pub origin: Origin,
    /// `None` until a leader has acted.
    #[serde(default)]
    pub answer: Option<Answer>,
}
