//! Checks a step of the store, from one revision to a later one, against the contract of the protocol. Clients may be lucky; the
//! store's history is not.
//!
//! The simulation looks after each write, tests/chaos at each revision of etcd's history. What needs more than two views stays
//! with them: who writes, entries of the history, epochs of before a restore.
//!
//! # Invariants
//!
//! * No function that decides for production is asked.
//! * A step is one transaction: guards hold for all of its writes together.

use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::{Assignment, Checkpoint, Handoff, Mode, Phase, PodAckKind};
use segue_protocol::txn::Batch;
use segue_protocol::view::{PodLife, Versioned, View};

/// A rule of the contract that a step breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// The rule's name.
    pub rule: &'static str,
    /// What broke it.
    pub what: String,
}

fn breach(rule: &'static str, what: String) -> Breach {
    Breach { rule, what }
}

/// Returns what a step breaks.
///
/// * Epochs grow. An owner changes only by a handoff that stands, whose old owner has ended its work, if it lives and can say
///   so, and whose new owner lives and has read the tail. A first owner that has nothing to warm needs no handoff.
/// * A handoff leaves `Ready` only once every router has drained that is registered at that revision, and `Switching` once each
///   has switched. A router that registers later sees that it must not route to the old owner.
/// * No handoff is overwritten by another, goes back, or is cancelled once its new owner serves. It then ends once each router
///   has switched.
/// * An ack is of the handoff that stands, a checkpoint of the owner. Every value can be read.
pub fn breaches(before: &View, after: &View) -> Vec<Breach> {
    let mut found = Vec::new();
    for (key, why) in after.malformed.iter().filter(|(key, _)| !before.malformed.contains_key(*key)) {
        found.push(breach("malformed", format!("{key} cannot be read: {why}")));
    }
    for (partition, assignment) in &after.assignments {
        let was = before.assignments.get(partition);
        if was.is_none_or(|was| was.mod_revision != assignment.mod_revision) {
            assigned(before, after, was.map(|was| &was.value), &assignment.value, &mut found);
        }
    }
    for (partition, handoff) in &before.handoffs {
        match after.handoffs.get(partition) {
            Some(now) if now.create_revision == handoff.create_revision => {
                moved_on(before, after, handoff, now, &mut found);
            }
            Some(_) => found.push(breach("handoff", format!("the record of partition {partition} was replaced"))),
            None => found.extend(ended_too_early(before, after, handoff)),
        }
    }
    stale_acks(before, after, &mut found);
    foreign_checkpoints(before, after, &mut found);
    found
}

fn assigned(before: &View, after: &View, was: Option<&Assignment>, new: &Assignment, found: &mut Vec<Breach>) {
    let Assignment { partition, owner, incarnation, epoch, .. } = new;
    let subject =
        format!("{owner} became owner of partition {partition} at epoch {epoch} (revision {})", after.revision);
    if let Some(was) = was.filter(|was| *epoch <= was.epoch) {
        found.push(breach("epochs_grow", format!("{subject} after epoch {}", was.epoch)));
    }
    let fits = |it: &&Versioned<Handoff>| {
        (it.value.epoch, &it.value.new_owner, it.value.new_incarnation) == (*epoch, owner, *incarnation)
    };
    // A partition that had no owner may be assigned to a pod that has nothing to warm.
    let may_be_first = match after.life(owner, *incarnation) {
        PodLife::Registered(pod) | PodLife::Leaseless(pod) => pod.nothing_to_warm,
        PodLife::Unreadable => true,
        PodLife::Over => false,
    };
    if was.is_none() && !before.handoffs.contains_key(partition) && may_be_first {
        return;
    }
    let Some(handoff) = before.handoffs.get(partition).filter(fits) else {
        found.push(breach("handoff", format!("{subject} without a handoff")));
        return;
    };
    let (id, record) = (handoff.id(), &handoff.value);
    let Some(old) = record.old_owner.as_ref().filter(|_| record.mode == Mode::Barrier) else { return };
    let has_moved_on = after.handoffs.get(partition).is_some_and(|now| now.value.phase > Phase::Ready);
    if record.phase <= Phase::Ready && !has_moved_on {
        let undrained = undrained(after, *partition, id);
        found.extend(
            undrained.map(|router| breach("quorum", format!("{subject} although router {router} had not drained"))),
        );
    }
    let lacks = |pod: &str, kind| after.pod_ack(*partition, pod, kind, id).is_none();
    if before.live_old_owner(record).is_some_and(|old| old.capabilities.drained) && lacks(old, PodAckKind::Drained) {
        found.push(breach("quorum", format!("{subject} although {old} had not ended")));
    }
    match after.life(owner, *incarnation) {
        PodLife::Over => found.push(breach("handoff", format!("{subject} although that life of it was over"))),
        PodLife::Registered(pod) | PodLife::Leaseless(pod)
            if pod.capabilities.sync && lacks(owner, PodAckKind::Synced) =>
        {
            found.push(breach("quorum", format!("{subject} without having read the tail")));
        }
        // A registration that was garbled after the flip was decided belongs to a pod that lives.
        PodLife::Registered(_) | PodLife::Leaseless(_) | PodLife::Unreadable => {}
    }
}

/// Returns the routers that have not acknowledged their drain: a request of theirs could still reach the old owner.
fn undrained(view: &View, partition: PartitionId, handoff: HandoffId) -> impl Iterator<Item = &String> {
    let routers = view.routers.keys();
    routers.filter(move |router| view.drained_ack(partition, router, handoff).is_none_or(|ack| ack.gave_up))
}

fn moved_on(before: &View, after: &View, was: &Versioned<Handoff>, now: &Versioned<Handoff>, found: &mut Vec<Breach>) {
    let (record, id, from) = (&now.value, now.id(), was.value.phase);
    let (partition, to) = (record.partition, record.phase);
    let identity = |it: &Handoff| (it.epoch, it.new_owner.clone(), it.new_incarnation);
    if identity(&was.value) != identity(record) || to < from {
        found.push(breach("handoff", format!("the handoff of partition {partition} was overwritten")));
    }
    if to == from {
        return;
    }
    let mut early = |rule, why: String| {
        let (from, revision) = (from.as_str(), after.revision);
        found.push(breach(rule, format!("partition {partition} left {from} (revision {revision}) {why}")));
    };
    if from <= Phase::Ready && to > Phase::Ready && record.mode == Mode::Barrier && record.old_owner.is_some() {
        undrained(after, partition, id)
            .for_each(|router| early("quorum", format!("although router {router} had not drained")));
    }
    if from == Phase::Switching {
        let routers = after.routers.keys();
        routers
            .filter(|router| after.cutover_ack(partition, router, id).is_none())
            .for_each(|router| early("quorum", format!("although router {router} had not switched")));
    }
    let pauses = matches!(from, Phase::Ready | Phase::Syncing);
    if let Some(old) = record.old_owner.as_ref().filter(|_| pauses)
        && matches!(before.life(old, record.old_incarnation), PodLife::Leaseless(_) | PodLife::Unreadable)
    {
        early("unreadable", format!("while the registration of its old owner {old} is not its own word"));
    }
    if from == Phase::Syncing
        && let Some(old) = before.live_old_owner(record).filter(|old| old.capabilities.drained)
        && after.pod_ack(partition, &old.pod_name, PodAckKind::Drained, id).is_none()
    {
        early("quorum", format!("although its old owner {} had not ended", old.pod_name));
    }
}

/// Returns whether the new owner of this handoff, as it stood last, may have served requests.
pub fn may_have_served(record: &Handoff) -> bool {
    record.phase == Phase::Switching || (record.mode == Mode::Independent && record.phase >= Phase::Ready)
}

/// Returns what a handoff breaks by its end: past the point of no return it ends once each router has switched, or with its new
/// owner's life.
fn ended_too_early(before: &View, after: &View, was: &Versioned<Handoff>) -> Option<Breach> {
    let record = &was.value;
    let serves = record.phase != Phase::Complete && may_have_served(record) && record.old_owner.is_some();
    if !serves || after.live_new_owner(record).is_none() {
        return None;
    }
    let partition = record.partition;
    // The acks go with the record.
    let unswitched: Vec<&String> =
        after.routers.keys().filter(|router| before.cutover_ack(partition, router, was.id()).is_none()).collect();
    let what = match &unswitched[..] {
        [] if record.phase == Phase::Switching => {
            let releases = before.live_old_owner(record).is_some_and(|old| old.capabilities.released);
            return releases.then(|| {
                breach(
                    "handoff",
                    format!("the handoff of partition {partition} ended before its old owner has released"),
                )
            });
        }
        [] => String::new(),
        [router, ..] => format!(", and router {router} has not switched"),
    };
    Some(breach(
        "handoff",
        format!("the handoff of partition {partition} was cancelled past the point of no return{what}"),
    ))
}

fn stale_acks(before: &View, after: &View, found: &mut Vec<Breach>) {
    for (partition, acks) in after.acks.iter().filter(|(partition, acks)| before.acks.get(partition) != Some(acks)) {
        let had = before.acks.get(partition);
        let drained =
            acks.drained.iter().filter(|(router, ack)| had.and_then(|had| had.drained.get(*router)) != Some(ack));
        let cutover =
            acks.cutover.iter().filter(|(router, ack)| had.and_then(|had| had.cutover.get(*router)) != Some(ack));
        let pods = acks.pods.iter().filter(|(who, ack)| had.and_then(|had| had.pods.get(*who)) != Some(ack));
        let fresh = drained.map(|(router, ack)| (router, ack.handoff));
        let fresh = fresh.chain(cutover.map(|(router, ack)| (router, ack.handoff)));
        let fresh = fresh.chain(pods.map(|((pod, _), ack)| (pod, ack.handoff)));
        let standing = after.handoffs.get(partition).map(|handoff| handoff.id());
        for (who, handoff) in fresh.filter(|(_, handoff)| Some(*handoff) != standing) {
            let what = format!("{who} acknowledges {handoff} of partition {partition}, and {standing:?} stands");
            found.push(breach("stale_ack", what));
        }
    }
}

fn foreign_checkpoints(before: &View, after: &View, found: &mut Vec<Breach>) {
    for (partition, now) in &after.checkpoints {
        let was = before.checkpoints.get(partition);
        let content = |it: &Versioned<Checkpoint>| (it.value.checkpoint.clone(), it.value.taken_at);
        if was.map(content) == Some(content(now)) {
            continue;
        }
        let owner = after.assignments.get(partition).map(|it| (it.value.owner.as_str(), it.value.epoch));
        let Checkpoint { pod_name, epoch, .. } = &now.value;
        if owner != Some((pod_name.as_str(), *epoch)) {
            let what = format!("{pod_name} recorded one of partition {partition} at {epoch}, which {owner:?} owns");
            found.push(breach("checkpoints", what));
        }
    }
}

/// Returns the steps of a batch, each with the changes of one revision: a watch that is behind joins several.
pub fn steps(batch: &Batch) -> impl Iterator<Item = Batch> {
    let of_revision = batch.events.chunk_by(|one, next| one.mod_revision() == next.mod_revision());
    of_revision.map(|events| Batch { revision: events[0].mod_revision(), events: events.to_vec() })
}

#[cfg(test)]
mod tests;
