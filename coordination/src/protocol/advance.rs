//! When a handoff's phase moves on, and the transaction that moves it.
//!
//! Pure, and the same for everyone: the coordinator's loop, and the router or pod whose ack is the last one needed (the
//! *fast commit*). All safety is in the transaction's guards, so it does not matter who commits it or how stale the
//! view was: a router that registered since, a record that changed, an owner that came back make it fail.
//! Not here: timeouts and cancels ([`planning`](crate::planning)).

use super::records::{
    Assignment, AssignmentStatus, Handoff, Mode, Phase, PodAck, PodAckKind, RouterCutoverAck, RouterDrainedAck, encode,
};
use super::view::{Stamped, View};
use crate::store::data::{Compare, Field, Keys, Op, Relation, Revision, Txn};
use crate::store::keys::Partition;

/// Most acks that a transaction assumes to stand without having seen them; etcd takes 128 guards in one.
const MOST_ASSUMED: usize = 32;

/// Someone that a handoff waits for before its phase can move on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Waiting {
    /// The new owner is copying state.
    Warm(String),
    /// The router has requests in flight.
    RouterDrained(String),
    /// The router could not drain and asks for a cancel.
    RouterGaveUp(String),
    /// The old owner has not ended what it works on.
    PodDrained(String),
    /// The new owner has not read the tail.
    PodSynced(String),
    /// The router has not switched and flushed.
    RouterCutover(String),
    /// The old owner has not let go of its state.
    PodReleased(String),
    /// The new owner is dead; the coordinator has to cancel or begin anew.
    NewOwner(String),
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Waiting::Warm(pod) => write!(out, "pod {pod} to warm"),
            Waiting::RouterDrained(router) => write!(out, "router {router} to drain"),
            Waiting::RouterGaveUp(router) => write!(out, "a cancel: router {router} could not drain"),
            Waiting::PodDrained(pod) => write!(out, "pod {pod} to drain"),
            Waiting::PodSynced(pod) => write!(out, "pod {pod} to read the tail"),
            Waiting::RouterCutover(router) => write!(out, "router {router} to cut over"),
            Waiting::PodReleased(pod) => write!(out, "pod {pod} to release"),
            Waiting::NewOwner(pod) => write!(out, "the coordinator: pod {pod} is dead"),
        }
    }
}

/// An ack that a router or pod is about to write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ack {
    /// A router has drained.
    RouterDrained(RouterDrainedAck),
    /// A router has cut over.
    RouterCutover(RouterCutoverAck),
    /// A pod has done its part.
    Pod(PodAck),
}

/// A move of a handoff's phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// The phase that it ends.
    pub from: Phase,
    /// The phase that it begins; `None` deletes the record: the handoff is over.
    pub to: Option<Phase>,
    /// The move. Its guards carry all of its safety.
    pub txn: Txn,
}

/// Who the partition's handoff is waiting for. Empty: the phase can move on, or there is no handoff.
pub fn waiting_for(view: &View, partition: Partition) -> Vec<Waiting> {
    view.handoffs.get(&partition).map_or_else(Vec::new, |handoff| waiting(view, handoff, None))
}

/// The next move of the partition's handoff, if nothing is being waited for. `now` is written for people.
pub fn advance(view: &View, partition: Partition, now: u64) -> Option<Advance> {
    let handoff = view.handoffs.get(&partition)?;
    if waiting(view, handoff, None).is_empty() { moved(view, handoff, now) } else { None }
}

/// The transaction that writes `ack`, and with it the move that it was the last to be waited for.
///
/// Routers acknowledge at about the same time, so the view often lacks acks of the others that the store has by the time
/// that this one arrives there. The move is therefore also tried if nothing but such acks is missing, on condition that
/// they stand then; the last of acks that cross carries it.
///
/// `writer` is the key of the acknowledging participant's registration, `incarnation` its `create_revision`: one whose
/// registration is gone cannot acknowledge. The ack also requires the very record that it is for.
pub fn acknowledge(view: &View, ack: &Ack, writer: String, incarnation: Revision, now: u64) -> Txn {
    let keys = view.keys();
    let (partition, handoff, key, value) = match ack {
        Ack::RouterDrained(ack) => {
            (ack.partition, ack.handoff, keys.router_drained(ack.partition, &ack.router_name), encode(ack))
        }
        Ack::RouterCutover(ack) => {
            (ack.partition, ack.handoff, keys.router_cutover(ack.partition, &ack.router_name), encode(ack))
        }
        Ack::Pod(ack) => (ack.partition, ack.handoff, keys.pod_ack(ack.partition, &ack.pod_name, ack.ack), encode(ack)),
    };
    let alone = Txn {
        when: vec![Compare::created_at(keys.handoff(partition), handoff), Compare::created_at(writer, incarnation)],
        then: vec![Op::Put { key, value, lease: None }],
        otherwise: None,
    };
    let record = view.handoffs.get(&partition).filter(|record| record.create_revision == handoff);
    let together = record.and_then(|record| {
        let assumed = stand(view, record, &waiting(view, record, Some(ack)))?;
        Some((moved(view, record, now)?, assumed))
    });
    match together {
        // The move that ends a handoff deletes its acks, and a key cannot be put and deleted in one transaction.
        Some((Advance { to: Some(_), txn, .. }, assumed)) => Txn {
            when: alone.when.iter().cloned().chain(txn.when).chain(assumed).collect(),
            then: alone.then.iter().cloned().chain(txn.then).collect(),
            otherwise: Some(Box::new(alone)),
        },
        _ => alone,
    }
}

/// Guards that hold once all that is waited for has been said, if it is only acks of routers.
fn stand(view: &View, handoff: &Stamped<Handoff>, waits: &[Waiting]) -> Option<Vec<Compare>> {
    let (keys, partition, id) = (view.keys(), handoff.value.partition, handoff.create_revision);
    let mut guards = Vec::new();
    for wait in waits {
        let (key, starts) = match wait {
            Waiting::RouterDrained(router) => {
                (keys.router_drained(partition, router), RouterDrainedAck::starts_with(id))
            }
            Waiting::RouterCutover(router) => {
                (keys.router_cutover(partition, router), RouterCutoverAck::starts_with(id))
            }
            _ => return None,
        };
        let from = starts.into_bytes();
        let mut to = from.clone();
        // The next string of bytes of that length: the last one is a comma.
        *to.last_mut()? += 1;
        for (relation, bound) in [(Relation::Greater, from), (Relation::Less, to)] {
            guards.push(Compare { keys: Keys::One(key.clone()), field: Field::Value(bound), relation });
        }
    }
    (waits.len() <= MOST_ASSUMED).then_some(guards)
}

/// The writes that end a handoff: its record and all acks, at once.
pub(crate) fn delete_handoff(view: &View, partition: Partition) -> Vec<Op> {
    let record = Op::Delete(Keys::One(view.keys().handoff(partition)));
    let acks = view.keys().acks_of(partition).map(|prefix| Op::Delete(Keys::Prefix(prefix)));
    std::iter::once(record).chain(acks).collect()
}

/// The next move of a handoff that waits for nobody any more.
fn moved(view: &View, handoff: &Stamped<Handoff>, now: u64) -> Option<Advance> {
    let record = &handoff.value;
    if view.is_malformed(record.partition) {
        return None;
    }
    let keys = view.keys();
    let to = match (record.phase, record.mode) {
        // Only the new owner knows when it is warm.
        (Phase::Warming, _) => return None,
        (Phase::Ready, _) if record.old_owner.is_none() => Some(Phase::Switching),
        (Phase::Ready, Mode::Independent) => Some(Phase::Complete),
        (Phase::Ready, Mode::Barrier) if needs_syncing(view, record) => Some(Phase::Syncing),
        (Phase::Ready, Mode::Barrier) | (Phase::Syncing, _) => Some(Phase::Switching),
        (Phase::Switching, _) => Some(Phase::Complete),
        (Phase::Complete, _) => None,
    };
    let mut when = vec![Compare::unchanged_since(keys.handoff(record.partition), handoff.mod_revision)];
    // A router that registered since this view has acknowledged nothing; one that left is not waited for.
    when.push(Compare::none_created_after(keys.routers(), view.revision));
    if let Some(old) = &record.old_owner {
        // Whether the old owner lives decides whether its `drained` or `released` is waited for.
        when.push(Compare::created_at(keys.pod(old), view.incarnation_of(old)));
    }
    let Some(to) = to else {
        return Some(Advance {
            from: record.phase,
            to: None,
            txn: Txn { when, then: delete_handoff(view, record.partition), otherwise: None },
        });
    };
    let moved = Handoff { phase: to, phase_entered_at: now, ..record.clone() };
    let mut then = vec![Op::Put { key: keys.handoff(record.partition), value: encode(&moved), lease: None }];
    let flips = to == Phase::Switching
        || (to == Phase::Complete && record.mode == Mode::Independent && record.phase == Phase::Ready);
    if flips {
        when.push(Compare::created_at(keys.pod(&record.new_owner), record.new_incarnation));
        let (assigned, flip) = flip(view, record);
        when.push(assigned);
        then.push(flip);
    }
    Some(Advance { from: record.phase, to: Some(to), txn: Txn { when, then, otherwise: None } })
}

/// The change of owner, and the guard that the assignment is still the one that was seen.
pub(crate) fn flip(view: &View, handoff: &Handoff) -> (Compare, Op) {
    let key = view.keys().assignment(handoff.partition);
    let seen = view.assignments.get(&handoff.partition).map_or(0, |assignment| assignment.mod_revision);
    let assignment = Assignment {
        partition: handoff.partition,
        owner: handoff.new_owner.clone(),
        incarnation: handoff.new_incarnation,
        status: AssignmentStatus::Active,
        epoch: handoff.epoch,
    };
    (Compare::unchanged_since(key.clone(), seen), Op::Put { key, value: encode(&assignment), lease: None })
}

/// Whether `Syncing` has anything to wait for.
fn needs_syncing(view: &View, handoff: &Handoff) -> bool {
    old_confirms(view, handoff) || new_syncs(view, handoff)
}

/// Whether the old owner lives and can say that it has ended.
pub(crate) fn old_confirms(view: &View, handoff: &Handoff) -> bool {
    view.live_old_owner(handoff).is_some_and(|pod| pod.capabilities.drained)
}

/// Whether the new owner reads the tail before it gets the partition.
fn new_syncs(view: &View, handoff: &Handoff) -> bool {
    view.live_new_owner(handoff).is_some_and(|pod| pod.capabilities.sync)
}

fn waiting(view: &View, handoff: &Stamped<Handoff>, plus: Option<&Ack>) -> Vec<Waiting> {
    let (id, record) = (handoff.create_revision, &handoff.value);
    let new_owner_lives = view.live_new_owner(record).is_some();
    if record.phase != Phase::Complete && !new_owner_lives {
        return vec![Waiting::NewOwner(record.new_owner.clone())];
    }
    match (record.phase, record.mode) {
        (Phase::Warming, _) => vec![Waiting::Warm(record.new_owner.clone())],
        (Phase::Ready, _) if record.old_owner.is_none() => Vec::new(),
        (Phase::Ready, Mode::Barrier) => {
            view.routers.keys().filter_map(|router| not_drained(view, record.partition, router, id, plus)).collect()
        }
        (Phase::Ready, Mode::Independent) | (Phase::Switching, _) => view
            .routers
            .keys()
            .filter(|router| !has_cut_over(view, record.partition, router, id, plus))
            .map(|router| Waiting::RouterCutover(router.clone()))
            .collect(),
        (Phase::Syncing, _) => {
            let mut waits = Vec::new();
            if let Some(old) = record.old_owner.as_ref().filter(|_| old_confirms(view, record))
                && !pod_has_said(view, record.partition, old, PodAckKind::Drained, id, plus)
            {
                waits.push(Waiting::PodDrained(old.clone()));
            }
            if new_syncs(view, record)
                && !pod_has_said(view, record.partition, &record.new_owner, PodAckKind::Synced, id, plus)
            {
                waits.push(Waiting::PodSynced(record.new_owner.clone()));
            }
            waits
        }
        (Phase::Complete, _) => {
            let releases = view.live_old_owner(record).is_some_and(|pod| pod.capabilities.released);
            let old = record.old_owner.iter().filter(|_| releases);
            old.filter(|old| !pod_has_said(view, record.partition, old, PodAckKind::Released, id, plus))
                .map(|old| Waiting::PodReleased(old.clone()))
                .collect()
        }
    }
}

fn not_drained(view: &View, partition: Partition, router: &str, id: Revision, plus: Option<&Ack>) -> Option<Waiting> {
    let own = match plus {
        Some(Ack::RouterDrained(ack)) if ack.router_name == router => Some(ack),
        _ => None,
    };
    match own.or_else(|| view.drained_ack(partition, router, id)) {
        None => Some(Waiting::RouterDrained(router.to_owned())),
        Some(ack) if ack.gave_up => Some(Waiting::RouterGaveUp(router.to_owned())),
        Some(_) => None,
    }
}

fn has_cut_over(view: &View, partition: Partition, router: &str, id: Revision, plus: Option<&Ack>) -> bool {
    matches!(plus, Some(Ack::RouterCutover(ack)) if ack.router_name == router)
        || view.cutover_ack(partition, router, id).is_some()
}

fn pod_has_said(
    view: &View,
    partition: Partition,
    pod: &str,
    kind: PodAckKind,
    id: Revision,
    plus: Option<&Ack>,
) -> bool {
    matches!(plus, Some(Ack::Pod(ack)) if ack.pod_name == pod && ack.ack == kind)
        || view.pod_ack(partition, pod, kind, id).is_some()
}
