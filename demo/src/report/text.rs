//! The report as text.

use std::fmt::{self, Display, Formatter};

use super::super::measure::Distribution;
use super::super::timeline::ScenarioStep;
use super::Report;

impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out)?;
        if !self.steps.is_empty() {
            steps(out, &self.steps)?;
        }
        let (requests, rate) = (thousands(self.requests), thousands(self.requests_per_second));
        row(out, "requests", format_args!("{requests} in {:.1} s, {rate} done per second", self.seconds))?;
        row(out, "latency, steady", Latency(&self.latency_us.steady))?;
        if self.latency_us.during_cutovers.count > 0 {
            row(out, "latency, in cutovers", Latency(&self.latency_us.during_cutovers))?;
        }
        if self.cutovers > 0 {
            let (handoffs, cutovers) = (thousands(self.handoffs), thousands(self.cutovers));
            row(out, "moved", format_args!("{handoffs} handoffs, {cutovers} cutovers"))?;
        }
        if self.handoffs_cancelled > 0 {
            row(out, "given up", format_args!("{} handoffs", thousands(self.handoffs_cancelled)))?;
        }
        let (pause, failover) = (&self.cutover_pause_us, &self.failover_pause_us);
        if pause.count > 0 {
            let [p50, p99, max] = [pause.p50, pause.p99, pause.max].map(micros);
            row(out, "pause of a cutover", format_args!("p50 {p50}, p99 {p99}, max {max}"))?;
        }
        if failover.count > 0 {
            let [p50, max] = [failover.p50, failover.max].map(micros);
            let why = "the dead pod's lease has to end first";
            row(out, "pause after a crash", format_args!("p50 {p50}, max {max}  ({why})"))?;
        }
        row(out, "errors", self.errors_in_words())?;
        if !self.errors.is_empty() {
            row(out, "", "their clients know of them: a write is lost only if it was acknowledged")?;
        }
        let log = self.checked.log_records.map_or("the log not seen".to_owned(), |records| {
            let records = thousands(records);
            format!("{records} log records")
        });
        let (reads, pairs) = (thousands(self.checked.reads), thousands(self.checked.held_pairs));
        row(out, "checked", format_args!("{log}, {reads} reads after writes, {pairs} pairs held together"))?;
        row(out, "seed", self.seed)?;
        writeln!(out)?;
        self.verdict(out)
    }
}

impl Report {
    fn errors_in_words(&self) -> String {
        let mut words = Vec::new();
        for (code, reasons) in &self.errors {
            let code = if *code == 0 { String::new() } else { format!("{code} ") };
            words.extend(reasons.iter().map(|(reason, count)| format!("{} × {code}{reason}", thousands(*count))));
        }
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    }

    fn verdict(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Report { lost, duplicated, misrouted, reordered, dual_writer_overlaps, .. } = self;
        if lost + duplicated + misrouted + reordered + dual_writer_overlaps > 0 {
            writeln!(out, "  ✘ the promise was broken:")?;
            write!(out, "    lost {lost}, duplicated {duplicated}, misrouted {misrouted}, reordered {reordered}, ")?;
            writeln!(out, "two writers at once {dual_writer_overlaps}")?;
            for (name, examples) in &self.harm {
                examples.iter().try_for_each(|example| writeln!(out, "    {name}: {example}"))?;
            }
            return Ok(());
        }
        if self.ok == 0 {
            return writeln!(
                out,
                "  ✘ no request succeeded, so the checks prove nothing: {}",
                thousands(self.requests)
            );
        }
        let mark = if self.sound { "✔" } else { "✘" };
        write!(out, "  {mark} nothing lost, doubled, misrouted or reordered: {} requests", thousands(self.requests))?;
        if self.cutovers > 0 {
            let pause = &self.cutover_pause_us;
            let [p50, p99, max] = [pause.p50, pause.p99, pause.max].map(micros);
            write!(out, ", {} cutovers, pause p50 {p50} / p99 {p99} / max {max}", thousands(self.cutovers))?;
        }
        if self.unsettled > 0 {
            write!(out, "; but {} partitions had not found their place at the end", self.unsettled)?;
        }
        writeln!(out)
    }
}

fn steps(out: &mut Formatter<'_>, steps: &[ScenarioStep]) -> fmt::Result {
    let widest = steps.iter().map(|step| step.what.chars().count()).max().unwrap_or(0);
    writeln!(
        out,
        "  {:>7}  {:<widest$} {:>9} {:>10}  pause p50 / max",
        "at", "what happened", "handoffs", "settled in"
    )?;
    for step in steps {
        let at = format!("{:.1} s", step.at_ms as f64 / 1e3);
        let took = step.took_ms.map_or("never".to_owned(), |took| micros(took * 1_000));
        write!(out, "  {at:>7}  {:<widest$} {:>9} {took:>10}", step.what, step.handoffs)?;
        let [p50, max] = [step.pause_us.p50, step.pause_us.max].map(micros);
        match step.pause_us.count {
            0 => writeln!(out)?,
            _ => writeln!(out, "  {p50} / {max}")?,
        }
    }
    writeln!(out)
}

fn row(out: &mut Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    writeln!(out, "  {name:<22}{value}")
}

struct Latency<'a>(&'a Distribution);

impl Display for Latency<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Distribution { count, p50, p99, p999, max } = *self.0;
        let [p50, p99, p999, max] = [p50, p99, p999, max].map(micros);
        write!(out, "p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}  ({} requests)", thousands(count))
    }
}

/// Formats microseconds for people.
pub(crate) fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// Formats a number with separated thousands.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(|group| String::from_utf8_lossy(group)).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_without_a_success_is_no_proof_and_errors_are_explained() {
        let report = Report::of_load(1, std::time::Duration::from_secs(1), &[], &crate::check::Harm::default());
        let failed = Report { requests: 3, errors: [(501, [("unanswered".into(), 3)].into())].into(), ..report };
        assert!(!failed.proves(), "nothing was harmed, and nothing was tried");
        let said = failed.to_string();
        assert!(said.contains("✘ no request succeeded") && !said.contains("✔"), "{said}");
        assert!(said.contains("3 × 501 unanswered") && said.contains("only if it was acknowledged"), "{said}");
        let said = Report { ok: 3, errors: Default::default(), ..failed }.to_string();
        assert!(said.contains("✔ nothing lost") && !said.contains("acknowledged"), "{said}");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 12, 1_234, 1_000_000].map(thousands), ["0", "12", "1,234", "1,000,000"]);
        assert_eq!([950, 1_500, 73_400, 2_300_000].map(micros), ["950 µs", "1.5 ms", "73 ms", "2.3 s"]);
    }
}
