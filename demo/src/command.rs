//! The command line of the demo: the same arguments for `segue demo` and for `segue-demo`, the program that is quick to
//! build, and what both do with them.
//!
//! Two options need parts that this crate does not contain: `--etcd` and `--admin`. A program that has them adds them to
//! the [`Options`]; another one refuses what [`DemoArgs::needs_segue`] returns.

use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use segue_protocol::planning::{Coordination, Strategy};
use segue_proxy::open_files;
use tokio::signal::unix::{SignalKind, signal};

use super::options::{Options, ProgressOutput, Scenario};
use super::report::Report;

/// The scenario, and the size of its cluster and load.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Duration of the load; each scenario is played at least once.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = segue_config::parse_duration)]
    duration: Duration,
    /// Number of routers.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    routers: u32,
    /// Number of writer pods at the start.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pods: u32,
    /// Number of partitions.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    partitions: u32,
    /// Number of clients that send one request at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Requests per second, over all clients; 0 sends as fast as possible, and shows the latencies of a saturated machine.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    rate: u32,
    /// Seed for the choice of pods, keys and moments; the same seed makes the same choices. Default: random.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Scenario, or all of them in turn.
    #[arg(long, value_name = "NAME", default_value = "all", value_parser = named(&Scenario::NAMES))]
    scenario: Scenario,
    /// How coordinators share their work: one is elected (leader), or all of them hold assignment rounds (rounds).
    #[arg(long, value_name = "NAME", default_value = "leader", value_parser = named(Coordination::NAMES))]
    coordination: Coordination,
    /// How partitions are placed: sticky, jump or ring.
    #[arg(long, value_name = "NAME", default_value = "sticky", value_parser = named(&STRATEGIES))]
    strategy: Strategy,
    /// Number of keyspaces in which each process takes part, each with these partitions and clients.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    keyspaces: u32,
    /// etcd to use instead of the embedded store, such as http://127.0.0.1:2379.
    #[arg(long, value_name = "URL")]
    pub etcd: Option<String>,
    /// Print the report as a JSON object, and no progress.
    #[arg(long)]
    json: bool,
    /// Address that serves the demo's live page, metrics and status, such as 127.0.0.1:9090.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<SocketAddr>,
    /// After the report, keep the cluster and its live page until Ctrl-C.
    #[arg(long, requires = "admin")]
    hold: bool,
}

/// The strategies that need no operator.
const STRATEGIES: [(&str, Strategy); 3] =
    [("sticky", Strategy::Sticky), ("jump", Strategy::Jump), ("ring", Strategy::Ring)];

/// Returns the parser of one of these names, which the help and shells know.
fn named<T: Copy + Send + Sync + 'static>(names: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let possible = PossibleValuesParser::new(names.iter().map(|(name, _)| *name));
    possible.try_map(|text| names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or("unknown name"))
}

impl DemoArgs {
    /// Returns the demo that the arguments describe, without what `--etcd` and `--admin` add to it.
    pub fn options(&self) -> Options {
        Options {
            duration: self.duration,
            scenario: self.scenario,
            routers: self.routers,
            pods: self.pods,
            partitions: self.partitions,
            clients: self.clients,
            rate: self.rate,
            coordination: self.coordination,
            strategy: self.strategy,
            keyspaces: self.keyspaces,
            seed: self.seed.unwrap_or_else(rand::random),
            progress: if self.json { ProgressOutput::Quiet } else { ProgressOutput::Stderr },
            ..Options::default()
        }
    }

    /// Returns the first option, with its value, that needs a part of the whole `segue`.
    pub fn needs_segue(&self) -> Option<String> {
        let etcd = self.etcd.as_ref().map(|url| format!("--etcd {url}"));
        etcd.or_else(|| self.admin.map(|address| format!("--admin {address}")))
    }

    /// Plays a demo and prints its report. Returns whether every invariant held; the report says which one did not.
    ///
    /// # Errors
    ///
    /// Fails if the demo cannot be played, as [`run`](crate::run), or its report cannot be printed.
    pub fn play(&self, options: Options) -> anyhow::Result<bool> {
        open_files::raise_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let hold = async |report: &Report| {
            // From before the report, so that whoever has read it can end the demo.
            let mut interrupt = self.hold.then(|| signal(SignalKind::interrupt())).transpose()?;
            self.print(report)?;
            if let Some(interrupt) = &mut interrupt {
                interrupt.recv().await;
            }
            Ok(())
        };
        let report = runtime.context("cannot start the runtime")?.block_on(super::run_and_hold(options, hold))?;
        Ok(report.proves())
    }

    fn print(&self, report: &Report) -> anyhow::Result<()> {
        let text = if self.json { report.to_json() } else { report.to_string() };
        match writeln!(std::io::stdout().lock(), "{}", text.trim_end()) {
            // Whoever read it wants no more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
        Ok(())
    }
}
