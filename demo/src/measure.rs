//! Distributions of times, and the requests that met a cutover.

use std::collections::HashMap;

use hdrhistogram::Histogram;
use segue_protocol::ids::PartitionId;
use serde::Serialize;

use super::clock::Nanos;
use super::record::{ClientExchange, Outcome};

/// A distribution, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

impl Distribution {
    /// Returns the distribution of these times, in nanoseconds.
    pub fn of(times: impl IntoIterator<Item = Nanos>) -> Self {
        // From a microsecond to an hour, with three digits: valid bounds.
        let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3) else {
            return Distribution::default();
        };
        let mut max = 0;
        for micros in times.into_iter().map(|time| time.div_ceil(1_000)) {
            histogram.saturating_record(micros);
            max = max.max(micros);
        }
        // The histogram returns the upper end of a range of values that it treats as one.
        let at = |quantile| histogram.value_at_quantile(quantile).min(max);
        Distribution { count: histogram.len(), p50: at(0.5), p99: at(0.99), p999: at(0.999), max }
    }
}

/// How long clients waited: without a move, and while their partition moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Latencies {
    /// Requests that met no cutover.
    pub steady: Distribution,
    /// Requests in flight while a router held their partition.
    pub during_cutovers: Distribution,
}

/// Times in which a router held a partition, by partition.
pub type Windows = HashMap<PartitionId, Vec<(Nanos, Nanos)>>;

/// Sorts the requests with a response by whether they met a cutover.
pub fn latencies(exchanges: &[ClientExchange], mut windows: Windows) -> Latencies {
    // Merged, so that holds neither overlap nor contain each other, and one search finds whether a request met one.
    for windows in windows.values_mut() {
        windows.sort_unstable();
        windows.dedup_by(|next, before| {
            let overlaps = next.0 <= before.1;
            if overlaps {
                before.1 = before.1.max(next.1);
            }
            overlaps
        });
    }
    let (mut steady, mut during) = (Vec::new(), Vec::new());
    for exchange in exchanges.iter().filter(|exchange| exchange.outcome == Outcome::Ok) {
        let latency = exchange.ended_at.saturating_sub(exchange.due_at);
        let met = windows.get(&exchange.partition).is_some_and(|windows| {
            let first = windows.partition_point(|(_, end)| *end < exchange.sent_at);
            windows.get(first).is_some_and(|(start, _)| *start <= exchange.ended_at)
        });
        if met { &mut during } else { &mut steady }.push(latency);
    }
    Latencies { steady: Distribution::of(steady), during_cutovers: Distribution::of(during) }
}

#[cfg(test)]
mod tests {
    use super::super::record::RequestKind;
    use super::*;

    const P1: PartitionId = PartitionId::new(1);
    const P2: PartitionId = PartitionId::new(2);

    fn exchange(partition: PartitionId, sent_at: Nanos, ended_at: Nanos) -> ClientExchange {
        let (request, key, outcome) = (0, 0, Outcome::Ok);
        let (due_at, answered_by, burst) = (sent_at, None, None);
        let kind = RequestKind::Write { sequence: 1 };
        ClientExchange { request, key, partition, kind, due_at, sent_at, ended_at, outcome, answered_by, burst }
    }

    #[test]
    fn a_request_meets_a_cutover_if_their_times_touch() {
        let windows = Windows::from([(P1, vec![(100_000, 120_000), (40_000, 50_000), (110_000, 130_000)])]);
        let exchanges = [
            exchange(P1, 10_000, 39_000),
            exchange(P1, 10_000, 41_000),
            exchange(P1, 51_000, 99_000),
            exchange(P1, 45_000, 46_000),
            exchange(P1, 125_000, 200_000),
            exchange(P1, 131_000, 200_000),
            exchange(P2, 45_000, 46_000),
        ];
        let latencies = latencies(&exchanges, windows);
        assert_eq!((latencies.steady.count, latencies.during_cutovers.count), (4, 3));
        assert_eq!(latencies.during_cutovers.max, 75);
    }

    #[test]
    fn a_distribution_of_nothing_is_zero() {
        assert_eq!(Distribution::of([]), Distribution::default());
        let few = Distribution::of([1_000, 2_000, 3_000_000]);
        assert_eq!((few.count, few.p50, few.max), (3, 2, 3_000));
    }
}
