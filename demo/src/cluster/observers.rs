//! Observers of the cluster's routers and coordinators. They write the timeline and call the observers of the instruments.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::coordinator::{CoordinatorObserver, HandoffResult};
use segue_coordination::router::{Cutover, RouterObserver};
use segue_coordination::store::StoreError;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::RoundCause;
use segue_protocol::records::Phase;
use segue_protocol::view::View;
use serde_json::json;

use super::super::clock;
use super::super::instruments::Status;
use super::super::options::Options;
use super::super::timeline::{HoldEnd, Timeline};

/// Returns the demo's own status for the instruments.
pub(super) fn status(timeline: &Arc<Timeline>) -> Status {
    let timeline = timeline.clone();
    Arc::new(move || {
        let elapsed = timeline.elapsed().as_secs_f64();
        let events = timeline.events();
        json!({ "seconds": elapsed, "steps": events.steps, "leader": events.leader, "handoffs_in_flight": events.in_flight })
    })
}

/// Returns the observer of a router.
pub(super) fn router(number: u32, timeline: &Arc<Timeline>, options: &Options) -> Arc<dyn RouterObserver> {
    let counts = options.instruments.as_ref().map(|instruments| instruments.router());
    Arc::new(RouterRecorder { number, timeline: timeline.clone(), counts })
}

/// Returns the observer of a coordinator.
pub(super) fn coordinator(name: &str, timeline: &Arc<Timeline>, options: &Options) -> Arc<dyn CoordinatorObserver> {
    let counts = options.instruments.as_ref().map(|instruments| instruments.coordinator());
    Arc::new(CoordinatorRecorder { name: name.to_owned(), timeline: timeline.clone(), counts })
}

struct RouterRecorder {
    number: u32,
    timeline: Arc<Timeline>,
    counts: Option<Arc<dyn RouterObserver>>,
}

impl RouterObserver for RouterRecorder {
    fn cutover(&self, cutover: &Cutover) {
        if let Some(counts) = &self.counts {
            counts.cutover(cutover);
        }
        let Cutover { partition, target, times, .. } = cutover.clone();
        let (router, at) = (self.number, clock::now());
        self.timeline.events().holds.push(HoldEnd {
            router,
            partition,
            pod: target.pod,
            epoch: target.epoch,
            times,
            at,
        });
    }

    fn resync(&self, cause: &StoreError) {
        if let Some(counts) = &self.counts {
            counts.resync(cause);
        }
    }
}

struct CoordinatorRecorder {
    name: String,
    timeline: Arc<Timeline>,
    counts: Option<Arc<dyn CoordinatorObserver>>,
}

impl CoordinatorObserver for CoordinatorRecorder {
    fn leads(&self, leads: bool) {
        let mut events = self.timeline.events();
        let led = events.leader.as_ref() == Some(&self.name);
        // The coordinators share a gauge, so a standby must not reset it.
        if leads || led {
            events.leader = leads.then(|| self.name.clone());
            if let Some(counts) = &self.counts {
                counts.leads(leads);
            }
        }
    }

    fn round(&self, cause: RoundCause) {
        if let Some(counts) = &self.counts {
            counts.round(cause);
        }
    }

    fn phase_ended(&self, phase: Phase, lasted: Duration) {
        if let Some(counts) = &self.counts {
            counts.phase_ended(phase, lasted);
        }
    }

    fn handoff_ended(&self, partition: PartitionId, result: HandoffResult) {
        if let Some(counts) = &self.counts {
            counts.handoff_ended(partition, result);
        }
        if matches!(result, HandoffResult::Cancelled(_)) {
            self.timeline.events().cancelled += 1;
        }
    }

    fn view_changed(&self, view: &View) {
        if let Some(counts) = &self.counts {
            counts.view_changed(view);
        }
        self.timeline.events().in_flight = view.handoffs.len();
    }

    fn resync(&self, cause: &StoreError) {
        if let Some(counts) = &self.counts {
            counts.resync(cause);
        }
    }
}
