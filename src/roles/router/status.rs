//! The router's part of the admin endpoint in one keyspace.

use std::time::Duration;

use segue_coordination::router::{DataPlane as _, RouterStatus};
use segue_coordination::session::lease_now;
use segue_protocol::handoff::router::GateStage;
use segue_protocol::ids::PartitionId;
use segue_proxy::metrics::Metrics;
use segue_proxy::router::RouterState;
use segue_proxy::routing::table::{ExchangeAges, Table};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::series::Series;
use crate::admin::StatusSource;
use crate::operator::top::OwnRouter;
use crate::roles::{exchanges, progress};

#[derive(Debug)]
pub(super) struct RouterStatusSource {
    pub(super) name: String,
    pub(super) hot_restart: watch::Receiver<Option<String>>,
    pub(super) state: RouterState,
    pub(super) workers: Metrics,
    pub(super) series: Series,
}

impl StatusSource for RouterStatusSource {
    fn name(&self) -> &'static str {
        "router"
    }

    fn ready(&self) -> Result<(), String> {
        let trusted_until = self.state.status().trusted_until;
        let not_ready = self.state.not_ready().map_or(Ok(()), Err);
        not_ready
            .and_then(|()| progress::of_lease(trusted_until))
            .and_then(|()| progress::of_workers(self.workers.longest_silence()))
    }

    fn status(&self) -> Value {
        let (status, table) = (self.state.status(), self.state.table());
        let partitions = PartitionId::all(table.partitions()).map(|partition| partition_status(table, partition));
        let outliers = table.outliers().into_iter().map(|pod| {
            let (unreachable, misdirected) = pod.health.refusals();
            json!({
                "pod": pod.name,
                "incarnation": pod.incarnation,
                "address": pod.address,
                "refused_in_a_row": pod.health.in_a_row(),
                "unreachable": unreachable,
                "misdirected": misdirected,
                "responses_broken_off": pod.health.broken_responses(),
            })
        });
        json!({
            "name": self.name,
            "hot_restart": *self.hot_restart.borrow(),
            "outliers": outliers.collect::<Vec<_>>(),
            "not_ready": status.not_ready,
            "incarnation": status.incarnation,
            "lease_remaining_ms": lease_remaining(&status).as_millis() as u64,
            "resyncs": status.resyncs,
            "partitions": partitions.collect::<Vec<_>>(),
        })
    }

    fn summary(&self) -> Option<Value> {
        let mut summary = table_summary(&self.name, self.state.table());
        summary["not_ready"] = json!(self.state.status().not_ready);
        Some(summary)
    }

    fn routers(&self) -> Vec<OwnRouter> {
        vec![(self.name.clone(), self.state.table().clone())]
    }

    fn refresh(&self) {
        let table = self.state.table();
        let (depth, bytes) = PartitionId::all(table.partitions())
            .map(|partition| table.stashed(partition))
            .fold((0, 0), |(depth, bytes), (waiting, size)| (depth + waiting, bytes + size));
        self.series.stash_requests.set(depth as i64);
        self.series.stash_bytes.set(bytes as i64);
        self.series.metrics.set_trusted_until(self.state.status().trusted_until);
    }
}

fn partition_status(table: &Table, partition: PartitionId) -> Value {
    let (stage, _) = table.stage(partition);
    let (stashed, stashed_bytes) = table.stashed(partition);
    let (stage, target) = match stage {
        GateStage::Open(target) => ("open", Some(target)),
        GateStage::Draining(target) => ("draining", Some(target)),
        GateStage::Flushing(target) => ("flushing", Some(target)),
        GateStage::Closed => ("held", None),
    };
    let in_flight = table.in_flight(partition);
    let ExchangeAges { streams, oldest } =
        if in_flight > 0 { table.lasting_of(partition) } else { ExchangeAges::default() };
    let end = if in_flight > 0 { table.drain_end(partition) } else { None };
    json!({
        "partition": partition,
        "stage": stage,
        "pod": target.as_ref().map(|target| &target.pod),
        "epoch": target.as_ref().map(|target| target.epoch),
        "in_flight": in_flight,
        "streams": streams,
        "oldest_ms": oldest.as_ref().map(|oldest| oldest.since.elapsed().as_millis() as u64),
        "oldest": oldest.as_ref().and_then(|oldest| oldest.request.as_deref()).map(exchanges::request),
        "severs_streams_in_ms": end.and_then(|end| exchanges::time_left(end.severs_streams)),
        "severs_in_ms": end.and_then(|end| exchanges::time_left(end.severs)),
        "gives_up_in_ms": end.and_then(|end| exchanges::time_left(end.gives_up)),
        "stashed": stashed,
        "stashed_bytes": stashed_bytes,
    })
}

/// Returns the figures of a router, summed over all its partitions.
pub(crate) fn table_summary(name: &str, table: &Table) -> Value {
    let (mut in_flight, mut stashed, mut stashed_bytes) = (0, 0, 0);
    for partition in PartitionId::all(table.partitions()) {
        let (waiting, bytes) = table.stashed(partition);
        in_flight += table.in_flight(partition);
        stashed += waiting;
        stashed_bytes += bytes;
    }
    json!({ "name": name, "in_flight": in_flight, "stashed": stashed, "stashed_bytes": stashed_bytes })
}

fn lease_remaining(status: &RouterStatus) -> Duration {
    status.trusted_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(lease_now()))
}
