//! The authority to carry out the decisions of planning. Its guards are in each of their transactions.
//!
//! Pure. Planning decides the same for everybody; the authority says whose writes the store accepts.
//!
//! # Invariants
//!
//! * At any revision of the store at most one process can write about a partition.
//! * A process acts only on a view that shows its own authority. An earlier view may lack what others wrote before.

use crate::ids::{Incarnation, PartitionId, Revision};
use crate::keys::Keyspace;
use crate::txn::Compare;
use crate::view::View;

/// The right of a process to carry out decisions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Authority {
    /// The elected coordinator.
    Leader {
        /// The `create_revision` of the leader's key.
        term: Revision,
    },
    /// A participant of an assignment round ([`rounds`](crate::rounds)).
    Round {
        /// The participant's name.
        name: String,
        /// The participant's life.
        incarnation: Incarnation,
        /// The `mod_revision` of the round.
        round: Revision,
        /// The participant's place in the round.
        rank: u32,
        /// The number of participants.
        of: u32,
    },
}

impl Authority {
    /// Returns whether the view shows this very authority.
    pub fn is_shown_by(&self, view: &View) -> bool {
        match self {
            Authority::Leader { term } => view.leader.as_ref().is_some_and(|leader| leader.create_revision == *term),
            Authority::Round { name, incarnation, round, .. } => {
                let in_force = view.rounds.current.as_ref().map(|current| current.mod_revision);
                let lives = view.rounds.live_participant(name, *incarnation).is_some();
                lives && in_force == Some(*round) && view.leader.is_none()
            }
        }
    }

    /// Returns the guards that fail once the authority has ended.
    pub fn guards(&self, keys: &Keyspace) -> Vec<Compare> {
        match self {
            Authority::Leader { term } => vec![Compare::created_at(keys.leader(), *term)],
            // A leader ends every round: a keyspace is never coordinated in both ways.
            Authority::Round { name, incarnation, round, .. } => vec![
                Compare::unchanged_since(keys.round(), *round),
                Compare::created_at(keys.participant(name), incarnation.revision()),
                Compare::created_at(keys.leader(), Revision::ZERO),
            ],
        }
    }

    /// Returns whether its holder decides about this partition, or with `None` about the keyspace as a whole.
    pub fn acts_for(&self, partition: Option<PartitionId>) -> bool {
        match self {
            Authority::Leader { .. } => true,
            Authority::Round { rank, of, .. } => partition.map_or(0, PartitionId::get) % (*of).max(1) == *rank,
        }
    }

    /// Returns whether one process decides about both partitions, be it this one or another.
    pub fn have_one_actor(&self, one: PartitionId, other: PartitionId) -> bool {
        match self {
            Authority::Leader { .. } => true,
            Authority::Round { of, .. } => one.get() % (*of).max(1) == other.get() % (*of).max(1),
        }
    }

    /// Returns among how many processes the decisions are shared out.
    pub fn sharers(&self) -> usize {
        match self {
            Authority::Leader { .. } => 1,
            Authority::Round { of, .. } => usize::try_from(*of).unwrap_or(usize::MAX).max(1),
        }
    }
}
