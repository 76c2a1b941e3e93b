//! The rules of the protocol that can be removed one at a time, to show that each is needed.
//!
//! A rule is removed around the production functions, not in them: guards are struck from the transactions that they
//! return, views are falsified before they are passed in, or the environment does what the rule forbids.

use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId};
use segue_protocol::keys::{KeyName, Keyspace, RoundsKey};
use segue_protocol::records::{Assignment, Capabilities, PodRecord, RouterDrainedAck, encode};
use segue_protocol::txn::{Compare, Field, Keys, Op, Relation, Txn};
use segue_protocol::view::{Versioned, View};

/// A rule that keeps the protocol safe, named by what is done without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// Acks name their handoff and require that very record.
    AckIdentity,
    /// An ack requires that its writer's registration stands.
    AckOfTheLiving,
    /// Every write of the coordinator requires that it still leads.
    LeaderGuard,
    /// Creating, cancelling and deleting compare record and assignment.
    RecordCompare,
    /// A move of a phase fails if a router registered since its view.
    RangeCompare,
    /// A move of a phase fails if the record has changed since its view.
    PhaseCompare,
    /// The flip requires that the new owner's very life stands.
    NewOwnerLives,
    /// A move of a phase requires that the old owner's record is as its view has it.
    OldOwnerCompare,
    /// A dead new owner's handoff is deleted only if no key of that life stands.
    NewOwnerGone,
    /// A router registers, then takes its snapshot.
    RegisterFirst,
    /// Registry, handoffs and assignments are seen at one revision.
    OneRevision,
    /// A router's lease clock runs out before its lease can end.
    RouterLeaseClock,
    /// A pod's lease clock runs out before its lease can end.
    PodLeaseClock,
    /// A pod refuses requests of another epoch.
    FencingEpoch,
    /// An owner is a life of a pod, not a name.
    Incarnation,
    /// What a pod has accepted ends with its lease.
    EndAcceptedWork,
    /// A refused request goes back to its place in its line.
    PutBack,
    /// Nothing is cancelled from `Switching` on.
    CancelBeforeSwitching,
    /// A handoff pins its partition, and is never overwritten.
    Pinning,
    /// In flight means until the pod is done, whether the client waits or not.
    DrainUntilDone,
    /// An owner learnt from a snapshot is a cutover too.
    SnapshotIsCutover,
    /// Everybody drains before anybody switches.
    Barrier,
    /// The old owner confirms that its work has ended.
    OldOwnerConfirms,
    /// The gate opens only when no request waits.
    FlushFirst,
    /// A request is sent again only if it is certain that no pod acted on it.
    NeverSendTwice,
    /// A new owner reads the tail only once the log is at rest.
    TailAtRest,
    /// No phase moves on while a party's registration cannot be read.
    UnreadableIsNotAbsent,
    /// The bound of a dead owner's work is waited out.
    BoundIsWaitedOut,
    /// A move begins only if none of its partition has ended since the decision.
    NoneEndedSince,
    /// A write of a round requires that this round is in force.
    RoundInForce,
    /// A write of a round requires that nobody leads.
    NoLeader,
    /// The participants of a round share its partitions out by one function.
    OneActor,
    /// A leader ends the rounds before it does anything else.
    LeaderEndsRounds,
    /// A participant deletes a leader's key that has no lease.
    ClearLeader,
    /// A write of a round requires that its writer's registration stands.
    ParticipantLives,
    /// A round waits for everybody who is registered, at most for its window.
    WindowWaits,
    /// A new owner waits for a checkpoint at most for its timeout.
    CheckpointWaitEnds,
    /// A checkpoint is recorded only while the assignment is the one that its maker saw.
    CheckpointOfTheOwner,
    /// A checkpoint is recorded only while its maker's registration stands.
    CheckpointOfTheLiving,
    /// A checkpoint names the handoff that it was made for.
    CheckpointNamesHandoff,
}

/// A transaction of the handoff without the guards that the rule demands.
pub(crate) fn strike(txn: Txn, rule: Option<Rule>, view: &View, is_leaders: bool) -> Txn {
    let Some(rule) = rule else { return txn };
    let keys = view.keys();
    let is_struck = |compare: &Compare| {
        let name = match &compare.keys {
            Keys::One(key) => keys.parse(key),
            Keys::Prefix(prefix) if *prefix == keys.routers() => return rule == Rule::RangeCompare,
            Keys::Prefix(_) => return rule == Rule::NoneEndedSince,
            Keys::Between(..) => return false,
        };
        let creates = matches!(compare.field, Field::CreateRevision(_));
        let differs = compare.relation == Relation::NotEqual;
        let new_owner = view.handoffs.values().map(|handoff| &handoff.value.new_owner);
        let old_owner = view.handoffs.values().filter_map(|handoff| handoff.value.old_owner.as_ref());
        match (rule, name) {
            (Rule::AckIdentity, Some(KeyName::Handoff(_))) => creates && !is_leaders,
            (Rule::AckOfTheLiving, Some(KeyName::Router(_))) => true,
            (Rule::LeaderGuard | Rule::NoLeader, Some(KeyName::Leader)) => true,
            (Rule::RoundInForce, Some(KeyName::Rounds(RoundsKey::Current))) => true,
            (Rule::ParticipantLives, Some(KeyName::Rounds(RoundsKey::Participant(_)))) => true,
            (Rule::RecordCompare, Some(KeyName::Handoff(_) | KeyName::Assignment(_))) => is_leaders,
            (Rule::PhaseCompare, Some(KeyName::Handoff(_))) => !creates,
            (Rule::NewOwnerLives, Some(KeyName::Pod(pod))) => {
                // An assignment without a handoff has the same guard.
                let is_first = || view.handoffs.is_empty() && view.assignments.is_empty();
                creates && !differs && (is_first() || new_owner.clone().any(|it| *it == pod))
            }
            (Rule::OldOwnerCompare, Some(KeyName::Pod(pod))) => !creates && old_owner.clone().any(|it| *it == pod),
            (Rule::NewOwnerGone, Some(KeyName::Pod(_))) => differs,
            (Rule::Pinning, Some(KeyName::Handoff(_) | KeyName::Assignment(_))) => is_leaders,
            _ => false,
        }
    };
    let Txn { mut when, then, otherwise } = txn;
    when.retain(|compare| !is_struck(compare));
    Txn { when, then, otherwise: otherwise.map(|other| Box::new(strike(*other, Some(rule), view, is_leaders))) }
}

fn pod_of(keys: &Keyspace, key: &str) -> Option<String> {
    match keys.parse(key)? {
        KeyName::Pod(pod) => Some(pod),
        _ => None,
    }
}

/// What a view says to somebody who ignores the rule.
pub(crate) fn falsify(view: &View, rule: Rule) -> Option<View> {
    let mut view = view.clone();
    match rule {
        Rule::Incarnation => {
            let incarnations: Vec<(String, Incarnation)> =
                view.pods.iter().map(|(name, pod)| (name.clone(), pod.incarnation())).collect();
            let of = |name: &str| incarnations.iter().find(|(known, _)| known == name).map(|(_, created)| *created);
            for assignment in view.assignments.values_mut() {
                let record = &mut assignment.value;
                record.incarnation = of(&record.owner).unwrap_or(record.incarnation);
            }
            for handoff in view.handoffs.values_mut() {
                let record = &mut handoff.value;
                record.new_incarnation = of(&record.new_owner).unwrap_or(record.new_incarnation);
                if let Some(old) = &record.old_owner {
                    record.old_incarnation = of(old).unwrap_or(record.old_incarnation);
                }
            }
        }
        Rule::AckIdentity => {
            for (partition, acks) in &mut view.acks {
                let Some(id) = view.handoffs.get(partition).map(|handoff| handoff.id()) else { continue };
                acks.drained.values_mut().for_each(|ack| ack.handoff = id);
                acks.cutover.values_mut().for_each(|ack| ack.handoff = id);
                acks.pods.values_mut().for_each(|ack| ack.handoff = id);
            }
        }
        Rule::UnreadableIsNotAbsent => {
            let keys = view.keys().clone();
            let pods: Vec<String> = view.malformed.keys().filter_map(|key| pod_of(&keys, key)).collect();
            for pod_name in pods {
                let (Some(key), Some(any)) = (view.pod_key(&pod_name), view.pods.values().next()) else { continue };
                let value = PodRecord {
                    pod_name: pod_name.clone(),
                    capabilities: Capabilities::default(),
                    ..any.value.clone()
                };
                let Versioned { create_revision, mod_revision, .. } = key;
                view.pods
                    .insert(pod_name, Versioned { create_revision, mod_revision, lease: Some(LeaseId::new(1)), value });
            }
        }
        Rule::CheckpointNamesHandoff => {
            for (partition, checkpoint) in &mut view.checkpoints {
                let present = view.handoffs.get(partition).map_or(HandoffId::NONE, |handoff| handoff.id());
                checkpoint.value.handoff = present;
            }
        }
        Rule::Barrier => {
            let routers: Vec<String> = view.routers.keys().cloned().collect();
            for (partition, handoff) in view.handoffs.clone() {
                for router_name in routers.clone() {
                    let handoff = handoff.id();
                    let ack = RouterDrainedAck::new(router_name, partition, handoff);
                    view.acks.entry(partition).or_default().drained.insert(ack.router_name.clone(), ack);
                }
            }
        }
        _ => return None,
    }
    Some(view)
}

/// A plan's view without the handoffs: for a planner that ignores them.
pub(crate) fn unpinned(view: &View) -> View {
    let mut view = view.clone();
    view.handoffs.clear();
    view
}

/// Cancelling a handoff whatever its phase: record and acks are deleted, and the old owner continues as before.
pub(crate) fn cancel_whatever(view: &View, partition: PartitionId) -> Option<Txn> {
    let keys = view.keys();
    let handoff = &view.handoffs.get(&partition)?.value;
    let assignment = Assignment::new(
        partition,
        handoff.old_owner.clone()?,
        handoff.old_incarnation,
        Epoch::new(handoff.epoch.get() - 1),
    );
    let back = Op::Put { key: keys.assignment(partition), value: encode(&assignment), lease: None };
    let acks = keys.acks_of(partition).map(|prefix| Op::Delete(Keys::Prefix(prefix)));
    let record = Op::Delete(Keys::One(keys.handoff(partition)));
    Some(Txn { when: Vec::new(), then: [record, back].into_iter().chain(acks).collect(), otherwise: None })
}
