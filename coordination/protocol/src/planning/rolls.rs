//! Recognises a rolling restart, and delays moves for balance meanwhile.
//!
//! In a rolling restart, pods drain, exit and come back one after the other. Two rules minimise the number of moves.
//! Partitions of a draining pod go to pods that have been restarted already, because they would have to leave any other
//! pod again. A pod that has just come back stays empty until the next one drains into it: if balance filled it, the next
//! pod's partitions would have to go to pods that have not been restarted yet. The load of the other pods is the same as
//! while any pod is away. When all pods have been restarted, balance fills the pod that came back last.
//!
//! Two signs show a rolling restart: pods have different versions, or a pod with a version, be it the same one, has come
//! back within [`ROLL_PATIENCE`] after it drained by itself. Versions are in the store. Returns are only remembered: a new
//! leader knows those that it has seen, and balance may then wait for [`ROLL_PATIENCE`] after the last pod has come back.
//! Pods without versions are filled at once: whoever names none has not said that pods restart one after the other. A pod
//! that an operator drains stays drained when it comes back, and is no sign.
//!
//! A rolling restart that pauses must not leave a pod empty. Balance therefore waits no longer than [`ROLL_PATIENCE`]
//! for the next drain.
//!
//! The newest version is that of the pod that registered last among those that have one. There is no other order of
//! versions, so a rollback is a rolling restart like any other, and no clock is needed.
//!
//! While the last pod is away, all others have the newest version. The rolling restart is complete once that pod is back.
//!
//! # Invariants
//!
//! * A pod that restarts repeatedly, each time within [`ROLL_PATIENCE`], does not prolong the wait. Only a growing
//!   number of restarted pods does.
//! * Once all pods have been restarted, nothing waits.
//! * Pods without versions are in no rolling restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::Incarnation;
use crate::records::PodStatus;
use crate::view::View;

/// How long balance waits for the next pod to drain after one has come back, and a pod that drained to come back.
pub const ROLL_PATIENCE: Duration = Duration::from_secs(60);

/// The rolling restart in progress, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Rolls {
    versions: Versions,
    returns: Returns,
}

impl Rolls {
    /// Records the versions and the lives of the registered pods.
    pub(super) fn observe(&mut self, view: &View, now: Duration) {
        self.returns.observe(view, now);
        if self.versions.observe(view, self.returns.is_anyone_away(view), now) {
            self.returns.back.clear();
        }
    }

    /// Returns until when balance waits for a rolling restart, or `None` if it does not wait.
    pub(super) fn balance_waits_until(&self, now: Duration) -> Option<Duration> {
        let since = self.versions.since().max(self.returns.since())?;
        Some(since + ROLL_PATIENCE).filter(|ends| *ends > now)
    }
}

/// A rolling restart from one version to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Versions {
    /// The largest number of pods of each version while it was the newest.
    most: BTreeMap<String, usize>,
    /// When the rolling restart last made progress.
    since: Duration,
    /// Since when all registered pods have had one version.
    uniform_since: Option<Duration>,
}

impl Versions {
    /// Returns whether this view completes a rolling restart. While a pod is away, that is not known.
    fn observe(&mut self, view: &View, is_anyone_away: bool, now: Duration) -> bool {
        let newest = newest(view);
        let mut versions = view.pods.values().filter_map(|pod| pod.value.version.as_deref());
        let Some(newest) = newest.filter(|newest| versions.any(|version| version != *newest)) else {
            // The restart is complete, or the only pods of the newest version are briefly absent.
            let is_complete = !is_anyone_away && newest.is_some_and(|newest| self.most.contains_key(newest));
            if is_complete {
                self.most.clear();
            }
            self.uniform_since.get_or_insert(now);
            return is_complete;
        };
        if self.uniform_since.take().is_some_and(|since| since + ROLL_PATIENCE <= now) {
            self.most.clear();
        }
        let of_newest = view.pods.values().filter(|pod| pod.value.version.as_deref() == Some(newest)).count();
        let most = self.most.entry(newest.to_owned()).or_default();
        if of_newest > *most {
            *most = of_newest;
            self.since = now;
        }
        false
    }

    fn since(&self) -> Option<Duration> {
        (self.uniform_since.is_none() && !self.most.is_empty()).then_some(self.since)
    }
}

/// A rolling restart that shows by pods with versions that drain and come back under their names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Returns {
    /// The pods that drain by themselves, or did so until they went.
    drained: BTreeMap<String, DrainedPod>,
    /// The pods that have come back.
    back: BTreeSet<String>,
    /// When `back` last grew.
    since: Duration,
    /// When a pod last drained, was away or came back.
    active: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct DrainedPod {
    life: Incarnation,
    gone_since: Option<Duration>,
}

impl Returns {
    fn observe(&mut self, view: &View, now: Duration) {
        for (name, pod) in view.pods.iter().filter(|(_, pod)| pod.value.version.is_some()) {
            let life = pod.incarnation();
            if pod.value.status == PodStatus::Draining {
                self.drained.insert(name.clone(), DrainedPod { life, gone_since: None });
            } else if self.drained.remove(name).is_some_and(|earlier| earlier.life != life) {
                self.active = now;
                if self.back.insert(name.clone()) {
                    self.since = now;
                }
            }
        }
        self.drained.retain(|name, drained| {
            view.pods.contains_key(name) || *drained.gone_since.get_or_insert(now) + ROLL_PATIENCE > now
        });
        if !self.drained.is_empty() {
            self.active = now;
        } else if self.active + ROLL_PATIENCE <= now || view.pods.keys().all(|name| self.back.contains(name)) {
            self.back.clear();
        }
    }

    /// Returns whether a pod that drained has gone and may come back.
    fn is_anyone_away(&self, view: &View) -> bool {
        self.drained.keys().any(|name| !view.pods.contains_key(name))
    }

    fn since(&self) -> Option<Duration> {
        (!self.back.is_empty()).then_some(self.since)
    }
}

/// Returns the version of the pod that registered last among those that have one.
pub(super) fn newest(view: &View) -> Option<&str> {
    let last = view.pods.values().filter(|pod| pod.value.version.is_some()).max_by_key(|pod| pod.create_revision)?;
    last.value.version.as_deref()
}
