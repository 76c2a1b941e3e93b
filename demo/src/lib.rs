//! The demo: a whole cluster in one process, a load of checked requests over real sockets, pods that join, leave and
//! crash, and a measured verdict at the end.
//!
//! [`run`] does all of it. Clients and pods record what they see ([`record`]); nothing is judged during the run.
//! Afterwards [`check`](mod@check) compares the clients' responses with the logs and with the owners according to the
//! store's transactions ([`history`]), and counts harm in five kinds. `tests/process/demo_harm` breaks the protocol on purpose
//! and shows that each kind is detected.
//!
//! The pods are [`writer`]s; `examples/writer.rs` is a separate program that does the same in one file. [`mod@bench`]
//! is the load with the same checks against any URL.

#![warn(clippy::missing_errors_doc, clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod check;
pub mod clock;
pub mod cluster;
pub mod command;
pub mod etcd;
pub mod history;
pub mod instruments;
pub mod load;
pub mod log;
pub mod measure;
pub mod options;
pub mod processes;
pub mod progress;
pub mod record;
pub mod report;
mod scenario;
mod site;
pub mod timeline;
pub mod wiring;
pub mod writer;

use std::time::{Duration, Instant};

use anyhow::ensure;
use futures_util::future::join_all;
use rand::SeedableRng;
use rand::rngs::StdRng;
use segue_protocol::ids::PartitionId;

use self::check::{Evidence, Harm, check};
use self::cluster::{Cluster, ClusterSnapshot};
use self::load::{LoadSettings, RunningLoad};
use self::measure::{Distribution, Windows};
pub use self::options::{Options, ProgressOutput, Scenario};
use self::record::ClientExchange;
pub use self::report::Report;
use self::site::Site;
use self::timeline::{HoldKind, changes, windows};
use self::writer::names;

/// How long a client waits for a response: longer than a router's hold and a pod's work together.
const MARGIN: Duration = Duration::from_secs(5);

/// Plays the demo and reports. An error means that the demo could not be played; harm is in the report.
///
/// # Errors
///
/// Fails if the options are void, or the cluster cannot be started, or does not get ready. Harm is no error, but part
/// of the report.
pub async fn run(options: Options) -> anyhow::Result<Report> {
    run_and_hold(options, async |_| Ok(())).await
}

/// Plays the demo and reports. The cluster runs on until `hold` has seen the report.
///
/// # Errors
///
/// Fails as [`run`] does, or as `hold` does.
pub async fn run_and_hold(
    options: Options,
    hold: impl AsyncFnOnce(&Report) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    ensure!(options.partitions > 0, "a demo needs at least one partition");
    ensure!(options.clients > 0, "a demo needs at least one client");
    let mut random = StdRng::seed_from_u64(options.seed);
    progress::ProgressDisplay::announce(options.progress, &announcement(&options));

    let mut site = Site::start(&options).await?;
    site.begin("start", &format!("{} partitions find their first owners", options.partitions));
    ensure!(
        site.settled(scenario::PATIENCE).await,
        "the cluster did not get ready within {:?}: {:?}",
        scenario::PATIENCE,
        site.clusters.iter().map(Cluster::snapshot).collect::<Vec<_>>()
    );
    site.end(true);

    let started = |cluster| RunningLoad::start(load_settings(&options, cluster, &mut random));
    let loads: Vec<RunningLoad> = site.clusters.iter().map(started).collect();
    let timeline = site.shown().timeline().clone();
    let shown = progress::ProgressDisplay::start(
        options.progress,
        timeline.clone(),
        site.shown().history().clone(),
        loads[0].gauge().clone(),
        options.duration,
    );
    let began = Instant::now();
    let pods = options.pods.max(1) as usize;
    let mut stage = scenario::Stage { site: &mut site, random, pods };
    stage.play(options.scenario, options.duration).await?;
    let lasted = began.elapsed();

    shown.say(&timeline, "the load ends; reading every key once more");
    let settled = site.settled(scenario::PATIENCE).await;
    let snapshots: Vec<_> = site.clusters.iter().map(Cluster::snapshot).collect();
    let exchanges = join_all(loads.into_iter().map(RunningLoad::finish)).await;
    shown.say(&timeline, "checking");
    let mut verdict = Verdict::default();
    for (cluster, exchanges) in site.clusters.iter().zip(exchanges) {
        verdict.add(cluster, exchanges, options.partitions).await?;
    }
    shown.finish();

    let mut report = Report::of_load(options.seed, lasted, &verdict.exchanges, &verdict.harm);
    report.scenario = options.scenario.as_str();
    let open = |snapshot: &ClusterSnapshot| u64::from(snapshot.unowned) + (snapshot.in_flight as u64).max(1);
    report.unsettled = if settled { 0 } else { snapshots.iter().map(open).sum() };
    report.sound &= settled;
    report.checked.log_records = Some(verdict.log_records);
    report.checked.owners = true;
    tell(&mut report, &site, &verdict.exchanges, options.partitions);
    report.cluster = report::ClusterSize {
        store: options.etcd.as_ref().map_or("embedded", |etcd| etcd.url()).to_owned(),
        keyspaces: options.keyspaces.max(1),
        coordination: options.coordination.name(),
        strategy: options.strategy.name(),
        routers: options.routers.max(1),
        pods: options.pods.max(1),
        partitions: options.partitions,
        clients: options.clients,
    };
    hold(&report).await?;
    site.stop().await;
    Ok(report)
}

/// The findings in all keyspaces.
#[derive(Default)]
struct Verdict {
    /// The requests, with the partitions of all keyspaces numbered one after the other.
    exchanges: Vec<ClientExchange>,
    harm: Harm,
    log_records: u64,
    keyspaces: u32,
}

impl Verdict {
    /// Checks the evidence of a keyspace with this many partitions.
    async fn add(&mut self, cluster: &Cluster, exchanges: Vec<ClientExchange>, partitions: u32) -> anyhow::Result<()> {
        let log = cluster.log().read_all()?;
        let owners = cluster.history().seen().owners.clone();
        self.log_records += log.len() as u64;
        let evidence = Evidence { exchanges, log: Some(log), owners: Some(owners) };
        let (evidence, harm) = tokio::task::spawn_blocking(move || {
            let harm = check(&evidence);
            (evidence, harm)
        })
        .await?;
        self.harm.add(harm);
        let first = self.keyspaces * partitions;
        let numbered =
            |it: ClientExchange| ClientExchange { partition: PartitionId::new(first + it.partition.get()), ..it };
        self.exchanges.extend(evidence.exchanges.into_iter().map(numbered));
        self.keyspaces += 1;
        Ok(())
    }
}

fn announcement(options: &Options) -> String {
    let Options { routers, pods, partitions, clients, seed, .. } = options;
    let store = options.etcd.as_ref().map_or("an embedded store".to_owned(), |etcd| format!("etcd at {}", etcd.url()));
    let scenario = options.scenario.as_str();
    let who = format!("{routers} routers, {pods} writers, {partitions} partitions, {clients} clients");
    let each = match options.keyspaces {
        0 | 1 => String::new(),
        keyspaces => format!(" in each of {keyspaces} keyspaces (progress is that of the first)"),
    };
    let placed = format!("coordination {}, strategy {}", options.coordination.name(), options.strategy.name());
    format!("  {who}{each}, {store}, {placed}, scenario {scenario}, seed {seed}")
}

fn load_settings(options: &Options, cluster: &Cluster, random: &mut StdRng) -> LoadSettings {
    LoadSettings {
        routers: cluster.addresses().into_iter().map(Into::into).collect(),
        partitions: options.partitions,
        clients: options.clients,
        bursts: options.clients.div_ceil(8),
        rate: options.rate,
        paces_bursts: true,
        patience: cluster::MAX_WAIT + cluster::REQUEST_TIMEOUT + MARGIN,
        seed: rand::RngExt::random(random),
        partition_header: Some(names::PARTITION),
        snapshot: Some(cluster.watch_snapshot()),
    }
}

/// Adds the timelines' part of the report.
fn tell(report: &mut Report, site: &Site, exchanges: &[ClientExchange], partitions: u32) {
    let (mut cutovers, mut failovers, mut held) = (Vec::new(), Vec::new(), Windows::new());
    for (keyspace, cluster) in (0..).zip(&site.clusters) {
        let (seen, events) = (cluster.history().seen(), cluster.timeline().events());
        for (_, change, pause) in changes(&events, &seen) {
            match change {
                HoldKind::Cutover => cutovers.push(clock::nanos(pause)),
                HoldKind::Failover => failovers.push(clock::nanos(pause)),
                HoldKind::First | HoldKind::None => {}
            }
        }
        report.handoffs += seen.moved;
        report.handoffs_cancelled += events.cancelled;
        let first = keyspace * partitions;
        held.extend(windows(&events).into_iter().map(|(it, held)| (PartitionId::new(first + it.get()), held)));
    }
    report.cutover_pause_us = Distribution::of(cutovers);
    report.failover_pause_us = Distribution::of(failovers);
    report.cutovers = report.cutover_pause_us.count + report.failover_pause_us.count;
    report.latency_us = measure::latencies(exchanges, held);
    report.steps = site.shown().timeline().events().steps.clone();
}
