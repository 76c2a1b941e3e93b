//! The demo's writer: a service with state, the kind of service that needs handoffs.
//!
//! The writer keeps the last value of each key in a cache per partition, in front of that partition's log.
//! `PUT /keys/{key}` appends to the log and then updates the cache. `GET /keys/{key}` reads the cache alone, so every
//! difference between cache and log is visible to clients. Before the writer serves a partition, it reads the log
//! ([`Writer::warm`], while the old owner still writes) and then the records that were added until the old owner had
//! stopped ([`Writer::sync`]). The layer in front of it ([`pod`]) refuses partitions that the pod does not own.
//!
//! The writer hides no fault of the protocol: two writers of one partition do not see each other's writes.

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

pub use service::{WriterService, names};

use super::clock::Nanos;
use super::log::{Log, Tail};
use super::record::{Appended, RequestId};

/// Settings of a writer.
#[derive(Debug, Clone, Default)]
pub struct WriterSettings {
    /// Time that a request takes, give or take a half, so that some are in flight.
    pub service_time: Duration,
    /// Time that warming takes besides reading the log, as if the log were long.
    pub warm_time: Duration,
    /// Number of bytes that warming copies besides the log: state that is not in the log.
    pub state_bytes: usize,
}

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
    /// The state of the pod that the writer serves as.
    pod: OnceLock<watch::Receiver<PodState>>,
    /// The state of each partition that the pod owns or is about to own, with the handoff that brought it.
    caches: Mutex<HashMap<PartitionId, (HandoffId, SharedCache)>>,
}

type SharedCache = Arc<Mutex<Cache>>;

/// The state of a partition.
#[derive(Debug, Default)]
struct Cache {
    entries: HashMap<Arc<str>, Entry>,
    /// Offset up to which the log has been read.
    read_to: u64,
    /// The last epoch that has claimed the log. Earlier ones are shut out of it.
    claimed: Epoch,
}

/// The state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The sequence number of the newest write.
    pub last: u64,
    /// The highest sequence number of all writes.
    pub highest: u64,
    /// The request of the newest write.
    pub request: RequestId,
    /// The value.
    pub value: Arc<str>,
}

/// A write, taken from a request.
#[derive(Debug, Clone)]
pub struct Write {
    /// The partition that the router stamped on the request.
    pub partition: PartitionId,
    /// The epoch that the router stamped on the request.
    pub epoch: Epoch,
    /// The request.
    pub request: RequestId,
    /// The key.
    pub key: Arc<str>,
    /// Number of the write among the writes of its key.
    pub sequence: u64,
    /// The value.
    pub value: Arc<str>,
    /// Time at which work on the request began.
    pub accepted_at: Nanos,
}

impl Writer {
    /// Returns a writer without any state.
    pub fn new(name: &str, log: Log, settings: WriterSettings) -> Self {
        let inner = Inner { name: name.into(), log, settings, pod: OnceLock::new(), caches: Mutex::default() };
        Writer { inner: Arc::new(inner) }
    }

    /// Returns the writer's name.
    pub fn name(&self) -> &Arc<str> {
        &self.inner.name
    }

    /// Sets the state of the pod that the writer serves as. Log records name its incarnation. Only the first call has
    /// an effect.
    pub fn is_pod(&self, state: watch::Receiver<PodState>) {
        let _ = self.inner.pod.set(state);
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.pod.get().map_or(Incarnation::NONE, |state| state.borrow().incarnation)
    }

    /// Returns the writer's settings.
    pub fn settings(&self) -> &WriterSettings {
        &self.inner.settings
    }

    /// Reads the partition's log from its beginning, while the old owner still writes to it.
    pub fn warm(&self, partition: PartitionId, handoff: HandoffId) -> io::Result<()> {
        let mut cache = Cache::default();
        cache.apply(self.inner.log.read(partition, 0)?);
        lock(&self.inner.caches).insert(partition, (handoff, Arc::new(Mutex::new(cache))));
        Ok(())
    }

    /// Reads the records that were added to the log since it was read. The old owner has stopped writing.
    pub fn sync(&self, partition: PartitionId, handoff: HandoffId) -> io::Result<()> {
        let known = lock(&self.inner.caches).get(&partition).cloned();
        let Some((_, cache)) = known.filter(|(by, _)| *by == handoff) else { return self.warm(partition, handoff) };
        let mut cache = lock(&cache);
        let tail = self.inner.log.read(partition, cache.read_to)?;
        cache.apply(tail);
        Ok(())
    }

    /// Drops the partition's state, unless another handoff brought it.
    pub fn release(&self, partition: PartitionId, handoff: HandoffId) {
        let mut caches = lock(&self.inner.caches);
        if caches.get(&partition).is_some_and(|(by, _)| *by == handoff) {
            caches.remove(&partition);
        }
    }

    /// Shuts earlier epochs out of the log and reads what they wrote until then. Must be called before any work at an
    /// epoch; only the first call of an epoch has an effect.
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

    /// Appends to the log, then updates the cache. Returns the offset, or `None` if the pod has no state of the
    /// partition.
    pub fn write(&self, write: Write) -> io::Result<Option<u64>> {
        let Some(cache) = self.cache(write.partition) else { return Ok(None) };
        let Write { partition, epoch, request, key, sequence, value, accepted_at } = write;
        let (pod, incarnation) = (self.inner.name.clone(), self.incarnation());
        // The cache stays locked during the append, so that it changes in the order of the log.
        let mut cache = lock(&cache);
        let key = cache.entries.get_key_value(&key).map_or(key, |(known, _)| known.clone());
        let (offset, appended_at) = (0, 0);
        let record = Appended {
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

    /// Returns the state of a key, or `None` if the pod has no state of the partition.
    pub fn read(&self, partition: PartitionId, key: &str) -> Option<Option<Entry>> {
        let cache = self.cache(partition)?;
        let entry = lock(&cache).entries.get(key).cloned();
        Some(entry)
    }

    fn cache(&self, partition: PartitionId) -> Option<SharedCache> {
        lock(&self.inner.caches).get(&partition).map(|(_, cache)| cache.clone())
    }
}

impl Cache {
    fn apply(&mut self, tail: Tail) {
        for Appended { key, sequence, request, value, .. } in tail.records {
            let highest = self.entries.get(&key).map_or(sequence, |entry| entry.highest.max(sequence));
            self.entries.insert(key, Entry { last: sequence, highest, request, value });
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
            Write { partition: P3, epoch: Epoch::new(1), request: sequence, key, sequence, value, accepted_at: 0 };
        writer.write(write).unwrap()
    }

    fn sees(writer: &Writer) -> u64 {
        writer.read(P3, "k").unwrap().map_or(0, |entry| entry.highest)
    }

    #[test]
    fn a_new_owner_sees_all_writes_once_it_is_warm_and_has_read_the_tail() {
        let log = Log::in_memory();
        let [old, new] = ["old", "new"].map(|name| Writer::new(name, log.clone(), WriterSettings::default()));
        old.warm(P3, H9).unwrap();
        write(&old, 1);
        new.warm(P3, H9).unwrap();
        write(&old, 2);
        assert_eq!(sees(&new), 1, "the old owner went on");
        new.sync(P3, H9).unwrap();
        assert_eq!(sees(&new), 2);
        write(&new, 3);
        assert_eq!(new.read(P3, "k").unwrap().unwrap().value, "v3".into());
    }

    #[test]
    fn two_writers_do_not_see_each_other() {
        let log = Log::in_memory();
        let [one, other] = ["one", "other"].map(|name| Writer::new(name, log.clone(), WriterSettings::default()));
        one.warm(P3, H9).unwrap();
        other.warm(P3, H9).unwrap();
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
        writer.warm(P3, H9).unwrap();
        assert_eq!(write(&writer, 1), Some(0));
        writer.release(P3, H8);
        assert_eq!(write(&writer, 2), Some(1), "that was another handoff's state");
        writer.release(P3, H9);
        assert_eq!(writer.read(P3, "k"), None);
    }
}
