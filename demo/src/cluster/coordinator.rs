//! A coordinator of the demo.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::coordinator::{CoordinatorObserver, CoordinatorSettings, run_coordinator};
use segue_protocol::planning::Policy;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::options::Options;
use super::super::writer::pod::WriterMembership;

/// How often pods make a checkpoint of each partition, and how long a new owner waits for one.
const CHECKPOINTS_EVERY: Duration = Duration::from_secs(2);
const CHECKPOINT_TIMEOUT: Duration = Duration::from_millis(500);

/// A running coordinator.
#[derive(Debug)]
pub(super) struct Coordinator {
    name: String,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Coordinator {
    pub(super) fn start(
        name: String,
        member: &WriterMembership,
        observer: Arc<dyn CoordinatorObserver>,
        options: &Options,
        lease_ttl: Duration,
    ) -> Self {
        let settings = CoordinatorSettings { name: name.clone(), lease_ttl, policy: policy(options) };
        let (status, _) = watch::channel(Default::default());
        let shutdown = CancellationToken::new();
        let (leases, keys) = (member.processes.leases(&name), member.keys.clone());
        let task = tokio::spawn(run_coordinator(leases, keys, settings, observer, status, shutdown.clone()));
        Coordinator { name, shutdown, task }
    }

    pub(super) fn name(&self) -> &String {
        &self.name
    }

    /// Makes the coordinator resign and waits for its end.
    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        let _ = self.task.await;
    }
}

/// Returns the policy of a usual cluster with shorter intervals, because people are watching.
fn policy(options: &Options) -> Policy {
    Policy {
        partitions: options.partitions,
        coordination: options.coordination,
        strategy: options.strategy,
        settle: Duration::from_millis(100),
        settle_max: Duration::from_millis(500),
        min_interval: Duration::from_millis(200),
        heartbeat: Duration::from_secs(2),
        warm_timeout: Duration::from_secs(30),
        phase_timeout: Duration::from_secs(15),
        max_concurrent_handoffs: options.max_concurrent_handoffs,
        max_warming_per_pod: options.max_concurrent_handoffs,
        cool_down: Duration::ZERO,
        checkpoint_interval: CHECKPOINTS_EVERY,
        checkpoint_timeout: CHECKPOINT_TIMEOUT,
        ..Policy::default()
    }
}
