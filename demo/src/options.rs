//! The options of a demo.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::planning::{Coordination, Strategy};
use segue_protocol::records::Capabilities;

use super::etcd::Etcd;
use super::instruments::Instruments;
use super::wiring::ClusterWiring;

/// The options of a demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// The duration of the load. Each scenario is played at least once, so a very short demo takes longer.
    pub duration: Duration,
    /// The scenario.
    pub scenario: Scenario,
    /// The number of routers.
    pub routers: u32,
    /// The number of writer pods at the start.
    pub pods: u32,
    /// The number of partitions.
    pub partitions: u32,
    /// The number of clients that send one request at a time. Some further clients send bursts.
    pub clients: u32,
    /// Requests per second, over these clients; 0 sends as fast as possible.
    pub rate: u32,
    /// The seed of all choices: pods, keys and moments. Timings depend on the machine.
    pub seed: u64,
    /// The etcd to use instead of the embedded store.
    pub etcd: Option<Arc<dyn Etcd>>,
    /// The interface that counts and shows the demo while it runs.
    pub instruments: Option<Arc<dyn Instruments>>,
    /// How long a pod works on a request, plus or minus a half.
    pub service_time: Duration,
    /// How long a pod takes to warm.
    pub warm_time: Duration,
    /// The size of the state of each partition that a pod copies in `warm`.
    pub state_bytes: usize,
    /// The capabilities of the pods.
    pub capabilities: Capabilities,
    /// How coordinators share their work.
    pub coordination: Coordination,
    /// How partitions are placed.
    pub strategy: Strategy,
    /// The number of keyspaces in which each process takes part. Each has these partitions and clients.
    pub keyspaces: u32,
    /// The number of partitions that may move at a time.
    pub max_concurrent_handoffs: usize,
    /// The number of requests that may wait for a partition in a router.
    pub stash_requests: usize,
    /// Where progress is shown.
    pub progress: ProgressOutput,
    /// How the parts of the cluster are joined. `None` joins them as production does.
    pub wiring: Option<Arc<dyn ClusterWiring>>,
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
            capabilities: Capabilities { checkpoint: true, ..Capabilities::ALL },
            coordination: Coordination::Leader,
            strategy: Strategy::Sticky,
            keyspaces: 1,
            max_concurrent_handoffs: 16,
            stash_requests: 10_000,
            progress: ProgressOutput::Quiet,
            wiring: None,
        }
    }
}

/// The events of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Pods join.
    ScaleUp,
    /// Pods hand their partitions over and leave.
    ScaleDown,
    /// Pods are cut off and come back under their names.
    Crash,
    /// Each pod in turn hands its partitions over, leaves and comes back. In the middle the leading coordinator
    /// resigns.
    Rolling,
    /// All scenarios in turn.
    All,
}

impl Scenario {
    /// Every scenario, by its name on the command line.
    pub const NAMES: [(&'static str, Scenario); 5] = [
        ("scale-up", Scenario::ScaleUp),
        ("scale-down", Scenario::ScaleDown),
        ("crash", Scenario::Crash),
        ("rolling", Scenario::Rolling),
        ("all", Scenario::All),
    ];

    /// Returns the scenario's name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(_, scenario)| *scenario == self).map_or("", |(name, _)| name)
    }
}

/// Where progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressOutput {
    /// On stderr: live on a terminal, otherwise line by line.
    Stderr,
    /// Nowhere.
    Quiet,
}
