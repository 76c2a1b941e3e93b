//! Has faults happen: each begins at random, lasts a while, and is healed at the latest when the storm is over.
//!
//! # Invariants
//!
//! * [`heal`] mends everything that a fault breaks.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use segue_coordination::store::Store as _;
use segue_protocol::ids::{Incarnation, PartitionId};
use segue_protocol::records::{PodLoad, PodStatus, Thousandths, encode};
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::by_hand::{by_hand, set_status};
use crate::contract::Author;
use crate::fault::Fault;
use crate::site::{Member, Site};
use crate::store_link::{Heartbeats, Refuses};
use crate::world::World;

/// The name of a router that joins for a while.
const JOINING: &str = "r9";

/// Has things go wrong until `until`.
pub(crate) async fn storm(site: Rc<Site>, until: Instant) {
    let world = site.world().clone();
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
            // This one takes its time.
            let lasts = if *fault == Fault::StoreGoesBack { until - Instant::now() } else { lasts };
            spawn_local(befall(site.clone(), *fault, lasts));
        }
    }
}

/// Mends everything, and starts whatever is missing.
pub(crate) fn heal(site: &Site) {
    let world = site.world();
    world.trace.event(format_args!("HEALED"));
    world.store.set_available(true);
    *disk(world) = Duration::ZERO;
    refuse(world, Refuses::Nothing);
    world.network.heal_all();
    for cluster in &site.clusters {
        cluster.breaking.set(0);
        if let Some(joined) = cluster.router(JOINING) {
            joined.shut_down();
        }
    }
    for Member { process, link, .. } in site.members() {
        process.resume();
        link.set_cut(false);
        link.set_stalled(false);
        link.set_heartbeats(Heartbeats::Pass);
    }
    site.parts().iter().for_each(|part| part.resume());
    site.complete();
}

/// Restores a backup after an outage, unless the storm would be over by then.
async fn go_back(site: Rc<Site>, until: Instant) {
    let world = site.world().clone();
    let ttl = world.setting.lease_ttl;
    let (since_backup, away) = (world.rng.fork().millis(10..=2_000), ttl * 3 / 2);
    if Instant::now() + since_backup + away >= until || site.goes_back.replace(true) {
        return;
    }
    let backup = world.store.back_up();
    sleep(since_backup).await;
    for cluster in &site.clusters {
        cluster.world.look(Author::Other).await;
    }
    world.store.set_available(false);
    sleep(away).await;
    world.trace.event(format_args!("the store goes back"));
    world.trace.seen("the store went back");
    world.store.restore(&backup);
    world.store.set_available(true);
    for cluster in &site.clusters {
        cluster.world.begin_anew().await;
    }
    site.goes_back.set(false);
}

async fn befall(site: Rc<Site>, fault: Fault, lasts: Duration) {
    let world = site.world().clone();
    let rng = world.rng.fork();
    let (coordinators, routers, pods) = (site.coordinators(), site.routers(), site.pods());
    // A seed with one keyspace draws nothing for it.
    let drawn = if site.clusters.len() > 1 { rng.among(0..=site.clusters.len() as u64 - 1) } else { 0 };
    let cluster = site.clusters[drawn as usize].clone();
    match fault {
        Fault::CrashPod => {
            let Some(pod) = rng.pick(&pods) else { return };
            site.crash_pod(&pod.process);
            sleep(lasts).await;
            site.start_pod(&pod.process.name);
        }
        Fault::CrashRouter => {
            let Some(router) = rng.pick(&routers) else { return };
            router.process.kill();
            sleep(lasts).await;
            site.start_router(&router.process.name);
        }
        Fault::CrashCoordinator => {
            let Some(coordinator) = rng.pick(&coordinators) else { return };
            let process = &coordinator.member.process;
            process.kill();
            sleep(lasts).await;
            site.start_coordinator(&process.name);
        }
        Fault::ShutDownPod => {
            let Some(pod) = rng.pick(&pods) else { return };
            let at_most = rng.millis(500..=8_000);
            join_all(site.parts_of(&pod.process).iter().map(|part| part.handle.shutdown(at_most))).await;
            site.crash_pod(&pod.process);
            sleep(lasts).await;
            site.start_pod(&pod.process.name);
        }
        Fault::ShutDownRouter => {
            let Some(router) = rng.pick(&routers) else { return };
            site.shut_down_router(&router.process);
            while !router.process.is_dead() {
                sleep(Duration::from_millis(50)).await;
            }
            sleep(lasts).await;
            site.start_router(&router.process.name);
        }
        Fault::ShutDownCoordinator => {
            let Some(coordinator) = rng.pick(&coordinators) else { return };
            coordinator.shut_down();
            let process = &coordinator.member.process;
            while !process.is_dead() {
                sleep(Duration::from_millis(50)).await;
            }
            sleep(lasts).await;
            site.start_coordinator(&process.name);
        }
        Fault::PausePod => pause(rng.pick(&pods), lasts).await,
        Fault::PauseRouter => pause(rng.pick(&routers), lasts).await,
        Fault::PauseCoordinator => pause(rng.pick(&coordinators).map(|it| &it.member), lasts).await,
        Fault::CutPod => cut(rng.pick(&pods), lasts).await,
        Fault::CutRouter => cut(rng.pick(&routers), lasts).await,
        Fault::CutCoordinator => cut(rng.pick(&coordinators).map(|it| &it.member), lasts).await,
        Fault::CutTogether => {
            let (Some(router), Some(pod)) = (rng.pick(&routers), rng.pick(&pods)) else { return };
            let both = [router, pod];
            both.iter().for_each(|member| member.link.set_cut(true));
            sleep(lasts * 2).await;
            both.iter().for_each(|member| member.link.set_cut(false));
        }
        Fault::RouterJoins => {
            site.start_router(JOINING);
            sleep(lasts * 2).await;
            if let Some(router) = site.clusters[0].router(JOINING) {
                site.shut_down_router(&router.member.process);
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
            let share = rng.among(5..=60) as u32;
            site.clusters.iter().for_each(|cluster| cluster.breaking.set(share));
            sleep(lasts).await;
            site.clusters.iter().for_each(|cluster| cluster.breaking.set(0));
        }
        Fault::SlowDisk => {
            *disk(&world) = rng.millis(20..=800);
            sleep(lasts).await;
            *disk(&world) = Duration::ZERO;
        }
        Fault::RefuseWrites => {
            site.clusters.iter().for_each(|cluster| cluster.world.contract.writes_are_refused());
            refuse(&world, if rng.percent(50) { Refuses::LonePuts } else { Refuses::Writes });
            sleep(lasts).await;
            refuse(&world, Refuses::Nothing);
        }
        Fault::StoreGoesBack => go_back(site, Instant::now() + lasts).await,
        Fault::StoreOutage => {
            world.store.set_available(false);
            sleep(lasts).await;
            world.store.set_available(true);
        }
        Fault::BreakWatch => {
            if let Some(member) = rng.pick(&site.members()) {
                member.link.break_watches();
            }
        }
        Fault::StallWatch => {
            let members = site.members();
            let Some(member) = rng.pick(&members) else { return };
            member.link.set_stalled(true);
            sleep(lasts).await;
            member.link.set_stalled(false);
        }
        Fault::Compact => {
            // Repeatedly, so that one falls between a snapshot and the watch that continues from it.
            let ends = Instant::now() + lasts;
            while Instant::now() < ends {
                let revision = cluster.world.contract.with_view(|view| view.revision);
                // Refused if it is compacted that far already.
                let _ = world.store.compact(revision);
                if rng.percent(2) {
                    site.members().iter().for_each(|member| member.link.break_watches());
                }
                sleep(rng.millis(1..=10)).await;
            }
        }
        Fault::DeleteHandoff => {
            let world = &cluster.world;
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
            let world = &cluster.world;
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
                site.parts_of(&pod.process).iter().for_each(|part| part.handle.set_draining());
                sleep(lasts).await;
                site.crash_pod(&pod.process);
                site.start_pod(&pod.process.name);
            }
        }
        Fault::SilenceHeartbeats => {
            let Some(pod) = rng.pick(&pods) else { return };
            world.trace.seen("a pod sent no heartbeats");
            pod.link.set_heartbeats(Heartbeats::Fail);
            // Long enough for it to be suspected, by whoever has seen the last one late, too.
            sleep(Duration::from_secs(60)).await;
            pod.link.set_heartbeats(Heartbeats::Pass);
        }
        Fault::DelayHeartbeats => {
            let Some(pod) = rng.pick(&pods) else { return };
            pod.link.set_heartbeats(Heartbeats::Wait(rng.millis(1_000..=4_000)));
            sleep(lasts * 2).await;
            pod.link.set_heartbeats(Heartbeats::Pass);
        }
        Fault::ForgeHeartbeat => {
            let world = &cluster.world;
            let loads = world.contract.with_view(|view| view.loads.clone());
            let loads: Vec<_> = loads.into_iter().collect();
            let Some((pod, load)) = rng.pick(&loads) else { return };
            let absurd = |total, interval_ms| encode(&PodLoad { total, interval_ms, ..load.value.clone() });
            let value = match rng.among(0..=3) {
                0 => b"no JSON".to_vec(),
                1 => absurd(Thousandths(u32::MAX), u64::MAX),
                2 => absurd(Thousandths(0), 0),
                _ => encode(&PodLoad { incarnation: Incarnation::NONE, ..load.value.clone() }),
            };
            world.trace.seen("a heartbeat was written by another hand");
            let put = Op::Put { key: world.keys.load(pod), value, lease: load.lease };
            by_hand(&cluster, Txn { then: vec![put], ..Txn::default() }).await;
        }
        Fault::PausePart => {
            let Some(part) = rng.pick(&site.parts()).cloned() else { return };
            world.trace.event(format_args!("a part of {} stands still", part.name));
            world.trace.seen("a process stood still in one keyspace");
            part.pause();
            sleep(lasts * 2).await;
            part.resume();
        }
    }
}

async fn pause(member: Option<&Member>, lasts: Duration) {
    let Some(Member { process, .. }) = member else { return };
    process.pause();
    sleep(lasts).await;
    process.resume();
}

async fn cut(member: Option<&Member>, lasts: Duration) {
    let Some(Member { link, .. }) = member else { return };
    link.set_cut(true);
    sleep(lasts).await;
    link.set_cut(false);
}

fn refuse(world: &World, what: Refuses) {
    *world.refuses.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = what;
}

fn disk(world: &World) -> std::sync::MutexGuard<'_, Duration> {
    world.disk.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
