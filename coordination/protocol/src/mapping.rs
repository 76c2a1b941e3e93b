//! Decides whether a router maps requests to partitions as the keyspace does.
//!
//! Pure. The keyspace's mapping is part of its settings. The first router writes it, and a router with another mapping
//! keeps its routes closed: two routers that map one key to two partitions would send it to two pods. Under a key hash the
//! number of partitions belongs to the mapping, and a router remembers it as long as it lives.
//!
//! # Invariants
//!
//! * No router replaces a mapping. An operator does, while no router is registered ([`replace`]): under another mapping a
//!   key is in another partition, whose owner does not have its state.
//! * A mapping that somebody has deleted is put back only by a router that has it. One that has seen another mapping waits.

use std::fmt;

use crate::ids::Revision;
use crate::keys::KeyName;
use crate::records::{KeyspaceConfig, Partitioner, encode};
use crate::txn::{Compare, Op, Txn};
use crate::view::{Versioned, View};

/// The decision of a router that is not registered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agreement {
    /// The mapping is the router's own: it may register.
    Same,
    /// There is no mapping: the router writes its own.
    Write(Txn),
    /// There is another mapping, or there are no settings that can be read: the router waits. The reason, in words.
    Wait(String),
}

/// Compares the mapping `own` of a router with the one that the view shows. `number` is the number of partitions by which
/// the router has mapped requests, `other` another mapping that it has seen in the settings last.
pub fn agree(view: &View, own: &Partitioner, number: Option<u32>, other: Option<&Partitioner>) -> Agreement {
    if let Some(number) = number.filter(|number| view.settings().is_some() && !has_number(view, own, *number)) {
        return Agreement::Wait(format!(
            "the keyspace has {} partitions, and this router mapped requests by {own} to {number}: restore the number in \
             the keyspace's settings",
            view.partitions()
        ));
    }
    let Some(config) = &view.config else {
        return match view.malformed.get(&view.keys().config()) {
            _ if is_shown(view, own, number) => Agreement::Same,
            Some(reason) => Agreement::Wait(format!("the keyspace's settings cannot be read: {reason}")),
            None => Agreement::Wait("the keyspace has no settings yet: no coordinator has led".to_owned()),
        };
    };
    match &config.value.partitioner {
        Some(standing) if standing == own => Agreement::Same,
        None => match other {
            None => Agreement::Write(write(view, config, own)),
            Some(other) => Agreement::Wait(format!(
                "the keyspace's settings do not say any more how requests map to partitions; they said {other}, and this router \
                 maps by {own}: a router by {other} puts its mapping back, and segue remap writes another one"
            )),
        },
        Some(standing) => Agreement::Wait(format!(
            "the keyspace maps requests to partitions by {standing}, this router by {own}: correct [router.partition], or \
             replace the keyspace's mapping with segue remap"
        )),
    }
}

/// The replacement of a keyspace's mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// The mapping in the settings. `None` if no router has written one.
    pub standing: Option<Partitioner>,
    /// Number of partitions that have an owner, whose state was put there by the mapping that stands.
    pub owned: usize,
    /// The transaction, which fails if a router is registered by then or the settings have changed.
    pub txn: Txn,
}

/// Why [`replace`] refuses a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplacementError {
    /// The keyspace's settings cannot be read, for this reason.
    Unreadable(String),
    /// The keyspace has no settings yet.
    NoSettings,
    /// Routers with these names are registered.
    RoutersRegistered(Vec<String>),
}

impl std::error::Error for ReplacementError {}

impl fmt::Display for ReplacementError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplacementError::Unreadable(reason) => write!(out, "the keyspace's settings cannot be read: {reason}"),
            ReplacementError::NoSettings => {
                out.write_str("the keyspace has no settings yet: the first router writes its mapping")
            }
            ReplacementError::RoutersRegistered(routers) => write!(
                out,
                "the mapping changes only while no router is registered: stop {} and try again",
                routers.join(", ")
            ),
        }
    }
}

/// Returns how the keyspace's mapping becomes `to`. An operator's decision.
///
/// # Errors
///
/// Refuses the mapping while a router is registered, and in a keyspace whose settings do not exist or cannot be read.
pub fn replace(view: &View, to: &Partitioner) -> Result<Replacement, ReplacementError> {
    let Some(config) = &view.config else {
        let reason = view.malformed.get(&view.keys().config());
        return Err(reason.cloned().map_or(ReplacementError::NoSettings, ReplacementError::Unreadable));
    };
    if !view.routers.is_empty() {
        return Err(ReplacementError::RoutersRegistered(view.routers.keys().cloned().collect()));
    }
    let unreadable = view.malformed.keys().filter(|key| matches!(view.keys().parse(key), Some(KeyName::Assignment(_))));
    let owned = view.assignments.len() + unreadable.count();
    let mut txn = write(view, config, to);
    txn.when.push(Compare::none_created_after(view.keys().routers(), Revision::ZERO));
    Ok(Replacement { standing: config.value.partitioner.clone(), owned, txn })
}

/// Returns whether the settings that were read last contain this mapping, with the number of partitions that belongs to
/// it. A running router fences if they do not.
pub fn is_shown(view: &View, own: &Partitioner, number: Option<u32>) -> bool {
    view.settings().is_some_and(|settings| settings.partitioner.as_ref() == Some(own))
        && number.is_none_or(|number| has_number(view, own, number))
}

/// Returns whether this number of partitions is still that of the keyspace, if it belongs to the mapping.
fn has_number(view: &View, own: &Partitioner, number: u32) -> bool {
    !own.fixes_number() || view.partitions() == number
}

fn write(view: &View, config: &Versioned<KeyspaceConfig>, mapping: &Partitioner) -> Txn {
    let key = view.keys().config();
    let value = encode(&KeyspaceConfig { partitioner: Some(mapping.clone()), ..config.value.clone() });
    Txn::guarded([Compare::unchanged_since(key.clone(), config.mod_revision)], [Op::put(key, value)])
}
