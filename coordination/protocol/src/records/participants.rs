//! Registrations: pods, routers and the leader. Each stands under a lease of the process that it describes.

use serde::{Deserialize, Serialize};

use crate::ids::LeaseId;

/// A non-negative factor, kept in thousandths so that views can be compared and hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Thousandths(pub u32);

impl From<f64> for Thousandths {
    fn from(value: f64) -> Self {
        // The cast saturates, and takes NaN to 0.
        Thousandths((value * 1000.0).round() as u32)
    }
}

impl From<Thousandths> for f64 {
    fn from(value: Thousandths) -> f64 {
        f64::from(value.0) / 1000.0
    }
}

/// Whether a pod takes partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum PodStatus {
    /// It does.
    #[default]
    Ready,
    /// It gives up what it has and gets no more.
    Draining,
}

/// What a pod is able to do in a handoff; on the wire a list of the names of those that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct Capabilities {
    /// As a new owner it reads the tail of the log and says `synced`.
    pub sync: bool,
    /// As an old owner it refuses the partition, ends what it works on and says `drained`.
    pub drained: bool,
    /// It says `released` once it has let go of a partition's state.
    pub released: bool,
    /// It refuses requests of another epoch, and all of them past its lease clock.
    pub fence: bool,
}

impl Capabilities {
    /// All four.
    pub const ALL: Capabilities = Capabilities { sync: true, drained: true, released: true, fence: true };
}

impl From<Vec<String>> for Capabilities {
    fn from(names: Vec<String>) -> Self {
        let has = |name: &str| names.iter().any(|have| have == name);
        Capabilities { sync: has("sync"), drained: has("drained"), released: has("released"), fence: has("fence") }
    }
}

impl From<Capabilities> for Vec<String> {
    fn from(have: Capabilities) -> Self {
        [("sync", have.sync), ("drained", have.drained), ("released", have.released), ("fence", have.fence)]
            .into_iter()
            .filter(|(_, has)| *has)
            .map(|(name, _)| name.to_owned())
            .collect()
    }
}

/// `pods/{pod}`, leased: a pod's registration. Its `create_revision` is the pod's incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRecord {
    /// The pod's name, as in the key.
    pub pod_name: String,
    /// Where routers reach it: `host:port`.
    pub address: String,
    /// Whether it takes partitions.
    #[serde(default)]
    pub status: PodStatus,
    /// For people.
    #[serde(default)]
    pub registered_at: u64,
    /// For people: when the record was last written. That the pod lives is shown by its lease, not by this.
    #[serde(default)]
    pub last_heartbeat: u64,
    /// Its share of the partitions relative to the others'; 1.0 is usual.
    #[serde(default = "unit_weight")]
    pub weight: Thousandths,
    /// Where it runs.
    #[serde(default)]
    pub zone: Option<String>,
    /// How busy it says it is.
    #[serde(default)]
    pub load: Option<Thousandths>,
    /// What it can do in a handoff.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Where its admin endpoint is reached: `host:port`.
    #[serde(default)]
    pub admin: Option<String>,
    /// The version of its rollout.
    #[serde(default)]
    pub version: Option<String>,
    /// The bound on the work of a request, in milliseconds from the last byte that reached the service. `None`: no bound
    /// is claimed.
    #[serde(default)]
    pub work_ends_within_ms: Option<u64>,
}

impl PodRecord {
    /// A pod that takes partitions, of the usual weight, and is able to do nothing in a handoff.
    pub fn new(pod_name: impl Into<String>, address: impl Into<String>) -> Self {
        PodRecord {
            pod_name: pod_name.into(),
            address: address.into(),
            status: PodStatus::default(),
            registered_at: 0,
            last_heartbeat: 0,
            weight: unit_weight(),
            zone: None,
            load: None,
            capabilities: Capabilities::default(),
            admin: None,
            version: None,
            work_ends_within_ms: None,
        }
    }
}

fn unit_weight() -> Thousandths {
    Thousandths(1000)
}

/// `routers/{router}`, leased: a router's registration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterRecord {
    /// The router's name, as in the key.
    pub router_name: String,
    /// For people.
    #[serde(default)]
    pub registered_at: u64,
    /// For people.
    #[serde(default)]
    pub last_heartbeat: u64,
    /// Where its admin endpoint is reached: `host:port`.
    #[serde(default)]
    pub admin: Option<String>,
}

impl RouterRecord {
    /// A router without an admin endpoint.
    pub fn new(router_name: impl Into<String>) -> Self {
        RouterRecord { router_name: router_name.into(), registered_at: 0, last_heartbeat: 0, admin: None }
    }
}

/// `coordinator/leader`, leased: who leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// The coordinator's name.
    pub holder: String,
    /// Its lease.
    #[serde(default)]
    pub lease_id: LeaseId,
}
