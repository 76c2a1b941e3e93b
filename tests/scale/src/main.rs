//! Measures a keyspace with many pods, routers and partitions on a real etcd: how long the first placement, the join of a
//! pod and the death of a pod take, what each writes, and what it costs every participant.
//!
//! etcd waits for its disk. The coordinator and the routers are processes of `segue run`, the executable beside this one.
//! All pods are `PodHandle`s in this process, with a session and a watch each; their callbacks return at once. [`site`]
//! starts and changes the keyspace, [`meters`] reads what that costs.
//!
//! # Invariants
//!
//! * A step is over when every partition has a living owner and nothing moves. A step that does not end is an error.

#![allow(clippy::print_stdout, reason = "it reports on stdout")]

mod meters;
mod routers;
mod service_pods;
mod site;
mod users;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;

use self::meters::{Cost, rss_mib};
use self::service_pods::ParticipationMode;
use self::site::{Site, Size};

/// Measures a large keyspace on a real etcd. The last line of the output is for programs.
#[derive(Debug, Parser)]
#[command(name = "segue-scale", version)]
struct Arguments {
    /// Number of pods.
    #[arg(long, default_value_t = 100)]
    pods: u32,
    /// Number of routers.
    #[arg(long, default_value_t = 10)]
    routers: u32,
    /// Number of partitions.
    #[arg(long, default_value_t = 65_536)]
    partitions: u32,
    /// Most moves in flight at a time: coordinator.max_concurrent_handoffs.
    #[arg(long, default_value_t = 512)]
    at_once: u32,
    /// TTL of all leases, in seconds. On a machine that has more to do, leases of usual length end.
    #[arg(long, default_value_t = 10)]
    lease: u64,
    /// Longest time of a step, in seconds.
    #[arg(long, default_value_t = 1800)]
    patience: u64,
    /// Instead: so many processes at an etcd with users, until all are ready after a start and after a restart of etcd.
    #[arg(long, value_name = "PROCESSES")]
    users: Option<u32>,
    /// Pods that have something to warm, so that the first placement is one of handoffs.
    #[arg(long)]
    warms: bool,
    /// Routers without a data plane, all in this process: their store traffic alone.
    #[arg(long)]
    without_data_plane: bool,
    /// Instead: so many pods that poll the pods' service, at rest and while some leave.
    #[arg(long, value_name = "PODS")]
    polled: Option<u32>,
    /// The same with streams.
    #[arg(long, value_name = "PODS", conflicts_with = "polled")]
    streamed: Option<u32>,
    /// With --polled or --streamed: the instances of the service.
    #[arg(long, default_value_t = 2)]
    instances: u32,
    /// 10 pods, 2 routers and 4,096 partitions.
    #[arg(long)]
    short: bool,
}

impl Arguments {
    fn size(&self) -> Size {
        let Arguments { pods, routers, partitions, at_once, warms, without_data_plane, .. } = *self;
        let lease = Duration::from_secs(self.lease);
        match self.short {
            true => Size { pods: 10, routers: 2, partitions: 4_096, at_once, lease, warms: true, without_data_plane },
            false => Size { pods, routers, partitions, at_once, lease, warms, without_data_plane },
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(processes) = arguments.users {
        return ended(users::measure(processes, Duration::from_secs(arguments.patience)));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = runtime.map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            let patience = Duration::from_secs(arguments.patience);
            match (arguments.polled, arguments.streamed) {
                (Some(pods), _) => {
                    service_pods::measure(ParticipationMode::Poll, pods, arguments.instances, patience).await
                }
                (None, Some(pods)) => {
                    service_pods::measure(ParticipationMode::Stream, pods, arguments.instances, patience).await
                }
                (None, None) => run(&arguments).await,
            }
        })
    });
    ended(done)
}

fn ended(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("scale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (size, patience) = (arguments.size(), Duration::from_secs(arguments.patience));
    let mut site = Site::start(size).await?;
    println!("{HEAD}");
    let start = step("first placement", &mut site, patience, Site::lead).await?;
    let join = step("a pod joins", &mut site, patience, Site::join).await?;
    let death = step("a pod dies", &mut site, patience, Site::lose).await?;
    let routers = site.routers();
    let largest = routers.iter().copied().map(rss_mib).fold(0.0, f64::max);
    println!(
        "memory in MiB: coordinator {:.0}, largest router {largest:.0}, harness with all {} pods {:.0}, etcd {:.0}",
        rss_mib(site.coordinator()),
        size.pods,
        rss_mib(std::process::id()),
        site.etcd().metric("process_resident_memory_bytes").unwrap_or(0.0) / f64::from(1 << 20),
    );
    let moves = [&start, &join, &death].map(|cost| cost.moves).iter().sum::<u64>().max(1);
    let writes: f64 = [&start, &join, &death].map(|cost| cost.puts + cost.deletes).iter().sum();
    println!(
        "scale: pods={} routers={} partitions={} start_s={:.1} join_s={:.1} death_s={:.1} writes_per_move={:.1} \
         changes_per_move={:.0}",
        size.pods,
        size.routers,
        size.partitions,
        start.took.as_secs_f64(),
        join.took.as_secs_f64(),
        death.took.as_secs_f64(),
        writes / moves as f64,
        join.changes / join.moves.max(1) as f64,
    );
    ensure!(
        !arguments.short
            || (writes / moves as f64 <= SHORT_WRITES && join.changes <= SHORT_CHANGES * join.moves as f64),
        "a move costs more than {SHORT_WRITES} writes, or a move to a pod that joins more than {SHORT_CHANGES} changes"
    );
    Ok(())
}

/// Most writes a move with `--short`: 4 of each first placement, and some 18 of each other move.
const SHORT_WRITES: f64 = 6.5;
/// Most changes to the 15 watches that a move to a pod that joins brings with `--short`: 13 to each, and 8 to the coordinator.
const SHORT_CHANGES: f64 = 225.0;

const HEAD: &str = "\
step                    time, s   moves  per move: txns   puts deletes  changes  sent to each, KiB  watches  CPU, s: coordinator   router  harness     etcd";

async fn step(
    name: &str,
    site: &mut Site,
    patience: Duration,
    begin: impl AsyncFnOnce(&mut Site) -> anyhow::Result<()>,
) -> anyhow::Result<Cost> {
    let before = site.meters().await?;
    begin(site).await?;
    let (took, moves) = site.settled(patience).await?;
    let cost = site.meters().await?.since(&before, took, moves);
    let per_move = |count: f64| count / moves.max(1) as f64;
    println!(
        "{name:20}{:11.1}{moves:8}{:16.1}{:7.1}{:8.1}{:9.1}{:19.2}{:9}{:21.1}{:9.1}{:9.1}{:9.1}",
        took.as_secs_f64(),
        per_move(cost.transactions),
        per_move(cost.puts),
        per_move(cost.deletes),
        per_move(cost.changes),
        per_move(cost.sent_bytes) / 1024.0 / cost.watches.max(1.0),
        cost.watches,
        cost.coordinator_cpu.as_secs_f64(),
        cost.router_cpu.as_secs_f64(),
        cost.harness_cpu.as_secs_f64(),
        cost.etcd_cpu.as_secs_f64(),
    );
    Ok(cost)
}
