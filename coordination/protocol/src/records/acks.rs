//! What routers and pods acknowledge of a handoff.

use serde::{Deserialize, Serialize};

use crate::ids::{HandoffId, PartitionId};

/// `handoff_drains/{partition}/{router}`: nothing of the partition is in flight through this router any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterDrainedAck {
    /// The handoff that this is for. First, with `gave_up`: see [`starts_with`](Self::starts_with).
    pub handoff: HandoffId,
    /// The drain did not end and severing would not be safe: the router asks for the handoff to be cancelled.
    #[serde(default)]
    pub gave_up: bool,
    /// The router, as in the key.
    pub router_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// For people.
    #[serde(default)]
    pub acked_at: u64,
    /// How many exchanges were severed to get there.
    #[serde(default)]
    pub severed: u64,
}

impl RouterDrainedAck {
    /// The router has drained, and severed nothing to get there.
    pub fn new(router_name: impl Into<String>, partition: PartitionId, handoff: HandoffId) -> Self {
        let router_name = router_name.into();
        RouterDrainedAck { handoff, gave_up: false, router_name, partition, acked_at: 0, severed: 0 }
    }

    /// What the value of an ack starts with that says "drained" for this handoff, so that a guard on the order of bytes
    /// can tell it from none, from that of another handoff and from one that gave up, without having seen it. One that is
    /// written otherwise, by another hand, is only not recognised.
    pub fn starts_with(handoff: HandoffId) -> String {
        format!(r#"{{"handoff":{handoff},"gave_up":false,"#)
    }
}

/// `handoff_acks/{partition}/{router}`: this router routes to the new owner and has flushed its stash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterCutoverAck {
    /// The handoff that this is for. First: see [`starts_with`](Self::starts_with).
    pub handoff: HandoffId,
    /// The router, as in the key.
    pub router_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// For people.
    #[serde(default)]
    pub acked_at: u64,
    /// How many requests waited in the stash.
    #[serde(default)]
    pub stashed: u64,
    /// From the stop until nothing was in flight, microseconds.
    #[serde(default)]
    pub drain_us: u64,
    /// From the stop until the first request could reach the new owner, microseconds.
    #[serde(default)]
    pub pause_us: u64,
    /// From the switch until the stash was empty and the gate open, microseconds.
    #[serde(default)]
    pub flush_us: u64,
}

impl RouterCutoverAck {
    /// The router has cut over, and took no time for it.
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

    /// What the value of an ack for this handoff starts with, as with [`RouterDrainedAck::starts_with`].
    pub fn starts_with(handoff: HandoffId) -> String {
        format!(r#"{{"handoff":{handoff},"#)
    }
}

/// What a pod can say about a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodAckKind {
    /// The old owner: I refuse the partition and nothing of it goes on in me.
    Drained,
    /// The new owner: I have read the log to its end.
    Synced,
    /// The old owner: I have let go of the state.
    Released,
}

impl PodAckKind {
    /// The last part of the ack's key.
    pub fn as_str(self) -> &'static str {
        match self {
            PodAckKind::Drained => "drained",
            PodAckKind::Synced => "synced",
            PodAckKind::Released => "released",
        }
    }

    /// The inverse of [`as_str`](Self::as_str).
    pub fn parse(name: &str) -> Option<Self> {
        [PodAckKind::Drained, PodAckKind::Synced, PodAckKind::Released].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// `pod_acks/{partition}/{pod}/{ack}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodAck {
    /// The pod, as in the key.
    pub pod_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// The handoff that this is for.
    pub handoff: HandoffId,
    /// What it says.
    pub ack: PodAckKind,
    /// For people.
    #[serde(default)]
    pub acked_at: u64,
}

impl PodAck {
    /// The pod says this about the handoff.
    pub fn new(pod_name: impl Into<String>, partition: PartitionId, handoff: HandoffId, ack: PodAckKind) -> Self {
        PodAck { pod_name: pod_name.into(), partition, handoff, ack, acked_at: 0 }
    }
}
