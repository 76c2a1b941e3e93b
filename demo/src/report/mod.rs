//! The report of a demo, as JSON for programs and as text for people.

mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::check::Harm;
use super::measure::{Distribution, Latencies};
use super::record::{Exchange, Outcome};
use super::story::Step;
pub(super) use text::{micros, thousands};

/// The report of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether there was no harm and the cluster was settled at the end.
    pub sound: bool,
    /// The seed.
    pub seed: u64,
    /// The scenario, or `bench` for a load without a cluster.
    pub scenario: &'static str,
    /// Time for which the load ran, in seconds.
    pub seconds: f64,
    /// Number of requests that clients sent.
    pub requests: u64,
    /// Number of requests that a pod carried out and acknowledged.
    pub ok: u64,
    /// Successful requests per second.
    pub requests_per_second: u64,
    /// Requests that were acknowledged and lost, or never answered.
    pub lost: u64,
    /// Requests that were carried out twice, or although they were refused.
    pub duplicated: u64,
    /// Requests that were accepted by a pod that was not the owner.
    pub misrouted: u64,
    /// Writes that are behind a later write of their key.
    pub reordered: u64,
    /// Pairs of owners that wrote at the same time.
    pub dual_writer_overlaps: u64,
    /// The first few cases of each kind of harm, in words.
    pub harm: BTreeMap<&'static str, Vec<String>>,
    /// Outcomes other than success, by status and reason. The status is 0 if there was no response.
    pub errors: BTreeMap<u16, BTreeMap<Arc<str>, u64>>,
    /// Number of handoffs that changed the owner of a partition.
    pub handoffs: u64,
    /// Number of cancelled handoffs. Their partitions kept their owners.
    pub handoffs_cancelled: u64,
    /// Number of changes of owner that routers carried out, one for each router and handoff.
    pub cutovers: u64,
    /// Pauses of cutovers from one living pod to another.
    pub cutover_pause_us: Distribution,
    /// Pauses after a crash: until the lease has expired and the new owner has read the state.
    pub failover_pause_us: Distribution,
    /// Latencies that clients saw.
    pub latency_us: Latencies,
    /// Number of partitions without an owner or with a handoff when the run ended. 0 if the cluster was settled.
    pub unsettled: u64,
    /// The amount of evidence that was checked.
    pub checked: Checked,
    /// The steps of the scenario.
    pub steps: Vec<Step>,
    /// The cluster that was played on.
    pub cluster: Cluster,
}

/// The amount of evidence that was checked.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Checked {
    /// Number of log records. `None` if the logs were not accessible.
    pub log_records: Option<u64>,
    /// Number of reads that were checked to be fresh.
    pub reads: u64,
    /// Number of pairs of requests of a key that were certainly held together.
    pub held_pairs: u64,
    /// Whether the owners of the partitions were known.
    pub owners: bool,
}

/// The cluster that was played on.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cluster {
    /// The store.
    pub store: String,
    /// Number of routers.
    pub routers: u32,
    /// Number of pods at the start.
    pub pods: u32,
    /// Number of partitions.
    pub partitions: u32,
    /// Number of clients with one request in flight.
    pub clients: u32,
}

impl Report {
    /// Returns the report of a load: the outcomes of its requests and the harm. The fields of a cluster are left empty.
    pub fn of_load(seed: u64, lasted: Duration, exchanges: &[Exchange], harm: &Harm) -> Self {
        let mut errors: BTreeMap<u16, BTreeMap<Arc<str>, u64>> = BTreeMap::new();
        let mut ok = 0;
        for exchange in exchanges {
            let (code, reason) = match &exchange.outcome {
                Outcome::Ok => {
                    ok += 1;
                    continue;
                }
                Outcome::Refused { code, reason } | Outcome::Unknown { code, reason } => (*code, reason.clone()),
                Outcome::Unanswered => (0, Arc::from("unanswered")),
            };
            *errors.entry(code).or_default().entry(reason).or_default() += 1;
        }
        let told = harm.counts().into_iter().filter(|(_, count)| count.count > 0);
        Report {
            sound: harm.none(),
            seed,
            scenario: "bench",
            seconds: lasted.as_secs_f64(),
            requests: exchanges.len() as u64,
            ok,
            requests_per_second: (ok as f64 / lasted.as_secs_f64().max(0.001)) as u64,
            lost: harm.lost.count,
            duplicated: harm.duplicated.count,
            misrouted: harm.misrouted.count,
            reordered: harm.reordered.count,
            dual_writer_overlaps: harm.dual_writer_overlaps.count,
            harm: told.map(|(name, count)| (name, count.examples.clone())).collect(),
            errors,
            handoffs: 0,
            handoffs_cancelled: 0,
            cutovers: 0,
            cutover_pause_us: Distribution::default(),
            failover_pause_us: Distribution::default(),
            latency_us: super::measure::latencies(exchanges, Default::default()),
            unsettled: 0,
            checked: Checked { reads: harm.reads_checked, held_pairs: harm.held_pairs_checked, ..Checked::default() },
            steps: Vec::new(),
            cluster: Cluster::default(),
        }
    }

    /// Returns the report as one JSON object.
    pub fn to_json(&self) -> String {
        // Serialising cannot fail: all values are numbers, strings, or maps whose keys become strings.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_what_tools_rely_on() {
        let report = Report::of_load(7, Duration::from_secs(1), &[], &Harm::default());
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        for name in [
            "requests",
            "ok",
            "lost",
            "duplicated",
            "misrouted",
            "reordered",
            "dual_writer_overlaps",
            "handoffs",
            "cutovers",
            "requests_per_second",
            "seed",
        ] {
            assert!(json[name].is_u64(), "{name}");
        }
        assert!(json["errors"].is_object());
        for name in ["p50", "p99", "max"] {
            assert!(json["cutover_pause_us"][name].is_u64(), "{name}");
            assert!(json["latency_us"]["steady"][name].is_u64(), "{name}");
            assert!(json["latency_us"]["during_cutovers"][name].is_u64(), "{name}");
        }
    }
}
