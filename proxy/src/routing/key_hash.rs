//! Hashes of keys to partitions, bit for bit what the producers of the same topic compute.
//!
//! Pure. Not for hash maps, and not secret: a client may choose its key.
//!
//! # Invariants
//!
//! * The partition of the same bytes among the same number of partitions never changes. Otherwise a key's requests and
//!   its log would part ways.

use segue_protocol::ids::PartitionId;
use twox_hash::XxHash3_64;

/// The hash that maps a key to a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyHash {
    /// Kafka's Java producer.
    #[default]
    Murmur2,
    /// librdkafka's `consistent`.
    Crc32,
    /// Sarama's `NewHashPartitioner`.
    Fnv1a,
    /// XXH3, 64 bits, for keyspaces without a producer to agree with.
    Xxh3,
}

impl KeyHash {
    /// All hashes, by their names in the file and in the store.
    pub const NAMES: &[(&str, Self)] =
        &[("murmur2", KeyHash::Murmur2), ("crc32", KeyHash::Crc32), ("fnv1a", KeyHash::Fnv1a), ("xxh3", KeyHash::Xxh3)];

    /// Returns the hash's name in the file and in the store.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, hash)| *hash == self).map_or("", |(name, _)| *name)
    }

    /// Returns the partition of `key` among `partitions`, which is at least 1.
    ///
    /// An empty key is a key like any other, as it is for the Java producer and for Sarama. librdkafka's `consistent`
    /// maps it to the same partition as no key at all, which is also the result here (0).
    pub fn partition(self, key: &[u8], partitions: u32) -> PartitionId {
        PartitionId::new(match self {
            // The sign bit is masked, not negated: that differs for half of all keys.
            KeyHash::Murmur2 => (murmur2(key) & 0x7fff_ffff) % partitions,
            KeyHash::Crc32 => crc32fast::hash(key) % partitions,
            // Sarama divides the signed hash and drops the remainder's sign. Its partition numbers are signed, so there
            // are never so many that the cast matters.
            KeyHash::Fnv1a => (i64::from(fnv1a(key) as i32) % i64::from(partitions)).unsigned_abs() as u32,
            KeyHash::Xxh3 => (XxHash3_64::oneshot(key) % u64::from(partitions)) as u32,
        })
    }
}

/// Returns the hash that orders the requests of one key. It does not depend on the hash that selects the partition.
pub(crate) fn order_of(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// MurmurHash2 as Kafka's `Utils.murmur2` has it (its own seed).
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        for (index, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

fn fnv1a(data: &[u8]) -> u32 {
    data.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_is_that_of_kafkas_own_tests() {
        let vectors: [(&str, i32); 10] = [
            // UtilsTest.testMurmur2 of apache/kafka
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
            // rdmurmur2.c of librdkafka
            ("kafka", 0xd067_cf64_u32 as i32),
            ("giberish123456789", 0x8f55_2b0c_u32 as i32),
            ("1234", 0x9fc9_7b14_u32 as i32),
            ("", 0x106e_08d9),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key:?}");
        }
    }

    #[test]
    fn murmur2_masks_the_sign_bit_instead_of_negating() {
        // -973932308 & 0x7fffffff = 1173551340
        assert_eq!(KeyHash::Murmur2.partition(b"21", 64).get(), (1_173_551_340u32 % 64));
        assert_ne!(
            KeyHash::Murmur2.partition(b"21", 1000).get(),
            973_932_308 % 1000,
            "that would be the absolute value"
        );
    }

    #[test]
    fn crc32_is_unsigned_and_puts_the_empty_key_first() {
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
        assert_eq!(KeyHash::Crc32.partition(b"123456789", 1000).get(), (0xcbf4_3926u32 % 1000));
        assert_eq!(KeyHash::Crc32.partition(b"", 64).get(), 0);
    }

    #[test]
    fn fnv1a_takes_the_remainder_first_and_drops_its_sign_after() {
        assert_eq!(fnv1a(b""), 0x811c_9dc5);
        assert_eq!(fnv1a(b"a"), 0xe40c_292c);
        assert_eq!(fnv1a(b"foobar"), 0xbf9c_f968);
        // As an int32, 0xe40c292c is -468965076; Go's remainder by 1000 is -76.
        assert_eq!(KeyHash::Fnv1a.partition(b"a", 1000).get(), 76);
        // 0x811c9dc5 is -2128831035.
        assert_eq!(KeyHash::Fnv1a.partition(b"", 1000).get(), 35);
        assert_ne!(KeyHash::Fnv1a.partition(b"a", 1000).get(), 0xe40c_292c % 1000);
    }

    #[test]
    fn xxh3_is_the_reference_with_seed_zero() {
        assert_eq!(XxHash3_64::oneshot(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(KeyHash::Xxh3.partition(b"", 1000).get(), (0x2d06_8005_38d3_94c2u64 % 1000) as u32);
    }

    /// `i * 131 + 7` for each byte: every length class of the hashes, with bytes above 127 among them.
    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 131 + 7) as u8).collect()
    }

    #[test]
    fn long_keys_hash_as_other_implementations_have_it() {
        // xxHash's own C code (python-xxhash 3), at both ends of each of its length classes.
        let xxh3 = [
            (1, 0x4c5c_ca45_d0f4_811f),
            (3, 0x6e3e_2670_e611_06ac),
            (4, 0x5c4c_6313_3443_d03f),
            (8, 0xf9fd_4dd0_b04d_78f5),
            (9, 0x7c20_df97_12c2_6edf),
            (16, 0x86ab_f6ba_ccea_0858),
            (17, 0xb58b_f5dc_5022_d071),
            (128, 0x10d1_7f72_c0cc_ba41),
            (129, 0x1648_bdc3_db49_d1a2),
            (240, 0xb6cf_af34_3fab_81e6),
            (241, 0x956c_ae59_2c67_279e),
            (1024, 0x70bd_377d_9574_f4bb),
        ];
        for (length, hash) in xxh3 {
            assert_eq!(XxHash3_64::oneshot(&pattern(length)), hash, "{length}");
        }
        // kafka-python's murmur2 and zlib's crc32.
        let others = [
            (1, 0x1d63_a369, 0x4c66_7a2e),
            (2, 0x83af_8958, 0x03f5_ee06),
            (3, 0x49d8_4e90, 0x45d3_c3eb),
            (5, 0x0632_6540, 0x0bc1_25c5),
            (16, 0xc48b_5e6c, 0xea7e_5b68),
            (255, 0x9046_3412, 0x17ad_3b28),
        ];
        for (length, kafka, zlib) in others {
            let key = pattern(length);
            assert_eq!((murmur2(&key), crc32fast::hash(&key)), (kafka, zlib), "{length}");
        }
    }

    /// The packages in `clients/` compute partitions by themselves, and their tests read this file.
    /// `SEGUE_PUBLISH_PARTITIONS=1` writes it.
    #[test]
    fn the_packages_in_other_languages_are_tested_against_these_partitions() {
        const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/partitions.json");
        const PARTITIONS: [u32; 4] = [1, 7, 64, 1000];
        let texts = ["", "21", "foobar", "kafka", "giberish123456789", "1234", "team:person", "käse", "/a b?c"];
        let keys = texts.map(|text| text.as_bytes().to_vec()).into_iter().chain((1..20).chain([255]).map(pattern));
        let line = |key: Vec<u8>| {
            let of = |hash: KeyHash| PARTITIONS.map(|partitions| hash.partition(&key, partitions).get());
            let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            let [murmur2, crc32, fnv1a] = [KeyHash::Murmur2, KeyHash::Crc32, KeyHash::Fnv1a].map(of);
            format!(r#"{{"key":"{hex}","murmur2":{murmur2:?},"crc32":{crc32:?},"fnv1a":{fnv1a:?}}}"#)
        };
        let lines: Vec<String> = keys.map(line).collect();
        let text = format!("{{\"partitions\":{PARTITIONS:?},\"keys\":[\n{}\n]}}\n", lines.join(",\n"));
        if std::env::var_os("SEGUE_PUBLISH_PARTITIONS").is_some() {
            std::fs::write(FILE, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(FILE).unwrap_or_default(),
            text,
            "set SEGUE_PUBLISH_PARTITIONS=1 to write it"
        );
    }

    #[test]
    fn every_hash_stays_within_the_partitions() {
        for hash in [KeyHash::Murmur2, KeyHash::Crc32, KeyHash::Fnv1a, KeyHash::Xxh3] {
            for partitions in [1, 2, 7, 64, 1000, i32::MAX as u32] {
                for key in 0..2000u32 {
                    assert!(hash.partition(&key.to_le_bytes(), partitions).get() < partitions);
                }
            }
        }
    }
}
