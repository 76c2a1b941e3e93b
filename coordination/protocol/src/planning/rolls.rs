//! Recognises a rolling restart by the versions of pods, and has balance wait for it.
//!
//! In a roll pods drain, exit and come back one after the other, each with the new version. Two things follow for the
//! fewest moves. What the next pod gives up goes to pods that have been restarted already, since it would have to leave
//! the others again. And a pod that has just come back stays empty until the next one drains into it: if balance filled
//! it, the next pod's partitions would have no place but on pods that are still to be restarted. Each pod that remains
//! has the same load meanwhile, as it has while any pod is away. When all pods have one version, balance fills the last
//! pod that came back.
//!
//! A roll that pauses must not leave a pod empty: balance waits no longer than [`ROLL_PATIENCE`] for the next drain.
//!
//! The newest version is that of the pod that registered last. Versions are not compared otherwise, so that a rollback is
//! a roll like any other, and no clock decides.
//!
//! # Invariants
//!
//! * Pods of one version, or without one, are no roll.
//! * A pod that restarts again and again, each time within the patience, does not prolong the wait: only more pods of the
//!   newest version than before do.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::view::View;

/// How long balance waits for the next pod of a roll to drain after one has come back.
pub const ROLL_PATIENCE: Duration = Duration::from_secs(60);

/// The roll in progress, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Rolls {
    /// The most pods of each version at a time while it was the newest.
    most: BTreeMap<Option<String>, usize>,
    /// When the roll last made progress.
    since: Duration,
    /// Since when all registered pods have had one version.
    uniform_since: Option<Duration>,
}

impl Rolls {
    /// Records the versions of the registered pods.
    pub(super) fn observe(&mut self, view: &View, now: Duration) {
        let newest = newest(view).map(str::to_owned);
        let of_newest = view.pods.values().filter(|pod| pod.value.version == newest).count();
        if of_newest == view.pods.len() {
            // The roll is complete, or the only pods of the newest version are away for a moment.
            if self.most.contains_key(&newest) {
                self.most.clear();
            }
            self.uniform_since.get_or_insert(now);
            return;
        }
        if self.uniform_since.take().is_some_and(|since| since + ROLL_PATIENCE <= now) {
            self.most.clear();
        }
        let most = self.most.entry(newest).or_default();
        if of_newest > *most {
            *most = of_newest;
            self.since = now;
        }
    }

    /// Returns until when balance waits for a roll. `None` if it does not.
    pub(super) fn balance_waits_until(&self, now: Duration) -> Option<Duration> {
        let is_rolling = self.uniform_since.is_none() && !self.most.is_empty();
        Some(self.since + ROLL_PATIENCE).filter(|ends| is_rolling && *ends > now)
    }
}

/// Returns the version of the pod that registered last. `None` if it has none, or without pods.
pub(super) fn newest(view: &View) -> Option<&str> {
    let last = view.pods.values().max_by_key(|pod| pod.create_revision)?;
    last.value.version.as_deref()
}
