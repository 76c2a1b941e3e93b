//! What a handoff leaves behind when its record is deleted.
//!
//! For people and tools only: no decision reads it. Times are those of the wall clocks of the participants that moved
//! the handoff on.

use serde::{Deserialize, Serialize};

use super::handoff::{Mode, PastPhase};
use crate::ids::{Epoch, HandoffId, PartitionId};

/// How a handoff ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandoffEnd {
    /// The new owner has the partition.
    Completed,
    /// The old owner kept the partition.
    Cancelled,
    /// The new owner died after it had taken over.
    Abandoned,
}

impl HandoffEnd {
    /// Returns the end's name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            HandoffEnd::Completed => "completed",
            HandoffEnd::Cancelled => "cancelled",
            HandoffEnd::Abandoned => "abandoned",
        }
    }
}

/// One router's part in a handoff, from its acks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct RouterPart {
    /// The router.
    pub router: String,
    /// Number of requests that it held.
    #[serde(default)]
    pub held: u64,
    /// Time from its stop until the first request could reach the new owner, in microseconds. `None` if it has not cut
    /// over.
    #[serde(default)]
    pub pause_us: Option<u64>,
    /// Time from its stop until nothing was in flight, in microseconds.
    #[serde(default)]
    pub drain_us: u64,
    /// Time from its switch until its stash was empty, in microseconds.
    #[serde(default)]
    pub flush_us: u64,
    /// Number of exchanges that it severed.
    #[serde(default)]
    pub severed: u64,
}

/// Whom a back-off concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackOffSubject {
    /// The partition is not moved.
    Partition,
    /// The pod gets no more partitions.
    Pod,
    /// The pod does not get this partition.
    Pair,
}

/// A back-off that was in force when a handoff was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PastBackOff {
    /// Whom it concerns. The pod is the new owner of the handoff.
    pub of: BackOffSubject,
    /// Failures in a row.
    pub failures: u32,
    /// Unix milliseconds, by the clock of the coordinator that cancelled the handoff. Only that coordinator obeys it.
    pub until: u64,
}

/// `~history/{partition}/{handoff}`: a handoff that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The handoff.
    pub handoff: HandoffId,
    /// The partition.
    pub partition: PartitionId,
    /// The old owner. `None` for the very first placement.
    #[serde(default)]
    pub from: Option<String>,
    /// The new owner.
    pub to: String,
    /// The epoch that the new owner got or would have got.
    pub epoch: Epoch,
    /// How routers cut over.
    #[serde(default)]
    pub mode: Mode,
    /// The kind of reason for which the move was planned. Empty if the record does not say.
    #[serde(default)]
    pub cause: String,
    /// Why the move was planned, in words.
    #[serde(default)]
    pub reason: String,
    /// How it ended.
    pub result: HandoffEnd,
    /// The kind of reason for which it ended. Empty if it completed by itself.
    #[serde(default)]
    pub end_cause: String,
    /// Why it ended, in words. Empty if it completed by itself.
    #[serde(default)]
    pub end_reason: String,
    /// Unix milliseconds, by the clock of the coordinator that created it.
    #[serde(default)]
    pub begun_at: u64,
    /// Unix milliseconds, by the clock of the participant that deleted the record.
    #[serde(default)]
    pub ended_at: u64,
    /// The phases, in order. A phase is missing if a participant that does not know this list ended it.
    #[serde(default)]
    pub phases: Vec<PastPhase>,
    /// The routers that have acknowledged, those with the longest pause first.
    #[serde(default)]
    pub routers: Vec<RouterPart>,
    /// Number of further routers, for which there was no room.
    #[serde(default)]
    pub more_routers: usize,
    /// Number of requests that all routers together held.
    #[serde(default)]
    pub held: u64,
    /// Number of exchanges that all routers together severed.
    #[serde(default)]
    pub severed: u64,
    /// The back-offs after a cancelled handoff.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back_offs: Vec<PastBackOff>,
}
