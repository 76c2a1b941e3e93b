//! Decides when a handoff's phase moves on, and builds the transaction that moves it.
//!
//! Pure. The coordinator's loop calls it, and so does the router or pod that writes the last ack needed (the *fast
//! commit*). Not here: timeouts and cancels ([`planning`](crate::planning)).
//!
//! # Invariants
//!
//! * The transaction's guards carry all of its safety: any participant may commit it, from a view of any age. It fails
//!   if a router has registered since, if a record has changed, or if the old owner has come back.
//! * Only the assignment that the handoff started from is flipped (`flip`). The leader cancels a handoff whose
//!   assignment somebody has written or deleted meanwhile.
//! * One condition is in no guard: a dead old owner's bound on its work ([`pending_bound`]). A participant that commits
//!   such a move has seen the owner's key gone for that long ([`advance_past_bound`]).

use std::time::Duration;

use super::checkpoint::awaited;
use super::flip::{flip, place};
use super::history::{HandoffEnding, end_handoff};
use crate::ids::{HandoffId, Incarnation, PartitionId};
use crate::records::{Handoff, Mode, Phase, PodAck, PodAckKind, RouterCutoverAck, RouterDrainedAck, encode};
use crate::txn::{Compare, Field, Keys, Op, Relation, Txn};
use crate::view::{PodLife, Versioned, View};

/// Most acks that a transaction presumes without having seen them. etcd accepts 128 guards in one transaction.
const MAX_ASSUMED_ACKS: usize = 32;

/// A participant, or a key, that a handoff waits for before its phase can move on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PendingOn {
    /// The new owner is copying state.
    Warm(String),
    /// The old owner is making a checkpoint from which the new owner starts. The wait has a bound, which the view does not
    /// show.
    Checkpoint(String),
    /// The router has requests in flight.
    RouterDrained(String),
    /// The router could not drain and asks for a cancel.
    RouterGaveUp(String),
    /// The old owner has not finished its work.
    PodDrained(String),
    /// The new owner has not read the tail.
    PodSynced(String),
    /// The router has not switched and flushed.
    RouterCutover(String),
    /// The old owner has not released its state.
    PodReleased(String),
    /// The new owner is dead; the coordinator has to cancel the handoff or plan another.
    NewOwner(String),
    /// The old owner is dead, and the bound on its work has not passed yet.
    WorkEnds(String),
    /// This key cannot be read, or exists without its lease.
    Repair(String),
}

impl PendingOn {
    /// Returns the kind and the name of the participant, or of the key that has to be repaired.
    pub fn party(&self) -> (&'static str, &str) {
        match self {
            PendingOn::RouterDrained(name) | PendingOn::RouterGaveUp(name) | PendingOn::RouterCutover(name) => {
                ("router", name)
            }
            PendingOn::Warm(name)
            | PendingOn::Checkpoint(name)
            | PendingOn::PodDrained(name)
            | PendingOn::PodSynced(name)
            | PendingOn::PodReleased(name)
            | PendingOn::NewOwner(name)
            | PendingOn::WorkEnds(name) => ("pod", name),
            PendingOn::Repair(key) => ("key", key),
        }
    }
}

impl std::fmt::Display for PendingOn {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PendingOn::Warm(pod) => write!(out, "pod {pod} to warm"),
            PendingOn::Checkpoint(pod) => write!(out, "pod {pod} to make a checkpoint, for a while"),
            PendingOn::RouterDrained(router) => write!(out, "router {router} to drain"),
            PendingOn::RouterGaveUp(router) => write!(out, "a cancel: router {router} could not drain"),
            PendingOn::PodDrained(pod) => write!(out, "pod {pod} to drain"),
            PendingOn::PodSynced(pod) => write!(out, "pod {pod} to read the tail"),
            PendingOn::RouterCutover(router) => write!(out, "router {router} to cut over"),
            PendingOn::PodReleased(pod) => write!(out, "pod {pod} to release"),
            PendingOn::NewOwner(pod) => write!(out, "the coordinator: pod {pod} is dead"),
            PendingOn::WorkEnds(pod) => write!(out, "the end of what dead pod {pod} may still be working on"),
            PendingOn::Repair(key) => write!(out, "the repair of {key}"),
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

/// A transition of a handoff to its next phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// The phase that ends.
    pub from: Phase,
    /// The phase that begins. `None` deletes the record: the handoff is over.
    pub to: Option<Phase>,
    /// The transaction. Its guards carry all of its safety.
    pub txn: Txn,
}

/// Returns what the partition's handoff is waiting for. The list is empty when the phase can move on, and when there is
/// no handoff. A view without the acks of routers waits for all of them.
pub fn waiting_for(view: &View, partition: PartitionId) -> Vec<PendingOn> {
    view.handoffs.get(&partition).map_or_else(Vec::new, |handoff| waiting(view, handoff, None, false))
}

/// Returns the next transition of the partition's handoff, unless the handoff still waits. `now` is informational.
pub fn advance(view: &View, partition: PartitionId, now: u64) -> Option<Advance> {
    let handoff = view.handoffs.get(&partition)?;
    let waits = routers_missing(view, &handoff.value) > 0 || !waiting(view, handoff, None, false).is_empty();
    if waits { None } else { moved(view, handoff, now) }
}

/// Like [`advance`], for a caller that has itself seen the key of the dead old owner's incarnation gone for its
/// [`pending_bound`]. In `Syncing` it first marks the record, so that the new owner begins to read the tail.
pub fn advance_past_bound(view: &View, partition: PartitionId, now: u64) -> Option<Advance> {
    let handoff = view.handoffs.get(&partition)?;
    pending_bound(view, partition)?;
    let record = Handoff { work_has_ended: true, ..handoff.value.clone() };
    let marked = Versioned { value: record, ..handoff.clone() };
    match (waiting(view, &marked, None, true), marked.value.phase) {
        (waits, _) if waits.is_empty() => moved(view, &marked, now),
        (waits, Phase::Syncing)
            if !waits.iter().any(|wait| matches!(wait, PendingOn::Repair(_) | PendingOn::NewOwner(_))) =>
        {
            let put = Op::put(view.keys().handoff(partition), encode(&marked.value));
            let txn = Txn::guarded(unchanged(view, &marked), [put]);
            Some(Advance { from: Phase::Syncing, to: Some(Phase::Syncing), txn })
        }
        _ => None,
    }
}

/// Returns the bound that the partition's handoff has to wait out before it leaves its phase. There is one if the old
/// owner had a bound on its work and died without acknowledging that the work had ended.
pub fn pending_bound(view: &View, partition: PartitionId) -> Option<Duration> {
    pending(view, view.handoffs.get(&partition)?)
}

/// Returns the transaction that writes `ack`, together with the transition to the next phase that the ack completes. The end
/// of a handoff is left to those who follow the acks of routers: its history entry has them.
///
/// The view of a router or pod has no acks of routers. The transition is therefore also attempted when only those are missing,
/// guarded by their presence. The last of several acks carries it.
///
/// `writer` is the key of the acknowledging participant's registration, and `incarnation` its `create_revision`. A
/// participant whose registration is gone cannot acknowledge. The ack also requires the very handoff record that it is
/// for.
pub fn acknowledge(view: &View, ack: &Ack, writer: String, incarnation: Incarnation, now: u64) -> Txn {
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
    let alone = Txn::guarded(
        [
            Compare::created_at(keys.handoff(partition), handoff.revision()),
            Compare::created_at(writer, incarnation.revision()),
        ],
        [Op::put(key, value)],
    );
    let record = view.handoffs.get(&partition).filter(|record| record.id() == handoff);
    // Beside the writer.
    let presumes = |record: &&Versioned<Handoff>| routers_missing(view, &record.value) <= MAX_ASSUMED_ACKS + 1;
    let together = record.filter(presumes).and_then(|record| {
        let assumed = stand(view, record, &waiting(view, record, Some(ack), false))?;
        let next = moved(view, record, now).filter(|next| next.to.is_some())?;
        Some((next.txn, assumed))
    });
    let Some((txn, assumed)) = together else { return alone };
    Txn {
        when: alone.when.iter().cloned().chain(txn.when).chain(assumed).collect(),
        then: alone.then.iter().cloned().chain(txn.then).collect(),
        otherwise: Some(Box::new(alone)),
    }
}

/// Returns guards that hold once everything in `waits` has been acknowledged. `None` if anything but acks of routers is
/// missing, or more of them than a transaction may presume.
fn stand(view: &View, handoff: &Versioned<Handoff>, waits: &[PendingOn]) -> Option<Vec<Compare>> {
    let (keys, partition, id) = (view.keys(), handoff.value.partition, handoff.id());
    let mut guards = Vec::new();
    for wait in waits {
        let (key, starts) = match wait {
            PendingOn::RouterDrained(router) => {
                (keys.router_drained(partition, router), RouterDrainedAck::starts_with(id))
            }
            PendingOn::RouterCutover(router) => {
                (keys.router_cutover(partition, router), RouterCutoverAck::starts_with(id))
            }
            _ => return None,
        };
        let from = starts.into_bytes();
        let mut to = from.clone();
        // The upper bound is the next byte string of that length: the last byte is a comma.
        *to.last_mut()? += 1;
        for (relation, bound) in [(Relation::Greater, from), (Relation::Less, to)] {
            guards.push(Compare { keys: Keys::One(key.clone()), field: Field::Value(bound), relation });
        }
    }
    (waits.len() <= MAX_ASSUMED_ACKS).then_some(guards)
}

/// Returns the next transition of a handoff that waits for nothing.
fn moved(view: &View, handoff: &Versioned<Handoff>, now: u64) -> Option<Advance> {
    let record = &handoff.value;
    if view.is_malformed(record.partition) {
        return None;
    }
    let keys = view.keys();
    let to = match (record.phase, record.mode) {
        // Only the new owner knows when it is warm.
        (Phase::Warming, _) => return None,
        (from @ Phase::Ready, _) if record.old_owner.is_none() => {
            return place(view, handoff, now).map(|txn| Advance { from, to: None, txn });
        }
        (Phase::Ready, Mode::Independent) => Some(Phase::Complete),
        (Phase::Ready, Mode::Barrier) if needs_syncing(view, record) => Some(Phase::Syncing),
        (Phase::Ready, Mode::Barrier) | (Phase::Syncing, _) => Some(Phase::Switching),
        // No participant has anything left to do.
        (Phase::Switching, _) if !old_releases(view, record) => None,
        (Phase::Switching, _) => Some(Phase::Complete),
        (Phase::Complete, _) => None,
    };
    let mut when = unchanged(view, handoff);
    let Some(to) = to else {
        return Some(Advance {
            from: record.phase,
            to: None,
            txn: Txn::guarded(when, end_handoff(view, handoff, HandoffEnding::COMPLETED, now)),
        });
    };
    let moved = record.clone().entering(to, now);
    let mut then = vec![Op::put(keys.handoff(record.partition), encode(&moved))];
    let flips = to == Phase::Switching
        || (to == Phase::Complete && record.mode == Mode::Independent && record.phase == Phase::Ready);
    if flips {
        when.push(Compare::created_at(keys.pod(&record.new_owner), record.new_incarnation.revision()));
        let (assigned, flip) = flip(view, record)?;
        when.push(assigned);
        then.push(flip);
    }
    Some(Advance { from: record.phase, to: Some(to), txn: Txn::guarded(when, then) })
}

/// Returns the guards of every transition: the record, the routers and the old owner are as the view has them.
fn unchanged(view: &View, handoff: &Versioned<Handoff>) -> Vec<Compare> {
    let (keys, record) = (view.keys(), &handoff.value);
    let mut when = vec![Compare::unchanged_since(keys.handoff(record.partition), handoff.mod_revision)];
    // A router that registered after this view has acknowledged nothing. A router that left is not waited for.
    when.push(Compare::none_created_after(keys.routers(), view.revision));
    if let Some(old) = &record.old_owner {
        // The old owner's registration decides whether its `drained` or `released` is waited for.
        when.push(Compare::unchanged_since(keys.pod(old), view.pod_revision(old)));
    }
    when
}

/// Returns whether `Syncing` has anything to wait for.
fn needs_syncing(view: &View, handoff: &Handoff) -> bool {
    old_confirms(view, handoff) || new_syncs(view, handoff)
}

/// Returns whether the old owner lives and can acknowledge that its work has ended.
pub(crate) fn old_confirms(view: &View, handoff: &Handoff) -> bool {
    view.live_old_owner(handoff).is_some_and(|pod| pod.capabilities.drained)
}

/// Returns whether the old owner lives and can acknowledge that it has released the state.
fn old_releases(view: &View, handoff: &Handoff) -> bool {
    view.live_old_owner(handoff).is_some_and(|pod| pod.capabilities.released)
}

/// Returns whether the new owner reads the tail before it gets the partition.
fn new_syncs(view: &View, handoff: &Handoff) -> bool {
    view.live_new_owner(handoff).is_some_and(|pod| pod.capabilities.sync)
}

/// Returns the keys of the handoff's parties that cannot be read, or that exist without their lease. The handoff stays
/// in its phase while there is one.
pub(crate) fn in_need_of_repair(view: &View, handoff: &Handoff) -> Vec<String> {
    let keys = view.keys();
    let is_broken = |pod: &str, life| matches!(view.life(pod, life), PodLife::Leaseless(_) | PodLife::Unreadable);
    let old = handoff.old_owner.iter().map(|old| (old, handoff.old_incarnation));
    let pods = old.chain([(&handoff.new_owner, handoff.new_incarnation)]);
    let pods = pods.filter(|(pod, life)| is_broken(pod, *life)).map(|(pod, _)| keys.pod(pod));
    let assignment = Some(handoff.partition).filter(|partition| view.is_malformed(*partition));
    pods.chain(assignment.map(|partition| keys.assignment(partition))).collect()
}

fn pending(view: &View, handoff: &Versioned<Handoff>) -> Option<Duration> {
    let record = &handoff.value;
    let old = record.old_owner.as_deref()?;
    let is_due = matches!(record.phase, Phase::Ready | Phase::Syncing) && !record.work_has_ended;
    if !is_due || view.life(old, record.old_incarnation) != PodLife::Over {
        return None;
    }
    let assignment = &view.assignments.get(&record.partition)?.value;
    let is_owner = assignment.owner == old && assignment.incarnation == record.old_incarnation;
    let bound = assignment.work_ends_within_ms.filter(|_| is_owner)?;
    // The owner's own ack makes the bound unnecessary.
    let said = view.pod_ack(record.partition, old, PodAckKind::Drained, handoff.id());
    said.is_none().then_some(Duration::from_millis(bound))
}

/// Returns what the handoff waits for, as if `plus` were written. `past_bound` states that the bound of a dead old
/// owner has passed.
fn waiting(view: &View, handoff: &Versioned<Handoff>, plus: Option<&Ack>, past_bound: bool) -> Vec<PendingOn> {
    let (id, record) = (handoff.id(), &handoff.value);
    let new_owner_is_dead = view.life(&record.new_owner, record.new_incarnation) == PodLife::Over;
    if record.phase != Phase::Complete && new_owner_is_dead {
        return vec![PendingOn::NewOwner(record.new_owner.clone())];
    }
    let broken = in_need_of_repair(view, record);
    if !broken.is_empty() {
        return broken.into_iter().map(PendingOn::Repair).collect();
    }
    let bounded = record.old_owner.iter().filter(|_| !past_bound && pending(view, handoff).is_some());
    let mut waits: Vec<PendingOn> = bounded.map(|old| PendingOn::WorkEnds(old.clone())).collect();
    waits.extend(acks_missing(view, handoff, id, plus));
    waits
}

fn acks_missing(view: &View, handoff: &Versioned<Handoff>, id: HandoffId, plus: Option<&Ack>) -> Vec<PendingOn> {
    let record = &handoff.value;
    match (record.phase, record.mode) {
        (Phase::Warming, _) => {
            let old = awaited(view, record.partition, id).map(|old| PendingOn::Checkpoint(old.to_owned()));
            [PendingOn::Warm(record.new_owner.clone())].into_iter().chain(old).collect()
        }
        (Phase::Ready, _) if record.old_owner.is_none() => Vec::new(),
        (Phase::Ready, Mode::Barrier) => {
            view.routers.keys().filter_map(|router| not_drained(view, record.partition, router, id, plus)).collect()
        }
        (Phase::Ready, Mode::Independent) | (Phase::Switching, _) => view
            .routers
            .keys()
            .filter(|router| !has_cut_over(view, record.partition, router, id, plus))
            .map(|router| PendingOn::RouterCutover(router.clone()))
            .collect(),
        (Phase::Syncing, _) => {
            let mut waits = Vec::new();
            if let Some(old) = record.old_owner.as_ref().filter(|_| old_confirms(view, record))
                && !pod_has_said(view, record.partition, old, PodAckKind::Drained, id, plus)
            {
                waits.push(PendingOn::PodDrained(old.clone()));
            }
            if new_syncs(view, record)
                && !pod_has_said(view, record.partition, &record.new_owner, PodAckKind::Synced, id, plus)
            {
                waits.push(PendingOn::PodSynced(record.new_owner.clone()));
            }
            waits
        }
        (Phase::Complete, _) => {
            let old = record.old_owner.iter().filter(|_| old_releases(view, record));
            old.filter(|old| !pod_has_said(view, record.partition, old, PodAckKind::Released, id, plus))
                .map(|old| PendingOn::PodReleased(old.clone()))
                .collect()
        }
    }
}

/// Returns how many routers' acks are missing at least. Whose they are takes a look at each router.
fn routers_missing(view: &View, record: &Handoff) -> usize {
    let acks = view.acks.get(&record.partition);
    let there = match (record.phase, record.mode) {
        _ if record.old_owner.is_none() => return 0,
        (Phase::Ready, Mode::Barrier) => acks.map_or(0, |acks| acks.drained.len()),
        (Phase::Ready, Mode::Independent) | (Phase::Switching, _) => acks.map_or(0, |acks| acks.cutover.len()),
        _ => return 0,
    };
    view.routers.len().saturating_sub(there)
}

fn not_drained(
    view: &View,
    partition: PartitionId,
    router: &str,
    id: HandoffId,
    plus: Option<&Ack>,
) -> Option<PendingOn> {
    let own = match plus {
        Some(Ack::RouterDrained(ack)) if ack.router_name == router => Some(ack),
        _ => None,
    };
    match own.or_else(|| view.drained_ack(partition, router, id)) {
        None => Some(PendingOn::RouterDrained(router.to_owned())),
        Some(ack) if ack.gave_up => Some(PendingOn::RouterGaveUp(router.to_owned())),
        Some(_) => None,
    }
}

fn has_cut_over(view: &View, partition: PartitionId, router: &str, id: HandoffId, plus: Option<&Ack>) -> bool {
    matches!(plus, Some(Ack::RouterCutover(ack)) if ack.router_name == router)
        || view.cutover_ack(partition, router, id).is_some()
}

fn pod_has_said(
    view: &View,
    partition: PartitionId,
    pod: &str,
    kind: PodAckKind,
    id: HandoffId,
    plus: Option<&Ack>,
) -> bool {
    matches!(plus, Some(Ack::Pod(ack)) if ack.pod_name == pod && ack.ack == kind)
        || view.pod_ack(partition, pod, kind, id).is_some()
}
