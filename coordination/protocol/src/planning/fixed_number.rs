//! The number of partitions of a keyspace whose keys are hashed: it belongs to the mapping and does not change with it.
//!
//! With another number a key is in another partition, whose owner does not have its state. Routers that see another
//! number fence. A leader that sees one plans by the number that it knows until somebody puts that one back: partitions
//! beyond it would have owners, and a keyspace that shrinks would lose those of the others.
//!
//! A new leader takes the number that it finds: assignments alone do not tell whether a first placement is under way. A
//! keyspace without assignments has no state that could be left behind, so its number may change.

use super::notice::Notice;
use super::notice_settings::put_by_hand;
use crate::records::{KeyspaceConfig, Partitioner, encode};
use crate::view::View;

/// The mapping that hashes keys, and the number that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct FixedNumber(Option<(Partitioner, u32)>);

impl FixedNumber {
    /// Records the mapping that the view shows. Settings without a mapping were written by hand: it is still in force.
    pub(super) fn observe(&mut self, view: &View) {
        let Some(settings) = view.settings() else { return };
        let shown = settings.partitioner.as_ref();
        let is_known = self.0.as_ref().is_some_and(|(known, _)| shown.is_none_or(|shown| shown == known));
        if is_known && !view.assignments.is_empty() {
            return;
        }
        let hashed = shown.filter(|shown| shown.fixes_number());
        self.0 = hashed.map(|mapping| (mapping.clone(), settings.partitions));
    }

    /// Returns the number of partitions to plan by. `None` until settings have been read.
    pub(super) fn of(&self, view: &View) -> Option<u32> {
        let shown = view.settings()?.partitions;
        Some(self.0.as_ref().map_or(shown, |(_, number)| *number))
    }

    /// Returns the notice that the settings have another number, with the settings as they should be.
    pub(super) fn notice(&self, view: &View) -> Option<Notice> {
        let (mapping, number) = self.0.as_ref()?;
        let shown = view.settings().filter(|shown| shown.partitions != *number)?;
        let config = KeyspaceConfig { partitions: *number, partitioner: Some(mapping.clone()), ..shown.clone() };
        Some(Notice::NumberChanged {
            shown: shown.partitions,
            number: *number,
            mapping: mapping.clone(),
            restore: put_by_hand(&view.keys().config(), &encode(&config)),
        })
    }
}
