//! `segue demo`: the main job with nothing installed.

mod etcd;
mod instruments;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use self::etcd::EtcdAt;
use self::instruments::AdminInstruments;
use super::{Failure, runtime};
use segue_demo::etcd::Etcd;
use segue_demo::instruments::Instruments;
use segue_demo::{Options, Progress, Scenario};
use segue_protocol::planning::{Coordination, Strategy};
use segue_proxy::open_files;

/// The scenario, and the size of its cluster and load.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
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
    /// Requests per second, over all clients; 0 sends as fast as possible.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u32,
    /// Seed for the choice of pods, keys and moments; the same seed makes the same choices. Default: random.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Scenario: scale-up, scale-down, crash, rolling, or all of them in turn.
    #[arg(long, value_name = "NAME", default_value = "all")]
    scenario: Scenario,
    /// How coordinators share their work: one is elected (leader), or all of them hold assignment rounds (rounds).
    #[arg(long, value_name = "NAME", default_value = "leader", value_parser = coordination)]
    coordination: Coordination,
    /// How partitions are placed: sticky, jump or ring.
    #[arg(long, value_name = "NAME", default_value = "sticky", value_parser = strategy)]
    strategy: Strategy,
    /// Number of keyspaces in which each process takes part, each with these partitions and clients.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    keyspaces: u32,
    /// etcd to use instead of the embedded store, such as http://127.0.0.1:2379.
    #[arg(long, value_name = "URL")]
    etcd: Option<String>,
    /// Print the report as a JSON object, and no progress.
    #[arg(long)]
    json: bool,
    /// Address that serves the demo's metrics and status, such as 127.0.0.1:9090.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
}

fn coordination(text: &str) -> Result<Coordination, &'static str> {
    let known = Coordination::NAMES.iter().find(|(name, _)| *name == text);
    known.map(|(_, coordination)| *coordination).ok_or("expected leader or rounds")
}

fn strategy(text: &str) -> Result<Strategy, &'static str> {
    let known = Strategy::NAMES.iter().find(|(name, strategy)| *name == text && *strategy != Strategy::External);
    known.map(|(_, strategy)| *strategy).ok_or("expected sticky, jump or ring")
}

pub(super) fn demo(args: &Args) -> Result<(), Failure> {
    let serve = |address| -> Arc<dyn Instruments> { Arc::new(AdminInstruments::new(address)) };
    let connect = |url: &String| -> anyhow::Result<Arc<dyn Etcd>> { Ok(Arc::new(EtcdAt::new(url)?)) };
    let options = Options {
        duration: args.duration,
        scenario: args.scenario,
        routers: args.routers,
        pods: args.pods,
        partitions: args.partitions,
        clients: args.clients,
        rate: args.rate,
        coordination: args.coordination,
        strategy: args.strategy,
        keyspaces: args.keyspaces,
        seed: args.seed.unwrap_or_else(rand::random),
        etcd: args.etcd.as_ref().map(connect).transpose()?,
        instruments: args.admin.map(serve),
        progress: if args.json { Progress::Quiet } else { Progress::Stderr },
        ..Options::default()
    };
    open_files::raise_limit();
    let report = runtime()?.block_on(segue_demo::run(options))?;
    let mut out = std::io::stdout().lock();
    let text = if args.json { report.to_json() } else { report.to_string() };
    writeln!(out, "{}", text.trim_end()).map_err(anyhow::Error::new)?;
    // The report has already said what went wrong.
    if report.sound { Ok(()) } else { Err(Failure::AlreadyReported) }
}
