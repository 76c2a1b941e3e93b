//! The metrics of a demo and its admin endpoint: all routers and coordinators of the process together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use segue_coordination::coordinator::{CoordinatorObserver, HandoffResult};
use segue_coordination::router::{Cutover, RouterObserver};
use segue_coordination::store::StoreError;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::RoundCause;
use segue_protocol::records::Phase;
use segue_protocol::view::View;
use segue_proxy::metrics::Metrics;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::clock;
use super::super::story::{Hold, Story};
use super::super::writer::pod::Membership;
use crate::admin::{Admin, Part};
use crate::keyspace::KeyspacePart;
use crate::metrics::{CoordinatorMetrics, ResyncMetrics, RouterMetrics};

/// What is counted.
pub(super) struct Instruments {
    registry: Registry,
    routers: Arc<RouterMetrics>,
    coordinators: Arc<CoordinatorMetrics>,
}

impl Instruments {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("segue");
        let resyncs = ResyncMetrics::new(&mut registry);
        let routers = Arc::new(RouterMetrics::new(&mut registry, resyncs.clone()));
        let coordinators = Arc::new(CoordinatorMetrics::new(&mut registry, resyncs));
        Instruments { registry, routers, coordinators }
    }

    /// Counts the requests of a router.
    pub(super) fn add_router(&mut self, name: &str, metrics: &Metrics) {
        let label = ("router".into(), name.to_owned().into());
        metrics.register(self.registry.sub_registry_with_label(label));
    }

    /// Tells the story of a router, and counts it.
    pub(super) fn router(&self, number: u32, story: &Arc<Story>) -> Arc<dyn RouterObserver> {
        Arc::new(RouterTeller { number, story: story.clone(), metrics: self.routers.clone() })
    }

    /// Tells the story of a coordinator, and counts it.
    pub(super) fn coordinator(&self, name: &str, story: &Arc<Story>) -> Arc<dyn CoordinatorObserver> {
        let (name, metrics) = (name.to_owned(), self.coordinators.clone());
        Arc::new(CoordinatorTeller { name, story: story.clone(), metrics })
    }

    /// Serves what is counted until the handle is dropped.
    pub(super) async fn serve(
        self,
        address: SocketAddr,
        member: &Membership,
        story: &Arc<Story>,
    ) -> anyhow::Result<AbortOnDropHandle<()>> {
        let admin = Admin::bind(address, None)?;
        let keyspace: Arc<dyn Part> = Arc::new(KeyspacePart::start(member.store.clone(), member.keys.clone()));
        let parts = vec![keyspace, Arc::new(DemoPart { story: story.clone() })];
        let registry = self.registry;
        let serving = async move {
            if let Err(error) = admin.serve(parts, registry, CancellationToken::new()).await {
                tracing::warn!(%error, "the admin endpoint has ended");
            }
        };
        Ok(AbortOnDropHandle::new(tokio::spawn(serving)))
    }
}

struct DemoPart {
    story: Arc<Story>,
}

impl Part for DemoPart {
    fn name(&self) -> &'static str {
        "demo"
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn status(&self) -> Value {
        let elapsed = self.story.elapsed().as_secs_f64();
        let told = self.story.told();
        json!({ "seconds": elapsed, "steps": told.steps, "leader": told.leader, "handoffs_in_flight": told.in_flight })
    }
}

struct RouterTeller {
    number: u32,
    story: Arc<Story>,
    metrics: Arc<RouterMetrics>,
}

impl RouterObserver for RouterTeller {
    fn cutover(&self, cutover: &Cutover) {
        self.metrics.cutover(cutover);
        let Cutover { partition, target, times, .. } = cutover.clone();
        let (router, at) = (self.number, clock::now());
        self.story.told().holds.push(Hold { router, partition, pod: target.pod, epoch: target.epoch, times, at });
    }

    fn resync(&self, cause: &StoreError) {
        self.metrics.resync(cause);
    }
}

struct CoordinatorTeller {
    name: String,
    story: Arc<Story>,
    metrics: Arc<CoordinatorMetrics>,
}

impl CoordinatorObserver for CoordinatorTeller {
    fn leads(&self, leads: bool) {
        let mut told = self.story.told();
        let led = told.leader.as_ref() == Some(&self.name);
        // The coordinators share a gauge: a standby has nothing to say about it.
        if leads || led {
            told.leader = leads.then(|| self.name.clone());
            self.metrics.leads(leads);
        }
    }

    fn round(&self, cause: RoundCause) {
        self.metrics.round(cause);
    }

    fn phase_ended(&self, phase: Phase, lasted: Duration) {
        self.metrics.phase_ended(phase, lasted);
    }

    fn handoff_ended(&self, partition: PartitionId, result: HandoffResult) {
        self.metrics.handoff_ended(partition, result);
        if result == HandoffResult::Cancelled {
            self.story.told().cancelled += 1;
        }
    }

    fn view_changed(&self, view: &View) {
        self.metrics.view_changed(view);
        self.story.told().in_flight = view.handoffs.len();
    }

    fn resync(&self, cause: &StoreError) {
        self.metrics.resync(cause);
    }
}
