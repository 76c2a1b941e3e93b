//! What a demo found, for programs (JSON) and for people.

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

/// What a run found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Nothing was harmed, and everything had found its place again at the end.
    pub sound: bool,
    /// The seed.
    pub seed: u64,
    /// The scenario; `bench` for a load alone.
    pub scenario: &'static str,
    /// How long the load ran, in seconds.
    pub seconds: f64,
    /// Requests that clients sent.
    pub requests: u64,
    /// Requests that a pod did and answered.
    pub ok: u64,
    /// Requests done per second.
    pub requests_per_second: u64,
    /// Acknowledged and gone, or never answered.
    pub lost: u64,
    /// Done twice, or done though refused.
    pub duplicated: u64,
    /// Taken by a pod that was not the owner.
    pub misrouted: u64,
    /// Behind a later one of its key.
    pub reordered: u64,
    /// Pairs of owners at the same time.
    pub dual_writer_overlaps: u64,
    /// The first few cases of each, in words.
    pub harm: BTreeMap<&'static str, Vec<String>>,
    /// Answers that were no success: by status (0: none), then by reason.
    pub errors: BTreeMap<u16, BTreeMap<Arc<str>, u64>>,
    /// Partitions that changed their owner.
    pub handoffs: u64,
    /// Handoffs that were given up; the partition stayed where it was.
    pub handoffs_cancelled: u64,
    /// Changes of owner as routers carried them out: one for each router and handoff.
    pub cutovers: u64,
    /// How long a partition was held in a cutover from a living pod to another.
    pub cutover_pause_us: Distribution,
    /// How long it was held after its pod had been cut off: until the lease has ended and the state is read.
    pub failover_pause_us: Distribution,
    /// How long clients waited.
    pub latency_us: Latencies,
    /// Partitions without owner or in flight when the run ended; 0 if all had found their place.
    pub unsettled: u64,
    /// How much the checks looked at.
    pub checked: Checked,
    /// What happened.
    pub steps: Vec<Step>,
    /// What took part.
    pub cluster: Cluster,
}

/// How much the checks looked at.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Checked {
    /// Records of the logs; `None` if they could not be seen.
    pub log_records: Option<u64>,
    /// Reads that had to see an acknowledged write.
    pub reads: u64,
    /// Pairs of requests of a key that were certainly held together.
    pub held_pairs: u64,
    /// Whether it is known who owned what.
    pub owners: bool,
}

/// What took part.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cluster {
    /// Which store.
    pub store: String,
    /// Routers.
    pub routers: u32,
    /// Pods at the start.
    pub pods: u32,
    /// Partitions.
    pub partitions: u32,
    /// Clients with one request under way.
    pub clients: u32,
}

impl Report {
    /// A report of what clients saw and what the checks found; what belongs to a cluster is left empty.
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

    /// As one JSON object.
    pub fn to_json(&self) -> String {
        // Numbers, strings and maps with keys that become strings: serialising them to memory has no way to fail.
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
