//! Scenarios of the store: its members, its disk, its history, and the way to it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::Phase;
use segue_tests::etcd_admin;

use super::{BEYOND_LEASE, JOINER, in_phase, leave, play_fault, probe};
use crate::cluster::{PODS, ROUTERS};
use crate::etcd::MEMBERS;
use crate::fault::{Fault, TERMINATE};
use crate::network::Cut;
use crate::run::{REST, Stage};

pub(super) fn router_and_pod_cut_off(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pairs: Vec<_> = MEMBERS.into_iter().flat_map(|member| [(ROUTERS[0], member), (PODS[0], member)]).collect();
    let whom = format!("{} and {} and etcd", ROUTERS[0], PODS[0]);
    play_fault(stage, Fault::Cut(pairs, Cut::Silent, whom), 2 * BEYOND_LEASE)
}

pub(super) fn compaction(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pairs: Vec<_> = MEMBERS.into_iter().flat_map(|member| [(ROUTERS[1], member), (PODS[1], member)]).collect();
    let mut cut = Fault::Cut(pairs, Cut::Refused, format!("{} and {} and etcd", ROUTERS[1], PODS[1]));
    stage.timeline.say(&format!("  {}", cut.in_words(stage.cluster)));
    cut.inflict(stage.cluster)?;
    stage.cluster.start(JOINER)?;
    stage.pause(2_500);
    let revision = stage.history.catch_up()?;
    let mut compacted = Revision::ZERO;
    for member in stage.cluster.etcd_addresses() {
        if etcd_admin::compact(member, revision.get()).is_ok() {
            compacted = revision;
            break;
        }
    }
    stage.timeline.say(&format!("  history before revision {compacted} is gone"));
    stage.pause(500);
    cut.heal(stage.cluster)?;
    leave(stage);
    Ok(())
}

pub(super) fn etcd_leader_dies(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.cluster.start(JOINER)?;
    stage.until(BEYOND_LEASE, |stage| !stage.history.seen().view.handoffs.is_empty());
    if let Some(leader) = stage.cluster.etcd_leader() {
        play_fault(stage, Fault::Kill(leader), Duration::from_secs(3))?;
    }
    leave(stage);
    Ok(())
}

pub(super) fn etcd_leader_cut_off(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let Some(leader) = stage.cluster.etcd_leader() else { return Ok(()) };
    let pairs = MEMBERS.into_iter().filter(|member| *member != leader).map(|member| (leader, member));
    let cut = Fault::Cut(pairs.collect(), Cut::Silent, format!("{leader} and its peers"));
    play_fault(stage, cut, BEYOND_LEASE)
}

pub(super) fn etcd_without_quorum(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let (one, other) = (MEMBERS[0], MEMBERS[1]);
    stage.cluster.kill(one);
    stage.cluster.kill(other);
    stage.pause(BEYOND_LEASE.as_millis() as u64);
    stage.cluster.start(one)?;
    stage.cluster.start(other)
}

/// While the leader is stopped nobody loses a lease: the new one gives each its whole TTL again, and clients find it in
/// time. When it wakes up, up to etcd 3.4.30 and 3.5.12, it takes itself for the leader for a moment, finds every lease
/// at its end and has all of them revoked, by the new leader (etcd-io/etcd#15247). So everyone registers anew, and no
/// harm may come of it; there is nothing that a client could do about that.
pub(super) fn etcd_leader_stuck(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let Some(leader) = stage.cluster.etcd_leader() else { return Ok(()) };
    play_fault(stage, Fault::Stop(leader), BEYOND_LEASE)
}

pub(super) fn slow_disk(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let Some(leader) = stage.cluster.etcd_leader() else { return Ok(()) };
    let mut fault = Fault::SlowDisk(leader, None);
    fault.inflict(stage.cluster)?;
    stage.cluster.start(JOINER)?;
    stage.hold(std::slice::from_ref(&fault), BEYOND_LEASE);
    stage.cluster.terminate(&[JOINER], TERMINATE);
    if let Some(said) = fault.heal(stage.cluster)? {
        stage.timeline.say(&format!("  {said}"));
    }
    Ok(())
}

fn owns(stage: &Stage<'_>, pod: &str) -> bool {
    stage.history.seen().view.assignments.values().any(|assignment| assignment.value.owner == pod)
}

/// A pod that starts while etcd refuses writes.
const LATE_JOINER: &str = PODS[5];
/// How long etcd refuses writes: `phase_timeout` is 8 s, and stopped partitions have to be served again after that.
const REFUSED: Duration = Duration::from_secs(14);

pub(super) fn full_store(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let member = stage.cluster.etcd_addresses()[0];
    stage.cluster.start(JOINER)?;
    let midway = stage.until(BEYOND_LEASE, |stage| in_phase(stage, Phase::Ready).is_some());
    etcd_admin::refuse_writes(member, true).map_err(anyhow::Error::msg)?;
    stage.pause(REFUSED.as_millis() as u64);
    let owned: Vec<PartitionId> = stage.history.seen().view.assignments.keys().copied().collect();
    let router = stage.cluster.routers()[0];
    let down: Vec<_> = owned.into_iter().filter(|one| probe(*one, router).is_none_or(|it| it.status >= 500)).collect();
    if !down.is_empty() {
        stage.verdict.add("unbounded", format!("{down:?} are down {REFUSED:?} after etcd began to refuse writes"));
    }
    // One that has to register, and waits before it tries again.
    stage.cluster.start(LATE_JOINER)?;
    stage.pause(2_000);
    etcd_admin::refuse_writes(member, false).map_err(anyhow::Error::msg)?;
    let accepted = Instant::now();
    let joined = stage.until(REST, |stage| owns(stage, LATE_JOINER));
    stage.timeline.say(&format!(
        "  handoffs were in Ready: {midway}; {LATE_JOINER} owned a partition {:.1} s after writes were accepted: {joined}",
        accepted.elapsed().as_secs_f64()
    ));
    stage.settle();
    stage.cluster.terminate(&[LATE_JOINER], TERMINATE);
    leave(stage);
    Ok(())
}

pub(super) fn replaced_password(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let before = stage.errors();
    let password = format!("{:x}", stage.random.random::<u64>());
    stage.cluster.start(JOINER)?;
    stage.until(BEYOND_LEASE, |stage| !stage.history.seen().view.handoffs.is_empty());
    etcd_admin::replace_password(stage.cluster.etcd_addresses()[0], &password).map_err(anyhow::Error::msg)?;
    // No token is valid any more, and the file's password is not either.
    stage.pause(1_000);
    stage.cluster.write_password(&password)?;
    stage.pause(BEYOND_LEASE.as_millis() as u64);
    stage.settle();
    let errors = stage.errors();
    if errors != before {
        stage.verdict.add("unheld", format!("errors before {before:?}, then {errors:?}"));
    }
    leave(stage);
    Ok(())
}

pub(super) fn restored_store(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.cluster.etcd_disks(false)?;
    stage.settle();
    let lives = |stage: &Stage<'_>| -> BTreeSet<Incarnation> {
        let seen = stage.history.seen();
        let (pods, routers) = (seen.view.pods.values(), seen.view.routers.values());
        pods.map(|pod| pod.incarnation()).chain(routers.map(|router| router.incarnation())).collect()
    };
    let copied = lives(stage);
    // Owners and epochs that are not in the copies.
    stage.cluster.start(JOINER)?;
    stage.until(REST, |stage| owns(stage, JOINER));
    stage.settle();
    let revision = stage.history.catch_up()?;
    let newest = stage.history.seen().view.assignments.values().map(|one| one.value.epoch).max();
    stage.cluster.etcd_disks(true)?;
    stage.history.restart(stage.cluster.etcd_options())?;
    let back_to = stage.history.seen().revision();
    stage.settle();
    let (left, oldest) = {
        let left = lives(stage).intersection(&copied).count();
        (left, stage.history.seen().view.assignments.values().map(|one| one.value.epoch).min())
    };
    stage.timeline.say(&format!(
        "  back from revision {revision} to {back_to}; epochs were at most {newest:?}, and are at least {oldest:?} now"
    ));
    if left > 0 || oldest <= newest {
        stage.verdict.add("went_back", format!("{left} lives of before go on; epochs {oldest:?} after {newest:?}"));
    }
    leave(stage);
    Ok(())
}
