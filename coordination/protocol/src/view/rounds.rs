//! Assignment rounds as a view shows them.
//!
//! # Invariants
//!
//! * An unreadable round is not absent: it has no participants, so nobody acts until the next round. An unreadable
//!   gathering has the number 0.
//! * A key that should end with its lease and has none counts as ended. It was put by another writer, and nothing else
//!   would end it.

use std::collections::BTreeMap;

use super::reading::RecordReader;
use super::{Versioned, View};
use crate::ids::Incarnation;
use crate::keys::{Keyspace, RoundsKey};
use crate::records::{GatheringRound, HeldMoves, Participant, Round};

/// The assignment rounds of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Rounds {
    /// The round that is in force.
    pub current: Option<Versioned<Round>>,
    /// The round that gathers its participants.
    pub gathering: Option<Versioned<GatheringRound>>,
    /// The processes that may take part, by name.
    pub participants: BTreeMap<String, Versioned<Participant>>,
    interval: Option<Versioned<()>>,
    heartbeat: Option<Versioned<()>>,
}

/// Refuses a number that was written by hand: none could follow it, and whoever had joined that round would count as a
/// participant of every later one.
fn numbered(number: u64) -> Result<(), String> {
    match number < Round::NUMBERS {
        true => Ok(()),
        false => Err(format!("its number {number} is not below {}", Round::NUMBERS)),
    }
}

impl Rounds {
    pub(super) fn put(&mut self, key: RoundsKey, read: &RecordReader<'_>) -> Result<(), String> {
        match key {
            RoundsKey::Current => {
                let result = read.stamped().and_then(|it: Versioned<Round>| numbered(it.value.number).map(|()| it));
                self.current = Some(result.as_ref().map_or_else(|_| read.stamp(Round::default()), Versioned::clone));
                result.map(drop)
            }
            RoundsKey::Gathering => {
                let result =
                    read.stamped().and_then(|it: Versioned<GatheringRound>| numbered(it.value.number).map(|()| it));
                let nameless = || read.stamp(GatheringRound { number: 0, opened_by: String::new() });
                self.gathering = Some(result.as_ref().map_or_else(|_| nameless(), Versioned::clone));
                result.map(drop)
            }
            RoundsKey::Participant(name) => {
                let result = read.put_into(&mut self.participants, name.clone());
                let round = self.participants.get(&name).and_then(|it| it.value.round);
                let result = result.and_then(|()| numbered(round.unwrap_or_default()));
                if result.is_err() {
                    self.participants.insert(name.clone(), read.stamp(Participant::new(name, None)));
                }
                result
            }
            RoundsKey::Interval => {
                self.interval = Some(read.stamp(()));
                Ok(())
            }
            RoundsKey::Heartbeat => {
                self.heartbeat = Some(read.stamp(()));
                Ok(())
            }
        }
    }

    pub(super) fn delete(&mut self, key: RoundsKey) {
        match key {
            RoundsKey::Current => self.current = None,
            RoundsKey::Gathering => self.gathering = None,
            RoundsKey::Participant(name) => drop(self.participants.remove(&name)),
            RoundsKey::Interval => self.interval = None,
            RoundsKey::Heartbeat => self.heartbeat = None,
        }
    }

    /// Returns the gathering whose window is open.
    pub(crate) fn open_gathering(&self) -> Option<&Versioned<GatheringRound>> {
        self.gathering.as_ref().filter(|gathering| gathering.lease.is_some())
    }

    /// Returns whether the shortest time between two rounds has not passed.
    pub(crate) fn is_too_soon(&self) -> bool {
        self.interval.as_ref().is_some_and(|interval| interval.lease.is_some())
    }

    /// Returns whether the longest time without a round has not passed.
    pub(crate) fn is_fresh(&self) -> bool {
        self.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.lease.is_some())
    }

    /// Returns the participants whose registration stands.
    pub(crate) fn live(&self) -> impl Iterator<Item = (&String, &Versioned<Participant>)> {
        self.participants.iter().filter(|(_, participant)| participant.lease.is_some())
    }

    /// Returns the keys of participants that exist without their lease.
    pub(super) fn leaseless(&self, keys: &Keyspace) -> impl Iterator<Item = String> {
        let detached = self.participants.iter().filter(|(_, it)| it.lease.is_none());
        detached.map(|(name, _)| keys.participant(name))
    }

    /// Returns the registration of this very life of a participant.
    pub(crate) fn live_participant(&self, name: &str, life: Incarnation) -> Option<&Versioned<Participant>> {
        let registered = |it: &&Versioned<Participant>| it.create_revision == life.revision() && it.lease.is_some();
        self.participants.get(name).filter(registered)
    }

    /// Returns the living participants of the round in force.
    fn acting(&self) -> impl Iterator<Item = &Participant> {
        let current = self.current.iter().flat_map(|current| &current.value.participants);
        current.filter_map(|(name, life)| self.live_participant(name, *life)).map(|it| &it.value)
    }

    /// Returns the name of the participant that acts for the keyspace as a whole, if it lives.
    pub fn speaker(&self) -> Option<&str> {
        let (name, life) = self.current.as_ref()?.value.participants.first_key_value()?;
        self.live_participant(name, *life).map(|_| name.as_str())
    }
}

impl View {
    /// Returns the name of the process that answers for the keyspace as a whole: the leader, or the speaker of the
    /// assignment round. Nobody leads with a key that has no lease.
    pub fn coordinator(&self) -> Option<&str> {
        let leader = self.leader.as_ref().filter(|leader| leader.lease.is_some());
        leader.map(|leader| leader.value.holder.as_str()).or_else(|| self.rounds.speaker())
    }

    /// Returns the moves that the leader holds back, or all participants of the round in force together.
    pub fn held(&self) -> Vec<HeldMoves> {
        if let Some(leader) = &self.leader {
            return leader.value.held.clone();
        }
        let mut all: BTreeMap<HeldMoves, u32> = BTreeMap::new();
        for held in self.rounds.acting().flat_map(|it| &it.held) {
            let number = all.entry(HeldMoves { partitions: 0, ..held.clone() }).or_default();
            *number = number.saturating_add(held.partitions);
        }
        all.into_iter().map(|(held, partitions)| HeldMoves { partitions, ..held }).collect()
    }
}
