//! How often a participant reads its keyspace again although its watch is healthy, and how long that watch may be silent.
//!
//! Pure.
//!
//! # Invariants
//!
//! * All participants of a keyspace together read at most 10,000 keys a second again, and let the store look at 50,000, unless
//!   each would then do so less often than once an hour.

use std::ops::RangeInclusive;
use std::time::Duration;

use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Batch, Event, KeyValue};

/// Shortest and longest time between two snapshots while the watch is healthy.
pub(super) const RESYNC_INTERVAL: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3600);

/// Keys that a participant reads again per second while the watch is healthy. All participants of a large keyspace
/// together would otherwise keep the store busy with snapshots.
const RESYNC_RATE: usize = 100;

/// The most participants of which each reads at these rates. More of them share what these would read.
const SHARES: usize = 100;

/// Shortest time that a watch may be silent before the store is asked for changes. It doubles, up to the time between two
/// snapshots, with each snapshot that shows nothing new, and halves with each interval without such a snapshot.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Keys that the store looks at per second to tell a participant whether any has changed. It looks at all of them each
/// time that it has moved on while the watch was silent, if only by heartbeats and by writes of other keyspaces.
const SURVEY_RATE: usize = 500;

/// How much a participant follows, and with how many others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct KeyspaceSize {
    pub(super) keys: usize,
    participants: usize,
}

impl KeyspaceSize {
    /// Returns the size of a snapshot.
    pub(super) fn of(entries: &[KeyValue], keyspace: &Keyspace) -> Self {
        let is_participant = participants(keyspace);
        let participants = entries.iter().filter(|entry| is_participant(&entry.key)).count();
        KeyspaceSize { keys: entries.len(), participants }
    }

    /// Returns the size after these changes. The store reports no deletion of a key that does not exist.
    pub(super) fn after(self, batch: &Batch, keyspace: &Keyspace) -> Self {
        let is_participant = participants(keyspace);
        batch.events.iter().fold(self, |KeyspaceSize { keys, participants }, event| match event {
            Event::Put(entry) if entry.create_revision == entry.mod_revision => {
                KeyspaceSize { keys: keys + 1, participants: participants + usize::from(is_participant(&entry.key)) }
            }
            Event::Put(_) => KeyspaceSize { keys, participants },
            Event::Delete { key, .. } => KeyspaceSize {
                keys: keys.saturating_sub(1),
                participants: participants.saturating_sub(usize::from(is_participant(key))),
            },
        })
    }

    /// Returns the shortest time between two snapshots.
    pub(super) fn resync_interval(self) -> Duration {
        self.read_at(RESYNC_RATE).clamp(*RESYNC_INTERVAL.start(), *RESYNC_INTERVAL.end())
    }

    /// Returns the shortest time that a watch may be silent before the store is asked for changes.
    pub(super) fn least_patience(self) -> Duration {
        self.read_at(SURVEY_RATE).clamp(SILENCE_TIMEOUT, *RESYNC_INTERVAL.end())
    }

    /// Returns how long a participant takes for all keys, if it reads so many a second beside a few others.
    fn read_at(self, rate: usize) -> Duration {
        let keys = self.keys.saturating_mul(self.participants.max(SHARES)) / SHARES;
        Duration::from_secs((keys / rate) as u64)
    }
}

/// Returns what tells the keys of pods' and routers' registrations.
fn participants(keyspace: &Keyspace) -> impl Fn(&str) -> bool {
    let (pods, routers) = (keyspace.pods(), keyspace.routers());
    move |key| key.starts_with(&pods) || key.starts_with(&routers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(keys: usize, participants: usize) -> KeyspaceSize {
        KeyspaceSize { keys, participants }
    }

    fn seconds(keys: usize, participants: usize) -> u64 {
        size(keys, participants).resync_interval().as_secs()
    }

    fn entry(key: String, created: u64, modified: u64) -> KeyValue {
        let (create_revision, mod_revision) = (created.into(), modified.into());
        KeyValue { key, value: Vec::new(), create_revision, mod_revision, lease: None }
    }

    #[test]
    fn the_more_keys_and_participants_there_are_the_more_rarely_each_reads_them() {
        assert_eq!([seconds(100, 3), seconds(6_000, 100), seconds(20_000, 3)], [60, 60, 200]);
        assert_eq!([seconds(20_000, 100), seconds(20_000, 200), seconds(2_000, 1_000)], [200, 400, 200]);
        assert_eq!(seconds(usize::MAX, usize::MAX), 3600, "what no watch shows is repaired some day");
        let patience = |keys, participants| size(keys, participants).least_patience().as_secs();
        assert_eq!([patience(100, 3), patience(20_000, 100), patience(2_000, 1_000)], [5, 40, 40]);
        assert_eq!(patience(usize::MAX, usize::MAX), 3600);
    }

    #[test]
    fn registrations_that_come_and_go_are_counted() {
        let keyspace = Keyspace::new("/segue/", "test");
        let before = KeyspaceSize::of(&[entry(keyspace.config(), 1, 1), entry(keyspace.pod("a"), 2, 2)], &keyspace);
        assert_eq!(before, size(2, 1));
        let events = vec![
            Event::Put(entry(keyspace.pod("a"), 2, 3)),
            Event::Put(entry(keyspace.pod("b"), 3, 3)),
            Event::Put(entry(keyspace.router("r"), 3, 3)),
            Event::Put(entry(keyspace.pod_stream("b"), 3, 3)),
            Event::Delete { key: keyspace.pod("a"), mod_revision: 4.into() },
            Event::Delete { key: keyspace.config(), mod_revision: 4.into() },
        ];
        assert_eq!(before.after(&Batch { revision: 4.into(), events }, &keyspace), size(3, 2));
    }
}
