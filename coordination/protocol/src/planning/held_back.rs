//! Counts the moves that the last placement wanted and did not begin, by their new owner and the reason. Others than the
//! planner read this: a pod that waits for its share, and operators.

use std::collections::BTreeMap;

use super::actions::PlannedWrite;
use crate::ids::Incarnation;
use crate::records::HeldMoves;

/// Most entries that are told, the largest first.
const MOST: usize = 64;

/// Why a move has not begun.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HeldFor {
    /// The partition, or the pod for this partition, rests after a failure.
    Rest,
    /// The partition rests because its owners died.
    Deaths,
    /// The owner is dead, and may come back.
    Return(String),
    /// The partition has just moved.
    CoolDown,
    /// Pods restart one by one.
    Roll,
    /// As many moves are in flight as may be.
    Place,
}

impl HeldFor {
    fn in_words(&self) -> String {
        match self {
            HeldFor::Rest => "they rest after a failed move".to_owned(),
            HeldFor::Deaths => "their owners died soon after they had got them, one after the other".to_owned(),
            HeldFor::Return(owner) => format!("{owner}, which had them, may come back"),
            HeldFor::CoolDown => "they have just moved".to_owned(),
            HeldFor::Roll => "pods restart one by one".to_owned(),
            HeldFor::Place => "as many moves are in flight as may be".to_owned(),
        }
    }
}

/// A move that has not begun.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HeldMove {
    to: String,
    incarnation: Incarnation,
    what_for: HeldFor,
}

impl HeldMove {
    pub(super) fn new(to: &str, incarnation: Incarnation, what_for: HeldFor) -> Self {
        HeldMove { to: to.to_owned(), incarnation, what_for }
    }
}

/// The moves that have not begun.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct HeldBack {
    moves: BTreeMap<HeldMove, u32>,
}

impl HeldBack {
    pub(super) fn add(&mut self, held: HeldMove) {
        *self.moves.entry(held).or_default() += 1;
    }

    /// Records that these moves, which waited for places, begin.
    pub(super) fn begin(&mut self, begun: &[PlannedWrite]) {
        for action in begun {
            let PlannedWrite::Create { handoff, .. } = action else { continue };
            let held = HeldMove::new(&handoff.new_owner, handoff.new_incarnation, HeldFor::Place);
            if let Some(number) = self.moves.get_mut(&held) {
                *number = number.saturating_sub(1);
            }
        }
    }

    /// Returns them as others read them.
    pub(super) fn moves(&self) -> Vec<HeldMoves> {
        let told = self.moves.iter().filter(|(_, number)| **number > 0).map(|(held, number)| HeldMoves {
            to: held.to.clone(),
            incarnation: held.incarnation,
            instead_of: match &held.what_for {
                HeldFor::Return(owner) => Some(owner.clone()),
                _ => None,
            },
            partitions: *number,
            why: held.what_for.in_words(),
        });
        let mut told: Vec<HeldMoves> = told.collect();
        if told.len() > MOST {
            told.sort_by_key(|held| std::cmp::Reverse(held.partitions));
            told.truncate(MOST);
            told.sort_unstable();
        }
        told
    }
}
