//! The table's traffic at one moment, as the router's reports of trouble need it.
//!
//! Reading it costs the request path nothing, apart from the locks of partitions whose requests wait.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use segue_protocol::ids::{Incarnation, PartitionId};
use segue_protocol::troubles::{Durations, HeldSample, PodSample, TrafficSample};
use tokio::time::Instant;

use super::pod_traffic::CodeClass;
use super::state::Table;
use crate::runtime::single_writer::BUCKET_BOUNDS_MICROS;

impl Table {
    /// Returns what the router has seen of its pods, and what waits.
    pub(crate) fn sample(&self) -> TrafficSample {
        let now = Instant::now();
        let mut pods: BTreeMap<(&str, Incarnation), PodSample> = BTreeMap::new();
        for pod in self.pods() {
            let life = (pod.name.as_str(), pod.incarnation);
            let sample = pods.entry(life).or_insert_with(|| PodSample {
                pod: pod.name.clone(),
                incarnation: pod.incarnation,
                durations: Durations { bounds: &BUCKET_BOUNDS_MICROS, counts: vec![0; BUCKET_BOUNDS_MICROS.len() + 1] },
                ..PodSample::default()
            });
            let (unreachable, misdirected) = pod.health.refusals();
            let total = pod.traffic.total();
            sample.refused_in_a_row = sample.refused_in_a_row.max(pod.health.in_a_row());
            sample.broken_in_a_row = sample.broken_in_a_row.max(pod.health.broken_in_a_row());
            sample.unreachable += unreachable;
            sample.misdirected += misdirected;
            for (class, count) in CodeClass::ALL.into_iter().zip(total.answers) {
                sample.answered += count;
                sample.failed += if class.is_failure() { count } else { 0 };
            }
            sample.durations.counts.iter_mut().zip(total.buckets).for_each(|(sum, count)| *sum += count);
        }
        for (partition, since) in self.lasting_exchanges() {
            let Some(slot) = self.slot(partition) else { continue };
            let pod = self.pod(slot);
            if let Some(sample) = pods.get_mut(&(pod.name.as_str(), pod.incarnation)) {
                sample.lasting += 1;
                sample.oldest = sample.oldest.max(now.saturating_duration_since(since));
            }
        }
        let pods = pods.into_values().collect();
        TrafficSample { pods, held: self.held(now) }
    }

    /// Returns the requests that wait, by partition.
    fn held(&self, now: Instant) -> Vec<HeldSample> {
        if self.stashed_bytes.load(Relaxed) == 0 {
            return Vec::new();
        }
        let now = self.nanos(now);
        let held = |partition| {
            let (requests, oldest) = {
                let closed = Self::lock(self.cell(partition));
                let stash = closed.as_ref()?.state.stash();
                (stash.waiting() as u64, stash.oldest()?)
            };
            let pod = self.slot(partition).map(|slot| self.pod(slot)).map(|pod| (pod.name.clone(), pod.incarnation));
            Some(HeldSample { partition, pod, requests, oldest: Duration::from_nanos(now.saturating_sub(oldest.at)) })
        };
        PartitionId::all(self.partitions()).filter_map(held).collect()
    }
}
