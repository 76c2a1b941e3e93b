//! The moves that wait for a place in the budget, in the order in which they begin.
//!
//! Each pod has a queue of the moves that lead to it. A pod that may warm nothing more therefore costs one look, not one
//! for each of its moves.
//!
//! # Invariants
//!
//! * Moves are tried in the order in which they were added, except that those behind a full pod's first one are skipped.
//! * A move that does not begin keeps its place.

use std::collections::{BTreeMap, VecDeque};

use super::budget::MoveCause;
use crate::ids::{Incarnation, PartitionId, Revision};

/// A move that waits for a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WaitingMove {
    pub(super) cause: MoveCause,
    pub(super) partition: PartitionId,
    pub(super) to: NewOwner,
    /// When the assignment was last put.
    pub(super) assignment: Revision,
    pub(super) reason: String,
}

/// The life of a pod that a move leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NewOwner {
    pub(super) pod: String,
    pub(super) incarnation: Incarnation,
}

/// The result of trying to begin a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BeginOutcome {
    /// The move has begun.
    Begun,
    /// This move has to wait, for another reason than its pod.
    Rests,
    /// The pod may warm nothing more, and this move and all later ones to it have to wait.
    PodIsFull,
    /// There is no place left for this move and all later ones.
    NoPlace,
}

/// The moves that wait for a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct WaitingMoves {
    added: u64,
    /// Each move with its number.
    queues: BTreeMap<NewOwner, VecDeque<(u64, WaitingMove)>>,
}

impl WaitingMoves {
    /// Adds a move behind all others.
    pub(super) fn add(&mut self, waiting: WaitingMove) {
        self.added += 1;
        self.queues.entry(waiting.to.clone()).or_default().push_back((self.added, waiting));
    }

    /// Returns whether no move waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Tries to begin moves and forgets those that have begun. Ends early, with `None`, when an attempt returns `None`.
    pub(super) fn try_in_order(&mut self, mut attempt: impl FnMut(&WaitingMove) -> Option<BeginOutcome>) -> Option<()> {
        let mut rested: Vec<(u64, WaitingMove)> = Vec::new();
        let number = |queue: &VecDeque<(u64, WaitingMove)>| queue.front().map(|(number, _)| *number);
        let fronts = self.queues.iter_mut().filter_map(|(_, queue)| Some((number(queue)?, queue)));
        let mut fronts: BTreeMap<u64, &mut VecDeque<(u64, WaitingMove)>> = fronts.collect();
        while let Some((_, queue)) = fronts.pop_first() {
            let Some((_, first)) = queue.front() else { continue };
            match attempt(first)? {
                BeginOutcome::Begun => drop(queue.pop_front()),
                BeginOutcome::Rests => rested.extend(queue.pop_front()),
                BeginOutcome::PodIsFull => continue,
                BeginOutcome::NoPlace => break,
            }
            if let Some(next) = number(queue) {
                fronts.insert(next, queue);
            }
        }
        for (number, waiting) in rested.into_iter().rev() {
            self.queues.entry(waiting.to.clone()).or_default().push_front((number, waiting));
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(partition: u32, pod: &str) -> WaitingMove {
        WaitingMove {
            cause: MoveCause::Balance,
            partition: PartitionId::new(partition),
            to: NewOwner { pod: pod.to_owned(), incarnation: Incarnation::NONE },
            assignment: Revision::ZERO,
            reason: String::new(),
        }
    }

    /// Tries once. Returns the partitions of the moves that were tried.
    fn tried(moves: &mut WaitingMoves, attempt: impl Fn(&WaitingMove) -> BeginOutcome) -> Vec<u32> {
        let mut tried = Vec::new();
        let all = moves.try_in_order(|waiting| {
            tried.push(waiting.partition.get());
            Some(attempt(waiting))
        });
        assert_eq!(all, Some(()));
        tried
    }

    fn moves(of: &[(u32, &str)]) -> WaitingMoves {
        let mut moves = WaitingMoves::default();
        of.iter().for_each(|(partition, pod)| moves.add(waiting(*partition, pod)));
        moves
    }

    #[test]
    fn a_full_pod_costs_one_look_however_many_moves_lead_to_it() {
        let mut moves = WaitingMoves::default();
        (0..10_000).for_each(|partition| moves.add(waiting(partition, "full")));
        moves.add(waiting(10_000, "free"));
        let attempt = |waiting: &WaitingMove| match waiting.to.pod.as_str() {
            "full" => BeginOutcome::PodIsFull,
            _ => BeginOutcome::Begun,
        };
        assert_eq!(tried(&mut moves, attempt), [0, 10_000]);
        assert_eq!(tried(&mut moves, attempt), [0], "the other one has begun");
    }

    #[test]
    fn moves_to_several_pods_are_tried_in_the_order_in_which_they_were_added() {
        let mut moves = moves(&[(5, "b"), (1, "a"), (3, "b"), (2, "c"), (4, "a")]);
        assert_eq!(tried(&mut moves, |_| BeginOutcome::Rests), [5, 1, 3, 2, 4]);
        assert_eq!(tried(&mut moves, |_| BeginOutcome::Rests), [5, 1, 3, 2, 4], "those that rest keep their places");
        let one_place = |waiting: &WaitingMove| match waiting.partition.get() {
            1 => BeginOutcome::Begun,
            3 => BeginOutcome::NoPlace,
            _ => BeginOutcome::Rests,
        };
        assert_eq!(tried(&mut moves, one_place), [5, 1, 3]);
        assert_eq!(tried(&mut moves, |_| BeginOutcome::Begun), [5, 3, 2, 4]);
        assert!(moves.is_empty());
    }

    #[test]
    fn an_attempt_may_end_the_search() {
        let mut moves = moves(&[(0, "a"), (1, "b")]);
        assert_eq!(moves.try_in_order(|_| None), None);
    }
}
