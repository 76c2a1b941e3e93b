//! The most frequent keys of one worker's requests, in bounded space.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams",
//! 2005): a key that finds no place takes that of the least frequent one, and its count, which is its error from then on.
//! Plain data. Elsewhere: when keys are counted ([`key_counts`](super::key_counts)).
//!
//! # Invariants
//!
//! * A key has been counted at least `count - error` times, and at most `count` times.
//! * A key that takes up more than a [`PLACES`]th of all that is counted has a place.

use std::collections::BTreeMap;

use segue_protocol::ids::PartitionId;

/// Most keys of a sketch.
const PLACES: usize = 64;
/// How many requests are counted one by one. Beyond them one of [`SAMPLED`] is counted, for all of them.
const COUNTED_FIRST: u64 = 1024;
const SAMPLED: u64 = 16;

/// The keys of one worker.
#[derive(Debug)]
pub(super) struct KeySketch {
    places: Vec<KeyPlace>,
    counted: u64,
    /// The state of a xorshift generator: which requests are counted follows no pattern of theirs.
    random: u64,
}

#[derive(Debug)]
struct KeyPlace {
    /// The hash of the whole key.
    hash: u64,
    partition: PartitionId,
    key: Box<[u8]>,
    count: u64,
    error: u64,
}

/// A frequent key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotKey {
    /// The beginning of the key.
    pub key: Box<[u8]>,
    /// Its partition.
    pub partition: PartitionId,
    /// About how many requests had it, at the least.
    pub requests: u64,
}

impl Default for KeySketch {
    fn default() -> Self {
        KeySketch { places: Vec::with_capacity(PLACES), counted: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }
}

impl KeySketch {
    /// Counts a request, or leaves it to another one. `key` returns the beginning of its key.
    pub(super) fn note(&mut self, hash: u64, partition: PartitionId, key: impl FnOnce() -> Box<[u8]>) {
        let weight = if self.counted < COUNTED_FIRST { 1 } else { SAMPLED };
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if weight == 1 || self.random.is_multiple_of(SAMPLED) {
            self.count(hash, partition, weight, key);
        }
    }

    fn count(&mut self, hash: u64, partition: PartitionId, weight: u64, key: impl FnOnce() -> Box<[u8]>) {
        self.counted += weight;
        if let Some(place) = self.places.iter_mut().find(|place| place.hash == hash && place.partition == partition) {
            place.count += weight;
            return;
        }
        let mut new = KeyPlace { hash, partition, key: key(), count: weight, error: 0 };
        if self.places.len() < PLACES {
            self.places.push(new);
        } else if let Some(least) = self.places.iter_mut().min_by_key(|place| place.count) {
            (new.count, new.error) = (least.count + weight, least.count);
            *least = new;
        }
    }

    /// Returns the keys of all sketches, the most frequent first.
    pub(super) fn merged(sketches: impl IntoIterator<Item = KeySketch>) -> Vec<HotKey> {
        let mut keys: BTreeMap<(u64, PartitionId), HotKey> = BTreeMap::new();
        for place in sketches.into_iter().flat_map(|sketch| sketch.places) {
            let KeyPlace { hash, partition, key, count, error } = place;
            keys.entry((hash, partition)).or_insert(HotKey { key, partition, requests: 0 }).requests += count - error;
        }
        let mut keys: Vec<HotKey> = keys.into_values().collect();
        keys.sort_by_key(|key| std::cmp::Reverse(key.requests));
        keys.truncate(PLACES);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: PartitionId = PartitionId::new(0);

    fn note(sketch: &mut KeySketch, number: u64) {
        sketch.note(number, P0, || number.to_string().into_bytes().into());
    }

    #[test]
    fn few_keys_of_few_requests_are_counted_exactly() {
        let mut sketch = KeySketch::default();
        for number in [1, 2, 1, 3, 1] {
            note(&mut sketch, number);
        }
        let counts: Vec<_> = KeySketch::merged([sketch]).into_iter().map(|key| (key.key, key.requests)).collect();
        assert_eq!(counts[0], (b"1".as_slice().into(), 3));
        assert_eq!(counts.iter().map(|(_, requests)| requests).sum::<u64>(), 5);
    }

    #[test]
    fn a_hot_key_is_first_among_more_keys_than_have_a_place_and_its_count_is_about_right() {
        let mut sketch = KeySketch::default();
        // Every fourth request has the key 0, all others a key of their own.
        for number in 0..40_000 {
            note(&mut sketch, if number % 4 == 0 { 0 } else { number });
        }
        let keys = KeySketch::merged([sketch]);
        assert_eq!(keys.len(), PLACES);
        assert_eq!(&*keys[0].key, b"0");
        assert!((8_000..=12_000).contains(&keys[0].requests), "{keys:?}");
        assert!(keys[1].requests < 200, "no other is taken for one: {keys:?}");
    }

    #[test]
    fn the_counts_of_workers_are_added_up_by_the_whole_key() {
        let sketch = |hashes: &[u64]| {
            let mut sketch = KeySketch::default();
            // They begin alike.
            hashes.iter().for_each(|hash| sketch.note(*hash, P0, || b"same".as_slice().into()));
            sketch
        };
        let keys = KeySketch::merged([sketch(&[1, 1, 2]), sketch(&[1])]);
        assert_eq!(keys.iter().map(|key| key.requests).collect::<Vec<_>>(), [3, 1]);
    }
}
