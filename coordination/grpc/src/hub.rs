//! The view of one instance, shared by all its pods, and notices of its changes.
//!
//! # Invariants
//!
//! * A change of the membership costs a pod's stream a look at its own partitions, not at those of all pods.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use segue_coordination::session::{Update, Watcher, boottime};
use segue_coordination::store::Store;
use segue_protocol::handoff::checkpoint::Waits;
use segue_protocol::handoff::parties::Parties;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::lease::has_made_progress;
use segue_protocol::view::View;
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tracing::{Instrument as _, warn};

/// Most notices that wait for a reader, or are remembered for one that comes. A reader that misses some looks at every partition.
const NOTICES: usize = 256;

/// How long a call waits until the view has reached a revision.
const CATCH_UP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Hub {
    shared: Arc<HubState>,
    /// The waits for checkpoints of all pods. They outlast the streams.
    waits: Mutex<Waits>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct HubState {
    view: RwLock<IndexedView>,
    changes: broadcast::Sender<Change>,
    recent: Mutex<RecentChanges>,
    revision: watch::Sender<Revision>,
    /// The revision that last changed a partition or the membership.
    changed: watch::Sender<Revision>,
    /// Since when the view may be behind the store, on the clock of [`boottime`]; `None` while it follows.
    blind_since: Mutex<Option<Duration>>,
}

/// The last changes. All that came after the revision `beyond` are among them.
#[derive(Debug, Default)]
struct RecentChanges {
    beyond: Revision,
    changes: VecDeque<(Revision, Arc<AffectedRecords>)>,
}

impl RecentChanges {
    fn push(&mut self, revision: Revision, change: Change) {
        let Some(affected) = change else {
            *self = RecentChanges { beyond: revision, changes: VecDeque::new() };
            return;
        };
        self.changes.push_back((revision, affected));
        if self.changes.len() > NOTICES
            && let Some((oldest, _)) = self.changes.pop_front()
        {
            self.beyond = oldest;
        }
    }
}

impl HubState {
    fn recent(&self) -> MutexGuard<'_, RecentChanges> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells and remembers a change of the view, which shows this revision now.
    fn tell(&self, revision: Revision, change: Change) {
        let mut recent = self.recent();
        recent.push(revision, change.clone());
        // Without a receiver there is no pod to tell.
        let _ = self.changes.send(change);
    }

    fn blind_since(&self) -> MutexGuard<'_, Option<Duration>> {
        self.blind_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A view, and which of its partitions each pod has a part in.
#[derive(Debug)]
pub(crate) struct IndexedView {
    view: View,
    pub(crate) parties: Parties,
}

impl Deref for IndexedView {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

/// A change of the view; `None` means that everything may have changed.
type Change = Option<Arc<AffectedRecords>>;

/// The effect of a batch of changes.
#[derive(Debug, Default)]
struct AffectedRecords {
    partitions: BTreeSet<PartitionId>,
    /// Pods whose registration changed.
    pods: BTreeSet<String>,
}

/// The changes since they were last taken.
#[derive(Debug)]
pub(crate) struct HubChanges {
    receiver: broadcast::Receiver<Change>,
    /// The pod. A change of its own registration concerns all that it was told.
    pod: String,
    /// `None` for all.
    partitions: Option<BTreeSet<PartitionId>>,
}

impl Hub {
    /// Starts to follow a keyspace.
    pub(crate) fn start(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        let shared = Arc::new(HubState {
            view: RwLock::new(IndexedView { view: View::empty(keys.clone()), parties: Parties::default() }),
            changes: broadcast::Sender::new(NOTICES),
            recent: Mutex::default(),
            revision: watch::Sender::new(Revision::ZERO),
            changed: watch::Sender::new(Revision::ZERO),
            blind_since: Mutex::new(Some(boottime())),
        });
        let task = follow(shared.clone(), Watcher::start_planning(store, keys)).in_current_span();
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        Hub { shared, waits: Mutex::default(), _task: task }
    }

    pub(crate) fn view(&self) -> RwLockReadGuard<'_, IndexedView> {
        self.shared.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to changes on behalf of a pod. At first every partition counts as changed.
    pub(crate) fn changes(&self, pod: &str) -> HubChanges {
        HubChanges { receiver: self.shared.changes.subscribe(), pod: pod.to_owned(), partitions: None }
    }

    /// Subscribes to changes on behalf of a pod that was told the view of this revision.
    pub(crate) fn changes_since(&self, pod: &str, revision: Revision) -> HubChanges {
        // Nothing is told meanwhile.
        let recent = self.shared.recent();
        let mut changes = self.changes(pod);
        if revision >= recent.beyond {
            changes.take();
            let missed = recent.changes.iter().filter(|(at, _)| *at > revision);
            missed.for_each(|(_, affected)| changes.note(Some(affected.clone())));
        }
        changes
    }

    /// Refuses to work for a pod with a lease of this TTL if the store has not been followed for half of it. The pod is to
    /// go to another instance: its lease stands for a loop that acts, and this one tells it nothing.
    pub(crate) fn ensure_sighted(&self, ttl: Duration) -> Result<(), Status> {
        let blind_since = *self.shared.blind_since();
        match blind_since {
            Some(since) if !has_made_progress(micros(boottime()), micros(since), micros(ttl)) => Err(cannot_follow()),
            _ => Ok(()),
        }
    }

    /// Waits until the view shows this revision.
    pub(crate) async fn shows(&self, revision: Revision) -> Result<(), Status> {
        if self.shows_within(revision, CATCH_UP).await { Ok(()) } else { Err(cannot_follow()) }
    }

    /// Returns whether the view shows this revision within `patience`.
    pub(crate) async fn shows_within(&self, revision: Revision, patience: Duration) -> bool {
        let mut seen = self.shared.revision.subscribe();
        matches!(timeout(patience, seen.wait_for(|seen| *seen >= revision)).await, Ok(Ok(_)))
    }

    /// Waits until the view is newer than this revision.
    pub(crate) async fn newer_than(&self, revision: Revision) {
        exceeds(&self.shared.revision, revision).await;
    }

    /// Returns whether a partition or the membership has changed after this revision.
    pub(crate) fn has_changed_after(&self, revision: Revision) -> bool {
        *self.shared.changed.borrow() > revision
    }
}

impl HubChanges {
    /// Waits for a change. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        match self.receiver.recv().await {
            Ok(change) => self.note(change),
            Err(broadcast::error::RecvError::Lagged(_)) => self.note(None),
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
        self.catch_up();
    }

    /// Records the changes that have been announced so far.
    pub(crate) fn catch_up(&mut self) {
        loop {
            match self.receiver.try_recv() {
                Ok(change) => self.note(change),
                Err(broadcast::error::TryRecvError::Lagged(_)) => self.note(None),
                Err(_) => return,
            }
        }
    }

    /// Records a change. Missed changes are the same as one of everything.
    fn note(&mut self, change: Change) {
        match change {
            Some(affected) if !affected.pods.contains(&self.pod) => {
                if let Some(partitions) = &mut self.partitions {
                    partitions.extend(affected.partitions.iter().copied());
                }
            }
            _ => self.partitions = None,
        }
    }

    /// Returns whether anything has changed.
    pub(crate) fn any(&self) -> bool {
        self.partitions.as_ref().is_none_or(|partitions| !partitions.is_empty())
    }

    /// Returns whether any of these partitions has changed, or everything may have.
    pub(crate) fn concern(&self, partitions: &BTreeSet<PartitionId>) -> bool {
        self.partitions.as_ref().is_none_or(|changed| !changed.is_disjoint(partitions))
    }

    /// Marks a partition as changed.
    pub(crate) fn look_at(&mut self, partition: PartitionId) {
        if let Some(partitions) = &mut self.partitions {
            partitions.insert(partition);
        }
    }

    /// Takes the changed partitions; `None` means all.
    pub(crate) fn take(&mut self) -> Option<BTreeSet<PartitionId>> {
        self.partitions.replace(BTreeSet::new())
    }
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn cannot_follow() -> Status {
    Status::unavailable("this instance cannot follow the store at present; retry")
}

async fn exceeds(number: &watch::Sender<Revision>, revision: Revision) {
    if number.subscribe().wait_for(|number| *number > revision).await.is_err() {
        // The sender lives as long as the hub.
        std::future::pending::<()>().await;
    }
}

async fn follow(shared: Arc<HubState>, mut watcher: Watcher) {
    loop {
        let update = watcher.next().await;
        let (change, revision) = {
            let mut indexed = shared.view.write().unwrap_or_else(PoisonError::into_inner);
            let IndexedView { view, parties } = &mut *indexed;
            let change = match update {
                Update::Snapshot(fresh) => {
                    view.resync(*fresh);
                    *parties = Parties::of(view);
                    None
                }
                Update::Batch(batch) => {
                    let mut delta = view.apply(batch);
                    while let Some(batch) = watcher.try_next_batch() {
                        delta.extend(view.apply(batch));
                    }
                    parties.update(view, delta.partitions.iter().copied());
                    let affected = delta.affected(view);
                    affected.map(|partitions| Arc::new(AffectedRecords { partitions, pods: delta.pods }))
                }
                Update::Lost(error) => {
                    if shared.blind_since().is_none() {
                        warn!(%error, "pods' service lost its store watch; resyncing");
                    }
                    shared.blind_since().get_or_insert_with(boottime);
                    continue;
                }
            };
            (change, view.revision)
        };
        *shared.blind_since() = None;
        shared.revision.send_replace(revision);
        // Heartbeats and operators' keys concern no pod. They would wake every stream.
        if change.as_ref().is_none_or(|affected| !affected.partitions.is_empty() || !affected.pods.is_empty()) {
            shared.changed.send_replace(revision);
            shared.tell(revision, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_coordination::store::MemoryStore;
    use segue_protocol::txn::{Op, Txn};

    use super::*;

    async fn put(store: &dyn Store, key: String, value: &str) -> Revision {
        let then = vec![Op::put(key, value.as_bytes().to_vec())];
        store.commit(Txn::guarded([], then)).await.unwrap().revision
    }

    #[tokio::test]
    async fn a_stream_is_woken_only_by_what_may_concern_a_pod() {
        let (store, keys) = (Arc::new(MemoryStore::new()), Keyspace::new("/segue/", "default"));
        let pod = put(&*store, keys.pod("w"), r#"{"pod_name":"w","address":"127.0.0.1:1"}"#).await;
        let hub = Hub::start(store.clone(), keys.clone());
        hub.shows(pod).await.unwrap();
        let mut changes = hub.changes("w");
        let heartbeat = r#"{"incarnation":1,"interval_ms":5000,"total":1.0}"#;
        for key in [keys.load("w"), keys.load("x"), keys.drain("w"), keys.router("r"), keys.pod_stream("x")] {
            hub.shows(put(&*store, key, heartbeat).await).await.unwrap();
        }
        assert_eq!(*hub.shared.changed.borrow(), pod, "a poll waits on");
        put(&*store, keys.pod("x"), r#"{"pod_name":"x","address":"127.0.0.1:2"}"#).await;
        let first = loop {
            // The snapshot may have been announced after the subscription.
            if let Some(affected) = changes.receiver.recv().await.unwrap() {
                break affected;
            }
        };
        assert!(first.pods.contains("x") && first.partitions.is_empty(), "{first:?}");
        changes.take();
        changes.note(Some(first));
        assert!(!changes.any(), "another pod without partitions");
        put(&*store, keys.pod("w"), r#"{"pod_name":"w","address":"127.0.0.1:3"}"#).await;
        changes.wait().await;
        assert_eq!(changes.take(), None, "the pod's own registration concerns all that it was told");
    }

    #[tokio::test]
    async fn a_pod_that_was_told_elsewhere_misses_the_changes_since_and_no_others() {
        let (store, keys) = (Arc::new(MemoryStore::new()), Keyspace::new("/segue/", "default"));
        let hub = Hub::start(store.clone(), keys.clone());
        let pod = |name: &str| format!(r#"{{"pod_name":"{name}","address":"127.0.0.1:1"}}"#);
        let first = put(&*store, keys.pod("w"), &pod("w")).await;
        hub.shows(first).await.unwrap();
        let mut told = first;
        for partition in [1, 2] {
            let owned = format!(r#"{{"partition":{partition},"owner":"x","incarnation":1,"epoch":{partition}}}"#);
            let revision = put(&*store, keys.assignment(PartitionId::new(partition)), &owned).await;
            hub.shows(revision).await.unwrap();
            if partition == 1 {
                told = revision;
            }
        }
        let missed = |revision| hub.changes_since("w", revision).take();
        let partitions = |numbers: &[u32]| Some(numbers.iter().copied().map(PartitionId::new).collect());
        assert_eq!(missed(told), partitions(&[2]));
        assert_eq!(missed(first), partitions(&[1, 2]));
        assert_eq!(missed(Revision::ZERO), None, "it remembers nothing of before it began");
        let again = put(&*store, keys.pod("w"), &pod("w")).await;
        hub.shows(again).await.unwrap();
        assert_eq!(missed(told), None, "the pod's own registration concerns all that it was told");
        assert_eq!(missed(again), partitions(&[]));
        for _ in 0..=NOTICES {
            let revision = put(&*store, keys.pod("x"), &pod("x")).await;
            hub.shows(revision).await.unwrap();
        }
        assert_eq!(missed(again), None, "it remembers no more than {NOTICES} changes");
    }
}
