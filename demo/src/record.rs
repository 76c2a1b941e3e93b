//! The records that clients and pods make while a demo runs. The checks ([`check`](mod@super::check)) compare them with
//! each other.

use std::sync::Arc;

use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use serde::{Deserialize, Serialize};

use super::clock::Nanos;

/// The number of a request, unique in a run. A request that is sent again keeps its number.
pub type RequestId = u64;

/// The number of a key in a run.
pub type Key = u32;

/// One record of a partition's log: a write that took effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// The partition whose log holds the record.
    pub partition: PartitionId,
    /// Position in the log. Grows with every record.
    #[serde(skip)]
    pub offset: u64,
    /// Epoch under which the pod accepted the request.
    pub epoch: Epoch,
    /// The pod that wrote it.
    pub pod: Arc<str>,
    /// Incarnation of the pod.
    pub incarnation: Incarnation,
    /// The request.
    pub request: RequestId,
    /// The key.
    pub key: Arc<str>,
    /// Number of the write among the writes of its key, as the client counts them.
    pub sequence: u64,
    /// Time at which the pod began to work on the request.
    pub accepted_at: Nanos,
    /// Time at which the record was appended.
    pub appended_at: Nanos,
    /// The value.
    pub value: Arc<str>,
}

/// One request as its client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// The number of the request.
    pub request: RequestId,
    /// The key that was read or written.
    pub key: Key,
    /// Partition of the key.
    pub partition: PartitionId,
    /// Whether it was a write or a read.
    pub kind: Kind,
    /// Time at which the request was due: earlier than `sent_at` if the client was behind its rate.
    pub due_at: Nanos,
    /// Time at which the request was sent.
    pub sent_at: Nanos,
    /// Time at which the response was complete or the client gave up.
    pub ended_at: Nanos,
    /// How it ended.
    pub outcome: Outcome,
    /// The pod and the epoch that the response names.
    pub answered_by: Option<(Arc<str>, Epoch)>,
    /// The burst that the request was part of: requests that were sent without waiting for responses.
    pub burst: Option<Burst>,
}

/// A burst: requests that were sent together on one HTTP/2 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Number of the burst.
    pub id: u64,
    /// Time at which the client knew that the router had read the whole burst. `None` if the client never knew.
    pub taken_by: Option<Nanos>,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A write.
    Write {
        /// Number of the write among the writes of its key.
        sequence: u64,
    },
    /// A read. It has to see at least the last write that was acknowledged before it was sent.
    Read {
        /// Number of the last acknowledged write of the key.
        floor: u64,
        /// Number of the newest write that the response names.
        seen: u64,
        /// Whether it was sent after the load, to see the final state of the key.
        last: bool,
    },
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A pod carried the request out and acknowledged it.
    Ok,
    /// The response promises that the request was not carried out.
    Refused {
        /// The status.
        code: u16,
        /// Value of `segue-reason`, or a description where there is none.
        reason: Arc<str>,
    },
    /// After the response or the broken connection, the request may or may not have been carried out.
    Unknown {
        /// The status; 0 if the connection broke.
        code: u16,
        /// Value of `segue-reason`, or a description where there is none.
        reason: Arc<str>,
    },
    /// No response arrived in time.
    Unanswered,
}

impl Exchange {
    /// Returns the number of the write, or `None` for a read.
    pub fn sequence(&self) -> Option<u64> {
        match self.kind {
            Kind::Write { sequence } => Some(sequence),
            Kind::Read { .. } => None,
        }
    }
}
