//! The traffic of a keyspace as tables of at most 80 columns.

use std::fmt::Write as _;

use super::keyspace_traffic::{KeyRate, KeyspaceTraffic, PartitionRate, PodRate};

/// Most lines of a table.
const MOST_LINES: usize = 20;
/// The widest names of pods and keys.
const MOST_NAME: usize = 25;
const MOST_KEY: usize = 32;

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrafficTable {
    Pods,
    Partitions,
    Keys,
}

impl KeyspaceTraffic {
    /// Returns one of the tables as text.
    pub(crate) fn in_words(&self, table: TrafficTable) -> String {
        let measured = self.routers.iter().filter(|router| router.error.is_none()).count();
        let mut text = format!(
            "{:.1} requests/s at {measured} of {} router{}, measured for {:.1} s\n",
            self.requests_per_s,
            self.routers.len(),
            if self.routers.len() == 1 { "" } else { "s" },
            self.seconds
        );
        for router in &self.routers {
            if let Some(error) = &router.error {
                let at = router.admin.as_deref().unwrap_or("no address");
                let _ = writeln!(text, "UNKNOWN  {} at {at}: {error}", router.router);
            }
        }
        match table {
            TrafficTable::Pods => pods(&mut text, &self.pods),
            TrafficTable::Partitions => partitions(&mut text, &self.partitions),
            TrafficTable::Keys => keys(&mut text, self.keys.as_deref().unwrap_or_default()),
        }
        text
    }
}

/// Returns a name that takes no more than so many columns.
fn cut(name: &str, most: usize) -> String {
    match name.chars().count() > most {
        true => name.chars().take(most - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns milliseconds with about three digits.
fn millis(time: Option<f64>) -> String {
    match time {
        None => "–".to_owned(),
        Some(time) if time < 1000.0 => format!("{time:.1} ms"),
        Some(time) => format!("{:.1} s", time / 1000.0),
    }
}

/// Says how many lines are left out.
fn rest(text: &mut String, lines: usize) {
    if lines > MOST_LINES {
        let _ = writeln!(text, "… and {} more: --json", lines - MOST_LINES);
    }
}

fn pods(text: &mut String, lines: &[PodRate]) {
    let _ = writeln!(
        text,
        "{:MOST_NAME$} {:>9} {:>8} {:>8} {:>9} {:>9} {:>6}",
        "POD", "REQ/S", "SHARE", "ERR/S", "P50", "P99", "FLIGHT"
    );
    for line in lines.iter().take(MOST_LINES) {
        let _ = writeln!(
            text,
            "{:MOST_NAME$} {:>9.1} {:>8} {:>8.1} {:>9} {:>9} {:>6}",
            cut(&line.pod, MOST_NAME),
            line.requests_per_s,
            percent(line.share),
            line.errors_per_s,
            millis(line.p50_ms),
            millis(line.p99_ms),
            line.in_flight
        );
    }
    rest(text, lines.len());
}

fn partitions(text: &mut String, lines: &[PartitionRate]) {
    let _ = writeln!(text, "{:>9} {:>9} {:>8}  OWNER", "PARTITION", "REQ/S", "SHARE");
    for line in lines.iter().take(MOST_LINES) {
        let owner = line.owner.as_deref().map_or("nobody".to_owned(), |owner| cut(owner, MOST_NAME));
        let (rate, share) = (line.requests_per_s, percent(line.share));
        let _ = writeln!(text, "{:>9} {rate:>9.1} {share:>8}  {owner}", line.partition.get());
    }
    rest(text, lines.len());
}

fn keys(text: &mut String, lines: &[KeyRate]) {
    if lines.is_empty() {
        *text += "no key was seen: requests have none, or there were no requests\n";
        return;
    }
    let _ = writeln!(text, "{:MOST_KEY$} {:>9} {:>8} {:>9}  OWNER", "KEY", "REQ/S", "SHARE", "PARTITION");
    for line in lines.iter().take(MOST_LINES) {
        let owner = line.owner.as_deref().map_or("nobody".to_owned(), |owner| cut(owner, 16));
        let (key, rate, share) = (cut(&line.key, MOST_KEY), line.requests_per_s, percent(line.share));
        let _ = writeln!(text, "{key:MOST_KEY$} {rate:>9.1} {share:>8} {:>9}  {owner}", line.partition.get());
    }
    rest(text, lines.len());
}
