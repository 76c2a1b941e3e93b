//! Faults: each begins at random, lasts a while, and is healed at the latest when the storm is over.
//!
//! # Invariants
//!
//! * [`heal`] mends everything that a fault breaks.

use std::rc::Rc;
use std::time::Duration;

use segue_coordination::store::Store as _;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{PodRecord, PodStatus, encode};
use segue_protocol::registration::clear;
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Member};
use crate::contract::Author;
use crate::setting::Row;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    CrashPod,
    CrashRouter,
    CrashCoordinator,
    ShutDownPod,
    ShutDownRouter,
    ShutDownCoordinator,
    PausePod,
    PauseRouter,
    PauseCoordinator,
    CutPod,
    CutRouter,
    CutCoordinator,
    CutLink,
    BreakExchanges,
    SlowDisk,
    StoreOutage,
    BreakWatch,
    StallWatch,
    Compact,
    DeleteHandoff,
    OperatorDrains,
    DrainPod,
    /// A router and a pod lose the store together, but not each other.
    CutTogether,
    /// Another router joins, and leaves properly.
    RouterJoins,
    /// A pod sees nothing new although its calls go through.
    StallPod,
    /// Another hand puts the registration of a pod or router again, without its lease, and perhaps unreadable.
    DetachKey,
}

impl Fault {
    pub(crate) const ALL: [Fault; 26] = [
        Fault::CrashPod,
        Fault::CrashRouter,
        Fault::CrashCoordinator,
        Fault::ShutDownPod,
        Fault::ShutDownRouter,
        Fault::ShutDownCoordinator,
        Fault::PausePod,
        Fault::PauseRouter,
        Fault::PauseCoordinator,
        Fault::CutPod,
        Fault::CutRouter,
        Fault::CutCoordinator,
        Fault::CutLink,
        Fault::BreakExchanges,
        Fault::SlowDisk,
        Fault::StoreOutage,
        Fault::BreakWatch,
        Fault::StallWatch,
        Fault::Compact,
        Fault::DeleteHandoff,
        Fault::OperatorDrains,
        Fault::DrainPod,
        Fault::CutTogether,
        Fault::RouterJoins,
        Fault::StallPod,
        Fault::DetachKey,
    ];

    /// Whether the protocol promises anything to pods of this row under the fault.
    pub(crate) fn is_allowed(self, row: Row) -> bool {
        match self {
            // No router may die or lose its lease, and no exchange break with work in a pod.
            Fault::CrashRouter
            | Fault::ShutDownRouter
            | Fault::PauseRouter
            | Fault::CutRouter
            | Fault::CutLink
            | Fault::BreakExchanges
            | Fault::StoreOutage
            | Fault::StallWatch
            | Fault::CutTogether
            | Fault::SlowDisk => row != Row::Plain,
            _ => true,
        }
    }

    /// Whether `independent` mode keeps its promises under it.
    pub(crate) fn spares_single_router(self) -> bool {
        matches!(
            self,
            Fault::CrashPod
                | Fault::ShutDownPod
                | Fault::CrashCoordinator
                | Fault::ShutDownCoordinator
                | Fault::PauseCoordinator
                | Fault::CutCoordinator
                | Fault::DrainPod
                | Fault::OperatorDrains
                | Fault::Compact
        )
    }
}

/// Has things go wrong until `until`.
pub(crate) async fn storm(cluster: Rc<Cluster>, until: Instant) {
    let world = cluster.world.clone();
    let (setting, rng) = (&world.setting, world.rng.fork());
    loop {
        sleep(rng.millis(200..=setting.fault_rest_ms)).await;
        if Instant::now() >= until {
            return;
        }
        if let Some(fault) = rng.pick(&setting.faults) {
            let lasts = match rng.percent(50) {
                true => rng.millis(10..=1_000),
                // Longer than a lease.
                false => rng.millis(1_000..=setting.lease_ttl.as_millis() as u64 * 5 / 2),
            };
            let lasts = lasts.min(until - Instant::now());
            world.trace.event(format_args!("FAULT {fault:?} for {lasts:?}"));
            spawn_local(befall(cluster.clone(), *fault, lasts));
        }
    }
}

/// An operator writes a pod's status by hand.
async fn set_status(cluster: &Cluster, pod: &str, status: PodStatus) {
    let world = &cluster.world;
    world.look(Author::Other).await;
    let own = world.contract.with_view(|view| view.pods.get(pod).cloned()).filter(|own| own.value.status != status);
    let (Some(own), key) = (own, world.keys.pod(pod)) else { return };
    let Ok(snapshot) = world.store.snapshot(&Keys::One(key.clone())).await else { return };
    let Some(entry) = snapshot.entries.first() else { return };
    let value = encode(&PodRecord { status, ..own.value });
    let when = vec![Compare::unchanged_since(key.clone(), own.mod_revision)];
    by_hand(cluster, Txn { when, then: vec![Op::Put { key, value, lease: entry.lease }], otherwise: None }).await;
}

/// The operator takes back what he has written.
pub(crate) async fn undrain(cluster: &Cluster) {
    for pod in cluster.pods() {
        set_status(cluster, &pod.process.name, PodStatus::Ready).await;
    }
}

/// Mends everything, and starts whatever is missing.
pub(crate) fn heal(cluster: &Cluster) {
    let world = &cluster.world;
    world.trace.event(format_args!("HEALED"));
    world.store.set_available(true);
    *disk(cluster) = Duration::ZERO;
    world.network.heal_all();
    cluster.breaking.set(0);
    if let Some(joined) = cluster.router("r9") {
        joined.shut_down();
    }
    for Member { process, link } in cluster.members() {
        process.resume();
        link.set_cut(false);
        link.set_stalled(false);
    }
    cluster.complete();
}

/// An operator forgets registrations that have stood without a lease for so long that nobody can be going to put them back.
pub(crate) async fn forget(cluster: Rc<Cluster>) {
    let world = &cluster.world;
    sleep(world.setting.lease_ttl * 2).await;
    world.look(Author::Other).await;
    let keys: Vec<String> =
        world.contract.with_view(|view| view.leaseless().chain(view.malformed.keys().cloned()).collect());
    for key in keys {
        let Ok(snapshot) = world.store.snapshot(&Keys::One(key.clone())).await else { return };
        if let Some(entry) = snapshot.entries.first().filter(|entry| entry.lease.is_none()) {
            world.trace.event(format_args!("{key} is forgotten"));
            by_hand(&cluster, clear(&key, entry.mod_revision)).await;
        }
    }
}

fn disk(cluster: &Cluster) -> std::sync::MutexGuard<'_, Duration> {
    cluster.world.disk.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

async fn befall(cluster: Rc<Cluster>, fault: Fault, lasts: Duration) {
    let world = cluster.world.clone();
    let rng = world.rng.fork();
    let (coordinators, routers, pods) = (cluster.coordinators(), cluster.routers(), cluster.pods());
    match fault {
        Fault::CrashPod => {
            let Some(pod) = rng.pick(&pods) else { return };
            pod.crash();
            sleep(lasts).await;
            cluster.start_pod(&pod.process.name);
        }
        Fault::CrashRouter => {
            let Some(router) = rng.pick(&routers) else { return };
            router.process.kill();
            sleep(lasts).await;
            cluster.start_router(&router.process.name);
        }
        Fault::CrashCoordinator => {
            let Some(coordinator) = rng.pick(&coordinators) else { return };
            let Member { process, .. } = coordinator.member();
            process.kill();
            sleep(lasts).await;
            cluster.start_coordinator(&process.name);
        }
        Fault::ShutDownPod => {
            let Some(pod) = rng.pick(&pods).cloned() else { return };
            pod.handle.shutdown(rng.millis(500..=8_000)).await;
            pod.crash();
            sleep(lasts).await;
            cluster.start_pod(&pod.process.name);
        }
        Fault::ShutDownRouter => {
            let Some(router) = rng.pick(&routers) else { return };
            router.shut_down();
            while !router.process.is_dead() {
                sleep(Duration::from_millis(50)).await;
            }
            sleep(lasts).await;
            cluster.start_router(&router.process.name);
        }
        Fault::ShutDownCoordinator => {
            let Some(coordinator) = rng.pick(&coordinators) else { return };
            coordinator.shut_down();
            let Member { process, .. } = coordinator.member();
            while !process.is_dead() {
                sleep(Duration::from_millis(50)).await;
            }
            sleep(lasts).await;
            cluster.start_coordinator(&process.name);
        }
        Fault::PausePod => pause(rng.pick(&pods).map(|pod| pod.member()), lasts).await,
        Fault::PauseRouter => pause(rng.pick(&routers).map(|router| router.member()), lasts).await,
        Fault::PauseCoordinator => pause(rng.pick(&coordinators).map(|it| it.member()), lasts).await,
        Fault::CutPod => cut(rng.pick(&pods).map(|pod| pod.member()), lasts).await,
        Fault::CutRouter => cut(rng.pick(&routers).map(|router| router.member()), lasts).await,
        Fault::CutCoordinator => cut(rng.pick(&coordinators).map(|it| it.member()), lasts).await,
        Fault::CutTogether => {
            let (Some(router), Some(pod)) = (rng.pick(&routers), rng.pick(&pods)) else { return };
            let both = [router.member(), pod.member()];
            both.iter().for_each(|member| member.link.set_cut(true));
            sleep(lasts * 2).await;
            both.iter().for_each(|member| member.link.set_cut(false));
        }
        Fault::RouterJoins => {
            let name = "r9";
            cluster.start_router(name);
            sleep(lasts * 2).await;
            if let Some(router) = cluster.router(name) {
                router.shut_down();
            }
        }
        Fault::StallPod => {
            let Some(pod) = rng.pick(&pods) else { return };
            pod.link.set_stalled(true);
            sleep(lasts).await;
            pod.link.set_stalled(false);
        }
        Fault::CutLink => {
            let (Some(router), Some(pod)) = (rng.pick(&routers), rng.pick(&pods)) else { return };
            let (router, pod) = (router.process.name.clone(), pod.process.name.clone());
            world.network.cut(&router, &pod);
            sleep(lasts).await;
            world.network.heal(&router, &pod);
        }
        Fault::BreakExchanges => {
            cluster.breaking.set(rng.among(5..=60) as u32);
            sleep(lasts).await;
            cluster.breaking.set(0);
        }
        Fault::SlowDisk => {
            *disk(&cluster) = rng.millis(20..=800);
            sleep(lasts).await;
            *disk(&cluster) = Duration::ZERO;
        }
        Fault::StoreOutage => {
            world.store.set_available(false);
            sleep(lasts).await;
            world.store.set_available(true);
        }
        Fault::BreakWatch => {
            if let Some(member) = rng.pick(&cluster.members()) {
                member.link.break_watches();
            }
        }
        Fault::StallWatch => {
            let members = cluster.members();
            let Some(member) = rng.pick(&members) else { return };
            member.link.set_stalled(true);
            sleep(lasts).await;
            member.link.set_stalled(false);
        }
        Fault::Compact => {
            // Repeatedly, so that one falls between a snapshot and the watch that continues from it.
            let ends = Instant::now() + lasts;
            while Instant::now() < ends {
                let revision = world.contract.with_view(|view| view.revision);
                // Refused if it is compacted that far already.
                let _ = world.store.compact(revision);
                if rng.percent(2) {
                    cluster.members().iter().for_each(|member| member.link.break_watches());
                }
                sleep(rng.millis(1..=10)).await;
            }
        }
        Fault::DeleteHandoff => {
            let standing: Vec<PartitionId> = world.contract.with_view(|view| view.handoffs.keys().copied().collect());
            let Some(partition) = rng.pick(&standing) else { return };
            let key = Keys::One(world.keys.handoff(*partition));
            by_hand(&cluster, Txn { then: vec![Op::Delete(key)], ..Txn::default() }).await;
        }
        Fault::OperatorDrains => {
            let Some(pod) = rng.pick(&pods) else { return };
            set_status(&cluster, &pod.process.name, PodStatus::Draining).await;
            sleep(lasts).await;
            set_status(&cluster, &pod.process.name, PodStatus::Ready).await;
        }
        Fault::DetachKey => {
            let keys = world.contract.with_view(|view| {
                let pods = view.pods.keys().map(|pod| world.keys.pod(pod));
                pods.chain(view.routers.keys().map(|router| world.keys.router(router))).collect::<Vec<_>>()
            });
            let Some(key) = rng.pick(&keys) else { return };
            let Ok(snapshot) = world.store.snapshot(&Keys::One(key.clone())).await else { return };
            let Some(entry) = snapshot.entries.into_iter().next() else { return };
            world.trace.event(format_args!("{key} is detached from its lease"));
            world.trace.seen("a registration was detached from its lease");
            let value = if rng.percent(30) { b"no JSON".to_vec() } else { entry.value };
            let when = vec![Compare::created_at(key.clone(), entry.create_revision)];
            let put = Op::Put { key: key.clone(), value, lease: None };
            by_hand(&cluster, Txn { when, then: vec![put], otherwise: None }).await;
        }
        Fault::DrainPod => {
            if let Some(pod) = rng.pick(&pods).filter(|_| pods.len() > 1) {
                pod.handle.set_draining();
                sleep(lasts).await;
                pod.crash();
                cluster.start_pod(&pod.process.name);
            }
        }
    }
}

async fn by_hand(cluster: &Cluster, txn: Txn) {
    let world = &cluster.world;
    world.look(Author::Other).await;
    // An operator gives up when the store is out of reach.
    let _ = world.store.commit(txn).await;
    world.look(Author::Operator).await;
}

async fn pause(member: Option<Member>, lasts: Duration) {
    let Some(Member { process, .. }) = member else { return };
    process.pause();
    sleep(lasts).await;
    process.resume();
}

async fn cut(member: Option<Member>, lasts: Duration) {
    let Some(Member { link, .. }) = member else { return };
    link.set_cut(true);
    sleep(lasts).await;
    link.set_cut(false);
}
