//! Assignment rounds: how the processes of a keyspace coordinate it without a leader.
//!
//! Pure. Each process that may take part has a key under its own lease. A round first *gathers* its participants: the
//! key `rounds/gathering` names its number, and every live process joins by writing that number into its own key. The
//! round *closes* once all have joined or the gathering's lease has ended, and then stands in `rounds/current` with its
//! participants. Anybody may open and close a round. Until the next round closes, each partition has exactly one actor
//! among the participants ([`Authority::acts_for`]), and the first of them acts for the keyspace as a whole.
//!
//! A round opens when
//!
//! * there is none,
//! * a participant's key is gone,
//! * the heartbeat has passed: a process that lives but does not act joins no round, and so drops out, or
//! * a process asks for one, because it is new or was late.
//!
//! The last two wait for the shortest interval between rounds.
//!
//! # Invariants
//!
//! * Window, interval and heartbeat are leases that nobody renews. The store ends them, and no process measures them.
//! * A process joins in a transaction that requires the gathering's key: nobody joins after the window.
//! * A round closes in a transaction that requires the round before it. From then on every write of an earlier round
//!   fails.
//! * A partition has one actor in each round, and that actor acts on a view that shows the round. So no two of its
//!   writes were decided without knowledge of each other, as under a leader.

use std::time::Duration;

use crate::authority::Authority;
use crate::ids::{Incarnation, LeaseId, Revision};
use crate::planning::Policy;
use crate::records::{GatheringRound, HeldMoves, Participant, Round, encode};
use crate::registration::{clear, put_back};
use crate::txn::{Compare, Op, Txn};
use crate::view::{Versioned, View};

/// A process that may take part in rounds, in its present life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The `create_revision` of its key.
    pub incarnation: Incarnation,
    /// The lease of its key.
    pub lease: LeaseId,
}

/// The next step of a process in the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundStep {
    /// Delete a leader's key that has no lease. Nobody leads with it, and it would keep everybody from acting.
    ClearLeader,
    /// Join the round with this number, which gathers its participants.
    Join(u64),
    /// Ask for the next round, because this process was late.
    Ask,
    /// Open the round with this number.
    Open(u64),
    /// Close the round with this number.
    Close(u64),
}

/// A key to put under a lease of its own, which nobody renews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedKey {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The time after which the store deletes it.
    pub ttl: Duration,
}

/// The transaction of a step, without the keys whose leases have to be granted first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepDraft {
    /// The transaction.
    pub txn: Txn,
    /// The keys to put in it as well.
    pub leased: Vec<LeasedKey>,
}

impl Member {
    /// Returns the record of a process that joined this round.
    pub fn record(&self, round: Option<u64>) -> Vec<u8> {
        encode(&Participant::new(&self.name, round))
    }

    /// Returns the transaction that adds to this process's key which moves it holds back, unless the view shows that.
    pub fn tell_held(&self, view: &View, held: &[HeldMoves]) -> Option<Txn> {
        let seen = view.rounds.live_participant(&self.name, self.incarnation).filter(|seen| seen.value.held != held)?;
        let value = encode(&Participant { held: held.to_vec(), ..seen.value.clone() });
        let key = view.keys().participant(&self.name);
        Some(put_back(&key, self.incarnation, seen.mod_revision, value, self.lease))
    }

    /// Returns what this process does next. `None` if it waits, is not registered, or a leader coordinates the keyspace.
    pub fn next_step(&self, view: &View) -> Option<RoundStep> {
        let rounds = &view.rounds;
        let joined = rounds.live_participant(&self.name, self.incarnation)?.value.round;
        if let Some(leader) = &view.leader {
            return leader.lease.is_none().then_some(RoundStep::ClearLeader);
        }
        let current = rounds.current.as_ref().map_or(0, |current| current.value.number);
        if let Some(gathering) = rounds.open_gathering() {
            let number = gathering.value.number;
            return match joined == Some(number) {
                false => Some(RoundStep::Join(number)),
                true => rounds.live().all(|(_, it)| it.value.round == joined).then_some(RoundStep::Close(number)),
            };
        }
        if let Some(ended) = joined.filter(|number| *number > current) {
            return Some(RoundStep::Close(ended));
        }
        if is_due(view) {
            let last = rounds.live().filter_map(|(_, it)| it.value.round).fold(current, u64::max);
            // The numbers begin anew after the last one, which only a writer other than a coordinator can have written.
            return Some(RoundStep::Open(Some(last + 1).filter(|next| *next < Round::NUMBERS).unwrap_or(1)));
        }
        let was_late = self.place(view).is_none() && joined.is_some_and(|number| number < current);
        was_late.then_some(RoundStep::Ask)
    }

    /// Returns how many others may take the step before this process does. Processes that see the same view need not
    /// all write.
    pub fn rank(&self, view: &View, step: RoundStep) -> usize {
        let takes_part = |it: &Versioned<Participant>| match step {
            RoundStep::Join(_) | RoundStep::Ask => false,
            RoundStep::ClearLeader | RoundStep::Open(_) => true,
            RoundStep::Close(number) => it.value.round == Some(number),
        };
        view.rounds.live().filter(|(name, it)| takes_part(it) && **name < self.name).count()
    }

    /// Returns the transaction of a step. `policy` is the one in force.
    pub fn draft(&self, view: &View, step: RoundStep, policy: &Policy) -> StepDraft {
        let (keys, rounds) = (view.keys(), &view.rounds);
        let seen = |key: Option<Revision>| key.unwrap_or(Revision::ZERO);
        let gathering = seen(rounds.gathering.as_ref().map(|gathering| gathering.mod_revision));
        let current = seen(rounds.current.as_ref().map(|current| current.mod_revision));
        let own_key = keys.participant(&self.name);
        let told = rounds.live_participant(&self.name, self.incarnation).map(|own| &own.value.held);
        let own = |round| {
            let held = told.cloned().unwrap_or_default();
            let value = encode(&Participant { held, ..Participant::new(&self.name, round) });
            Op::put_leased(own_key.clone(), value, self.lease)
        };
        let mut when = vec![Compare::created_at(&own_key, self.incarnation.revision())];
        if step != RoundStep::Ask {
            when.push(Compare::unchanged_since(keys.gathering(), gathering));
        }
        if matches!(step, RoundStep::Open(_) | RoundStep::Close(_)) {
            when.push(Compare::unchanged_since(keys.round(), current));
        }
        let mut leased = Vec::new();
        let then = match step {
            RoundStep::ClearLeader => {
                let leader = seen(view.leader.as_ref().map(|leader| leader.mod_revision));
                return StepDraft { txn: clear(&keys.leader(), leader), leased };
            }
            RoundStep::Join(number) => vec![own(Some(number))],
            RoundStep::Ask => vec![own(None)],
            RoundStep::Open(number) => {
                let value = encode(&GatheringRound { number, opened_by: self.name.clone() });
                leased.push(LeasedKey { key: keys.gathering(), value, ttl: policy.settle });
                vec![own(Some(number))]
            }
            RoundStep::Close(number) => {
                let joined = rounds.live().filter(|(_, it)| it.value.round == Some(number));
                let participants = joined.map(|(name, it)| (name.clone(), life(it))).collect();
                let record = Round { number, participants, closed_by: self.name.clone() };
                for (key, ttl) in
                    [(keys.round_interval(), policy.min_interval), (keys.round_heartbeat(), policy.heartbeat)]
                {
                    leased.push(LeasedKey { key, value: encode(&number), ttl });
                }
                let round = Op::put(keys.round(), encode(&record));
                vec![round, Op::delete(keys.gathering())]
            }
        };
        StepDraft { txn: Txn::guarded(when, then), leased }
    }

    /// Returns the authority that the round in force gives this process.
    pub fn authority(&self, view: &View) -> Option<Authority> {
        let (rank, of) = self.place(view)?;
        let round = view.rounds.current.as_ref()?.mod_revision;
        let authority = Authority::Round { name: self.name.clone(), incarnation: self.incarnation, round, rank, of };
        Some(authority).filter(|authority| authority.is_shown_by(view))
    }

    /// Returns the place of this process among the participants of the round in force, and their number.
    fn place(&self, view: &View) -> Option<(u32, u32)> {
        let participants = &view.rounds.current.as_ref()?.value.participants;
        let place = participants.iter().position(|(name, life)| (name, life) == (&self.name, &self.incarnation))?;
        Some((u32::try_from(place).ok()?, u32::try_from(participants.len()).ok()?))
    }
}

/// Returns whether a round has to open.
fn is_due(view: &View) -> bool {
    let rounds = &view.rounds;
    let Some(current) = rounds.current.as_ref().map(|current| &current.value) else { return true };
    let is_gone = |(name, life): (&String, &Incarnation)| rounds.live_participant(name, *life).is_none();
    if current.participants.iter().any(is_gone) {
        return true;
    }
    let asks = rounds.live().any(|(name, it)| {
        let takes_part = current.participants.get(name) == Some(&life(it));
        !takes_part && it.value.round.is_none_or(|number| number >= current.number)
    });
    !rounds.is_too_soon() && (asks || !rounds.is_fresh())
}

fn life(participant: &Versioned<Participant>) -> Incarnation {
    Incarnation::registered_at(participant.create_revision)
}
