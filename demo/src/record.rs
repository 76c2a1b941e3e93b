//! What clients and pods write down while a demo runs; the checks ([`check`](mod@super::check)) work on nothing else.

use std::sync::Arc;

use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use serde::{Deserialize, Serialize};

use super::clock::Nanos;

/// The number of a request, unique in a run. A client that sends the same request again sends the same number.
pub type RequestId = u64;

/// A key's number in a run.
pub type Key = u32;

/// One record of a partition's log: a write that took effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// The log that it is in.
    pub partition: PartitionId,
    /// Where in the log. Grows with every record.
    #[serde(skip)]
    pub offset: u64,
    /// The epoch under which the pod accepted the request.
    pub epoch: Epoch,
    /// The pod that wrote it.
    pub pod: Arc<str>,
    /// Which life of the pod.
    pub incarnation: Incarnation,
    /// The request.
    pub request: RequestId,
    /// The key.
    pub key: Arc<str>,
    /// The client's count of the key's writes.
    pub sequence: u64,
    /// When the pod began to work on the request.
    pub accepted_at: Nanos,
    /// When it was written.
    pub appended_at: Nanos,
    /// The value.
    pub value: Arc<str>,
}

/// One request as its client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// Its number.
    pub request: RequestId,
    /// Whose value it was about.
    pub key: Key,
    /// Where the client sent it.
    pub partition: PartitionId,
    /// What it was.
    pub kind: Kind,
    /// When it was to be sent: earlier than `sent_at` if the client was behind its rate.
    pub due_at: Nanos,
    /// When it was sent.
    pub sent_at: Nanos,
    /// When the answer was there, or the client gave up.
    pub ended_at: Nanos,
    /// What came of it.
    pub outcome: Outcome,
    /// Who says that it answered, and under which epoch.
    pub answered_by: Option<(Arc<str>, Epoch)>,
    /// It was one of several that were sent without waiting for answers.
    pub burst: Option<Burst>,
}

/// A request's place among those that were sent together on one HTTP/2 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Which burst.
    pub id: u64,
    /// When the client knew that the router had taken the whole burst; `None` if it never did.
    pub taken_by: Option<Nanos>,
}

/// What a request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A write: the so-manyth of its key.
    Write {
        /// The client's count.
        sequence: u64,
    },
    /// A read that has to see at least what was acknowledged before it was sent.
    Read {
        /// The last acknowledged write of the key.
        floor: u64,
        /// The newest write that the answer knew of.
        seen: u64,
        /// Asked for after the load, to see what has become of the key.
        last: bool,
    },
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A pod did it and said so.
    Ok,
    /// An answer that promises that nothing was done.
    Refused {
        /// The status.
        code: u16,
        /// `segue-reason`, or what else is known.
        reason: Arc<str>,
    },
    /// An answer, or a broken connection (status 0), after which it may or may not have been done.
    Unknown {
        /// The status; 0 if there was none.
        code: u16,
        /// `segue-reason`, or what else is known.
        reason: Arc<str>,
    },
    /// No answer in the time in which there has to be one.
    Unanswered,
}

impl Exchange {
    /// Whether it was a write, and which.
    pub fn sequence(&self) -> Option<u64> {
        match self.kind {
            Kind::Write { sequence } => Some(sequence),
            Kind::Read { .. } => None,
        }
    }
}
