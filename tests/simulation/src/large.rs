//! A site of a given size without faults: how long its first placement, a pod's death and its return take in simulated
//! time, and how many changes the store sends for each move.
//!
//! Not for: finding faults, which seeds with small clusters and many faults do; and how long a real store takes, which
//! `make scale` measures. Beyond [`MOST_CHECKED`] partitions the store's calls are not checked one by one: each check reads
//! all keys. The epochs and the outcome of each step are.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use segue_coordination::jitter;
use segue_coordination::session::count_by_tokio;
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::planning::{Coordination, Strategy};
use segue_protocol::records::{Capabilities, Mode};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use crate::contract::Author;
use crate::run::what_is_not_well;
use crate::setting::Setting;
use crate::site::Site;
use crate::trace::Violation;
use crate::world::World;

/// How long a step may take, in simulated time.
const PATIENCE: Duration = Duration::from_secs(7_200);
/// How often a look at the site is worth its cost, in simulated time.
const LOOK: Duration = Duration::from_millis(100);
/// The same for a site that is too large to have each call checked.
const RARE_LOOK: Duration = Duration::from_secs(10);
/// Most partitions of a site, over all keyspaces, whose store's calls are checked.
const MOST_CHECKED: u64 = 1_024;

/// Most reasons that are told of a step which does not end.
const MOST_REASONS: usize = 16;

/// The size of a site.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Keyspaces, in each of which every process takes part.
    pub keyspaces: u64,
    /// Processes.
    pub routers: u64,
    /// Processes.
    pub pods: u64,
    /// Of each keyspace.
    pub partitions: u32,
}

impl Size {
    /// Whether each call of the store is checked.
    pub fn checks_calls(&self) -> bool {
        self.keyspaces * u64::from(self.partitions) <= MOST_CHECKED
    }
}

/// What a step took.
#[derive(Debug)]
pub struct Step {
    /// What happened.
    pub name: &'static str,
    /// From the event until every router leads to the owners.
    pub simulated: Duration,
    /// Partitions that have changed owners, in all keyspaces.
    pub moves: u64,
    /// Changes of keys that the store sent to watches.
    pub delivered: u64,
}

/// Plays the steps one after the other. Must not be called inside a runtime.
pub fn run_large(seed: u64, size: Size) -> io::Result<(Vec<Step>, Vec<Violation>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    jitter::seed(seed);
    Ok(LocalSet::new().block_on(&runtime, async move {
        count_by_tokio();
        let site = Site::start(World::all(seed, None, false, |setting| resize(setting, size)));
        let mut steps = vec![take_step(&site, "first placement", || {}).await];
        let pod = site.clusters[0].pods().into_iter().next();
        if let Some(pod) = pod.filter(|_| size.pods > 1) {
            steps.push(take_step(&site, "a pod dies", || site.crash_pod(&pod.member.process)).await);
            steps.push(take_step(&site, "a pod joins", || site.complete()).await);
        }
        (steps, site.world().trace.finish().violations)
    }))
}

/// A site at peace, with the defaults of production where they matter here.
fn resize(setting: &mut Setting, size: Size) {
    let Size { keyspaces, routers, pods, partitions } = size;
    (setting.keyspaces, setting.routers, setting.pods, setting.partitions) = (keyspaces, routers, pods, partitions);
    setting.capabilities = Capabilities { sync: false, drained: true, released: false, fence: true, checkpoint: false };
    (setting.coordinators, setting.clients, setting.drift) = (2, 0, 0);
    setting.lease_ttl = Duration::from_secs(10);
    setting.faults.clear();
    setting.checks_calls = size.checks_calls();
    let policy = &mut setting.policy;
    (policy.partitions, policy.strategy) = (partitions, Strategy::Sticky);
    (policy.coordination, policy.mode) = (Coordination::Leader, Mode::Barrier);
    (policy.max_concurrent_handoffs, policy.max_warming_per_pod) = (64, 8);
    (policy.cool_down, policy.balance_load) = (Duration::ZERO, false);
    (policy.warm_timeout, policy.phase_timeout) = (PATIENCE, PATIENCE);
}

async fn take_step(site: &Rc<Site>, name: &'static str, happens: impl FnOnce()) -> Step {
    let (began, before, delivered) = (Instant::now(), epochs(site), delivered(site));
    happens();
    let checks = site.world().setting.checks_calls;
    loop {
        sleep(if checks { LOOK } else { RARE_LOOK }).await;
        let mut why = Vec::new();
        for cluster in &site.clusters {
            match checks {
                true => cluster.world.look(Author::Other).await,
                false => cluster.world.follow().await,
            }
            why.extend(what_is_not_well(cluster));
        }
        if why.is_empty() && moves_since(site, &before) > 0 || site.world().trace.is_broken() {
            break;
        }
        if began.elapsed() > PATIENCE {
            why.truncate(MOST_REASONS);
            site.world().trace.violation("converges", why.join("; "));
            break;
        }
    }
    let delivered = self::delivered(site) - delivered;
    Step { name, simulated: began.elapsed(), moves: moves_since(site, &before), delivered }
}

/// The epochs of a keyspace's partitions.
type Epochs = BTreeMap<PartitionId, Epoch>;

fn epochs(site: &Site) -> Vec<Epochs> {
    site.clusters.iter().map(|cluster| cluster.world.contract.epochs()).collect()
}

/// How many partitions have changed owners.
fn moves_since(site: &Site, before: &[Epochs]) -> u64 {
    let changed = |(now, before): (Epochs, &Epochs)| {
        now.iter().filter(|&(partition, epoch)| before.get(partition) != Some(epoch)).count() as u64
    };
    epochs(site).into_iter().zip(before).map(changed).sum()
}

fn delivered(site: &Site) -> u64 {
    site.clusters.iter().map(|cluster| cluster.world.delivered.load(Relaxed)).sum()
}
