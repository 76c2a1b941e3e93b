//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::sabotage::Sabotage;
use crate::scenario;

/// Time for a short run. Fewer faults are drawn on a slow machine; all scenarios are played.
const SHORT: Duration = Duration::from_secs(240);

/// Kills, stops and cuts off real processes of Segue and a 3-node etcd, and checks that clients lost nothing.
///
/// Each host is a network namespace with an address of its own on one bridge: etcd 0-2, coordinators, routers, writer
/// pods. Clients send writes and reads through all routers all the time; each write is numbered, and at the end every
/// answer is held against the writers' logs and against the store's history. A run begins with a fresh cluster, plays the
/// named scenarios and then faults drawn from the seed, heals everything, waits until every partition has a living owner,
/// and ends every process with SIGTERM.
///
/// Progress goes to stderr; the last line on stdout is `chaos: runs=… faults=… harm=… …`, after those of failovers. Exits 0
/// only if there was no harm and everything converged. Needs root on Linux: network, mount and process namespaces, nftables, etcd.
///
///   segue-chaos --short                              what CI runs: every scenario, then faults until four minutes have passed
///   segue-chaos --seed 7 --runs 1                    the same choices once more
///   segue-chaos --scenario stuck-router --keep       one scenario alone; the logs stay
///   segue-chaos --scenario random --duration 10m     faults alone, for a long time
///   segue-chaos --sabotage forgotten-pod             breaks a promise on purpose: must count harm and fail
#[derive(Debug, Clone, Parser)]
#[command(name = "segue-chaos", version, verbatim_doc_comment, args_override_self = true)]
pub(crate) struct Arguments {
    /// Where choices come from. Default: another one each time; it is printed.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// How many clusters, one after the other. The named scenarios are played on the first. Default: 2, with --short 1.
    #[arg(long, value_name = "N")]
    pub(crate) runs: Option<u32>,
    /// How long faults are drawn in each run. Default: 60s, with --short 20s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Only this; may be given several times. `list` shows them; `random` are the faults drawn from the seed.
    #[arg(long, value_name = "NAME", value_parser = scenario::known)]
    pub(crate) scenario: Vec<String>,
    /// How coordinators share their work.
    #[arg(long, value_name = "NAME", default_value = "leader", value_parser = ["leader", "rounds"])]
    pub(crate) coordination: String,
    /// For CI: one run of about four minutes. One that is not through after eight has failed, and says where it was.
    #[arg(long)]
    pub(crate) short: bool,
    /// Leave the logs, also when all was well.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Break a promise on purpose, to see that the harm is counted: instead of scenarios and faults.
    #[arg(long, value_enum)]
    pub(crate) sabotage: Option<Sabotage>,
    /// The folder of this run: set by the process outside for the one inside.
    #[arg(long, hide = true)]
    pub(crate) inside: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn runs(&self) -> u32 {
        let alone = self.short || self.sabotage.is_some() || !self.scenario.is_empty();
        self.runs.unwrap_or(if alone { 1 } else { 2 }).max(1)
    }

    pub(crate) fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_secs(if self.short { 20 } else { 60 }))
    }

    /// How long all of it should take, if that is bounded. Faults are drawn in what the scenarios leave of it.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.short.then_some(SHORT)
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().map_err(|_| "expected a number and a unit: 90s, 10m")?;
    match unit {
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err("expected a unit of s or m, such as 90s".into()),
    }
}
