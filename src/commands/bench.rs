//! `segue bench`: the demo's load and checks, against any URL.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use http::{HeaderName, Uri};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::output::{print_json, print_text};
use super::{CommandFailure, runtime};
use crate::process::certificates::trusting;
use segue_demo::ProgressOutput;
use segue_demo::bench::{BenchOptions, bench};
use segue_proxy::open_files;

/// The load, and the routers that it is sent to.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// URL of a router in front of pods like those of examples/writer.rs, such as http://127.0.0.1:8080.
    #[arg(required = true, value_name = "URL")]
    urls: Vec<Uri>,
    /// Certificate authorities to trust for https:// URLs, as a PEM file.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Duration of the load.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = segue_config::parse_duration)]
    duration: Duration,
    /// Number of clients that send one request at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Number of further clients that send several requests of a key without waiting for responses. They need a header that
    /// names the partition.
    #[arg(long, value_name = "N", default_value_t = 0)]
    bursts: u32,
    /// Requests per second, over all clients; 0 sends as fast as possible.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u32,
    /// Seed for the choice of keys; the same seed makes the same choices. Default: random.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of partitions of the keyspace.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    partitions: u32,
    /// Header that names the partition; empty if the routers map the path /keys/{key}.
    #[arg(long, value_name = "NAME", default_value = "x-partition")]
    partition_header: String,
    /// Time without a response after which a request counts as lost.
    #[arg(long, value_name = "TIME", default_value = "95s", value_parser = segue_config::parse_duration)]
    patience: Duration,
    /// Log directory of the pods, if it is on this machine; compared with the responses.
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<PathBuf>,
    /// Print the report as a JSON object, and no progress.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let header = Some(args.partition_header.as_str()).filter(|name| !name.is_empty());
    let header = header.map(str::parse::<HeaderName>).transpose();
    let partition_header =
        header.map_err(|error| CommandFailure::BadInput(format!("segue: --partition-header: {error}")))?;
    if args.bursts > 0 && partition_header.is_none() {
        let text = "segue: --bursts needs --partition-header: the requests of a burst are of one partition";
        return Err(CommandFailure::BadInput(text.to_owned()));
    }
    let tls = args.ca.as_deref().map(trusting).transpose();
    let tls = tls.map_err(|error| CommandFailure::BadInput(format!("segue: --{error}")))?;
    let stop = CancellationToken::new();
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
        progress: if args.json { ProgressOutput::Quiet } else { ProgressOutput::Stderr },
        stop: stop.clone(),
    };
    open_files::raise_limit();
    let report = runtime()?.block_on(async {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        tokio::spawn(end_at_signal(interrupt, terminate, stop));
        bench(options).await
    })?;
    match args.json {
        true => print_json(&report)?,
        false => print_text(&format!("{}\n", report.to_string().trim_end()))?,
    };
    if args.json && report.sound && !report.proves() {
        // Nothing was harmed, but nothing was tried either: a script must not take this for a service that works.
        return Err(CommandFailure::Work(anyhow::anyhow!("no request succeeded, so the checks prove nothing")));
    }
    // The report has already said what went wrong.
    if report.proves() { Ok(()) } else { Err(CommandFailure::AlreadyReported) }
}

/// Ends the load at the first signal, so that it is reported, and the process at the second.
async fn end_at_signal(mut interrupt: Signal, mut terminate: Signal, stop: CancellationToken) {
    either(&mut interrupt, &mut terminate).await;
    stop.cancel();
    either(&mut interrupt, &mut terminate).await;
    std::process::exit(1);
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
