//! Assignment rounds: who coordinates a keyspace that has no leader.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::HeldMoves;
use crate::ids::Incarnation;

/// `rounds/current`: the round that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Round {
    /// The number of the round.
    pub number: u64,
    /// The participants by name. The incarnation is the `create_revision` of the participant's key.
    #[serde(default)]
    pub participants: BTreeMap<String, Incarnation>,
    /// The participant that closed the round. Informational.
    #[serde(default)]
    pub closed_by: String,
}

impl Round {
    /// The numbers of rounds are below this one.
    pub const NUMBERS: u64 = 1 << 53;
}

/// `rounds/gathering`: the round that gathers its participants. Its lease is the settle window, which nobody renews.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GatheringRound {
    /// The number that the round will have.
    pub number: u64,
    /// The participant that opened the round. Informational.
    #[serde(default)]
    pub opened_by: String,
}

/// `participants/{name}`, leased: a process that may take part in assignment rounds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Participant {
    /// The participant's name, as in the key.
    pub name: String,
    /// The round that it last joined. `None` asks for the next round.
    #[serde(default)]
    pub round: Option<u64>,
    /// Moves of its share that it wants and has not begun, as of a moment ago. Informational.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldMoves>,
}

impl Participant {
    /// Returns the record of a participant that holds nothing back.
    pub fn new(name: impl Into<String>, round: Option<u64>) -> Self {
        Participant { name: name.into(), round, held: Vec::new() }
    }
}
