//! Decides from a router's traffic which pods are in trouble, and when the router reports it.
//!
//! Pure: samples and times are values. Elsewhere: where the samples come from (the data plane), and what operators read
//! (`~troubles/{router}`, [`RouterTroubles`]). Nothing in the protocol depends on it.
//!
//! # Invariants
//!
//! * While all is well nothing is reported, and nothing is written.
//! * Two writes are [`WRITE_INTERVAL`] apart, and those of mere figures [`FIGURES_INTERVAL`].

mod assess;
mod schedule;

use std::time::Duration;

use crate::ids::{Incarnation, PartitionId};
#[cfg(doc)]
use crate::records::RouterTroubles;

pub use self::assess::{Assessor, is_run_of_failures};
pub use self::schedule::{FIGURES_INTERVAL, ReportSchedule, ReportStep, WRITE_INTERVAL};

/// A router's traffic, as seen at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrafficSample {
    /// The pods that partitions lead to or last led to.
    pub pods: Vec<PodSample>,
    /// The partitions whose requests wait.
    pub held: Vec<HeldSample>,
}

/// A router's traffic with one life of a pod. Counters grow from the beginning of that life.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSample {
    /// The pod's name.
    pub pod: String,
    /// The life of the pod.
    pub incarnation: Incarnation,
    /// Number of requests that the pod has refused or could not be given, since it last accepted one.
    pub refused_in_a_row: u32,
    /// How often the pod could not be reached.
    pub unreachable: u64,
    /// How often the pod responded "not mine".
    pub misdirected: u64,
    /// Number of responses that broke off, since the last whole one.
    pub broken_in_a_row: u32,
    /// Number of exchanges that have ended with a response, or for the pod's fault without.
    pub answered: u64,
    /// How many of these were errors of the server (5xx), or without a response.
    pub failed: u64,
    /// How long exchanges lasted.
    pub durations: Durations,
    /// Number of exchanges in flight that have lasted for a moment, other than streams.
    pub lasting: u32,
    /// Age of the oldest of them.
    pub oldest: Duration,
}

/// The requests of a partition that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSample {
    /// The partition.
    pub partition: PartitionId,
    /// The life of the pod that the partition leads to, or last led to.
    pub pod: Option<(String, Incarnation)>,
    /// How many requests wait.
    pub requests: u64,
    /// Age of the oldest.
    pub oldest: Duration,
}

/// A histogram of durations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durations {
    /// Upper bounds of the buckets but for the last one, which has none, in microseconds.
    pub bounds: &'static [u64],
    /// The number of durations in each bucket: one more than there are bounds, or none at all.
    pub counts: Vec<u64>,
}

impl Durations {
    fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns those that have been added since `earlier`.
    pub fn since(&self, earlier: &Durations) -> Durations {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
        Durations { bounds: self.bounds, counts }
    }

    /// Adds others, which have the same bounds.
    pub fn add(&mut self, others: &Durations) {
        if self.counts.len() < others.counts.len() {
            self.counts.resize(others.counts.len(), 0);
            self.bounds = others.bounds;
        }
        self.counts.iter_mut().zip(&others.counts).for_each(|(count, other)| *count += other);
    }

    /// Returns the quantile `of` 1, interpolated within its bucket. `None` if there are no durations.
    pub fn quantile(&self, of: f64) -> Option<Duration> {
        let wanted = of * self.count() as f64;
        let mut below = 0.0;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let within = *count as f64;
            if below + within >= wanted {
                let lower = index.checked_sub(1).map_or(0, |before| self.bounds[before]);
                // The last bucket has no end: what lies in it is at least as long as its beginning.
                let upper = self.bounds.get(index).copied().unwrap_or(lower);
                let part = (wanted - below) / within;
                return Some(Duration::from_micros(lower + (part * (upper - lower) as f64) as u64));
            }
            below += within;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 3] = [1_000, 10_000, 100_000];

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let durations = Durations { bounds: &BOUNDS, counts: vec![10, 0, 10, 0] };
        assert_eq!(durations.quantile(0.25), Some(Duration::from_micros(500)));
        assert_eq!(durations.quantile(0.75), Some(Duration::from_micros(55_000)));
        let beyond = Durations { bounds: &BOUNDS, counts: vec![0, 0, 0, 4] };
        assert_eq!(beyond.quantile(0.5), Some(Duration::from_millis(100)));
        assert_eq!(Durations::default().quantile(0.5), None);
    }

    #[test]
    fn what_was_added_since_a_sample_is_what_the_later_one_has_more() {
        let earlier = Durations { bounds: &BOUNDS, counts: vec![1, 2, 0, 0] };
        let later = Durations { bounds: &BOUNDS, counts: vec![1, 5, 0, 1] };
        assert_eq!(later.since(&earlier).counts, [0, 3, 0, 1]);
        assert_eq!(later.since(&Durations::default()).counts, later.counts);
    }
}
