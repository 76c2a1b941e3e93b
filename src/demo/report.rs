//! What a demo found, for programs (JSON) and for people.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::check::Harm;
use super::measure::{Distribution, Latencies};
use super::record::{Exchange, Outcome};
use super::story::Step;

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

/// The report for people.
impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Distribution { p50, p99, max, .. } = self.cutover_pause_us;
        writeln!(out)?;
        if !self.steps.is_empty() {
            writeln!(
                out,
                "  {:>7}  {:<46} {:>8} {:>10}  pause p50 / max",
                "at", "what happened", "handoffs", "settled in"
            )?;
            for step in &self.steps {
                let at = format!("{:.1} s", step.at_ms as f64 / 1e3);
                let took = step.took_ms.map_or("never".to_owned(), |took| micros(took * 1_000));
                let pause = match step.pause_us.count {
                    0 => String::new(),
                    _ => format!("{} / {}", micros(step.pause_us.p50), micros(step.pause_us.max)),
                };
                writeln!(out, "  {at:>7}  {:<46} {:>8} {took:>10}  {pause}", step.what, step.handoffs)?;
            }
            writeln!(out)?;
        }
        row(
            out,
            "requests",
            &format!(
                "{} in {:.1} s, {} done per second",
                thousands(self.requests),
                self.seconds,
                thousands(self.requests_per_second)
            ),
        )?;
        let latency = |of: &Distribution| {
            format!(
                "p50 {}, p99 {}, p99.9 {}, max {}  ({} requests)",
                micros(of.p50),
                micros(of.p99),
                micros(of.p999),
                micros(of.max),
                thousands(of.count)
            )
        };
        row(out, "latency, steady", &latency(&self.latency_us.steady))?;
        if self.latency_us.during_cutovers.count > 0 {
            row(out, "latency, in cutovers", &latency(&self.latency_us.during_cutovers))?;
        }
        if self.cutovers > 0 {
            let given_up = if self.handoffs_cancelled > 0 {
                format!(", {} given up", self.handoffs_cancelled)
            } else {
                String::new()
            };
            row(
                out,
                "moved",
                &format!("{} handoffs, {} cutovers{given_up}", thousands(self.handoffs), thousands(self.cutovers)),
            )?;
            row(out, "pause of a cutover", &format!("p50 {}, p99 {}, max {}", micros(p50), micros(p99), micros(max)))?;
        }
        let failover = self.failover_pause_us;
        if failover.count > 0 {
            row(
                out,
                "pause after a crash",
                &format!(
                    "p50 {}, max {}  (the dead pod's lease has to end first)",
                    micros(failover.p50),
                    micros(failover.max)
                ),
            )?;
        }
        let errors: Vec<String> = self
            .errors
            .iter()
            .flat_map(|(code, reasons)| {
                let code = if *code == 0 { String::new() } else { format!("{code} ") };
                reasons.iter().map(move |(reason, count)| format!("{} × {code}{reason}", thousands(*count)))
            })
            .collect();
        row(out, "errors", &if errors.is_empty() { "none".to_owned() } else { errors.join(", ") })?;
        let log = self
            .checked
            .log_records
            .map_or("the log not seen".to_owned(), |records| format!("{} log records", thousands(records)));
        row(
            out,
            "checked",
            &format!(
                "{log}, {} reads after writes, {} pairs held together",
                thousands(self.checked.reads),
                thousands(self.checked.held_pairs)
            ),
        )?;
        row(out, "seed", &self.seed.to_string())?;
        writeln!(out)?;
        self.verdict(out)
    }
}

impl Report {
    fn verdict(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if self.sound {
            let requests = thousands(self.requests);
            write!(out, "  ✔ nothing lost, doubled, misrouted or reordered: {requests} requests")?;
            if self.cutovers > 0 {
                let Distribution { p50, p99, max, .. } = self.cutover_pause_us;
                let pause = format!("pause p50 {} / p99 {} / max {}", micros(p50), micros(p99), micros(max));
                write!(out, ", {} cutovers, {pause}", thousands(self.cutovers))?;
            }
            return writeln!(out);
        }
        writeln!(out, "  ✘ the promise was broken:")?;
        let Report { lost, duplicated, misrouted, reordered, dual_writer_overlaps, .. } = self;
        writeln!(
            out,
            "    lost {lost}, duplicated {duplicated}, misrouted {misrouted}, reordered {reordered}, two writers at once {dual_writer_overlaps}"
        )?;
        for (name, examples) in &self.harm {
            examples.iter().try_for_each(|example| writeln!(out, "    {name}: {example}"))?;
        }
        if self.unsettled > 0 {
            writeln!(out, "    {} partitions had not found their place at the end", self.unsettled)?;
        }
        Ok(())
    }
}

fn row(out: &mut Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(out, "  {name:<22}{value}")
}

/// Microseconds as people read them.
pub(super) fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// A number with its thousands apart.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or_default()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            ["0", "12", "1,234", "1,000,000"],
            [0, 12, 1_234, 1_000_000].map(thousands).each_ref().map(|text| &**text)
        );
        assert_eq!(
            ["950 µs", "1.5 ms", "73 ms", "2.3 s"],
            [950, 1_500, 73_400, 2_300_000].map(micros).each_ref().map(|text| &**text)
        );
    }

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
