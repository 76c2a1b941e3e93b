//! Scenarios of the store: its members, its disk, its history, and the way to it.

use std::time::Duration;

use segue_protocol::ids::Revision;

use super::{BEYOND_LEASE, JOINER, leave, play_fault};
use crate::cluster::{PODS, ROUTERS};
use crate::etcd::{self, MEMBERS};
use crate::fault::{Fault, TERMINATE};
use crate::network::Cut;
use crate::run::Stage;

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
    for member in stage.cluster.members() {
        if etcd::compact(member, revision).is_ok() {
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
