//! The demo: a whole cluster in one process, a load of checked requests over real sockets, pods that join, leave and
//! crash, and a measured verdict at the end.
//!
//! [`run`] does all of it. Clients and pods record what they see ([`record`]); nothing is judged during the run.
//! Afterwards [`check`](mod@check) compares the clients' responses with the logs and with the owners according to the
//! store's transactions ([`history`]), and counts harm in five kinds. `tests/demo_harm` breaks the protocol on purpose
//! and shows that each kind is detected.
//!
//! The pods are [`writer`]s; `examples/writer.rs` is a separate program that does the same in one file. [`mod@bench`]
//! is the load with the same checks against any URL.

#![warn(clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod check;
pub mod clock;
pub mod cluster;
pub mod history;
pub mod instruments;
pub mod load;
pub mod log;
pub mod measure;
pub mod options;
pub mod progress;
pub mod record;
pub mod report;
mod scenario;
pub mod timeline;
pub mod wiring;
pub mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::SeedableRng;
use rand::rngs::StdRng;

use self::check::{Evidence, check};
use self::cluster::Cluster;
use self::load::{Load, LoadSettings};
use self::measure::Distribution;
pub use self::options::{Options, Progress, Scenario};
pub use self::report::Report;
use self::timeline::{Change, Timeline, changes, windows};
use self::writer::names;

/// How long a client waits for a response: longer than a router's hold and a pod's work together.
const MARGIN: Duration = Duration::from_secs(5);

/// Plays the demo and reports. An error means that the demo could not be played; harm is in the report.
pub async fn run(options: Options) -> anyhow::Result<Report> {
    ensure!(options.partitions > 0, "a demo needs at least one partition");
    ensure!(options.clients > 0, "a demo needs at least one client");
    let timeline = Arc::new(Timeline::default());
    let mut random = StdRng::seed_from_u64(options.seed);
    progress::Progress::announce(options.progress, &announcement(&options));

    let mut cluster = Cluster::start(&options, timeline.clone()).await?;
    timeline.begin("start", format!("{} partitions find their first owners", options.partitions));
    ensure!(
        cluster.settled(scenario::PATIENCE).await,
        "the cluster did not get ready within {:?}: {:?}",
        scenario::PATIENCE,
        cluster.snapshot()
    );
    timeline.end(true, &cluster.history().seen());

    let load = Load::start(load_settings(&options, &cluster, &mut random));
    let shown = progress::Progress::start(
        options.progress,
        timeline.clone(),
        cluster.history().clone(),
        load.gauge().clone(),
        options.duration,
    );
    let began = Instant::now();
    let pods = options.pods.max(1) as usize;
    let mut stage = scenario::Stage { cluster: &mut cluster, timeline: &timeline, random, pods };
    stage.play(options.scenario, options.duration).await?;
    let lasted = began.elapsed();

    shown.say(&timeline, "the load ends; reading every key once more");
    let settled = cluster.settled(scenario::PATIENCE).await;
    let snapshot = cluster.snapshot();
    let exchanges = load.finish().await;
    shown.say(&timeline, "checking");
    let log = cluster.log().read_all()?;
    let owners = cluster.history().seen().owners.clone();
    let log_records = log.len() as u64;
    let evidence = Evidence { exchanges, log: Some(log), owners: Some(owners) };
    let (evidence, harm) = tokio::task::spawn_blocking(move || {
        let harm = check(&evidence);
        (evidence, harm)
    })
    .await?;
    shown.finish();

    let mut report = Report::of_load(options.seed, lasted, &evidence.exchanges, &harm);
    report.scenario = options.scenario.as_str();
    report.unsettled = if settled { 0 } else { u64::from(snapshot.unowned) + (snapshot.in_flight as u64).max(1) };
    report.sound &= settled;
    report.checked.log_records = Some(log_records);
    report.checked.owners = true;
    tell(&mut report, &timeline, &cluster, &evidence);
    report.cluster = report::Cluster {
        store: options.etcd.clone().unwrap_or_else(|| "embedded".to_owned()),
        routers: options.routers.max(1),
        pods: options.pods.max(1),
        partitions: options.partitions,
        clients: options.clients,
    };
    cluster.stop().await;
    Ok(report)
}

fn announcement(options: &Options) -> String {
    let Options { routers, pods, partitions, clients, seed, .. } = options;
    let store = options.etcd.as_ref().map_or("an embedded store".to_owned(), |url| format!("etcd at {url}"));
    let scenario = options.scenario.as_str();
    let who = format!("{routers} routers, {pods} writers, {partitions} partitions, {clients} clients");
    format!("  {who}, {store}, scenario {scenario}, seed {seed}")
}

fn load_settings(options: &Options, cluster: &Cluster, random: &mut StdRng) -> LoadSettings {
    LoadSettings {
        routers: cluster.addresses().into_iter().map(Into::into).collect(),
        partitions: options.partitions,
        clients: options.clients,
        bursts: options.clients.div_ceil(8),
        rate: options.rate,
        patience: cluster::MAX_WAIT + cluster::REQUEST_TIMEOUT + MARGIN,
        seed: rand::RngExt::random(random),
        partition_header: Some(names::PARTITION),
        snapshot: Some(cluster.watch_snapshot()),
    }
}

/// Returns the timeline's part of the report.
fn tell(report: &mut Report, timeline: &Timeline, cluster: &Cluster, evidence: &Evidence) {
    let (seen, events) = (cluster.history().seen(), timeline.events());
    let pauses = |wanted: Change| {
        let pauses = changes(&events, &seen).filter(move |(_, change, _)| *change == wanted);
        Distribution::of(pauses.map(|(_, _, pause)| clock::nanos(pause)))
    };
    report.cutover_pause_us = pauses(Change::Cutover);
    report.failover_pause_us = pauses(Change::Failover);
    report.cutovers = report.cutover_pause_us.count + report.failover_pause_us.count;
    report.handoffs = seen.moved;
    report.handoffs_cancelled = events.cancelled;
    report.latency_us = measure::latencies(&evidence.exchanges, windows(&events));
    report.steps = events.steps.clone();
}
