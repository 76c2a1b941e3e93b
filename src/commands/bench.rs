//! `segue bench`: the demo's load and checks, against any URL.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};

use super::{Failure, runtime};
use crate::certificates::trusting;
use crate::files;
use segue_demo::Progress;
use segue_demo::bench::{BenchOptions, bench};

/// What to send where.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where to: routers in front of writers that speak the example's language, such as http://127.0.0.1:8080.
    #[arg(required = true, value_name = "URL")]
    urls: Vec<Uri>,
    /// The authorities to trust behind https://, a PEM file.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// How long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = segue_config::parse_duration)]
    duration: Duration,
    /// Clients, each with one request under way.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Clients on top that send several requests of a key without waiting for answers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    bursts: u32,
    /// Requests per second of all clients together; 0 is as fast as it goes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u32,
    /// Which keys, in which order: the same seed makes the same choices. Default: another one each time.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many partitions the keyspace has.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    partitions: u32,
    /// The header that names the partition; empty if routers find it by the path /keys/{key}.
    #[arg(long, value_name = "NAME", default_value = "x-partition")]
    partition_header: String,
    /// How long a request may go without an answer before it counts as lost.
    #[arg(long, value_name = "TIME", default_value = "95s", value_parser = segue_config::parse_duration)]
    patience: Duration,
    /// The writers' log directory, if it is on this machine: it is held against what clients were told.
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<PathBuf>,
    /// Print the report as one JSON object on stdout, and no progress.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let header = Some(args.partition_header.as_str()).filter(|name| !name.is_empty());
    let header = header.map(str::parse::<HeaderName>).transpose();
    let partition_header = header.map_err(|error| Failure::BadInput(format!("segue: --partition-header: {error}")))?;
    let tls = args.ca.as_deref().map(trusting).transpose();
    let tls = tls.map_err(|error| Failure::BadInput(format!("segue: --{error}")))?;
    let options = BenchOptions {
        urls: args.urls.clone(),
        tls,
        duration: args.duration,
        clients: args.clients,
        bursts: args.bursts,
        rate: args.rate,
        seed: args.seed.unwrap_or_else(rand::random),
        partitions: args.partitions,
        partition_header,
        patience: args.patience,
        log: args.log_dir.clone(),
        progress: if args.json { Progress::Quiet } else { Progress::Stderr },
    };
    files::raise_limit();
    let report = runtime()?.block_on(bench(options))?;
    let mut out = std::io::stdout().lock();
    let text = if args.json { report.to_json() } else { report.to_string() };
    writeln!(out, "{}", text.trim_end()).map_err(anyhow::Error::new)?;
    // The report has already said what went wrong.
    if report.sound { Ok(()) } else { Err(Failure::Told) }
}
