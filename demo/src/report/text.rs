//! The report as text.

use std::fmt::{self, Display, Formatter};

use super::super::measure::Distribution;
use super::super::timeline::ScenarioStep;
use super::Report;

/// Columns of the narrowest terminal that the text fits.
pub(crate) const WIDTH: usize = 80;
/// Column at which the values begin.
const VALUES: usize = 24;

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
                let lines = |example: &String| wrapped(&format!("    {name}: {example}"), WIDTH, 6);
                examples.iter().try_for_each(|example| writeln!(out, "{}", lines(example)))?;
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
        let requests = thousands(self.requests);
        let mut text = format!("  {mark} nothing lost, doubled, misrouted or reordered: {requests} requests");
        if self.cutovers > 0 {
            let pause = &self.cutover_pause_us;
            let [p50, p99, max] = [pause.p50, pause.p99, pause.max].map(micros);
            text += &format!(", {} cutovers, pause p50 {p50} / p99 {p99} / max {max}", thousands(self.cutovers));
        }
        if self.unsettled > 0 {
            text += &format!("; but {} partitions had not found their place at the end", self.unsettled);
        }
        writeln!(out, "{}", wrapped(&text, WIDTH, 4))
    }
}

fn steps(out: &mut Formatter<'_>, steps: &[ScenarioStep]) -> fmt::Result {
    let widest = steps.iter().map(|step| step.what.chars().count()).max().unwrap_or(0).min(WIDEST_STEP);
    writeln!(out, "  {:>7}  {:<widest$}  handoffs  settled in  pause p50 / max", "at", "what happened")?;
    for step in steps {
        let at = format!("{:.1} s", step.at_ms as f64 / 1e3);
        let took = step.took_ms.map_or("never".to_owned(), |took| micros(took * 1_000));
        let what = wrapped(&step.what, widest, 0);
        let mut lines = what.lines();
        let first = lines.next().unwrap_or("");
        write!(out, "  {at:>7}  {first:<widest$}  {:>8}  {took:>10}", step.handoffs)?;
        let [p50, max] = [step.pause_us.p50, step.pause_us.max].map(micros);
        match step.pause_us.count {
            0 => writeln!(out)?,
            _ => writeln!(out, "  {p50} / {max}")?,
        }
        lines.try_for_each(|line| writeln!(out, "  {:7}  {line}", ""))?;
    }
    writeln!(out)
}

/// What of a line is left for a step beside the other columns.
const WIDEST_STEP: usize = 29;

fn row(out: &mut Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    let name = format!("  {name:<22}");
    let lines = wrapped(&value.to_string(), WIDTH - VALUES, 0);
    let indented = lines.replace('\n', &format!("\n{:VALUES$}", ""));
    writeln!(out, "{name}{indented}")
}

/// Breaks a line between words, so that none is wider than `width` unless a word is. Further lines begin with `indent`
/// spaces.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let (mut lines, mut column) = (String::new(), 0);
    for word in text.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if column > indent && column + length > width && length > 0 {
            lines.truncate(lines.trim_end().len());
            lines += &format!("\n{:indent$}", "");
            column = indent;
        }
        lines += word;
        column += word.chars().count();
    }
    lines
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
        assert!(said.contains("3 × 501 unanswered") && said.contains("a write is lost only if it"), "{said}");
        let said = Report { ok: 3, errors: Default::default(), ..failed }.to_string();
        assert!(said.contains("✔ nothing lost") && !said.contains("acknowledged"), "{said}");
    }

    #[test]
    fn lines_fit_the_terminal() {
        assert_eq!(wrapped("  one two three", 80, 4), "  one two three");
        assert_eq!(wrapped("  one two three", 9, 4), "  one two\n    three");
        assert_eq!(wrapped("a word-that-is-too-wide", 6, 0), "a\nword-that-is-too-wide");
        let step = ScenarioStep { what: "writer-3, writer-4 and writer-5 leave, to begin again".into(), ..step() };
        let distribution = Distribution { count: 1_234_567, p50: 8_700, p99: 35_000, p999: 250_000, max: 1_300_000 };
        let report = Report::of_load(1, std::time::Duration::from_secs(1), &[], &crate::check::Harm::default());
        let mut report = Report { steps: vec![step], ok: 1, cutovers: 1_234, requests: 1_234_567, ..report };
        report.latency_us.steady = distribution;
        report.latency_us.during_cutovers = distribution;
        report.failover_pause_us = distribution;
        report.cutover_pause_us = distribution;
        let text = report.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line:?}");
        }
        assert!(text.contains("writer-5 leave, to begin\n           again"), "{text}");
    }

    fn step() -> ScenarioStep {
        ScenarioStep {
            scenario: "scale-up",
            what: String::new(),
            at_ms: 123_400,
            took_ms: Some(12_345),
            handoffs: 123,
            pauses: Vec::new(),
            pause_us: Distribution { count: 9, p50: 8_700, p99: 35_000, p999: 250_000, max: 1_300_000 },
        }
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 12, 1_234, 1_000_000].map(thousands), ["0", "12", "1,234", "1,000,000"]);
        assert_eq!([950, 1_500, 73_400, 2_300_000].map(micros), ["950 µs", "1.5 ms", "73 ms", "2.3 s"]);
    }
}
