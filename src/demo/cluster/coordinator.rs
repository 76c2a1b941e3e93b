//! A coordinator of the demo.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::coordinator::{CoordinatorObserver, CoordinatorSettings, HandoffResult, run_coordinator};
use segue_coordination::planning::{Policy, RoundCause, Strategy};
use segue_coordination::protocol::records::{Mode, Phase};
use segue_coordination::protocol::view::View;
use segue_coordination::store::StoreError;
use segue_coordination::store::keys::Partition;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::story::Story;
use super::super::writer::pod::Membership;

/// A coordinator that runs.
#[derive(Debug)]
pub(super) struct Coordinator {
    name: String,
    number: u32,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Coordinator {
    pub(super) fn start(
        number: u32,
        member: &Membership,
        story: &Arc<Story>,
        partitions: u32,
        lease_ttl: Duration,
    ) -> Self {
        let name = format!("coordinator-{number}");
        let settings = CoordinatorSettings { name: name.clone(), lease_ttl, policy: policy(partitions) };
        let observer = Arc::new(Observer { name: name.clone(), story: story.clone() });
        let (status, _) = watch::channel(Default::default());
        let shutdown = CancellationToken::new();
        let (store, keys) = (member.store.clone(), member.keys.clone());
        let task = tokio::spawn(run_coordinator(store, keys, settings, observer, status, shutdown.clone()));
        Coordinator { name, number, shutdown, task }
    }

    pub(super) fn name(&self) -> &String {
        &self.name
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Resigns and ends.
    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        let _ = self.task.await;
    }
}

/// As in a usual site, only quicker to act: people are watching.
fn policy(partitions: u32) -> Policy {
    Policy {
        partitions,
        strategy: Strategy::Sticky,
        mode: Mode::Barrier,
        settle: Duration::from_millis(100),
        settle_max: Duration::from_millis(500),
        min_interval: Duration::from_millis(200),
        heartbeat: Duration::from_secs(2),
        warm_timeout: Duration::from_secs(30),
        phase_timeout: Duration::from_secs(15),
        max_concurrent_handoffs: 16,
    }
}

struct Observer {
    name: String,
    story: Arc<Story>,
}

impl CoordinatorObserver for Observer {
    fn leads(&self, leads: bool) {
        let mut told = self.story.told();
        if leads {
            told.leader = Some(self.name.clone());
        } else if told.leader.as_ref() == Some(&self.name) {
            told.leader = None;
        }
    }

    fn round(&self, _: RoundCause) {}

    fn phase_ended(&self, _: Phase, _: Duration) {}

    fn handoff_ended(&self, _: Partition, result: HandoffResult) {
        if result == HandoffResult::Cancelled {
            self.story.told().cancelled += 1;
        }
    }

    fn view_changed(&self, view: &View) {
        self.story.told().in_flight = view.handoffs.len();
    }

    fn resync(&self, _: &StoreError) {}
}
