//! The traffic of one router within a time: what its table has counted more at the end than at the beginning.
//!
//! # Invariants
//!
//! * A measurement is bounded, however many partitions and keys there are: it has the busiest of them.
//! * The beginning of a key is client's data. It is shown without characters that a terminal obeys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::DataPlane as _;
use segue_protocol::ids::PartitionId;
use segue_protocol::troubles::PodSample;
use segue_proxy::metrics::BUCKET_BOUNDS_MICROS;
use segue_proxy::routing::table::{HotKey, Table};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::process::printable::shown;

/// Most partitions of a measurement.
const MOST_PARTITIONS: usize = 256;

/// The measurements of a process's routers in a keyspace.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProcessTraffic {
    pub(crate) routers: Vec<RouterTraffic>,
}

/// The traffic of a router.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RouterTraffic {
    pub(super) router: String,
    /// For how long it was measured.
    pub(super) seconds: f64,
    /// Requests that arrived for any partition.
    pub(super) requests: u64,
    /// Upper bounds of the buckets of durations but for the last one, in microseconds.
    pub(super) bounds_us: Vec<u64>,
    pub(super) pods: Vec<PodExchanges>,
    /// The busiest partitions, the busiest first.
    pub(super) partitions: Vec<PartitionArrivals>,
    /// The most frequent keys, if they were asked for.
    pub(super) keys: Option<Vec<KeyArrivals>>,
}

/// The exchanges with a pod that ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PodExchanges {
    pub(super) pod: String,
    pub(super) answered: u64,
    /// Errors of the server, and exchanges without a response.
    pub(super) failed: u64,
    pub(super) in_flight: u64,
    /// How many lasted how long, by bucket.
    pub(super) durations: Vec<u64>,
}

/// The requests that arrived for a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartitionArrivals {
    pub(super) partition: PartitionId,
    pub(super) pod: Option<String>,
    pub(super) requests: u64,
}

/// The requests that arrived with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyArrivals {
    pub(super) key: String,
    pub(super) partition: PartitionId,
    /// About how many, at the least.
    pub(super) requests: u64,
}

/// Measures the traffic of a router for so long.
pub(crate) async fn measure(router: &str, table: &Arc<Table>, time: Duration, with_keys: bool) -> RouterTraffic {
    let measured_keys = with_keys.then(|| table.measure_keys());
    let (began, before) = (Instant::now(), TableCounts::of(table));
    tokio::time::sleep(time).await;
    let (seconds, after) = (began.elapsed().as_secs_f64(), TableCounts::of(table));
    let keys = measured_keys.map(|keys| keys.finish().iter().map(KeyArrivals::of).collect());
    let arrivals = after.arrivals_since(&before);
    let in_flight = in_flight(table);
    RouterTraffic {
        router: router.to_owned(),
        seconds,
        requests: arrivals.iter().map(|(_, requests)| requests).sum(),
        bounds_us: BUCKET_BOUNDS_MICROS.to_vec(),
        pods: after.exchanges_since(&before, &in_flight),
        partitions: busiest(arrivals, |partition| table.leads_to(partition).map(|pod| pod.name.clone())),
        keys,
    }
}

/// What a table has counted so far.
struct TableCounts {
    pods: Vec<PodSample>,
    /// By partition.
    arrivals: Vec<u32>,
}

impl TableCounts {
    fn of(table: &Table) -> Self {
        let arrivals = PartitionId::all(table.partitions()).map(|partition| table.arrivals(partition)).collect();
        TableCounts { pods: table.sample().pods, arrivals }
    }

    /// Returns the partitions for which requests have arrived since an earlier count.
    fn arrivals_since(&self, before: &TableCounts) -> Vec<(PartitionId, u64)> {
        let earlier = before.arrivals.iter().copied().chain(std::iter::repeat(0));
        // The numbers begin anew after 2^32.
        let more = self.arrivals.iter().zip(earlier).map(|(now, before)| u64::from(now.wrapping_sub(before)));
        (0..).map(PartitionId::new).zip(more).filter(|(_, requests)| *requests > 0).collect()
    }

    /// Returns the exchanges of each pod, over its lives, since an earlier count.
    fn exchanges_since(&self, before: &TableCounts, in_flight: &BTreeMap<String, u64>) -> Vec<PodExchanges> {
        let mut by_name: BTreeMap<&str, PodExchanges> = BTreeMap::new();
        for now in &self.pods {
            let is_its = |earlier: &&PodSample| earlier.pod == now.pod && earlier.incarnation == now.incarnation;
            let new = PodSample::default();
            let earlier = before.pods.iter().find(is_its).unwrap_or(&new);
            let durations = now.durations.since(&earlier.durations).counts;
            let sum = by_name.entry(&now.pod).or_insert_with(|| PodExchanges {
                pod: now.pod.clone(),
                answered: 0,
                failed: 0,
                in_flight: in_flight.get(&now.pod).copied().unwrap_or_default(),
                durations: vec![0; durations.len()],
            });
            sum.answered += now.answered.saturating_sub(earlier.answered);
            sum.failed += now.failed.saturating_sub(earlier.failed);
            sum.durations.iter_mut().zip(durations).for_each(|(sum, more)| *sum += more);
        }
        by_name.into_values().collect()
    }
}

/// Returns how many requests are with each pod.
fn in_flight(table: &Table) -> BTreeMap<String, u64> {
    let mut by_pod = BTreeMap::new();
    for partition in PartitionId::all(table.partitions()) {
        let count = table.in_flight(partition);
        if count > 0
            && let Some(pod) = table.leads_to(partition)
        {
            *by_pod.entry(pod.name.clone()).or_default() += u64::from(count);
        }
    }
    by_pod
}

/// Returns the busiest partitions, the busiest first.
fn busiest(
    mut arrivals: Vec<(PartitionId, u64)>,
    pod: impl Fn(PartitionId) -> Option<String>,
) -> Vec<PartitionArrivals> {
    arrivals.sort_by_key(|(partition, requests)| (std::cmp::Reverse(*requests), *partition));
    arrivals.truncate(MOST_PARTITIONS);
    let line = |(partition, requests)| PartitionArrivals { partition, pod: pod(partition), requests };
    arrivals.into_iter().map(line).collect()
}

impl KeyArrivals {
    fn of(key: &HotKey) -> Self {
        KeyArrivals { key: shown(&key.key), partition: key.partition, requests: key.requests }
    }
}
