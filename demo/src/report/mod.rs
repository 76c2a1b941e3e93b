//! The findings of a demo, for programs (JSON) and for people.

mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::check::Harm;
use super::measure::{Distribution, Latencies};
use super::record::{ClientExchange, Outcome};
use super::timeline::ScenarioStep;
pub(super) use text::{WIDTH, micros, thousands, wrapped};

/// The findings of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Nothing was harmed, and at the end every partition had its owner.
    pub sound: bool,
    /// The seed.
    pub seed: u64,
    /// The scenario; `bench` for the load alone.
    pub scenario: &'static str,
    /// The duration of the load, in seconds.
    pub seconds: f64,
    /// Number of requests that clients sent.
    pub requests: u64,
    /// Requests that a pod processed and confirmed.
    pub ok: u64,
    /// Processed requests per second.
    pub requests_per_second: u64,
    /// Acknowledged writes that are missing, and requests without a response.
    pub lost: u64,
    /// Requests applied twice, or applied although refused.
    pub duplicated: u64,
    /// Requests accepted by a pod that was not the owner.
    pub misrouted: u64,
    /// Writes that were applied after a later one of their key.
    pub reordered: u64,
    /// Pairs of concurrent owners.
    pub dual_writer_overlaps: u64,
    /// Descriptions of the first cases of each kind.
    pub harm: BTreeMap<&'static str, Vec<String>>,
    /// Responses without success: by status (0: none), then by reason.
    pub errors: BTreeMap<u16, BTreeMap<Arc<str>, u64>>,
    /// Number of handoffs that changed the owner of a partition.
    pub handoffs: u64,
    /// Cancelled handoffs; the partition stayed with its owner.
    pub handoffs_cancelled: u64,
    /// Changes of owner that routers carried out: one per router and handoff.
    pub cutovers: u64,
    /// How long a partition was held in a cutover between living pods.
    pub cutover_pause_us: Distribution,
    /// How long a partition was held after its pod was cut off: until the lease had expired and the state was read.
    pub failover_pause_us: Distribution,
    /// Latencies that clients saw.
    pub latency_us: Latencies,
    /// Partitions without an owner or in a handoff when the run ended; 0 if all had settled.
    pub unsettled: u64,
    /// The amount of evidence behind the checks.
    pub checked: EvidenceCounts,
    /// The steps of the scenario.
    pub steps: Vec<ScenarioStep>,
    /// The participants.
    pub cluster: ClusterSize,
}

/// The amount of evidence behind the checks.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct EvidenceCounts {
    /// Records of the logs; `None` if the logs are not accessible.
    pub log_records: Option<u64>,
    /// Number of reads that were checked to be fresh.
    pub reads: u64,
    /// Number of pairs of requests of a key that were certainly held together.
    pub held_pairs: u64,
    /// Whether the owners are known.
    pub owners: bool,
}

/// The participants.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ClusterSize {
    /// The kind of store.
    pub store: String,
    /// The number of keyspaces, each with these routers, pods, partitions and clients.
    pub keyspaces: u32,
    /// How coordinators share their work.
    pub coordination: &'static str,
    /// How partitions are placed.
    pub strategy: &'static str,
    /// The number of routers.
    pub routers: u32,
    /// The number of pods at the start.
    pub pods: u32,
    /// The number of partitions.
    pub partitions: u32,
    /// The number of clients that send one request at a time.
    pub clients: u32,
}

impl Report {
    /// Returns a report of the clients' records and the checks' findings. The cluster's part is left empty.
    pub fn of_load(seed: u64, lasted: Duration, exchanges: &[ClientExchange], harm: &Harm) -> Self {
        let mut errors: BTreeMap<u16, BTreeMap<Arc<str>, u64>> = BTreeMap::new();
        let mut ok = 0;
        for exchange in exchanges {
            let (code, reason) = match &exchange.outcome {
                Outcome::Ok => {
                    ok += 1;
                    continue;
                }
                Outcome::Refused { code, reason } | Outcome::Unknown { code, reason } => (*code, reason.clone()),
                Outcome::Unanswered { .. } => (0, Arc::from("unanswered")),
            };
            *errors.entry(code).or_default().entry(reason).or_default() += 1;
        }
        let events = harm.counts().into_iter().filter(|(_, count)| count.count > 0);
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
            harm: events.map(|(name, count)| (name, count.examples.clone())).collect(),
            errors,
            handoffs: 0,
            handoffs_cancelled: 0,
            cutovers: 0,
            cutover_pause_us: Distribution::default(),
            failover_pause_us: Distribution::default(),
            latency_us: super::measure::latencies(exchanges, Default::default()),
            unsettled: 0,
            checked: EvidenceCounts {
                reads: harm.reads_checked,
                held_pairs: harm.held_pairs_checked,
                ..EvidenceCounts::default()
            },
            steps: Vec::new(),
            cluster: ClusterSize::default(),
        }
    }

    /// Returns whether every invariant held, and requests succeeded.
    pub fn proves(&self) -> bool {
        self.sound && self.ok > 0
    }

    /// Returns the report as a JSON object.
    pub fn to_json(&self) -> String {
        // Numbers, strings and maps with keys that become strings: serialising them to memory cannot fail.
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
