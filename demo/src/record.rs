//! The records of clients and pods during a demo. The checks ([`check`](mod@super::check)) use nothing else.

use std::sync::Arc;

use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use serde::{Deserialize, Serialize};

use super::clock::Nanos;

/// The number of a request, unique in a run. A repeated request has the same number.
pub type RequestId = u64;

/// The number of a key in a run.
pub type Key = u32;

/// A record of a partition's log: a write that took effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// The partition of the log.
    pub partition: PartitionId,
    /// The position in the log. Grows with every record.
    #[serde(skip)]
    pub offset: u64,
    /// Epoch under which the pod accepted the request.
    pub epoch: Epoch,
    /// The pod that wrote it.
    pub pod: Arc<str>,
    /// The incarnation of the pod.
    pub incarnation: Incarnation,
    /// The request.
    pub request: RequestId,
    /// The key.
    pub key: Arc<str>,
    /// The client's sequence number of the key's writes.
    pub sequence: u64,
    /// When the pod began to process the request.
    pub accepted_at: Nanos,
    /// When the record was written.
    pub appended_at: Nanos,
    /// The value.
    pub value: Arc<str>,
}

/// A request as its client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientExchange {
    /// The request's number.
    pub request: RequestId,
    /// The key.
    pub key: Key,
    /// The partition that the client named.
    pub partition: PartitionId,
    /// The kind of request.
    pub kind: RequestKind,
    /// When it was due: earlier than `sent_at` if the client was behind its rate.
    pub due_at: Nanos,
    /// Time at which the request was sent.
    pub sent_at: Nanos,
    /// When the response arrived, or the client gave up.
    pub ended_at: Nanos,
    /// The outcome.
    pub outcome: Outcome,
    /// The pod that claims to have responded, and its epoch.
    pub answered_by: Option<(Arc<str>, Epoch)>,
    /// Set for one of several requests that were sent without waiting for responses.
    pub burst: Option<Burst>,
}

/// The position of a request among those sent together on one HTTP/2 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// The number of the burst.
    pub id: u64,
    /// When the client knew that the router had received the whole burst; `None` if it never did.
    pub taken_by: Option<Nanos>,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// A write with its sequence number.
    Write {
        /// The client's sequence number.
        sequence: u64,
    },
    /// A read. It has to see at least the last write that was acknowledged before it was sent.
    Read {
        /// Number of the last acknowledged write of the key.
        floor: u64,
        /// The newest write that the response named.
        seen: u64,
        /// Whether it was sent after the load, to see the key's final state.
        last: bool,
    },
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A pod processed it and confirmed that.
    Ok,
    /// A response that promises that nothing was done.
    Refused {
        /// The status.
        code: u16,
        /// `segue-reason`, or another cause.
        reason: Arc<str>,
    },
    /// A response or a broken connection (status 0) after which the request may or may not have taken effect.
    Unknown {
        /// The status; 0 without a response.
        code: u16,
        /// `segue-reason`, or another cause.
        reason: Arc<str>,
    },
    /// No response within the allowed time.
    Unanswered {
        /// The stage of the exchange that did not end, and its connection.
        place: Arc<str>,
    },
}

impl ClientExchange {
    /// Returns the sequence number of a write.
    pub fn sequence(&self) -> Option<u64> {
        match self.kind {
            RequestKind::Write { sequence } => Some(sequence),
            RequestKind::Read { .. } => None,
        }
    }
}
