//! The view of one instance, shared by all its pods, and notices of its changes.
//!
//! # Invariants
//!
//! * A change of the membership costs a pod's stream a look at its own partitions, not at those of all pods.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use segue_coordination::session::{Update, Watcher};
use segue_coordination::store::Store;
use segue_protocol::handoff::parties::Parties;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::view::{View, ViewDelta};
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tracing::warn;

/// Most notices that wait for a reader. A reader that misses some looks at every partition.
const NOTICES: usize = 256;

/// How long a call waits until the view has reached a revision.
const CATCH_UP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Hub {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Shared {
    view: RwLock<IndexedView>,
    changes: broadcast::Sender<Change>,
    revision: watch::Sender<Revision>,
    /// The revision that last changed a partition or the membership.
    changed: watch::Sender<Revision>,
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

/// The partitions that have changed; `None` means all.
type Change = Option<Arc<BTreeSet<PartitionId>>>;

/// The changes since they were last taken.
#[derive(Debug)]
pub(crate) struct Changes {
    receiver: broadcast::Receiver<Change>,
    /// `None` for all.
    partitions: Option<BTreeSet<PartitionId>>,
}

impl Hub {
    /// Starts to follow a keyspace.
    pub(crate) fn start(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        let shared = Arc::new(Shared {
            view: RwLock::new(IndexedView { view: View::empty(keys.clone()), parties: Parties::default() }),
            changes: broadcast::Sender::new(NOTICES),
            revision: watch::Sender::new(Revision::ZERO),
            changed: watch::Sender::new(Revision::ZERO),
        });
        let task = AbortOnDropHandle::new(tokio::spawn(follow(shared.clone(), Watcher::start(store, keys))));
        Hub { shared, _task: task }
    }

    pub(crate) fn view(&self) -> RwLockReadGuard<'_, IndexedView> {
        self.shared.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to changes. At first every partition counts as changed.
    pub(crate) fn changes(&self) -> Changes {
        Changes { receiver: self.shared.changes.subscribe(), partitions: None }
    }

    /// Waits until the view shows this revision.
    pub(crate) async fn shows(&self, revision: Revision) -> Result<(), Status> {
        let mut seen = self.shared.revision.subscribe();
        match timeout(CATCH_UP, seen.wait_for(|seen| *seen >= revision)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Status::unavailable("this instance cannot follow the store at present; retry")),
        }
    }

    /// Waits until the view is newer than this revision.
    pub(crate) async fn newer_than(&self, revision: Revision) {
        exceeds(&self.shared.revision, revision).await;
    }

    /// Waits until a partition or the membership has changed after this revision.
    pub(crate) async fn changed_after(&self, revision: Revision) {
        exceeds(&self.shared.changed, revision).await;
    }
}

impl Changes {
    /// Waits for a change. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        let received = self.receiver.recv().await;
        if self.note(received.map_err(|error| error == broadcast::error::RecvError::Closed)) {
            std::future::pending::<()>().await;
        }
        while let Ok(change) = self.receiver.try_recv() {
            self.note(Ok(change));
        }
    }

    /// Records a change. Returns whether the channel is closed.
    fn note(&mut self, received: Result<Change, bool>) -> bool {
        match received {
            Ok(Some(changed)) => {
                if let Some(partitions) = &mut self.partitions {
                    partitions.extend(changed.iter().copied());
                }
                false
            }
            Ok(None) | Err(false) => {
                self.partitions = None;
                false
            }
            Err(true) => true,
        }
    }

    /// Returns whether anything has changed.
    pub(crate) fn any(&self) -> bool {
        self.partitions.as_ref().is_none_or(|partitions| !partitions.is_empty())
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

async fn exceeds(number: &watch::Sender<Revision>, revision: Revision) {
    if number.subscribe().wait_for(|number| *number > revision).await.is_err() {
        // The sender lives as long as the hub.
        std::future::pending::<()>().await;
    }
}

async fn follow(shared: Arc<Shared>, mut watcher: Watcher) {
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
                        let ViewDelta { partitions, membership, .. } = view.apply(batch);
                        delta.partitions.extend(partitions);
                        delta.membership |= membership;
                    }
                    parties.update(view, delta.partitions.iter().copied());
                    (!delta.membership).then(|| Arc::new(delta.partitions))
                }
                Update::Lost(error) => {
                    warn!(%error, "pods' service lost its store watch; resyncing");
                    continue;
                }
            };
            (change, view.revision)
        };
        shared.revision.send_replace(revision);
        if change.as_ref().is_none_or(|partitions| !partitions.is_empty()) {
            shared.changed.send_replace(revision);
        }
        // Without a receiver there is no pod to tell.
        let _ = shared.changes.send(change);
    }
}
