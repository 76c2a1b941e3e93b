//! The state of the keyspace for the admin endpoint: the view, the journal, and the partitions that have changed since
//! the stream last read them.
//!
//! # Invariants
//!
//! * A reader holds the lock only while it copies the changes, so that it does not delay the follower.
//! * The list of changed partitions is bounded, whether or not anybody reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use segue_coordination::session::Update;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Phase, PodStatus};
use segue_protocol::txn::KeyValue;
use segue_protocol::view::{View, ViewDelta};

use super::journal::{Cutover, Journal, JournalEntry};
use crate::operator::status::{KeyspaceStatus, Stale};
use crate::operator::troubles::TroubleReports;

/// Number of changed partitions from which on all partitions are read.
const MAX_CHANGED: usize = 4096;

/// A keyspace that a follower writes and the admin endpoint reads. One stream takes the changes.
#[derive(Debug)]
pub(crate) struct Board(Mutex<FollowedKeyspace>);

#[derive(Debug)]
struct FollowedKeyspace {
    view: View,
    journal: Journal,
    changed: ChangedPartitions,
    /// What the routers report of their clients, and how often that or what they have acknowledged was read anew.
    reports: (TroubleReports, u64),
    /// Since when the watch of the store is lost, in Unix milliseconds, and why.
    lost: Option<(u64, String)>,
}

/// The partitions whose owner may have changed.
#[derive(Debug)]
enum ChangedPartitions {
    Some(BTreeSet<PartitionId>),
    All,
}

/// A value that differs after every change.
pub(super) type BoardVersion = (u64, u64, u64, bool);

/// The changes since the last read.
#[derive(Debug)]
pub(super) struct BoardChanges {
    pub(super) status: KeyspaceStatus,
    /// The live owner of each partition that may have changed.
    pub(super) owners: Vec<(PartitionId, Option<String>)>,
    /// The fair share of each pod that accepts partitions.
    pub(super) shares: BTreeMap<String, f64>,
    pub(super) entries: Vec<JournalEntry>,
    pub(super) cutovers: Vec<Cutover>,
    /// The number of the journal's entry to read from next time.
    pub(super) next: u64,
    pub(super) lost: Option<String>,
}

impl Board {
    /// Returns the board of a keyspace that has not been read yet. `now` is in Unix milliseconds.
    pub(crate) fn new(keys: Keyspace, now: u64) -> Self {
        let lost = Some((now, "the keyspace has not been read yet".to_owned()));
        Board(Mutex::new(FollowedKeyspace {
            view: View::empty(keys),
            journal: Journal::default(),
            changed: ChangedPartitions::All,
            reports: Default::default(),
            lost,
        }))
    }

    /// Applies an update of the watch. `now` is in Unix milliseconds.
    pub(crate) fn update(&self, update: Update, now: u64) {
        let mut guard = self.lock();
        let followed = &mut *guard;
        match update {
            Update::Snapshot(snapshot) => {
                followed.journal.replace(&mut followed.view, *snapshot, now);
                followed.changed = ChangedPartitions::All;
                followed.lost = None;
            }
            Update::Batch(batch) => {
                let touched = followed.journal.apply(&mut followed.view, batch, now);
                followed.changed.add(touched);
            }
            Update::Lost(error) => {
                let error = error.to_string();
                // The watch reports every attempt; the log shows the first.
                if followed.lost.is_none() {
                    followed.journal.lost(&error, now);
                }
                let since = followed.lost.as_ref().map_or(now, |(since, _)| *since);
                followed.lost = Some((since, error));
            }
        }
    }

    /// Takes what the routers report of their clients.
    pub(crate) fn report(&self, reports: TroubleReports) {
        let mut followed = self.lock();
        if followed.reports.0 != reports {
            followed.reports = (reports, followed.reports.1 + 1);
        }
    }

    /// Returns whether a handoff may wait for routers.
    pub(crate) fn waits_for_routers(&self) -> bool {
        let waits = |phase| matches!(phase, Phase::Ready | Phase::Switching);
        self.lock().view.handoffs.values().any(|handoff| waits(handoff.value.phase))
    }

    /// Takes the acknowledgements of routers, which the board's watcher does not follow.
    pub(crate) fn show_router_acks(&self, acks: Vec<KeyValue>) {
        let mut followed = self.lock();
        followed.view.show_router_acks(acks);
        followed.reports.1 += 1;
    }

    /// Returns the status of the keyspace.
    pub(crate) fn status(&self, now: u64) -> KeyspaceStatus {
        self.lock().status(now)
    }

    /// Returns a value that differs after every change.
    pub(super) fn version(&self) -> BoardVersion {
        let followed = self.lock();
        (followed.view.revision.get(), followed.journal.next(), followed.reports.1, followed.lost.is_some())
    }

    /// Returns the changes since the last read, and the journal from entry `n` on. With `all`, returns every owner.
    pub(super) fn take(&self, n: u64, all: bool, now: u64) -> BoardChanges {
        let mut followed = self.lock();
        let changed = std::mem::replace(&mut followed.changed, ChangedPartitions::Some(BTreeSet::new()));
        let FollowedKeyspace { view, journal, lost, .. } = &*followed;
        let owner = |partition: PartitionId| {
            (partition, view.live_owner(partition).map(|(assignment, _)| assignment.owner.clone()))
        };
        let owners = match changed {
            ChangedPartitions::Some(partitions) if !all => {
                partitions.into_iter().filter(|partition| partition.get() < view.partitions()).map(owner).collect()
            }
            _ => PartitionId::all(view.partitions()).map(owner).collect(),
        };
        BoardChanges {
            status: followed.status(now),
            owners,
            shares: shares(view),
            entries: journal.entries_from(n).cloned().collect(),
            cutovers: journal.cutovers_from(n).cloned().collect(),
            next: journal.next(),
            lost: lost.as_ref().map(|(_, reason)| reason.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FollowedKeyspace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FollowedKeyspace {
    fn status(&self, now: u64) -> KeyspaceStatus {
        let stale = self.lost.as_ref().map(|(since, reason)| Stale::new(*since, reason.clone(), now));
        let status = KeyspaceStatus::of(&self.view, now).with_troubles(&self.reports.0, &self.view, now);
        KeyspaceStatus { stale, ..status }
    }
}

impl ChangedPartitions {
    fn add(&mut self, touched: ViewDelta) {
        let ChangedPartitions::Some(partitions) = self else { return };
        partitions.extend(touched.partitions);
        // A pod that comes or goes makes the owner of its partitions live or dead.
        if touched.membership || partitions.len() > MAX_CHANGED {
            *self = ChangedPartitions::All;
        }
    }
}

/// Returns `partitions × weight / sum of weights` for each pod that accepts partitions.
fn shares(view: &View) -> BTreeMap<String, f64> {
    let ready = || view.pods.iter().filter(|(_, pod)| pod.value.status == PodStatus::Ready);
    let total: f64 = ready().map(|(_, pod)| f64::from(pod.value.weight.0)).sum();
    let share = |weight: u32| if total > 0.0 { f64::from(view.partitions()) * f64::from(weight) / total } else { 0.0 };
    ready().map(|(name, pod)| (name.clone(), share(pod.value.weight.0))).collect()
}
