//! The demo's load against any URL, with the checks that are possible from outside.
//!
//! From the clients' view alone: every request gets a response, and a read sees every write that was acknowledged
//! before it. With the log directory of the writers (`examples/writer.rs`) also: no acknowledged write is missing or
//! duplicated there, keys keep their order, and no two pods wrote at the same time. The owners of partitions are not
//! known here.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use http::{HeaderName, Uri};
use segue_proxy::tls::ClientTls;
use tokio_util::sync::CancellationToken;

use super::check::{Evidence, check};
use super::load::{Destination, Gauge, LoadSettings, RunningLoad};
use super::log::Log;
use super::options::ProgressOutput;
use super::progress::line;
use super::record::{ClientExchange, Key, LogRecord, RequestId};
use super::report::{self, Report, thousands};

/// The load, and its target.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The routers or other HTTP servers: `http://host:port` or `https://host:port`. Each client uses all of them.
    pub urls: Vec<Uri>,
    /// The certificate authorities to trust for `https://`.
    pub tls: Option<ClientTls>,
    /// The duration of the load.
    pub duration: Duration,
    /// The number of clients that send one request at a time.
    pub clients: u32,
    /// The number of further clients that send bursts. They need `partition_header`, and behind each URL a Segue router that
    /// reads it.
    pub bursts: u32,
    /// Requests per second, over all clients; 0 sends as fast as possible.
    pub rate: u32,
    /// The seed of all choices.
    pub seed: u64,
    /// The number of partitions for the header's value.
    pub partitions: u32,
    /// The header that names the partition. With `None` only the path `/keys/{key}` names the key.
    pub partition_header: Option<HeaderName>,
    /// How long a request may go without a response.
    pub patience: Duration,
    /// The writers' log directory, if it is on this machine.
    pub log: Option<PathBuf>,
    /// Where progress is shown.
    pub progress: ProgressOutput,
    /// Ends the load before its time when it is cancelled.
    pub stop: CancellationToken,
}

impl Default for BenchOptions {
    fn default() -> Self {
        BenchOptions {
            urls: Vec::new(),
            tls: None,
            duration: Duration::from_secs(10),
            clients: 64,
            bursts: 0,
            rate: 0,
            seed: 1,
            partitions: 64,
            partition_header: Some(super::writer::names::PARTITION),
            patience: Duration::from_secs(95),
            log: None,
            progress: ProgressOutput::Quiet,
            stop: CancellationToken::new(),
        }
    }
}

/// Sends the load, checks it and reports. An error means that the load could not be sent; harm is in the report.
///
/// # Errors
///
/// Fails if a URL cannot be resolved, or a log cannot be opened or read. Harm is no error, but part of the report.
pub async fn bench(options: BenchOptions) -> anyhow::Result<Report> {
    ensure!(!options.urls.is_empty(), "where to? a load needs at least one URL");
    let names_partitions = options.partition_header.is_some();
    let mut routers = Vec::new();
    for url in &options.urls {
        routers.push(resolve(url, options.tls.as_ref()).await?);
    }
    let log = options.log.as_ref().map(|directory| Log::in_directory(directory)).transpose()?;
    let load = RunningLoad::start(LoadSettings {
        routers,
        partitions: options.partitions.max(1),
        clients: options.clients.max(1),
        bursts: options.bursts,
        rate: options.rate,
        paces_bursts: true,
        patience: options.patience,
        seed: options.seed,
        partition_header: options.partition_header,
        snapshot: None,
    });
    let began = Instant::now();
    options.stop.run_until_cancelled(watch(load.gauge(), options.duration, options.progress)).await;
    let lasted = began.elapsed();
    let mut exchanges = load.finish().await;
    let log = log.map(|log| log.read_all()).transpose().context("reading the writers' logs")?;
    if let Some(log) = log.as_ref().filter(|_| !names_partitions) {
        take_partitions(&mut exchanges, log);
    }
    let log_records = log.as_ref().map(|log| log.len() as u64);
    let evidence = Evidence { exchanges, log, owners: None };
    let harm = check(&evidence);
    let mut report = Report::of_load(options.seed, lasted, &evidence.exchanges, &harm);
    report.checked.log_records = log_records;
    let partitions = options.partitions;
    report.cluster = report::ClusterSize { partitions, clients: options.clients, ..report::ClusterSize::default() };
    Ok(report)
}

/// Gives all exchanges of a key the partition in whose log its first write is: routers that map keys do not tell it. A later
/// write of the key in another partition's log is misrouted.
fn take_partitions(exchanges: &mut [ClientExchange], log: &[LogRecord]) {
    let keys: HashMap<RequestId, Key> = exchanges.iter().map(|it| (it.request, it.key)).collect();
    let mut partitions = HashMap::new();
    for record in log {
        if let Some(key) = keys.get(&record.request) {
            partitions.entry(*key).or_insert(record.partition);
        }
    }
    for exchange in exchanges {
        exchange.partition = partitions.get(&exchange.key).copied().unwrap_or(exchange.partition);
    }
}

async fn resolve(url: &Uri, tls: Option<&ClientTls>) -> anyhow::Result<Destination> {
    let secure = match url.scheme_str() {
        None | Some("http") => false,
        Some("https") => true,
        Some(_) => bail!("{url}: expected http:// or https://"),
    };
    ensure!(!secure || tls.is_some(), "{url}: https:// needs --ca, a file with the authorities to trust");
    let host = url.host().with_context(|| format!("{url}: no host in it"))?;
    let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let found =
        tokio::net::lookup_host((host, port)).await.with_context(|| format!("{url}: cannot find {host}"))?.next();
    let address = found.with_context(|| format!("{url}: {host} has no address"))?;
    Ok(Destination { address, tls: tls.filter(|_| secure).map(|tls| (tls.clone(), format!("{host}:{port}"))) })
}

/// Reports progress every second.
async fn watch(gauge: &Arc<Gauge>, duration: Duration, progress: ProgressOutput) {
    let (began, mut before) = (Instant::now(), 0);
    while let Some(left) = duration.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        let ok = gauge.ok.load(Relaxed);
        if progress == ProgressOutput::Stderr {
            let errors: u64 = gauge.errors().values().sum();
            let (at, rate) = (began.elapsed().as_secs_f64(), thousands(ok - before));
            line(&format!("  {at:>5.1} s  {rate} req/s, {} done, {} errors", thousands(ok), thousands(errors)));
        }
        before = ok;
    }
}
