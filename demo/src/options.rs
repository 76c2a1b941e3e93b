//! What a demo is asked to do.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::records::Capabilities;

use super::instruments::Instruments;
use super::wiring::Wiring;

/// What a demo is asked to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long load runs. Each scenario is played at least once, so a very short one takes longer.
    pub duration: Duration,
    /// What happens meanwhile.
    pub scenario: Scenario,
    /// Routers.
    pub routers: u32,
    /// Writer pods to begin with.
    pub pods: u32,
    /// Partitions.
    pub partitions: u32,
    /// Clients with one request under way each. Some more send bursts.
    pub clients: u32,
    /// Requests per second of these clients together; 0 is as fast as it goes.
    pub rate: u32,
    /// Where choices come from: which pod, which key, when. Timings stay the machine's.
    pub seed: u64,
    /// Client URL of a real etcd to use instead of the embedded store.
    pub etcd: Option<String>,
    /// What counts and shows the demo while it runs.
    pub instruments: Option<Arc<dyn Instruments>>,
    /// How long a pod works on a request, give or take a half.
    pub service_time: Duration,
    /// How long a pod takes to get warm.
    pub warm_time: Duration,
    /// How much state of each partition a pod copies to get warm.
    pub state_bytes: usize,
    /// What pods can do in a handoff.
    pub capabilities: Capabilities,
    /// How many partitions may move at a time.
    pub max_concurrent_handoffs: usize,
    /// How many requests may wait for a partition in a router.
    pub stash_requests: usize,
    /// Where progress is shown.
    pub progress: Progress,
    /// How the cluster's parts are joined; `None`: as they belong.
    pub wiring: Option<Arc<dyn Wiring>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            duration: Duration::from_secs(20),
            scenario: Scenario::All,
            routers: 2,
            pods: 3,
            partitions: 64,
            clients: 64,
            rate: 0,
            seed: 1,
            etcd: None,
            instruments: None,
            service_time: Duration::from_millis(1),
            warm_time: Duration::from_millis(20),
            state_bytes: 0,
            capabilities: Capabilities::ALL,
            max_concurrent_handoffs: 16,
            stash_requests: 10_000,
            progress: Progress::Quiet,
            wiring: None,
        }
    }
}

/// What happens to the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Pods join.
    ScaleUp,
    /// Pods hand over what they have and leave.
    ScaleDown,
    /// Pods are cut off, and come back under their name.
    Crash,
    /// Each pod in turn hands over, leaves and comes back; the leading coordinator does so in the middle.
    Rolling,
    /// All of these, one after the other.
    All,
}

impl Scenario {
    /// Every scenario, by the name that the command line has for it.
    pub const NAMES: [(&'static str, Scenario); 5] = [
        ("scale-up", Scenario::ScaleUp),
        ("scale-down", Scenario::ScaleDown),
        ("crash", Scenario::Crash),
        ("rolling", Scenario::Rolling),
        ("all", Scenario::All),
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(_, scenario)| *scenario == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::NAMES.map(|(name, _)| name).join(", ");
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, scenario)| *scenario).ok_or_else(|| format!("no such scenario: {text}; there are {names}"))
    }
}

/// Where progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// On stderr: live if it is a terminal, else line by line.
    Stderr,
    /// Nowhere.
    Quiet,
}
