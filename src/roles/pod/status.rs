//! What the admin endpoint shows of a sidecar's pod in one keyspace.

use std::sync::Arc;

use segue_coordination::pod::{HookReport, HookReports, Ownership, PodState};
use segue_grpc::ServiceStream;
use segue_protocol::ids::PartitionId;
use segue_proxy::sidecar::Traffic;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::behind::ServiceBackend;
use crate::admin::StatusSource;
use crate::roles::{exchanges, progress};
use crate::telemetry::metrics::PodMetrics;

pub(super) struct PodStatusSource {
    pub(super) metrics: Arc<PodMetrics>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) behind: Arc<ServiceBackend>,
    pub(super) ownership: Arc<Ownership>,
    pub(super) reports: HookReports,
    pub(super) vouches: Option<&'static str>,
    pub(super) state: watch::Receiver<PodState>,
}

fn hook_status(partition: PartitionId, report: &HookReport) -> Value {
    json!({
        "partition": partition,
        "hook": report.callback.as_str(),
        "handoff": report.handoff,
        "epoch": report.epoch,
        "running": report.is_running,
        "for_ms": report.since.elapsed().as_millis() as u64,
        "progress": report.progress,
        "detail": report.detail,
        "failures": report.failures,
        "failure": report.failure,
    })
}

impl StatusSource for PodStatusSource {
    fn name(&self) -> &'static str {
        "pod"
    }

    fn ready(&self) -> Result<(), String> {
        let not_ready = self.behind.not_ready().or_else(|| self.state.borrow().not_ready.clone());
        not_ready.map_or(Ok(()), Err).and_then(|()| progress::of_lease(self.state.borrow().trusted_until))
    }

    fn status(&self) -> Value {
        let not_ready = self.ready().err();
        let state = self.state.borrow();
        let now = Instant::now();
        let mut oldest = self.traffic.oldest();
        let requests = self.ownership.held_by_partition().into_iter().map(|(partition, count)| {
            let (since, request) = oldest.remove(&partition).unzip();
            json!({
                "partition": partition,
                "in_flight": count,
                "oldest_ms": since.map(|since| now.saturating_duration_since(since).as_millis() as u64),
                "oldest": request.as_ref().map(exchanges::request),
            })
        });
        json!({
            "not_ready": not_ready,
            "fence_by": self.vouches,
            "service_up": self.behind.is_up(),
            "incarnation": state.incarnation,
            "draining": state.draining,
            "owned": state.owned.iter().map(|(partition, epoch)| json!({ "partition": partition, "epoch": epoch })).collect::<Vec<_>>(),
            "hooks": self.reports.all().iter().map(|(partition, report)| hook_status(*partition, report)).collect::<Vec<_>>(),
            "stream": self.behind.stream().map(ServiceStream::status),
            "in_flight": self.traffic.under_way(),
            "requests": requests.collect::<Vec<_>>(),
            "lease_remaining_ms": state.lease_remaining().as_millis() as u64,
            "resyncs": state.resyncs,
        })
    }

    fn refresh(&self) {
        self.metrics.refresh();
    }
}
