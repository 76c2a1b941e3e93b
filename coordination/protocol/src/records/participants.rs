//! The registrations of pods, routers and the leader. Each is attached to the lease of the process that it describes.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, LeaseId};

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

/// A pod's own willingness to own partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum PodStatus {
    /// The pod accepts partitions.
    #[default]
    Ready,
    /// The pod gives up what it has and gets no more.
    Draining,
}

/// A pod's capabilities in a handoff; on the wire a list of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct Capabilities {
    /// As a new owner, the pod reads the tail of the log and acknowledges `synced`.
    pub sync: bool,
    /// As an old owner, the pod refuses the partition, ends its work and acknowledges `drained`.
    pub drained: bool,
    /// The pod acknowledges `released` once it has released a partition's state.
    pub released: bool,
    /// The pod refuses requests of another epoch, and all requests once its lease clock has run out.
    pub fence: bool,
    /// The pod makes checkpoints of its partitions when they are due.
    pub checkpoint: bool,
}

impl Capabilities {
    /// All that a handoff can make use of without checkpoints.
    pub const ALL: Capabilities =
        Capabilities { sync: true, drained: true, released: true, fence: true, checkpoint: false };
}

impl From<Vec<String>> for Capabilities {
    fn from(names: Vec<String>) -> Self {
        let has = |name: &str| names.iter().any(|have| have == name);
        Capabilities {
            sync: has("sync"),
            drained: has("drained"),
            released: has("released"),
            fence: has("fence"),
            checkpoint: has("checkpoint"),
        }
    }
}

impl From<Capabilities> for Vec<String> {
    fn from(have: Capabilities) -> Self {
        let named = [
            ("sync", have.sync),
            ("drained", have.drained),
            ("released", have.released),
            ("fence", have.fence),
            ("checkpoint", have.checkpoint),
        ];
        named.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect()
    }
}

/// `pods/{pod}`, leased: a pod's registration. Its `create_revision` is the pod's incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRecord {
    /// The pod's name, as in the key.
    pub pod_name: String,
    /// The address that routers connect to: `host:port`.
    pub address: String,
    /// The pod's willingness to own partitions.
    #[serde(default)]
    pub status: PodStatus,
    /// Informational.
    #[serde(default)]
    pub registered_at: u64,
    /// When the record was last written. Informational: the lease shows that the pod lives.
    #[serde(default)]
    pub last_heartbeat: u64,
    /// The pod's share of the partitions relative to the others'; usually 1.0.
    #[serde(default = "unit_weight")]
    pub weight: Thousandths,
    /// The zone that the pod runs in.
    #[serde(default)]
    pub zone: Option<String>,
    /// The load that the pod reports.
    #[serde(default)]
    pub load: Option<Thousandths>,
    /// The pod's capabilities in a handoff.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// The address of the admin endpoint: `host:port`.
    #[serde(default)]
    pub admin: Option<String>,
    /// The version of its rollout.
    #[serde(default)]
    pub version: Option<String>,
    /// The bound on the work of a request, in milliseconds from the last byte that reached the service. `None` if the
    /// pod claims no bound.
    #[serde(default)]
    pub work_ends_within_ms: Option<u64>,
    /// How long the lease of the registration lasts without renewal, in milliseconds. `None` if the pod does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<u64>,
    /// Digest of the secret with which a pod of the gRPC service resumes its registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_digest: Option<String>,
    /// The pod's service says that it is unhealthy, and the pod gives way to others: to none that gives way itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gives_way: bool,
    /// A partition costs the pod nothing to take: it copies no state, and so cannot fail to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nothing_to_warm: bool,
}

/// Returns one spelling for all of an address, a host and a port: names in lower case and without a dot at the end, `localhost`
/// and IPv4 addresses in IPv6 notation as IPv4 addresses.
pub fn canonical_address(address: &str) -> String {
    if let Ok(parsed) = address.parse::<SocketAddr>() {
        return SocketAddr::new(parsed.ip().to_canonical(), parsed.port()).to_string();
    }
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match host.trim_end_matches('.').to_ascii_lowercase().as_str() {
        "localhost" => format!("127.0.0.1:{port}"),
        host => format!("{host}:{port}"),
    }
}

impl PodRecord {
    /// Returns the record of a pod that accepts partitions, has the usual weight and has no capabilities.
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
            lease_ttl_ms: None,
            resume_digest: None,
            gives_way: false,
            nothing_to_warm: false,
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
    /// Informational.
    #[serde(default)]
    pub registered_at: u64,
    /// Informational.
    #[serde(default)]
    pub last_heartbeat: u64,
    /// The address of the admin endpoint: `host:port`.
    #[serde(default)]
    pub admin: Option<String>,
    /// How long the router may go on routing in a planned move, in milliseconds. A handoff's time is longer by it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub patience_ms: u64,
    /// How long the router holds a request, in milliseconds. A partition without a living owner waits for one new owner at
    /// most half as long.
    #[serde(default = "usual_max_wait")]
    pub max_wait_ms: u64,
}

/// The default of the configuration file, for a router that does not tell it.
fn usual_max_wait() -> u64 {
    30_000
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RouterRecord {
    /// Returns the record of a router without an admin endpoint and without patience, which holds requests for 30 s.
    pub fn new(router_name: impl Into<String>) -> Self {
        RouterRecord {
            router_name: router_name.into(),
            registered_at: 0,
            last_heartbeat: 0,
            admin: None,
            patience_ms: 0,
            max_wait_ms: usual_max_wait(),
        }
    }
}

/// The part of `pod_streams/{pod}` that others than the pods' gRPC service read: who serves the pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PodStream {
    /// The address of the admin endpoint of the service's process: `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
}

/// `coordinator/leader`, leased: the elected coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// The coordinator's name.
    pub holder: String,
    /// The coordinator's lease.
    #[serde(default)]
    pub lease_id: LeaseId,
    /// Moves that the leader wants and has not begun, as of a moment ago. Informational.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldMoves>,
    /// The clocks that differ from the leader's. Informational.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<ClockOffset>,
}

/// A clock that differs from another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClockOffset {
    /// The pod or router that has the clock.
    pub name: String,
    /// By how many seconds it is ahead, or behind if this is negative.
    pub seconds: i64,
}

impl fmt::Display for ClockOffset {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.seconds > 0 { "ahead of" } else { "behind" };
        write!(
            out,
            "{}: its clock is {} s {way} the leader's; times in history and logs are wrong until both are synchronised",
            self.name,
            self.seconds.unsigned_abs()
        )
    }
}

impl Leader {
    /// Returns the record of a leader that holds nothing back.
    pub fn new(holder: impl Into<String>, lease_id: LeaseId) -> Self {
        Leader { holder: holder.into(), lease_id, held: Vec::new(), clocks: Vec::new() }
    }
}

/// Moves to one pod that a coordinator wants and holds back for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldMoves {
    /// The pod to which the partitions will go.
    pub to: String,
    /// The life of that pod.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// The dead owner that is waited for, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<String>,
    /// Number of partitions.
    pub partitions: u32,
    /// Why they do not move yet, in words.
    pub why: String,
}
