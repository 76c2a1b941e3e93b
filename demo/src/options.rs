//! Options of a demo.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::records::Capabilities;

use super::instruments::Instruments;
use super::wiring::Wiring;

/// Options of a demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time for which the load runs. Each scenario is played at least once, so a very short demo takes longer.
    pub duration: Duration,
    /// The scenario to play.
    pub scenario: Scenario,
    /// Number of routers.
    pub routers: u32,
    /// Number of writer pods at the start.
    pub pods: u32,
    /// Number of partitions.
    pub partitions: u32,
    /// Number of clients with one request in flight each. Burst clients come on top.
    pub clients: u32,
    /// Requests per second of these clients together. 0 means no limit.
    pub rate: u32,
    /// Seed of all choices: which pod, which key, when. Timings still depend on the machine.
    pub seed: u64,
    /// Client URL of a real etcd to use instead of the embedded store.
    pub etcd: Option<String>,
    /// Metrics that count and show the demo while it runs.
    pub instruments: Option<Arc<dyn Instruments>>,
    /// Time that a pod takes for a request, give or take a half.
    pub service_time: Duration,
    /// Time that a pod takes to get warm, besides reading the log.
    pub warm_time: Duration,
    /// Number of bytes that a pod copies for each partition to get warm.
    pub state_bytes: usize,
    /// Capabilities of the pods.
    pub capabilities: Capabilities,
    /// Most handoffs in flight at a time.
    pub max_concurrent_handoffs: usize,
    /// Most requests that wait for one partition in a router.
    pub stash_requests: usize,
    /// Where progress is shown.
    pub progress: Progress,
    /// Connects the cluster's parts. `None` connects them as in production.
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

/// A scenario: what happens to the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Pods join.
    ScaleUp,
    /// Pods hand their partitions over and leave.
    ScaleDown,
    /// Pods crash and come back under their names.
    Crash,
    /// Each pod in turn hands its partitions over, leaves and comes back. In the middle the leading coordinator
    /// resigns.
    Rolling,
    /// All of these, one after another.
    All,
}

impl Scenario {
    /// Every scenario with its name on the command line.
    pub const NAMES: [(&'static str, Scenario); 5] = [
        ("scale-up", Scenario::ScaleUp),
        ("scale-down", Scenario::ScaleDown),
        ("crash", Scenario::Crash),
        ("rolling", Scenario::Rolling),
        ("all", Scenario::All),
    ];

    /// Returns the scenario's name on the command line.
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
    /// On stderr: live on a terminal, otherwise line by line.
    Stderr,
    /// Nowhere.
    Quiet,
}
