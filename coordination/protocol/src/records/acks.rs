//! The acknowledgements of routers and pods in a handoff.

use serde::{Deserialize, Serialize};

use crate::ids::{HandoffId, PartitionId};

/// `~acks/handoff_drains/{partition}/{router}`: no request of the partition is in flight through this router any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterDrainedAck {
    /// The handoff that the ack is for. First field, followed by `gave_up`: see [`starts_with`](Self::starts_with).
    pub handoff: HandoffId,
    /// The drain did not end, and severing would not be safe: the router asks for the handoff to be cancelled.
    #[serde(default)]
    pub gave_up: bool,
    /// The router, as in the key.
    pub router_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// Informational.
    #[serde(default)]
    pub acked_at: u64,
    /// Number of exchanges that were severed to drain.
    #[serde(default)]
    pub severed: u64,
}

impl RouterDrainedAck {
    /// Returns the ack of a router that has drained without severing anything.
    pub fn new(router_name: impl Into<String>, partition: PartitionId, handoff: HandoffId) -> Self {
        let router_name = router_name.into();
        RouterDrainedAck { handoff, gave_up: false, router_name, partition, acked_at: 0, severed: 0 }
    }

    /// Returns the first bytes of an ack that says "drained" for this handoff. A guard on the order of bytes can thus
    /// tell it from no ack, from an ack of another handoff and from one that gave up, without having seen it. An ack
    /// that another writer serialised differently is merely not recognised.
    pub fn starts_with(handoff: HandoffId) -> String {
        format!(r#"{{"handoff":{handoff},"gave_up":false,"#)
    }
}

/// `~acks/handoff_acks/{partition}/{router}`: this router routes to the new owner and has flushed its stash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterCutoverAck {
    /// The handoff that the ack is for. First field: see [`starts_with`](Self::starts_with).
    pub handoff: HandoffId,
    /// The router, as in the key.
    pub router_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// Informational.
    #[serde(default)]
    pub acked_at: u64,
    /// Number of requests that waited in the stash.
    #[serde(default)]
    pub stashed: u64,
    /// Time from the stop until nothing was in flight, in microseconds.
    #[serde(default)]
    pub drain_us: u64,
    /// Time from the stop until the first request could reach the new owner, in microseconds.
    #[serde(default)]
    pub pause_us: u64,
    /// Time from the switch until the stash was empty and the gate open, in microseconds.
    #[serde(default)]
    pub flush_us: u64,
}

impl RouterCutoverAck {
    /// Returns the ack of a router that has cut over, with all times 0.
    pub fn new(router_name: impl Into<String>, partition: PartitionId, handoff: HandoffId) -> Self {
        RouterCutoverAck {
            handoff,
            router_name: router_name.into(),
            partition,
            acked_at: 0,
            stashed: 0,
            drain_us: 0,
            pause_us: 0,
            flush_us: 0,
        }
    }

    /// Returns the first bytes of an ack for this handoff, as [`RouterDrainedAck::starts_with`] does.
    pub fn starts_with(handoff: HandoffId) -> String {
        format!(r#"{{"handoff":{handoff},"#)
    }
}

/// The kinds of a pod's ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodAckKind {
    /// The old owner refuses the partition, and no work on it is left in the pod.
    Drained,
    /// The new owner has read the log to its end.
    Synced,
    /// The old owner has released the state.
    Released,
    /// The new owner can never take the partition. No phase waits for this ack: the coordinator cancels the handoff.
    /// Readers that do not know the kind ignore its key.
    Failed,
}

impl PodAckKind {
    /// All kinds.
    pub const ALL: [PodAckKind; 4] =
        [PodAckKind::Drained, PodAckKind::Synced, PodAckKind::Released, PodAckKind::Failed];

    /// Returns the last part of the ack's key.
    pub fn as_str(self) -> &'static str {
        match self {
            PodAckKind::Drained => "drained",
            PodAckKind::Synced => "synced",
            PodAckKind::Released => "released",
            PodAckKind::Failed => "failed",
        }
    }

    /// Parses the last part of the ack's key: the inverse of [`as_str`](Self::as_str).
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// `pod_acks/{partition}/{pod}/{ack}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodAck {
    /// The pod, as in the key.
    pub pod_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// The handoff that the ack is for.
    pub handoff: HandoffId,
    /// The kind of the ack.
    pub ack: PodAckKind,
    /// Informational.
    #[serde(default)]
    pub acked_at: u64,
    /// The reason of an ack of the kind [`Failed`](PodAckKind::Failed). Informational.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PodAck {
    /// Returns the pod's ack of this kind.
    pub fn new(pod_name: impl Into<String>, partition: PartitionId, handoff: HandoffId, ack: PodAckKind) -> Self {
        PodAck { pod_name: pod_name.into(), partition, handoff, ack, acked_at: 0, reason: None }
    }
}
