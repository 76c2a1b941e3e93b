//! One seed from beginning to end: a cluster starts, faults happen for a while, then they stop and the cluster must
//! recover.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use segue_coordination::jitter;
use segue_coordination::router::DataPlane as _;
use segue_coordination::session::count_by_tokio;
use segue_protocol::handoff::router::GateStage;
use segue_protocol::ids::PartitionId;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

use crate::by_hand;
use crate::client::client;
use crate::cluster::Cluster;
use crate::contract::Author;
use crate::faults;
use crate::router::WEIGHT;
use crate::sabotage::Sabotage;
use crate::site::Site;
use crate::trace::Violation;
use crate::world::World;

/// How long everything may take to become well once nothing goes wrong any more: a partition's first back-offs, a
/// request that is worked on for long, the longest wait.
const CALM: Duration = Duration::from_secs(120);

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Everything follows from it.
    pub seed: u64,
    /// A rule that is broken on purpose.
    pub sabotage: Option<Sabotage>,
    /// Whether the history is to be kept as text.
    pub keeps_lines: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Tells two histories apart.
    pub hash: u64,
    /// How many events there were.
    pub events: u64,
    /// How many requests were made, and how many done.
    pub requests: (u64, u64),
    /// How long it took, in simulated time.
    pub simulated: Duration,
    /// What was seen, and how often.
    pub seen: BTreeMap<&'static str, u64>,
    /// The promises that were broken. The run ends with the first.
    pub violations: Vec<Violation>,
    /// The history, if it was to be kept.
    pub lines: Vec<String>,
}

/// Runs a seed. Must not be called inside a runtime.
pub fn run(scenario: Scenario) -> std::io::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let Scenario { seed, sabotage, keeps_lines } = scenario;
    jitter::seed(seed);
    let outcome = LocalSet::new().block_on(&runtime, async move {
        count_by_tokio();
        let began = Instant::now();
        let site = Site::start(World::all(seed, sabotage, keeps_lines, |_| {}));
        play(&site).await;
        let totals = site.clusters.iter().map(|cluster| cluster.world.history.totals());
        let requests = totals.fold((0, 0), |(made, done), (more, of_them)| (made + more, done + of_them));
        let recorded = site.world().trace.finish();
        Outcome {
            seed,
            hash: recorded.hash,
            events: recorded.events,
            requests,
            simulated: began.elapsed(),
            seen: recorded.seen,
            violations: recorded.violations,
            lines: recorded.lines,
        }
    });
    Ok(outcome)
}

async fn play(site: &Rc<Site>) {
    let world = site.world();
    let goes_on = Rc::new(Cell::new(true));
    for cluster in &site.clusters {
        for _ in 0..world.setting.clients {
            let goes_on = goes_on.clone();
            spawn_local(client(cluster.clone(), move || goes_on.get()));
        }
    }
    spawn_local(faults::storm(site.clone(), Instant::now() + world.setting.storm));
    let calm = Instant::now() + world.setting.storm;
    while Instant::now() < calm {
        step(site).await;
        if world.trace.is_broken() {
            return;
        }
    }
    faults::heal(site);
    spawn_local(by_hand::forget(site.clone()));
    // Requests continue: a cluster must recover under load.
    let (deadline, quiet) = (Instant::now() + CALM, Instant::now() + Duration::from_secs(10));
    let mut why = Vec::new();
    while Instant::now() < deadline {
        step(site).await;
        if world.trace.is_broken() {
            return;
        }
        if Instant::now() < quiet {
            continue;
        }
        goes_on.set(false);
        // Who was shutting down when the storm ended is gone only now, and may come back as an operator left it.
        site.complete();
        by_hand::undrain(site).await;
        why = site.clusters.iter().flat_map(|cluster| what_is_not_well(cluster)).collect();
        if why.is_empty() {
            return;
        }
    }
    world.trace.violation("converges", why.join("; "));
}

async fn step(site: &Site) {
    sleep(Duration::from_millis(20)).await;
    for cluster in &site.clusters {
        cluster.world.look(Author::Other).await;
        bounded(cluster);
    }
}

/// Stashes keep within their limits, and know how much they hold.
fn bounded(cluster: &Cluster) {
    let world = &cluster.world;
    for router in cluster.routers() {
        for partition in PartitionId::all(router.table.partitions()) {
            let (stashed, bytes) = router.table.stashed(partition);
            // One that is put back was let in before: limits do not apply to it.
            let most = world.setting.max_requests + router.returned(partition);
            if stashed > most || bytes != stashed * WEIGHT {
                let name = &router.member.process.name;
                let held = format!("{stashed} requests of {bytes} bytes wait for partition {partition} in {name}");
                world.trace.violation("bounded", format!("{held}, {most} at most"));
            }
        }
    }
}

/// Why this cluster is not at rest as it should be.
pub(crate) fn what_is_not_well(cluster: &Cluster) -> Vec<String> {
    let world = &cluster.world;
    let mut why = Vec::new();
    world.contract.with_view(|view| {
        if view.partitions() != world.setting.partitions {
            why.push(format!("the keyspace has {} partitions", view.partitions()));
        }
        if !view.handoffs.is_empty() {
            why.push(format!("handoffs stand: {:?}", view.handoffs));
        }
        for partition in PartitionId::all(world.setting.partitions) {
            if view.live_owner(partition).is_none() {
                why.push(format!("partition {partition} has no live owner"));
            }
        }
    });
    let open = world.history.open();
    if open > 0 {
        why.push(format!("{open} requests have no answer"));
    }
    for router in cluster.routers() {
        for partition in PartitionId::all(router.table.partitions()) {
            let (stage, _) = router.table.stage(partition);
            let (stashed, _) = router.table.stashed(partition);
            let in_flight = router.table.in_flight(partition);
            if stashed > 0 || in_flight > 0 || !leads_to_owner(cluster, partition, &stage) {
                let name = &router.member.process.name;
                why.push(format!("{name}: partition {partition} is {stage:?}, {stashed} wait, {in_flight} in flight"));
            }
        }
    }
    why
}

/// Whether requests go to the partition's owner, which lives, at its epoch.
fn leads_to_owner(cluster: &Cluster, partition: PartitionId, stage: &GateStage) -> bool {
    let GateStage::Open(target) = stage else { return false };
    cluster.world.contract.with_view(|view| {
        view.live_owner(partition).is_some_and(|(assignment, _)| {
            let owner = (&assignment.owner, assignment.incarnation, assignment.epoch);
            owner == (&target.pod, target.incarnation, target.epoch)
        })
    })
}
