//! The seat from which a coordinator acts: that of the leader, or that of a participant in assignment rounds.
//!
//! # Invariants
//!
//! * The seat is a key under this process's lease. It is restored if another writer changes it, and lost with its life.

use std::sync::Arc;

use segue_protocol::authority::Authority;
use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Coordination, Policy, in_force};
use segue_protocol::records::{self, ClockOffset, HeldMoves, Leader, encode};
use segue_protocol::registration::put_back;
use segue_protocol::rounds::Member;
use segue_protocol::txn::{Keys, Txn};
use segue_protocol::view::{Versioned, View};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::CoordinatorSettings;
use super::participation::Participation;
use crate::session::{Claim, Participant, Registration, RepeatedLog, StoreRetry};
use crate::store::Store;

/// Returns how the keyspace is coordinated: as its settings say, and before they exist as this policy does. Waits while
/// the store is unreachable. Cancel-safe.
pub(super) async fn coordination(store: &Arc<dyn Store>, keys: &Keyspace, own: &Policy) -> Coordination {
    let (mut retry, mut log) = (StoreRetry::default(), RepeatedLog::default());
    loop {
        match store.snapshot(&Keys::One(keys.config())).await {
            Ok(settings) => return in_force(&View::from_snapshot(keys.clone(), settings), own).coordination,
            Err(error) => {
                if let Some(times) = log.note(&error) {
                    warn!(%error, times, "keyspace settings cannot be read; retrying");
                }
            }
        }
        sleep(retry.next()).await;
    }
}

/// Returns the claim to a seat. `earlier` is the earlier life of this process in it.
pub(super) fn claim(
    coordination: Coordination,
    keys: &Keyspace,
    settings: &CoordinatorSettings,
    earlier: Incarnation,
) -> Claim {
    match coordination {
        Coordination::Leader => Claim::new(keys, keys.leader(), settings.lease_ttl).clearing_leaseless(),
        Coordination::Rounds => Claim::new(keys, keys.participant(&settings.name), settings.lease_ttl),
    }
    .after(earlier)
}

/// Returns the value of the key with which a seat is claimed.
pub(super) fn record(coordination: Coordination, name: &str, lease_id: LeaseId) -> Vec<u8> {
    match coordination {
        Coordination::Leader => encode(&Leader::new(name, lease_id)),
        Coordination::Rounds => encode(&records::Participant::new(name, None)),
    }
}

/// A seat that is taken.
pub(super) struct Seat {
    lease: LeaseId,
    name: String,
    kind: SeatKind,
}

enum SeatKind {
    Leader(Authority),
    Participant(Box<Participation>),
}

impl Seat {
    pub(super) fn new(coordination: Coordination, store: &Arc<dyn Store>, name: &str, elected: &Registration) -> Self {
        let (incarnation, lease) = (elected.incarnation, elected.lease.id());
        let member = || Member { name: name.to_owned(), incarnation, lease };
        Seat {
            lease,
            name: name.to_owned(),
            kind: match coordination {
                Coordination::Leader => SeatKind::Leader(Authority::Leader { term: incarnation.revision() }),
                Coordination::Rounds => SeatKind::Participant(Box::new(Participation::new(store.clone(), member()))),
            },
        }
    }

    /// Returns how a keyspace is coordinated that has this seat.
    pub(super) fn coordination(&self) -> Coordination {
        match self.kind {
            SeatKind::Leader(_) => Coordination::Leader,
            SeatKind::Participant(_) => Coordination::Rounds,
        }
    }

    /// Restores the key of the seat if the view shows it changed. Returns `false` if the seat is lost.
    pub(super) fn keep(&self, view: &View, participant: &mut Participant<'_>) -> bool {
        let coordination = self.coordination();
        let (seen, intact) = match &self.kind {
            SeatKind::Leader(_) => {
                let intact = view.leader.as_ref().is_some_and(|leader| leader.value.lease_id == self.lease);
                (view.leader.as_ref().map(Versioned::key), intact)
            }
            SeatKind::Participant(_) => {
                let intact = !view.malformed.contains_key(&view.keys().participant(&self.name));
                let seen = view.rounds.participants.get(&self.name).map(Versioned::key);
                (seen, intact)
            }
        };
        let value = || record(coordination, &self.name, self.lease);
        participant.keep_key(view, seen.as_ref(), intact, value)
    }

    /// Returns a write that adds to the key of the seat which moves its holder holds back, and to that of a leader which clocks
    /// differ from its own. `None` if the key shows that.
    pub(super) fn tell(&self, view: &View, held: &[HeldMoves], clocks: &[ClockOffset]) -> Option<Txn> {
        if let SeatKind::Participant(participation) = &self.kind {
            return participation.member().tell_held(view, held);
        }
        let is_old = |leader: &Leader| leader.held != held || leader.clocks != clocks;
        let seen = view.leader.as_ref().filter(|leader| is_old(&leader.value))?;
        let value = Leader { held: held.to_vec(), clocks: clocks.to_vec(), ..seen.value.clone() };
        let key = view.keys().leader();
        let life = Incarnation::registered_at(seen.create_revision);
        Some(put_back(&key, life, seen.mod_revision, encode(&value), self.lease))
    }

    /// Takes part in the rounds. Returns when to call again, if nothing else triggers that.
    pub(super) fn step(&mut self, view: &View, policy: &Policy) -> Option<Instant> {
        match &mut self.kind {
            SeatKind::Leader(_) => None,
            SeatKind::Participant(participation) => participation.step(view, policy),
        }
    }

    /// Returns the authority of the seat, as the view shows it.
    pub(super) fn authority(&self, view: &View) -> Option<Authority> {
        match &self.kind {
            SeatKind::Leader(authority) => Some(authority.clone()),
            SeatKind::Participant(participation) => participation.member().authority(view),
        }
    }

    /// Returns after each step of an assignment round. Pending while none is in flight. Cancel-safe.
    pub(super) async fn stepped(&mut self) {
        match &mut self.kind {
            SeatKind::Leader(_) => std::future::pending().await,
            SeatKind::Participant(participation) => participation.taken().await,
        }
    }
}
