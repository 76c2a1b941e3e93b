//! The traffic of a keyspace: the measurements of its routers, added up. Pure.
//!
//! # Invariants
//!
//! * A router that could not be asked is part of the result, with the reason.
//! * Rates are those of the routers that responded, each over its own time.

use std::collections::BTreeMap;

use segue_protocol::ids::PartitionId;
use segue_protocol::troubles::Durations;
use segue_proxy::metrics::BUCKET_BOUNDS_MICROS;
use serde::{Deserialize, Serialize};

use super::router_traffic::RouterTraffic;

/// Most partitions, and most keys, that are listed.
const MOST_LISTED: usize = 64;

/// What goes through all routers of a keyspace.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyspaceTraffic {
    /// For how long it was measured, at the longest.
    pub(super) seconds: f64,
    pub(super) requests_per_s: f64,
    pub(super) routers: Vec<MeasuredRouter>,
    /// The busiest first.
    pub(super) pods: Vec<PodRate>,
    /// The busiest first.
    pub(super) partitions: Vec<PartitionRate>,
    /// The most frequent first. `None` unless they were asked for.
    pub(super) keys: Option<Vec<KeyRate>>,
}

/// A router, and whether it was measured.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MeasuredRouter {
    pub(super) router: String,
    /// The address of its admin endpoint.
    pub(super) admin: Option<String>,
    /// Why its traffic is not known.
    pub(super) error: Option<String>,
}

/// The exchanges with a pod.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PodRate {
    pub(super) pod: String,
    pub(super) requests_per_s: f64,
    /// Its share of all exchanges, up to 1.
    pub(super) share: f64,
    pub(super) errors_per_s: f64,
    /// `None` without an exchange.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) in_flight: u64,
}

/// The requests for a partition.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartitionRate {
    pub(super) partition: PartitionId,
    /// The pod that routers send it to.
    pub(super) owner: Option<String>,
    pub(super) requests_per_s: f64,
    /// Its share of all requests, up to 1.
    pub(super) share: f64,
}

/// The requests with a key, at the least.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KeyRate {
    /// Its beginning.
    pub(super) key: String,
    pub(super) partition: PartitionId,
    pub(super) owner: Option<String>,
    pub(super) requests_per_s: f64,
    /// Its share of all requests, up to 1.
    pub(super) share: f64,
}

/// The measurement of a router by name and admin address, or why there is none.
pub(super) type RouterAnswer = (String, Option<String>, Result<RouterTraffic, String>);

/// A sum over routers.
#[derive(Default)]
struct PodSum {
    requests_per_s: f64,
    errors_per_s: f64,
    in_flight: u64,
    durations: Durations,
}

impl KeyspaceTraffic {
    /// Adds the measurements of routers up.
    pub(super) fn of(answers: Vec<RouterAnswer>) -> Self {
        let (mut routers, mut measured) = (Vec::new(), Vec::new());
        for (router, admin, traffic) in answers {
            let traffic = traffic.and_then(|traffic| match traffic.bounds_us == BUCKET_BOUNDS_MICROS {
                true => Ok(traffic),
                false => Err("it is of another version of segue".to_owned()),
            });
            routers.push(MeasuredRouter { router, admin, error: traffic.as_ref().err().cloned() });
            measured.extend(traffic.ok().filter(|traffic| traffic.seconds > 0.0));
        }
        let requests_per_s = measured.iter().map(|router| router.requests as f64 / router.seconds).sum();
        let partitions = partitions(&measured, requests_per_s);
        KeyspaceTraffic {
            seconds: measured.iter().map(|router| router.seconds).fold(0.0, f64::max),
            requests_per_s,
            routers,
            pods: pods(&measured),
            keys: keys(&measured, requests_per_s, &partitions),
            partitions: partitions.into_iter().take(MOST_LISTED).collect(),
        }
    }

    /// Returns whether every router was measured.
    pub(crate) fn is_complete(&self) -> bool {
        self.routers.iter().all(|router| router.error.is_none())
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).min(1.0) } else { 0.0 }
}

fn busiest_first<T>(lines: &mut [T], rate: impl Fn(&T) -> f64) {
    lines.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
}

fn pods(measured: &[RouterTraffic]) -> Vec<PodRate> {
    let mut sums: BTreeMap<&str, PodSum> = BTreeMap::new();
    for router in measured {
        for pod in &router.pods {
            let sum = sums.entry(&pod.pod).or_default();
            sum.requests_per_s += pod.answered as f64 / router.seconds;
            sum.errors_per_s += pod.failed as f64 / router.seconds;
            sum.in_flight += pod.in_flight;
            sum.durations.add(&Durations { bounds: &BUCKET_BOUNDS_MICROS, counts: pod.durations.clone() });
        }
    }
    let all = sums.values().map(|sum| sum.requests_per_s).sum();
    let millis = |durations: &Durations, of| durations.quantile(of).map(|time| time.as_secs_f64() * 1000.0);
    let line = |(pod, sum): (&str, PodSum)| PodRate {
        pod: pod.to_owned(),
        requests_per_s: sum.requests_per_s,
        share: share(sum.requests_per_s, all),
        errors_per_s: sum.errors_per_s,
        p50_ms: millis(&sum.durations, 0.5),
        p99_ms: millis(&sum.durations, 0.99),
        in_flight: sum.in_flight,
    };
    let mut lines: Vec<PodRate> = sums.into_iter().map(line).collect();
    busiest_first(&mut lines, |line| line.requests_per_s);
    lines
}

/// Returns all partitions that routers have listed.
fn partitions(measured: &[RouterTraffic], all: f64) -> Vec<PartitionRate> {
    let mut sums: BTreeMap<PartitionId, PartitionRate> = BTreeMap::new();
    for router in measured {
        for line in &router.partitions {
            let new =
                PartitionRate { partition: line.partition, owner: line.pod.clone(), requests_per_s: 0.0, share: 0.0 };
            sums.entry(line.partition).or_insert(new).requests_per_s += line.requests as f64 / router.seconds;
        }
    }
    let mut lines: Vec<PartitionRate> = sums.into_values().collect();
    lines.iter_mut().for_each(|line| line.share = share(line.requests_per_s, all));
    busiest_first(&mut lines, |line| line.requests_per_s);
    lines
}

fn keys(measured: &[RouterTraffic], all: f64, partitions: &[PartitionRate]) -> Option<Vec<KeyRate>> {
    let mut sums: BTreeMap<(&str, PartitionId), f64> = BTreeMap::new();
    let mut is_known = false;
    for router in measured {
        is_known |= router.keys.is_some();
        for key in router.keys.iter().flatten() {
            *sums.entry((&key.key, key.partition)).or_default() += key.requests as f64 / router.seconds;
        }
    }
    let owner = |partition| partitions.iter().find(|line| line.partition == partition)?.owner.clone();
    let line = |((key, partition), requests_per_s): ((&str, PartitionId), f64)| KeyRate {
        key: key.to_owned(),
        partition,
        owner: owner(partition),
        requests_per_s,
        share: share(requests_per_s, all),
    };
    let mut lines: Vec<KeyRate> = sums.into_iter().map(line).collect();
    busiest_first(&mut lines, |line| line.requests_per_s);
    lines.truncate(MOST_LISTED);
    is_known.then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::super::router_traffic::{KeyArrivals, PartitionArrivals, PodExchanges};
    use super::*;

    const P7: PartitionId = PartitionId::new(7);

    /// A router that measured for two seconds: so many requests, all for partition 7 of the pod `a` and with one key.
    fn router(name: &str, requests: u64) -> RouterTraffic {
        let mut durations = vec![0; BUCKET_BOUNDS_MICROS.len() + 1];
        durations[5] = requests;
        RouterTraffic {
            router: name.to_owned(),
            seconds: 2.0,
            requests,
            bounds_us: BUCKET_BOUNDS_MICROS.to_vec(),
            pods: vec![PodExchanges { pod: "a".to_owned(), answered: requests, failed: 2, in_flight: 3, durations }],
            partitions: vec![PartitionArrivals { partition: P7, pod: Some("a".to_owned()), requests }],
            keys: Some(vec![KeyArrivals { key: "4711".to_owned(), partition: P7, requests: requests / 2 }]),
        }
    }

    #[test]
    fn the_rates_of_routers_are_added_up_and_a_silent_router_is_named() {
        let silent = ("r-2".to_owned(), Some("h:1".to_owned()), Err("cannot connect".to_owned()));
        let of = |name: &str, requests| (name.to_owned(), None, Ok(router(name, requests)));
        let traffic = KeyspaceTraffic::of(vec![of("r-0", 100), of("r-1", 300), silent]);
        assert!(!traffic.is_complete());
        assert_eq!(traffic.routers[2].error.as_deref(), Some("cannot connect"));
        assert_eq!(traffic.requests_per_s, 200.0);
        let pod = &traffic.pods[0];
        assert_eq!((pod.requests_per_s, pod.share, pod.errors_per_s, pod.in_flight), (200.0, 1.0, 2.0, 6));
        assert_eq!(pod.p50_ms, Some(0.875), "the middle of its bucket");
        let partition = &traffic.partitions[0];
        assert_eq!((partition.owner.as_deref(), partition.requests_per_s, partition.share), (Some("a"), 200.0, 1.0));
        let keys = traffic.keys.unwrap();
        assert_eq!((keys[0].requests_per_s, keys[0].share, keys[0].owner.as_deref()), (100.0, 0.5, Some("a")));
    }

    #[test]
    fn a_router_with_other_buckets_is_not_added_to_those_with_these() {
        let other = RouterTraffic { bounds_us: vec![1], ..router("r-0", 100) };
        let traffic = KeyspaceTraffic::of(vec![("r-0".to_owned(), None, Ok(other))]);
        assert!(traffic.pods.is_empty() && traffic.routers[0].error.is_some() && traffic.keys.is_none());
    }
}
