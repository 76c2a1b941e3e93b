//! Watches the store from the clients' host and records each ownership with its begin and end, by one monotonic clock.
//!
//! An ownership begins between two known moments: the sending of a read that was answered with a smaller revision, and
//! the arrival of the event. The watch resumes from its last revision, so it misses nothing. The run fails if that
//! revision was compacted. A store that went back is watched anew.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use segue_contract::Breach;
use segue_coordination::store::{EtcdOptions, EtcdStore, Store, StoreError};
use segue_demo::check::{OwnerSpan, Owners};
use segue_demo::clock::{self, Nanos};
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::keys::{KeyName, Keyspace};
use segue_protocol::records::{Assignment, Handoff};
use segue_protocol::txn::{Batch, Event, Keys, Op, Txn};
use segue_protocol::view::View;
use tokio::runtime::Handle;

const POLL: Duration = Duration::from_millis(5);

/// The keyspace's history, watched for as long as this lives.
pub(crate) struct History {
    store: Mutex<Arc<dyn Store>>,
    keys: Keyspace,
    seen: Arc<Mutex<Seen>>,
    runtime: Handle,
}

/// The state of the watch.
pub(crate) struct Seen {
    pub(crate) view: View,
    pub(crate) owners: Owners,
    /// Partitions that changed from one owner to another.
    pub(crate) moved: u64,
    /// Handoffs that were deleted before they had changed the owner.
    pub(crate) cancelled: u64,
    /// Breaches of the contract.
    pub(crate) breaches: Vec<Breach>,
    /// The time at which the last read that returned this revision was sent.
    reads: BTreeMap<Revision, Nanos>,
    revision: Revision,
    lost: Option<String>,
    /// How often the store went back. What follows an earlier one ends.
    life: u64,
}

impl History {
    pub(crate) fn begin(options: EtcdOptions, keys: Keyspace, runtime: &Handle) -> anyhow::Result<Self> {
        let store: Arc<dyn Store> = Arc::new(EtcdStore::connect(options)?);
        let snapshot = runtime.block_on(store.snapshot(&Keys::Prefix(keys.root().to_owned())))?;
        let revision = snapshot.revision;
        let seen = Arc::new(Mutex::new(Seen {
            view: View::from_snapshot(keys.clone(), snapshot),
            owners: Owners::default(),
            moved: 0,
            cancelled: 0,
            breaches: Vec::new(),
            reads: BTreeMap::new(),
            revision,
            lost: None,
            life: 0,
        }));
        let history = History { store: Mutex::new(store), keys, seen, runtime: runtime.clone() };
        history.watch();
        Ok(history)
    }

    fn watch(&self) {
        let (store, keys, seen, life) = (self.store(), self.keys.clone(), self.seen.clone(), self.seen().life);
        self.runtime.spawn(follow(store.clone(), keys.clone(), seen.clone(), life));
        self.runtime.spawn(read_revisions(store, keys, seen, life));
    }

    /// Begins anew with the store as it is now, which went back. Owners of before stay known.
    pub(crate) fn restart(&self, options: EtcdOptions) -> anyhow::Result<()> {
        let store: Arc<dyn Store> = Arc::new(EtcdStore::connect(options)?);
        let all = Keys::Prefix(self.keys.root().to_owned());
        let snapshot = self.runtime.block_on(store.snapshot(&all)).context("reading the store")?;
        {
            let mut seen = self.seen();
            seen.life += 1;
            seen.revision = snapshot.revision;
            seen.reads.clear();
            seen.view = View::from_snapshot(self.keys.clone(), snapshot);
        }
        *lock(&self.store) = store;
        self.watch();
        Ok(())
    }

    fn store(&self) -> Arc<dyn Store> {
        lock(&self.store).clone()
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    pub(crate) fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// Writes to the store as an operator would by hand.
    pub(crate) fn by_hand(&self, write: Op) -> anyhow::Result<()> {
        let txn = Txn { when: Vec::new(), then: vec![write], otherwise: None };
        self.runtime.block_on(self.store().commit(txn))?;
        Ok(())
    }

    /// Waits until all that has been written by now has been seen.
    pub(crate) fn catch_up(&self) -> anyhow::Result<Revision> {
        let all = Keys::Prefix(self.keys.root().to_owned());
        let snapshot = self.runtime.block_on(self.store().snapshot(&all)).context("reading the store")?;
        let begun = Instant::now();
        loop {
            let (seen, lost) = {
                let seen = self.seen();
                (seen.revision, seen.lost.clone())
            };
            if let Some(lost) = lost {
                bail!("the watch of the store was lost: {lost}");
            }
            // Only Segue writes to this etcd: its revision is the keyspace's.
            if seen >= snapshot.revision {
                return Ok(seen);
            }
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("the watch has seen revision {seen} and the store is at {}", snapshot.revision);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.seen().life += 1;
    }
}

impl Seen {
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// Records a read that was sent then. Returns `false` if the store went back since.
    fn has_read(&mut self, life: u64, sent: Nanos, revision: Option<Revision>) -> bool {
        self.reads.extend(revision.filter(|_| self.life == life).map(|revision| (revision, sent)));
        self.life == life
    }

    /// Returns the next revision, unless the store went back since.
    fn next(&self, life: u64) -> Option<Revision> {
        (self.life == life).then(|| self.revision.next())
    }

    fn note(&mut self, batch: &Batch) {
        let arrived = clock::now();
        self.revision = batch.revision;
        for step in segue_contract::steps(batch) {
            self.follow(step, arrived);
        }
    }

    fn follow(&mut self, step: Batch, arrived: Nanos) {
        let before = self.view.clone();
        self.view.apply(step.clone());
        self.breaches.extend(segue_contract::breaches(&before, &self.view));
        for event in step.events {
            match event {
                Event::Put(put) => {
                    if let (Some(KeyName::Assignment(partition)), Ok(assignment)) =
                        (before.keys().parse(&put.key), serde_json::from_slice::<Assignment>(&put.value))
                    {
                        self.moved += u64::from(before.assignments.contains_key(&partition));
                        self.assigned(partition, assignment, put.mod_revision, arrived);
                    }
                }
                Event::Delete { key, .. } => {
                    if let Some(KeyName::Handoff(partition)) = before.keys().parse(&key) {
                        let epoch = self.view.assignments.get(&partition).map(|assignment| assignment.value.epoch);
                        let has_moved = |handoff: &Handoff| epoch.is_some_and(|epoch| epoch >= handoff.epoch);
                        let ended = before.handoffs.get(&partition).map(|handoff| &handoff.value);
                        self.cancelled += u64::from(ended.is_some_and(|handoff| !has_moved(handoff)));
                    }
                }
            }
        }
    }

    fn assigned(&mut self, partition: PartitionId, assignment: Assignment, revision: Revision, arrived: Nanos) {
        let not_before = self.reads.range(..revision).next_back().map_or(0, |(_, sent)| *sent);
        let Assignment { owner: pod, incarnation, epoch, .. } = assignment;
        self.owners.note(partition, epoch, OwnerSpan { pod, incarnation, not_before });
        self.owners.begun(partition, epoch, arrived);
    }
}

async fn follow(store: Arc<dyn Store>, keys: Keyspace, seen: Arc<Mutex<Seen>>, life: u64) {
    let all = Keys::Prefix(keys.root().to_owned());
    loop {
        let next = lock(&seen).next(life);
        let Some(from) = next else { return };
        let error = match store.watch(&all, from).await {
            Ok(mut watch) => loop {
                match watch.next().await {
                    Ok(batch) => {
                        let mut seen = lock(&seen);
                        if seen.life != life {
                            return;
                        }
                        seen.note(&batch);
                    }
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        if let StoreError::Compacted { .. } = error {
            lock(&seen).lost = Some(error.to_string());
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn read_revisions(store: Arc<dyn Store>, keys: Keyspace, seen: Arc<Mutex<Seen>>, life: u64) {
    let one = Keys::One(keys.config());
    loop {
        let sent = clock::now();
        let snapshot = store.snapshot(&one).await;
        if !lock(&seen).has_read(life, sent, snapshot.ok().map(|it| it.revision)) {
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
