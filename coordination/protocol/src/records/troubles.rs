//! A router's report of what its clients suffer.
//!
//! Only operators read it: no decision of the protocol depends on it. Routers and pods do not follow these keys.

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, PartitionId};

/// Most pods, and most partitions, that a report lists. It bounds the size of the record.
pub const MAX_TROUBLES_LISTED: usize = 64;

/// `~troubles/{router}`, leased: what a router's clients suffer. Absent while all is well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterTroubles {
    /// The router's name, as in the key.
    pub router_name: String,
    /// The life of the router. The report of another life says nothing.
    pub incarnation: Incarnation,
    /// When it was written, in Unix milliseconds. Informational.
    #[serde(default)]
    pub at: u64,
    /// The pods that do not serve their clients well, the longest trouble first.
    #[serde(default)]
    pub pods: Vec<PodTrouble>,
    /// The partitions whose requests wait, the longest wait first.
    #[serde(default)]
    pub held: Vec<HeldRequests>,
    /// Number of requests that wait, in all partitions.
    #[serde(default)]
    pub held_requests: u64,
}

/// A trouble with a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodTrouble {
    /// The pod's name.
    pub pod_name: String,
    /// The life of the pod.
    pub incarnation: Incarnation,
    /// The kind of trouble.
    pub kind: TroubleKind,
    /// For how long it had lasted when the report was written, in milliseconds.
    pub for_ms: u64,
    /// The figures behind it, in words. Empty if there are none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub figures: String,
    /// Number of requests that wait for the pod.
    #[serde(default)]
    pub held_requests: u64,
    /// Age of the oldest of them when the report was written, in milliseconds.
    #[serde(default)]
    pub oldest_held_ms: u64,
}

/// How a pod fails its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// No connection can be made, or none takes a request.
    Unreachable,
    /// The pod responds "not mine" to the requests of its own partitions.
    Refuses,
    /// The pod answers nothing: requests grow old.
    Silent,
    /// Most of its responses are errors of the server, or break off.
    Fails,
    /// The pod is slow beside the others.
    Slow,
    /// A kind of a newer version.
    #[serde(other)]
    Unknown,
}

impl TroubleKind {
    /// All kinds that this version reports, the gravest first.
    pub const ALL: [TroubleKind; 5] =
        [TroubleKind::Unreachable, TroubleKind::Refuses, TroubleKind::Silent, TroubleKind::Fails, TroubleKind::Slow];

    /// Returns the word for it in metrics and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            TroubleKind::Unreachable => "unreachable",
            TroubleKind::Refuses => "refuses",
            TroubleKind::Silent => "silent",
            TroubleKind::Fails => "fails",
            TroubleKind::Slow => "slow",
            TroubleKind::Unknown => "unknown",
        }
    }
}

/// The requests of a partition that wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRequests {
    /// The partition.
    pub partition: PartitionId,
    /// How many requests wait.
    pub requests: u64,
    /// Age of the oldest when the report was written, in milliseconds.
    pub oldest_ms: u64,
}
