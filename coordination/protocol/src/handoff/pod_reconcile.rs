//! Decides what a pod does next for a partition, given its duty and what it has already done.
//!
//! Pure and level-triggered: the shell calls [`next`] after every change of the view and after everything it has done,
//! carries the result out and calls again.
//!
//! # Invariants
//!
//! * An epoch is accepted only while the state of that very epoch is here, warmed and with its tail read.
//! * State is released once, before other state of the partition is loaded.
//! * An ack is written only after its statement has become true for that very handoff.

use super::pod::Duty;
use crate::ids::{Epoch, HandoffId};
use crate::records::PodAckKind;

/// What this process has done for a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Done {
    /// The state that this process has.
    pub held: Option<Held>,
    /// The handoff for which all work on the partition has ended.
    pub drained: Option<HandoffId>,
}

/// The state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// The handoff that brought the state; 0 if none did.
    pub handoff: HandoffId,
    /// The epoch that the state is for.
    pub epoch: Epoch,
    /// An old owner may have written more after the state was warmed.
    pub has_tail: bool,
    /// How complete the state is.
    pub stage: Stage,
}

/// How complete a partition's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Being copied, or partly copied.
    Warming,
    /// Copied.
    Warm,
    /// Copied, and the tail read.
    Synced,
    /// Not to be used any more.
    Left,
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
    /// Drain the partition. Runs once nothing is in flight.
    Drain,
    /// Release the state. Runs once nothing is in flight.
    Release,
}

impl Callback {
    /// Returns the callback's name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Callback::Warm => "warm",
            Callback::Sync => "sync",
            Callback::Drain => "drain",
            Callback::Release => "release",
        }
    }
}

/// A pod's statement about a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// The state is warm: `Warming` → `Ready`.
    Ready,
    /// The ack `drained`.
    Drained,
    /// The ack `synced`.
    Synced,
    /// The ack `released`.
    Released,
}

impl Word {
    /// Returns the ack that carries the statement. `None` for the one that is made by moving the phase on.
    pub fn ack(self) -> Option<PodAckKind> {
        match self {
            Word::Ready => None,
            Word::Drained => Some(PodAckKind::Drained),
            Word::Synced => Some(PodAckKind::Synced),
            Word::Released => Some(PodAckKind::Released),
        }
    }
}

/// One action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    /// Run a callback.
    Run(Task),
    /// Write this statement about this handoff.
    Say(Word, HandoffId),
}

/// What a pod does now: `accept` first, then `act`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Next {
    /// Accept this epoch and no other.
    pub accept: Option<Epoch>,
    /// Do this unless it is already being done, and stop anything else that is being done.
    pub act: Option<Act>,
}

impl Done {
    /// Records the start of a callback. `has_tail` states that the callback belongs to a handoff from an old owner.
    pub fn begin(&mut self, task: Task, has_tail: bool) {
        let Task { callback, handoff, epoch } = task;
        match callback {
            Callback::Warm if self.held.is_none() => {
                self.held = Some(Held {
                    handoff,
                    epoch,
                    has_tail: has_tail && handoff != HandoffId::NONE,
                    stage: Stage::Warming,
                });
            }
            // From here on the state may be partly gone.
            Callback::Release => self.leave(),
            _ => {}
        }
    }

    /// Records the success of a callback.
    pub fn end(&mut self, task: Task) {
        let held = self.held.as_mut().filter(|held| held.stage != Stage::Left);
        match (task.callback, held) {
            (Callback::Warm, Some(held)) => held.stage = Stage::Warm,
            (Callback::Sync, Some(held)) => held.stage = Stage::Synced,
            (Callback::Drain, Some(_)) => self.drained = Some(task.handoff),
            (Callback::Release, _) => self.held = None,
            _ => {}
        }
    }

    /// Records that the partition is accepted again: work that had ended may begin anew.
    pub fn reopen(&mut self) {
        self.drained = None;
    }

    /// Records that the ownership the state was for is lost.
    pub fn leave(&mut self) {
        self.drained = None;
        if let Some(held) = &mut self.held {
            held.stage = Stage::Left;
        }
    }
}

/// Returns what to do now. `syncs` states that the pod has the capability `sync`.
pub fn next(duty: Duty, done: &Done, syncs: bool) -> Next {
    let act = match duty {
        Duty::Idle => release(done).map(Act::Run),
        Duty::Release { handoff } => Some(release(done).map_or(Act::Say(Word::Released, handoff), Act::Run)),
        Duty::Stand { .. } => None,
        Duty::Drain { handoff, epoch } => Some(match done.drained == Some(handoff) {
            true => Act::Say(Word::Drained, handoff),
            false => Act::Run(Task { callback: Callback::Drain, handoff, epoch }),
        }),
        Duty::Warm { handoff, epoch } => {
            Some(have(done, Some(handoff), epoch, false).map_or(Act::Say(Word::Ready, handoff), Act::Run))
        }
        Duty::Sync { handoff, epoch } => {
            Some(have(done, Some(handoff), epoch, true).map_or(Act::Say(Word::Synced, handoff), Act::Run))
        }
        Duty::Serve { epoch } => {
            let unread = done.held.is_some_and(|held| held.has_tail) && syncs;
            match have(done, None, epoch, unread) {
                None => return Next { accept: Some(epoch), act: None },
                Some(task) => Some(Act::Run(task)),
            }
        }
    };
    Next { accept: None, act }
}

fn release(done: &Done) -> Option<Task> {
    let Held { handoff, epoch, .. } = done.held?;
    Some(Task { callback: Callback::Release, handoff, epoch })
}

/// Returns the callback that is missing until the state of this epoch is here. Without a `handoff` the state of any
/// handoff will do. If there is none at all, the assignment was written by hand and the state is warmed.
fn have(done: &Done, handoff: Option<HandoffId>, epoch: Epoch, synced: bool) -> Option<Task> {
    let warm = |handoff| Some(Task { callback: Callback::Warm, handoff, epoch });
    let Some(held) = done.held else {
        return warm(handoff.unwrap_or(HandoffId::NONE));
    };
    if held.epoch != epoch || handoff.is_some_and(|handoff| handoff != held.handoff) {
        return release(done);
    }
    match held.stage {
        Stage::Left => release(done),
        Stage::Warming => warm(held.handoff),
        Stage::Warm if synced => Some(Task { callback: Callback::Sync, handoff: held.handoff, epoch }),
        Stage::Warm | Stage::Synced => None,
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

    fn held(stage: Stage) -> Done {
        Done { held: Some(Held { handoff: H7, epoch: E3, has_tail: true, stage }), drained: None }
    }

    fn run(callback: Callback) -> Option<Act> {
        Some(Act::Run(Task { callback, handoff: H7, epoch: E3 }))
    }

    #[test]
    fn readiness_is_said_only_after_the_state_was_warmed_for_that_very_handoff() {
        let duty = Duty::Warm { handoff: H7, epoch: E3 };
        assert_eq!(next(duty, &Done::default(), true).act, run(Callback::Warm));
        assert_eq!(next(duty, &held(Stage::Warming), true).act, run(Callback::Warm));
        assert_eq!(next(duty, &held(Stage::Warm), true).act, Some(Act::Say(Word::Ready, H7)));
        let later = Duty::Warm { handoff: H9, epoch: E3 };
        assert_eq!(next(later, &held(Stage::Warm), true).act, run(Callback::Release));
    }

    #[test]
    fn an_epoch_is_accepted_only_with_its_own_state_and_its_tail() {
        let accept = |duty, done: &Done, syncs| next(duty, done, syncs).accept;
        let serve = Duty::Serve { epoch: E3 };
        assert_eq!(accept(serve, &Done::default(), false), None);
        assert_eq!(accept(serve, &held(Stage::Warming), false), None);
        assert_eq!(accept(serve, &held(Stage::Left), false), None);
        assert_eq!(accept(serve, &held(Stage::Warm), false), Some(E3));
        assert_eq!(accept(serve, &held(Stage::Warm), true), None);
        assert_eq!(next(serve, &held(Stage::Warm), true).act, run(Callback::Sync));
        assert_eq!(accept(serve, &held(Stage::Synced), true), Some(E3));
        assert_eq!(accept(Duty::Serve { epoch: E4 }, &held(Stage::Synced), true), None);
    }

    #[test]
    fn no_duty_but_serving_accepts_anything() {
        let done = Done { drained: Some(H9), ..held(Stage::Synced) };
        for duty in [
            Duty::Idle,
            Duty::Release { handoff: H9 },
            Duty::Stand { handoff: H9, epoch: E4 },
            Duty::Drain { handoff: H9, epoch: E3 },
            Duty::Warm { handoff: H7, epoch: E3 },
            Duty::Sync { handoff: H7, epoch: E3 },
        ] {
            assert_eq!(next(duty, &done, true).accept, None, "{duty:?}");
        }
    }

    #[test]
    fn state_is_let_go_before_it_is_said_and_only_once() {
        let duty = Duty::Release { handoff: H9 };
        assert_eq!(next(duty, &held(Stage::Synced), true).act, run(Callback::Release));
        assert_eq!(next(duty, &Done::default(), true).act, Some(Act::Say(Word::Released, H9)));
        assert_eq!(next(Duty::Idle, &held(Stage::Warming), true).act, run(Callback::Release));
        assert_eq!(next(Duty::Idle, &Done::default(), true).act, None);
    }

    #[test]
    fn a_drain_for_an_earlier_handoff_says_nothing_about_this_one() {
        let done = Done { drained: Some(H8), ..held(Stage::Synced) };
        let drain = Some(Act::Run(Task { callback: Callback::Drain, handoff: H9, epoch: E3 }));
        assert_eq!(next(Duty::Drain { handoff: H9, epoch: E3 }, &done, true).act, drain);
        assert_eq!(next(Duty::Drain { handoff: H8, epoch: E3 }, &done, true).act, Some(Act::Say(Word::Drained, H8)));
    }
}
