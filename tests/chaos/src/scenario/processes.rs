//! Scenarios of Segue's own processes, and of records that are edited by hand.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::RngExt as _;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Phase;
use segue_protocol::txn::{Keys, Op};
use segue_tests::http::Response;

use super::failover::Death;
use super::{JOINER, in_phase, is_registered, leave, probe};
use crate::cluster::{COORDINATORS, LEASE_TTL, MAX_WAIT, PODS, ROUTERS};
use crate::fault::TERMINATE;
use crate::network::Cut;
use crate::run::{REST, Stage};

pub(super) fn stuck_router(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let stuck = ROUTERS[1];
    stage.cluster.stop(stuck);
    stage.cluster.start(JOINER)?;
    let waits = stage.until(LEASE_TTL, |stage| in_phase(stage, Phase::Ready).is_some());
    let before = stage.seen();
    // Whatever flips now flips without the router that is still registered: the contract is checked at each.
    let gone = stage.until(2 * LEASE_TTL, |stage| !is_registered(stage, stuck));
    let meanwhile = stage.seen().moved - before.moved;
    stage.until(LEASE_TTL, |stage| stage.seen().moved > before.moved);
    stage.timeline.say(&format!(
        "  handoffs waited: {waits}; {meanwhile} owners changed before the stuck router's lease was gone: {gone}"
    ));
    stage.pause(500);
    stage.cluster.resume(stuck);
    leave(stage);
    Ok(())
}

pub(super) fn router_joins_midway(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let (slow, joins) = (ROUTERS[0], ROUTERS[2]);
    stage.cluster.kill(joins);
    stage.until(2 * LEASE_TTL, |stage| !is_registered(stage, joins));
    // Holds handoffs in their middle, for less than its lease lasts.
    stage.cluster.stop(slow);
    stage.cluster.start(JOINER)?;
    stage.until(LEASE_TTL / 2, |stage| in_phase(stage, Phase::Ready).is_some());
    stage.cluster.start(joins)?;
    let joined = stage.until(LEASE_TTL / 2, |stage| is_registered(stage, joins));
    let midway = in_phase(stage, Phase::Ready).is_some();
    stage.timeline.say(&format!("  the router has joined: {joined}, with handoffs in Ready: {midway}"));
    stage.cluster.resume(slow);
    leave(stage);
    Ok(())
}

pub(super) fn handoff_deleted(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let slow = ROUTERS[2];
    stage.cluster.stop(slow);
    stage.cluster.start(JOINER)?;
    stage.until(LEASE_TTL, |stage| in_phase(stage, Phase::Ready).is_some());
    if let Some(partition) = in_phase(stage, Phase::Ready) {
        let key = stage.history.keys().handoff(partition);
        stage.timeline.say(&format!("  deleting {key}"));
        stage.history.by_hand(Op::Delete(Keys::One(key)))?;
    }
    stage.pause(300);
    stage.cluster.resume(slow);
    leave(stage);
    Ok(())
}

pub(super) fn all_pods_die(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pods = stage.cluster.running(&PODS);
    pods.iter().for_each(|pod| stage.cluster.kill(pod));
    let router = stage.cluster.routers()[0];
    let begun = Instant::now();
    let response = probe(PartitionId::new(0), router);
    let took = begun.elapsed();
    let seen = response.map(|Response { status, head, .. }| {
        let says = head.lines().find(|line| line.starts_with("segue-reason")).unwrap_or("no reason").to_owned();
        (status, head.contains("retry-after: "), says)
    });
    stage.timeline.say(&format!("  a held request was answered after {:.1} s: {seen:?}", took.as_secs_f64()));
    if !matches!(seen, Some((503, true, _))) || took > MAX_WAIT + Duration::from_secs(2) {
        stage.verdict.add("unbounded", format!("without pods a request was answered after {took:?}: {seen:?}"));
    }
    for pod in pods {
        stage.cluster.start(pod)?;
    }
    Ok(())
}

pub(super) fn new_owner_refuses(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let before = stage.seen();
    let pairs = ROUTERS.map(|router| (router, JOINER));
    stage.cluster.network.cut(&pairs, Cut::RefusedOneWay)?;
    stage.cluster.start(JOINER)?;
    let owns = |stage: &Stage<'_>| {
        stage.history.seen().view.assignments.values().any(|assignment| assignment.value.owner == JOINER)
    };
    // A scenario before may have ended it in the midst of a move, for which the coordinator shuns its name for a while.
    let owned = stage.until(REST, owns);
    stage.pause(500);
    stage.cluster.network.heal(&pairs, Cut::RefusedOneWay)?;
    stage.settle();
    let errors = stage.errors();
    if !owned || errors != before.errors {
        stage.verdict.add("unheld", format!("owned: {owned}; errors before {:?}, then {errors:?}", before.errors));
    }
    leave(stage);
    Ok(())
}

pub(super) fn rolling_restart(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pods = stage.cluster.running(&PODS);
    for name in pods.into_iter().chain(COORDINATORS).chain(ROUTERS) {
        stage.cluster.terminate(&[name], TERMINATE);
        stage.cluster.start(name)?;
        stage.pause(300);
    }
    Ok(())
}

pub(super) fn unread_log(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let unread = [ROUTERS[1], stage.cluster.leader().unwrap_or(COORDINATORS[0])];
    stage.cluster.terminate(&unread, TERMINATE);
    unread.iter().for_each(|name| stage.cluster.start_unread(name));
    stage.settle();
    let begun = Instant::now();
    for name in unread {
        if !stage.until(REST, |stage| stage.cluster.has_dropped_lines(name)) {
            stage.verdict.add("unread_log", format!("{name} tells of no line that found the queue of its log full"));
        }
    }
    stage.timeline.say(&format!("  the queues of both logs were full after {:.1} s", begun.elapsed().as_secs_f64()));
    // Each of them has something to say about this.
    stage.cluster.kill(PODS[2]);
    let (partition, router) = (PartitionId::new(0), stage.cluster.routers()[1]);
    let unanswered = (0..20).filter(|_| {
        stage.pause(250);
        probe(partition, router).is_none_or(|response| response.status >= 500)
    });
    let unanswered = unanswered.count();
    if unanswered > 0 {
        stage.verdict.add("unheld", format!("a router whose log nobody reads answered {unanswered} of 20 with errors"));
    }
    for name in unread.into_iter().filter(|name| !stage.cluster.is_ready(name)) {
        stage.verdict.add("unread_log", format!("{name} is not ready though nobody needs to read its log"));
    }
    stage.cluster.start(PODS[2])?;
    stage.settle();
    stage.cluster.terminate(&unread, TERMINATE);
    unread.iter().try_for_each(|name| stage.cluster.start(name))
}

/// Lives of the pod that crashes.
const LIVES: u32 = 6;
/// In so many of them, the last, it gets nothing.
const LIVES_WITHOUT: usize = 3;
/// Milliseconds that each lasts.
const LIFE: u64 = 900;

pub(super) fn crash_loop(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let (pod, other) = (PODS[1], PODS[2]);
    let owns = |stage: &Stage<'_>| stage.history.seen().view.assignments.values().any(|one| one.value.owner == other);
    ensure!(stage.until(REST, owns), "{other} owns nothing after {REST:?}");
    let (in_life, after) = (stage.random.random_range(0..LIVES), stage.random.random_range(0..LIFE));
    let mut death = None;
    let life = |stage: &Stage<'_>| stage.history.seen().view.pods.get(pod).map(|record| record.incarnation());
    let mut last = None;
    let mut owned_in_each_life = Vec::new();
    for number in 0..LIVES {
        stage.cluster.start(pod)?;
        stage.until(REST, |stage| life(stage).is_some_and(|now| Some(now) != last));
        last = life(stage);
        if number == in_life {
            stage.pause(after);
            stage.timeline.say(&format!("  {other} dies {after} ms after life {number} of {pod} began"));
            death = Some(Death::inflict(stage, other));
            stage.pause(LIFE - after);
        } else {
            stage.pause(LIFE);
        }
        let seen = stage.history.seen();
        let owned = seen.view.assignments.values().filter(|one| Some(one.value.incarnation) == last).count();
        drop(seen);
        owned_in_each_life.push(owned);
        stage.cluster.kill(pod);
    }
    stage.timeline.say(&format!("  partitions of {pod} in each life: {owned_in_each_life:?}"));
    if owned_in_each_life.iter().rev().take(LIVES_WITHOUT).any(|owned| *owned > 0) {
        stage.verdict.add("crash_loop", format!("{pod} died in each life and owned {owned_in_each_life:?} partitions"));
    }
    stage.cluster.start(pod)?;
    death.map_or(Ok(()), |death| death.conclude(stage))
}
