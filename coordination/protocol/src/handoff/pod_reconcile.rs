//! Decides what a pod does next for a partition, given its duty and what it has already done.
//!
//! Pure and level-triggered: the shell calls [`decide`] after every change of the view and after everything it has
//! done, carries the result out and calls again.
//!
//! # Invariants
//!
//! * An epoch is accepted only while the state of that very epoch is here, warmed and with its tail read.
//! * State is released once, before other state of the partition is loaded.
//! * A report is written only after it has become true for that very handoff.

use super::pod::Duty;
use crate::ids::{Epoch, HandoffId};
use crate::records::PodAckKind;

/// What this process has done for a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LocalState {
    /// The state that this process has.
    pub loaded: Option<LoadedState>,
    /// The handoff for which all work on the partition has ended.
    pub drained: Option<HandoffId>,
    /// The handoff whose `warm` or `sync` has failed for good, so that it cannot succeed on this pod.
    pub failed: Option<HandoffId>,
}

/// The state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoadedState {
    /// The handoff that brought the state; 0 if none did.
    pub handoff: HandoffId,
    /// The epoch that the state is for.
    pub epoch: Epoch,
    /// An old owner may have written more after the state was warmed.
    pub has_tail: bool,
    /// How complete the state is.
    pub completeness: Completeness,
}

/// How complete a partition's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Completeness {
    /// Being copied, or partly copied.
    Warming,
    /// Copied.
    Warm,
    /// Copied, and the tail read.
    Synced,
    /// Not to be used any more.
    Invalid,
}

/// A callback of the service to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task {
    /// Which callback.
    pub callback: Callback,
    /// The handoff that the callback is about; 0 if no handoff brought the state.
    pub handoff: HandoffId,
    /// The epoch that the callback is about.
    pub epoch: Epoch,
}

/// The callbacks of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Callback {
    /// Copy the state.
    Warm,
    /// Read the tail of the log.
    Sync,
    /// End the streams of the partition: routers stop sending its requests here. [`decide`] never returns it: it is told
    /// while the partition is served ([`leaving`](super::pod::leaving)), and gives way to every other callback but a
    /// checkpoint.
    Leaving,
    /// Drain the partition. Runs once nothing is in flight.
    Drain,
    /// Release the state. Runs once nothing is in flight.
    Release,
    /// Make a checkpoint of a partition that is served. [`decide`] never returns it: it is begun beside the handoffs
    /// ([`checkpoint`](super::checkpoint)) and gives way to every other callback.
    Checkpoint,
}

impl Callback {
    /// All callbacks.
    pub const ALL: [Callback; 6] =
        [Callback::Warm, Callback::Sync, Callback::Leaving, Callback::Drain, Callback::Release, Callback::Checkpoint];

    /// Returns the callback's name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Callback::Warm => "warm",
            Callback::Sync => "sync",
            Callback::Leaving => "leaving",
            Callback::Drain => "drain",
            Callback::Release => "release",
            Callback::Checkpoint => "checkpoint",
        }
    }
}

/// A pod's report on a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodReport {
    /// The state is warm: `Warming` → `Ready`.
    Ready,
    /// The ack `drained`.
    Drained,
    /// The ack `synced`.
    Synced,
    /// The ack `released`.
    Released,
    /// The ack `failed`.
    Failed,
}

impl PodReport {
    /// Returns the ack that carries the report. `None` for the one that is made by moving the phase on.
    pub fn ack(self) -> Option<PodAckKind> {
        match self {
            PodReport::Ready => None,
            PodReport::Drained => Some(PodAckKind::Drained),
            PodReport::Synced => Some(PodAckKind::Synced),
            PodReport::Released => Some(PodAckKind::Released),
            PodReport::Failed => Some(PodAckKind::Failed),
        }
    }
}

/// One action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodAction {
    /// Run a callback.
    Run(Task),
    /// Write this report on this handoff.
    Report(PodReport, HandoffId),
}

/// What a pod does now: `accept` first, then `action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Accept this epoch and no other.
    pub accept: Option<Epoch>,
    /// Do this unless it is already being done, and stop anything else that is being done.
    pub action: Option<PodAction>,
}

impl LocalState {
    /// Records the start of a callback. `has_tail` states that the callback belongs to a handoff from an old owner.
    pub fn begin(&mut self, task: Task, has_tail: bool) {
        let Task { callback, handoff, epoch } = task;
        match callback {
            Callback::Warm if self.loaded.is_none() => {
                self.loaded = Some(LoadedState {
                    handoff,
                    epoch,
                    has_tail: has_tail && handoff != HandoffId::NONE,
                    completeness: Completeness::Warming,
                });
            }
            // From here on the state may be partly gone.
            Callback::Release => self.invalidate(),
            _ => {}
        }
    }

    /// Records the success of a callback.
    pub fn end(&mut self, task: Task) {
        let loaded = self.loaded.as_mut().filter(|loaded| loaded.completeness != Completeness::Invalid);
        match (task.callback, loaded) {
            (Callback::Warm, Some(loaded)) => loaded.completeness = Completeness::Warm,
            (Callback::Sync, Some(loaded)) => loaded.completeness = Completeness::Synced,
            (Callback::Drain, Some(_)) => self.drained = Some(task.handoff),
            (Callback::Release, _) => self.loaded = None,
            _ => {}
        }
    }

    /// Records that a callback has failed for good. Returns whether another pod can take the partition, which is
    /// possible only for `warm` and `sync` of a handoff.
    pub fn fail(&mut self, task: Task) -> bool {
        let is_about_a_move =
            matches!(task.callback, Callback::Warm | Callback::Sync) && task.handoff != HandoffId::NONE;
        if is_about_a_move {
            self.failed = Some(task.handoff);
        }
        is_about_a_move
    }

    /// Records that the partition is accepted again: work that had ended may begin anew.
    pub fn reopen(&mut self) {
        self.drained = None;
    }

    /// Records that the ownership the state was for is lost.
    pub fn invalidate(&mut self) {
        self.drained = None;
        if let Some(loaded) = &mut self.loaded {
            loaded.completeness = Completeness::Invalid;
        }
    }
}

/// Returns what to do now. `syncs` states that the pod has the capability `sync`.
pub fn decide(duty: Duty, local: &LocalState, syncs: bool) -> Decision {
    let action = match duty {
        Duty::Idle => release(local).map(PodAction::Run),
        Duty::Release { handoff } => {
            Some(release(local).map_or(PodAction::Report(PodReport::Released, handoff), PodAction::Run))
        }
        Duty::Stand { .. } => None,
        Duty::Warm { handoff, .. } | Duty::Sync { handoff, .. } if local.failed == Some(handoff) => {
            Some(PodAction::Report(PodReport::Failed, handoff))
        }
        Duty::Drain { handoff, epoch } => Some(match local.drained == Some(handoff) {
            true => PodAction::Report(PodReport::Drained, handoff),
            false => PodAction::Run(Task { callback: Callback::Drain, handoff, epoch }),
        }),
        Duty::Warm { handoff, epoch } => Some(
            missing_step(local, Some(handoff), epoch, false)
                .map_or(PodAction::Report(PodReport::Ready, handoff), PodAction::Run),
        ),
        Duty::Sync { handoff, epoch } => Some(
            missing_step(local, Some(handoff), epoch, true)
                .map_or(PodAction::Report(PodReport::Synced, handoff), PodAction::Run),
        ),
        Duty::Serve { epoch } => {
            let unread = local.loaded.is_some_and(|loaded| loaded.has_tail) && syncs;
            match missing_step(local, None, epoch, unread) {
                None => return Decision { accept: Some(epoch), action: None },
                Some(task) => Some(PodAction::Run(task)),
            }
        }
    };
    Decision { accept: None, action }
}

fn release(local: &LocalState) -> Option<Task> {
    let LoadedState { handoff, epoch, .. } = local.loaded?;
    Some(Task { callback: Callback::Release, handoff, epoch })
}

/// Returns the callback that is missing until the state of this epoch is here. Without a `handoff` the state of any
/// handoff will do. If there is none at all, the assignment was written by hand and the state is warmed.
fn missing_step(local: &LocalState, handoff: Option<HandoffId>, epoch: Epoch, synced: bool) -> Option<Task> {
    let warm = |handoff| Some(Task { callback: Callback::Warm, handoff, epoch });
    let Some(loaded) = local.loaded else {
        return warm(handoff.unwrap_or(HandoffId::NONE));
    };
    if loaded.epoch != epoch || handoff.is_some_and(|handoff| handoff != loaded.handoff) {
        return release(local);
    }
    match loaded.completeness {
        Completeness::Invalid => release(local),
        Completeness::Warming => warm(loaded.handoff),
        Completeness::Warm if synced => Some(Task { callback: Callback::Sync, handoff: loaded.handoff, epoch }),
        Completeness::Warm | Completeness::Synced => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Revision;

    const H7: HandoffId = HandoffId::created_at(Revision::new(7));
    const H8: HandoffId = HandoffId::created_at(Revision::new(8));
    const H9: HandoffId = HandoffId::created_at(Revision::new(9));
    const E3: Epoch = Epoch::new(3);
    const E4: Epoch = Epoch::new(4);

    fn loaded(completeness: Completeness) -> LocalState {
        LocalState {
            loaded: Some(LoadedState { handoff: H7, epoch: E3, has_tail: true, completeness }),
            ..LocalState::default()
        }
    }

    fn run(callback: Callback) -> Option<PodAction> {
        Some(PodAction::Run(Task { callback, handoff: H7, epoch: E3 }))
    }

    #[test]
    fn readiness_is_said_only_after_the_state_was_warmed_for_that_very_handoff() {
        let duty = Duty::Warm { handoff: H7, epoch: E3 };
        assert_eq!(decide(duty, &LocalState::default(), true).action, run(Callback::Warm));
        assert_eq!(decide(duty, &loaded(Completeness::Warming), true).action, run(Callback::Warm));
        assert_eq!(
            decide(duty, &loaded(Completeness::Warm), true).action,
            Some(PodAction::Report(PodReport::Ready, H7))
        );
        let later = Duty::Warm { handoff: H9, epoch: E3 };
        assert_eq!(decide(later, &loaded(Completeness::Warm), true).action, run(Callback::Release));
    }

    #[test]
    fn an_epoch_is_accepted_only_with_its_own_state_and_its_tail() {
        let accept = |duty, local: &LocalState, syncs| decide(duty, local, syncs).accept;
        let serve = Duty::Serve { epoch: E3 };
        assert_eq!(accept(serve, &LocalState::default(), false), None);
        assert_eq!(accept(serve, &loaded(Completeness::Warming), false), None);
        assert_eq!(accept(serve, &loaded(Completeness::Invalid), false), None);
        assert_eq!(accept(serve, &loaded(Completeness::Warm), false), Some(E3));
        assert_eq!(accept(serve, &loaded(Completeness::Warm), true), None);
        assert_eq!(decide(serve, &loaded(Completeness::Warm), true).action, run(Callback::Sync));
        assert_eq!(accept(serve, &loaded(Completeness::Synced), true), Some(E3));
        assert_eq!(accept(Duty::Serve { epoch: E4 }, &loaded(Completeness::Synced), true), None);
    }

    #[test]
    fn no_duty_but_serving_accepts_anything() {
        let local = LocalState { drained: Some(H9), ..loaded(Completeness::Synced) };
        for duty in [
            Duty::Idle,
            Duty::Release { handoff: H9 },
            Duty::Stand { handoff: H9, epoch: E4 },
            Duty::Drain { handoff: H9, epoch: E3 },
            Duty::Warm { handoff: H7, epoch: E3 },
            Duty::Sync { handoff: H7, epoch: E3 },
        ] {
            assert_eq!(decide(duty, &local, true).accept, None, "{duty:?}");
        }
    }

    #[test]
    fn state_is_let_go_before_it_is_said_and_only_once() {
        let duty = Duty::Release { handoff: H9 };
        assert_eq!(decide(duty, &loaded(Completeness::Synced), true).action, run(Callback::Release));
        assert_eq!(decide(duty, &LocalState::default(), true).action, Some(PodAction::Report(PodReport::Released, H9)));
        assert_eq!(decide(Duty::Idle, &loaded(Completeness::Warming), true).action, run(Callback::Release));
        assert_eq!(decide(Duty::Idle, &LocalState::default(), true).action, None);
    }

    #[test]
    fn a_failure_for_good_is_said_of_its_own_handoff_instead_of_trying_again() {
        let mut local = loaded(Completeness::Warming);
        let task = |callback, handoff| Task { callback, handoff, epoch: E3 };
        assert!(!local.fail(task(Callback::Release, H7)) && !local.fail(task(Callback::Drain, H7)));
        assert!(!local.fail(task(Callback::Warm, HandoffId::NONE)), "an operator's assignment has no other pod");
        assert_eq!(decide(Duty::Warm { handoff: H7, epoch: E3 }, &local, true).action, run(Callback::Warm));
        assert!(local.fail(task(Callback::Warm, H7)));
        let said = Some(PodAction::Report(PodReport::Failed, H7));
        assert_eq!(decide(Duty::Warm { handoff: H7, epoch: E3 }, &local, true).action, said);
        assert_eq!(decide(Duty::Sync { handoff: H7, epoch: E3 }, &local, true).action, said);
        // Past the point of no return no other pod can take over. The next handoff is another attempt.
        assert_eq!(decide(Duty::Serve { epoch: E3 }, &local, true).action, run(Callback::Warm));
        assert_eq!(decide(Duty::Warm { handoff: H9, epoch: E4 }, &local, true).action, run(Callback::Release));
        assert_eq!(decide(Duty::Idle, &local, true).action, run(Callback::Release));
    }

    #[test]
    fn a_drain_for_an_earlier_handoff_says_nothing_about_this_one() {
        let local = LocalState { drained: Some(H8), ..loaded(Completeness::Synced) };
        let drain = Some(PodAction::Run(Task { callback: Callback::Drain, handoff: H9, epoch: E3 }));
        assert_eq!(decide(Duty::Drain { handoff: H9, epoch: E3 }, &local, true).action, drain);
        assert_eq!(
            decide(Duty::Drain { handoff: H8, epoch: E3 }, &local, true).action,
            Some(PodAction::Report(PodReport::Drained, H8))
        );
    }
}
