//! The demo's writer: a service with state, the kind of service that needs handoffs.
//!
//! It keeps the last value of each key, a cache per partition in front of that partition's log. `PUT /keys/{key}`
//! appends to the log and then updates the cache. `GET /keys/{key}` reads the cache alone, so readers notice a pod
//! whose cache differs from the log. Before the writer serves a partition it reads the log ([`Writer::warm`], while the
//! old owner still writes) and then the records that were added until the old owner had stopped ([`Writer::sync`]). The
//! layer in front of it refuses what the pod does not own ([`pod`]).
//!
//! It does not protect itself: two writers of one partition do not see each other's writes, and nothing here hides
//! that.

mod checkpoints;
pub mod pod;
mod server;
mod service;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use segue_coordination::pod::PodState;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId};
use tokio::sync::watch;

pub use checkpoints::Checkpoints;
pub use service::{WriterService, names};

use super::clock::Nanos;
use super::log::{Log, Tail};
use super::record::{LogRecord, RequestId};

/// The behaviour of a writer.
#[derive(Debug, Clone, Default)]
pub struct WriterSettings {
    /// How long it works on a request, plus or minus a half, so that requests are in flight.
    pub service_time: Duration,
    /// How long `warm` takes in addition to reading the log.
    pub warm_time: Duration,
    /// How much `warm` copies in addition to the log: state that is not in the log.
    pub state_bytes: usize,
    /// Where it saves its checkpoints and finds those of other writers.
    pub checkpoints: Checkpoints,
}

/// A pod has no state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoState;

/// A writer. Clones share its state.
#[derive(Debug, Clone)]
pub struct Writer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: Arc<str>,
    log: Log,
    settings: WriterSettings,
    /// The pod of this writer.
    pod: OnceLock<watch::Receiver<PodState>>,
    /// The state of each partition that it owns or is about to own, with the handoff that brings it.
    caches: Mutex<HashMap<PartitionId, (HandoffId, SharedCache)>>,
}

type SharedCache = Arc<Mutex<Cache>>;

/// A pod's state of a partition.
#[derive(Debug, Clone, Default)]
struct Cache {
    entries: HashMap<Arc<str>, KeyEntry>,
    /// The offset up to which the log has been read.
    read_to: u64,
    /// The last epoch at which it served; the log refuses earlier ones.
    claimed: Epoch,
}

/// The state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// The sequence number of the newest write.
    pub last: u64,
    /// The highest sequence number of all writes.
    pub highest: u64,
    /// The request of the newest write.
    pub request: RequestId,
    /// The value.
    pub value: Arc<str>,
}

/// A write as a request states it.
#[derive(Debug, Clone)]
pub struct KeyWrite {
    /// The partition that the router stamped on the request.
    pub partition: PartitionId,
    /// The epoch that the router stamped on the request.
    pub epoch: Epoch,
    /// The request.
    pub request: RequestId,
    /// The key.
    pub key: Arc<str>,
    /// The client's sequence number.
    pub sequence: u64,
    /// The value.
    pub value: Arc<str>,
    /// When the work on it began.
    pub accepted_at: Nanos,
}

impl Writer {
    /// Returns a writer without state.
    pub fn new(name: &str, log: Log, settings: WriterSettings) -> Self {
        let inner = Inner { name: name.into(), log, settings, pod: OnceLock::new(), caches: Mutex::default() };
        Writer { inner: Arc::new(inner) }
    }

    /// Returns its name.
    pub fn name(&self) -> &Arc<str> {
        &self.inner.name
    }

    /// Sets the pod that it is, whose incarnation its records name. To be called once.
    pub fn is_pod(&self, state: watch::Receiver<PodState>) {
        let _ = self.inner.pod.set(state);
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.pod.get().map_or(Incarnation::NONE, |state| state.borrow().incarnation)
    }

    /// Returns its behaviour.
    pub fn settings(&self) -> &WriterSettings {
        &self.inner.settings
    }

    /// Reads the partition's log from this checkpoint on, or from its beginning, while the owner still writes.
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be read.
    pub fn warm(&self, partition: PartitionId, handoff: HandoffId, checkpoint: Option<&str>) -> io::Result<()> {
        let mut cache = checkpoint.and_then(|name| self.settings().checkpoints.load(name)).unwrap_or_default();
        cache.apply(self.inner.log.read(partition, cache.read_to)?);
        lock(&self.inner.caches).insert(partition, (handoff, Arc::new(Mutex::new(cache))));
        Ok(())
    }

    /// Reads what was added to the log since. No pod writes to it now.
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be read.
    pub fn sync(&self, partition: PartitionId, handoff: HandoffId) -> io::Result<()> {
        let known = lock(&self.inner.caches).get(&partition).cloned();
        let Some((_, cache)) = known.filter(|(by, _)| *by == handoff) else {
            return self.warm(partition, handoff, None);
        };
        let mut cache = lock(&cache);
        let tail = self.inner.log.read(partition, cache.read_to)?;
        cache.apply(tail);
        Ok(())
    }

    /// Saves the partition's state for the next owner, and returns the name of that checkpoint. `None` means that this pod
    /// has no state of the partition.
    pub fn checkpoint(&self, partition: PartitionId, epoch: Epoch) -> Option<String> {
        let cache = self.cache(partition)?;
        // The next owner claims the log for itself.
        let state = Cache { claimed: Epoch::default(), ..lock(&cache).clone() };
        Some(self.settings().checkpoints.save(partition, epoch, state))
    }

    /// Drops the partition's state, unless another handoff is bringing it again.
    pub fn release(&self, partition: PartitionId, handoff: HandoffId) {
        let mut caches = lock(&self.inner.caches);
        if caches.get(&partition).is_some_and(|(by, _)| *by == handoff) {
            caches.remove(&partition);
        }
    }

    /// Claims the log for an epoch: excludes earlier epochs, and reads what the last of them wrote. Called once per
    /// epoch, before the first request.
    ///
    /// # Errors
    ///
    /// Fails if a later epoch has claimed the log, or it cannot be read.
    pub fn claim(&self, partition: PartitionId, epoch: Epoch) -> io::Result<()> {
        let Some(cache) = self.cache(partition) else { return Ok(()) };
        let mut cache = lock(&cache);
        if epoch > cache.claimed {
            self.inner.log.claim(partition, epoch)?;
            let tail = self.inner.log.read(partition, cache.read_to)?;
            cache.apply(tail);
            cache.claimed = epoch;
        }
        Ok(())
    }

    /// Appends to the log, then updates the cache. `Ok(None)` means that this pod has no state of the partition.
    ///
    /// # Errors
    ///
    /// Fails if the log refuses the record or cannot be written. The cache then stays as it was.
    pub fn write(&self, write: KeyWrite) -> io::Result<Option<u64>> {
        let Some(cache) = self.cache(write.partition) else { return Ok(None) };
        let KeyWrite { partition, epoch, request, key, sequence, value, accepted_at } = write;
        let (pod, incarnation) = (self.inner.name.clone(), self.incarnation());
        // The cache stays locked during the append, so that it changes in the order of the log.
        let mut cache = lock(&cache);
        let key = cache.entries.get_key_value(&key).map_or(key, |(known, _)| known.clone());
        let (offset, appended_at) = (0, 0);
        let record = LogRecord {
            partition,
            offset,
            epoch,
            pod,
            incarnation,
            request,
            key,
            sequence,
            accepted_at,
            appended_at,
            value,
        };
        let (record, end) = self.inner.log.append(record)?;
        let offset = record.offset;
        cache.apply(Tail { records: vec![record], end });
        Ok(Some(offset))
    }

    /// Returns the state of a key as this pod knows it; `None` if the key was never written.
    ///
    /// # Errors
    ///
    /// Fails if this pod has no state of the partition.
    pub fn read(&self, partition: PartitionId, key: &str) -> Result<Option<KeyEntry>, NoState> {
        let cache = self.cache(partition).ok_or(NoState)?;
        let entry = lock(&cache).entries.get(key).cloned();
        Ok(entry)
    }

    fn cache(&self, partition: PartitionId) -> Option<SharedCache> {
        lock(&self.inner.caches).get(&partition).map(|(_, cache)| cache.clone())
    }
}

impl Cache {
    fn apply(&mut self, tail: Tail) {
        for LogRecord { key, sequence, request, value, .. } in tail.records {
            let highest = self.entries.get(&key).map_or(sequence, |entry| entry.highest.max(sequence));
            self.entries.insert(key, KeyEntry { last: sequence, highest, request, value });
        }
        self.read_to = tail.end;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {

    use segue_protocol::ids::Revision;

    use super::*;

    const H8: HandoffId = HandoffId::created_at(Revision::new(8));
    const H9: HandoffId = HandoffId::created_at(Revision::new(9));
    const P3: PartitionId = PartitionId::new(3);

    fn write(writer: &Writer, sequence: u64) -> Option<u64> {
        let (key, value) = ("k".into(), format!("v{sequence}").into());
        let write =
            KeyWrite { partition: P3, epoch: Epoch::new(1), request: sequence, key, sequence, value, accepted_at: 0 };
        writer.write(write).unwrap()
    }

    fn sees(writer: &Writer) -> u64 {
        writer.read(P3, "k").unwrap().map_or(0, |entry| entry.highest)
    }

    #[test]
    fn a_new_owner_sees_all_writes_once_it_is_warm_and_has_read_the_tail() {
        let log = Log::in_memory();
        let [old, new] = ["old", "new"].map(|name| Writer::new(name, log.clone(), WriterSettings::default()));
        old.warm(P3, H9, None).unwrap();
        write(&old, 1);
        new.warm(P3, H9, None).unwrap();
        write(&old, 2);
        assert_eq!(sees(&new), 1, "the old owner went on");
        new.sync(P3, H9).unwrap();
        assert_eq!(sees(&new), 2);
        write(&new, 3);
        assert_eq!(new.read(P3, "k").unwrap().unwrap().value, "v3".into());
    }

    #[test]
    fn a_new_owner_that_starts_from_a_checkpoint_reads_what_was_written_since() {
        let (log, settings) = (Log::in_memory(), WriterSettings::default());
        let [old, new, lost] = ["old", "new", "lost"].map(|name| Writer::new(name, log.clone(), settings.clone()));
        assert_eq!(old.checkpoint(P3, Epoch::new(1)), None, "it has no state");
        old.warm(P3, H8, None).unwrap();
        write(&old, 1);
        let name = old.checkpoint(P3, Epoch::new(1)).unwrap();
        write(&old, 2);
        new.warm(P3, H9, Some(&name)).unwrap();
        assert_eq!(sees(&new), 2);
        lost.warm(P3, H9, Some("3-9")).unwrap();
        assert_eq!(sees(&lost), 2, "the log has everything");
        for epoch in 2..9 {
            old.checkpoint(P3, Epoch::new(epoch)).unwrap();
        }
        let kept = (1..9).filter(|epoch| settings.checkpoints.load(&format!("3-{epoch}")).is_some());
        assert_eq!(kept.collect::<Vec<_>>(), [7, 8]);
    }

    #[test]
    fn two_writers_do_not_see_each_other() {
        let log = Log::in_memory();
        let [one, other] = ["one", "other"].map(|name| Writer::new(name, log.clone(), WriterSettings::default()));
        one.warm(P3, H9, None).unwrap();
        other.warm(P3, H9, None).unwrap();
        write(&one, 1);
        write(&other, 2);
        write(&one, 1);
        assert_eq!((sees(&one), sees(&other)), (1, 2));
        assert_eq!(log.read(P3, 0).unwrap().records.len(), 3);
    }

    #[test]
    fn without_state_there_is_nothing_to_serve() {
        let writer = Writer::new("w", Log::in_memory(), WriterSettings::default());
        assert_eq!(write(&writer, 1), None);
        writer.warm(P3, H9, None).unwrap();
        assert_eq!(write(&writer, 1), Some(0));
        writer.release(P3, H8);
        assert_eq!(write(&writer, 2), Some(1), "that was another handoff's state");
        writer.release(P3, H9);
        assert_eq!(writer.read(P3, "k"), Err(NoState));
    }
}
