//! Recognises a rolling restart by the versions of pods, and delays moves for balance meanwhile.
//!
//! In a rolling restart, pods drain, exit and come back one after the other, each with the new version. Two rules
//! minimise the number of moves. Partitions of a draining pod go to pods that have been restarted already, because they
//! would have to leave any other pod again. A pod that has just come back stays empty until the next one drains into
//! it: if balance filled it, the next pod's partitions would have to go to pods that have not been restarted yet. The
//! load of the other pods is the same as while any pod is away. When all pods have one version, balance fills the pod
//! that came back last.
//!
//! A rolling restart that pauses must not leave a pod empty. Balance therefore waits no longer than [`ROLL_PATIENCE`]
//! for the next drain.
//!
//! The newest version is that of the pod that registered last. There is no other order of versions, so a rollback is a
//! rolling restart like any other, and no clock is needed.
//!
//! # Invariants
//!
//! * Pods that all have the same version, or none, are not in a rolling restart.
//! * A pod that restarts repeatedly, each time within [`ROLL_PATIENCE`], does not prolong the wait. Only a growing
//!   number of pods of the newest version does.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::view::View;

/// How long balance waits for the next pod to drain after one has come back.
pub const ROLL_PATIENCE: Duration = Duration::from_secs(60);

/// The rolling restart in progress, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Rolls {
    /// The largest number of pods of each version while it was the newest.
    most: BTreeMap<Option<String>, usize>,
    /// When the rolling restart last made progress.
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
            // The restart is complete, or the only pods of the newest version are briefly absent.
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

    /// Returns until when balance waits for a rolling restart, or `None` if it does not wait.
    pub(super) fn balance_waits_until(&self, now: Duration) -> Option<Duration> {
        let is_rolling = self.uniform_since.is_none() && !self.most.is_empty();
        Some(self.since + ROLL_PATIENCE).filter(|ends| is_rolling && *ends > now)
    }
}

/// Returns the version of the pod that registered last, if it has one.
pub(super) fn newest(view: &View) -> Option<&str> {
    let last = view.pods.values().max_by_key(|pod| pod.create_revision)?;
    last.value.version.as_deref()
}
