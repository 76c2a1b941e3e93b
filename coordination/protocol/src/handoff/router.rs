//! Decides what a router must do with a partition, given its view and the partition's stage.
//!
//! Pure. A shell calls [`next_step`] after every change of the view or of the partition's stage, carries the step out
//! and calls again until there is none. The decision is level-triggered: a router that starts, that missed events or
//! that comes back from a lost store derives the same steps. Elsewhere: gate and stash (`segue-proxy`), what is waited
//! for ([`advance`](super::advance)).
//!
//! # Invariants
//!
//! * A request goes to a pod only under the owner and epoch that the view names.
//! * No request goes to an old owner once its handoff is in `Ready` and this router has stopped ([`may_stop_later`]).

use std::time::Duration;

use crate::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use crate::records::{Capabilities, Handoff, Mode, Phase, PodRecord, PodStatus};
use crate::view::View;

/// The destination of a partition's requests: this life of a pod, under this epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The pod's name.
    pub pod: String,
    /// The life of the pod.
    pub incarnation: Incarnation,
    /// The epoch that requests are stamped with.
    pub epoch: Epoch,
}

/// Why a partition's requests are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldCause {
    /// No live pod owns the partition.
    NoOwner,
    /// The partition is moving to another pod.
    Handoff,
    /// This router may not trust its lease.
    Fenced,
}

/// The route of a partition's requests, as the view has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Route {
    /// To this pod.
    To(Target),
    /// Nowhere: requests are held.
    Hold(HoldCause),
}

/// The operator's choice for a lost store (`on_store_loss`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnStoreLoss {
    /// Serve owners that have both `fence` and `drained`; fence for the others.
    #[default]
    Auto,
    /// Stash everything.
    Fence,
    /// Continue with the last known table.
    Serve,
}

impl OnStoreLoss {
    /// All choices, by their names in the configuration file.
    pub const NAMES: &[(&str, Self)] =
        &[("auto", OnStoreLoss::Auto), ("fence", OnStoreLoss::Fence), ("serve", OnStoreLoss::Serve)];

    /// Returns whether a router keeps sending requests to such a pod when its own lease may have ended.
    pub fn serves_without_lease(self, capabilities: Capabilities) -> bool {
        match self {
            OnStoreLoss::Auto => capabilities.fence && capabilities.drained,
            OnStoreLoss::Fence => false,
            OnStoreLoss::Serve => true,
        }
    }
}

/// How far the router may act on its view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The router's lease is valid.
    Held,
    /// The lease clock has run out: the store is unreachable and the view may be stale.
    RunOut(OnStoreLoss),
    /// The router's registration is gone or replaced.
    Gone,
}

/// The state of a partition's gate in this router.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GateStage {
    /// Requests pass.
    Open(Target),
    /// New requests are stashed; some are still in flight to this target.
    Draining(Target),
    /// New requests are stashed; none is in flight.
    Closed,
    /// The stash is flushed to this target; new requests queue behind it.
    Flushing(Target),
}

/// One step towards the partition's route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RouteStep {
    /// Close the gate: new requests are stashed from here on. (`Open`, `Flushing` → `Draining`)
    Stop,
    /// Route to this target and flush the stash there. (`Closed`, or `Draining` from the same target → `Flushing`)
    Switch(Target),
    /// Write the `RouterDrainedAck` for this handoff.
    AckDrained(HandoffId),
    /// Write the `RouterCutoverAck` for this handoff.
    AckCutover(HandoffId),
}

/// Returns the route of the partition's requests in this view.
pub fn route(view: &View, partition: PartitionId, trust: Trust) -> Route {
    if trust == Trust::Gone {
        return Route::Hold(HoldCause::Fenced);
    }
    if view.is_malformed(partition) {
        return Route::Hold(HoldCause::NoOwner);
    }
    let (target, capabilities) = match view.handoffs.get(&partition).map(|handoff| &handoff.value) {
        Some(Handoff { phase: Phase::Ready | Phase::Syncing, mode: Mode::Barrier, .. }) => {
            return Route::Hold(HoldCause::Handoff);
        }
        Some(Handoff { phase: Phase::Ready | Phase::Syncing, old_owner: None, .. }) => {
            return Route::Hold(HoldCause::Handoff);
        }
        Some(handoff @ Handoff { phase: Phase::Ready | Phase::Syncing, mode: Mode::Independent, .. }) => {
            let Some(pod) = view.live_new_owner(handoff) else {
                return Route::Hold(HoldCause::NoOwner);
            };
            let (pod_name, incarnation) = (handoff.new_owner.clone(), handoff.new_incarnation);
            (Target { pod: pod_name, incarnation, epoch: handoff.epoch }, pod.capabilities)
        }
        _ => {
            let Some((assignment, pod)) = view.live_owner(partition) else {
                return Route::Hold(HoldCause::NoOwner);
            };
            let (pod_name, incarnation) = (assignment.owner.clone(), assignment.incarnation);
            (Target { pod: pod_name, incarnation, epoch: assignment.epoch }, pod.capabilities)
        }
    };
    match trust {
        Trust::RunOut(policy) if !policy.serves_without_lease(capabilities) => Route::Hold(HoldCause::Fenced),
        _ => Route::To(target),
    }
}

/// Returns the pods that requests without a key may go to: those that accept partitions, or otherwise all that live.
pub fn pods_without_key(view: &View) -> Vec<(Target, &PodRecord)> {
    let accepts = |pod: &PodRecord| pod.status == PodStatus::Ready && !pod.gives_way;
    let is_better = view.pods.values().any(|pod| accepts(&pod.value));
    let pods = view.pods.iter().filter(|(_, pod)| !is_better || accepts(&pod.value));
    let target = |name: &String, incarnation| Target { pod: name.clone(), incarnation, epoch: Epoch::default() };
    pods.map(|(name, pod)| (target(name, pod.incarnation()), &pod.value)).collect()
}

/// Returns the next step of a router for a partition that is at `stage`.
///
/// An acknowledgement stays due for as long as the view shows what it is for: the view has no acknowledgements of routers. The
/// shell remembers which it has written, at most until its next snapshot, in case somebody else has changed one.
///
/// `backing_off` states that the target has just refused the partition, so it is not retried yet.
pub fn next_step(
    view: &View,
    partition: PartitionId,
    trust: Trust,
    stage: &GateStage,
    backing_off: bool,
) -> Option<RouteStep> {
    match (route(view, partition, trust), stage) {
        (Route::To(to), GateStage::Open(at)) if to == *at => {
            cutover_due(view, partition, at).map(RouteStep::AckCutover)
        }
        (Route::To(to), GateStage::Flushing(at)) if to == *at => None,
        (_, GateStage::Open(_) | GateStage::Flushing(_)) => Some(RouteStep::Stop),
        // The same owner at the same epoch: a handoff was cancelled, or a refused partition is retried. Requests in
        // flight to that owner may stay: it accepted them, and their drain may be the one whose failure cancelled the
        // handoff.
        (Route::To(to), GateStage::Draining(from)) if to == *from => (!backing_off).then_some(RouteStep::Switch(to)),
        (_, GateStage::Draining(_)) => None,
        (Route::To(to), GateStage::Closed) => (!backing_off).then_some(RouteStep::Switch(to)),
        (Route::Hold(_), GateStage::Closed) => drained_due(view, partition).map(RouteStep::AckDrained),
    }
}

/// Returns the revision since which the stop of a partition has been due, if the router may postpone it. It may while
/// the handoff waits for this router's drain: until its ack the router may still route to the old owner. Stopping later
/// is the same as seeing the handoff later. `None` if the stop may not be postponed.
pub fn may_stop_later(view: &View, partition: PartitionId, trust: Trust, stage: &GateStage) -> Option<Revision> {
    let handoff = view.handoffs.get(&partition)?;
    let record = &handoff.value;
    let waits = record.phase == Phase::Ready && record.mode == Mode::Barrier && !view.is_malformed(partition);
    let (assignment, _) = view.live_owner(partition)?;
    let is_owner = |at: &Target| {
        at.pod == assignment.owner && at.incarnation == assignment.incarnation && at.epoch == assignment.epoch
    };
    let is_old =
        record.old_owner.as_ref() == Some(&assignment.owner) && record.old_incarnation == assignment.incarnation;
    let serves = matches!(stage, GateStage::Open(at) if is_owner(at) && is_old);
    (waits && serves && trust == Trust::Held).then_some(handoff.mod_revision)
}

/// Age from which an exchange is worth waiting for before its partition is stopped.
const LONG_EXCHANGE_AGE: Duration = Duration::from_secs(1);

/// Returns whether a stop that may wait ([`may_stop_later`]) waits for an exchange, since requests would otherwise be held
/// until that exchange has ended. `oldest` is the age of the partition's oldest exchange other than a stream, `waited` the
/// time since the stop has been due, and `patience` the longest wait.
pub fn waits_for_exchange(oldest: Option<Duration>, waited: Duration, patience: Duration) -> bool {
    waited < patience && oldest.is_some_and(|age| age > LONG_EXCHANGE_AGE)
}

fn drained_due(view: &View, partition: PartitionId) -> Option<HandoffId> {
    let standing = view.handoffs.get(&partition)?;
    let handoff = &standing.value;
    let due = handoff.phase == Phase::Ready && handoff.mode == Mode::Barrier && handoff.old_owner.is_some();
    due.then(|| standing.id())
}

fn cutover_due(view: &View, partition: PartitionId, at: &Target) -> Option<HandoffId> {
    let standing = view.handoffs.get(&partition)?;
    let handoff = &standing.value;
    let due = match handoff.mode {
        Mode::Barrier => handoff.phase == Phase::Switching,
        Mode::Independent => matches!(handoff.phase, Phase::Ready | Phase::Switching),
    };
    let switched = at.pod == handoff.new_owner && at.incarnation == handoff.new_incarnation;
    (due && switched).then(|| standing.id())
}

/// A router's options when a drain has not ended in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DrainTimeout {
    /// Close what is in flight, count it, continue.
    Sever,
    /// Ask for the handoff to be cancelled.
    GiveUp,
    /// Keep waiting until [`dead_owner_patience`] has passed.
    Wait,
}

/// The operator's choice for a drain that does not end in time (`drain.on_timeout`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnDrainTimeout {
    /// Sever where the old owner confirms that its work has ended; otherwise cancel.
    #[default]
    Auto,
    /// Sever.
    Sever,
    /// Cancel.
    Cancel,
}

impl OnDrainTimeout {
    /// All choices, by their names in the configuration file.
    pub const NAMES: &[(&str, Self)] =
        &[("auto", OnDrainTimeout::Auto), ("sever", OnDrainTimeout::Sever), ("cancel", OnDrainTimeout::Cancel)];
}

/// How long a router waits for exchanges with an owner that fences itself once the owner's key is gone. The owner's
/// work ended before its lease did, so only a response that is already on its way can still arrive.
const FENCED_OWNER_SEVER_DELAY: Duration = Duration::from_secs(1);

/// Returns how long after an owner's key is gone a router severs its requests in flight to that owner. An owner without
/// `fence` may still be at work, so its exchanges get the full request timeout.
pub fn dead_owner_patience(had_fence: bool, request_timeout: Duration) -> Duration {
    if had_fence { FENCED_OWNER_SEVER_DELAY } else { request_timeout }
}

/// Decides about a drain that has lasted `drain.timeout`. Severing stops no pod. It is safe with an old owner that can
/// acknowledge `drained`, and with a dead one that fenced itself (`old_had_fence`, as of when it was last seen alive).
pub fn drain_timed_out(
    view: &View,
    partition: PartitionId,
    policy: OnDrainTimeout,
    old_had_fence: bool,
) -> DrainTimeout {
    let Some(handoff) = view.handoffs.get(&partition).map(|handoff| &handoff.value) else {
        // The owner is gone and nothing is planned yet.
        return if old_had_fence || policy == OnDrainTimeout::Sever { DrainTimeout::Sever } else { DrainTimeout::Wait };
    };
    match (policy, view.live_old_owner(handoff)) {
        (OnDrainTimeout::Sever, _) => DrainTimeout::Sever,
        // From `Switching` on there is no way back; in `independent` mode, from `Ready` on.
        _ if handoff.phase >= Phase::Switching
            || (handoff.phase >= Phase::Ready && handoff.mode == Mode::Independent) =>
        {
            DrainTimeout::Sever
        }
        (OnDrainTimeout::Cancel, Some(_)) => DrainTimeout::GiveUp,
        (OnDrainTimeout::Auto, Some(pod)) if pod.capabilities.drained => DrainTimeout::Sever,
        (OnDrainTimeout::Auto, Some(_)) => DrainTimeout::GiveUp,
        (_, None) if old_had_fence => DrainTimeout::Sever,
        (_, None) => DrainTimeout::Wait,
    }
}
