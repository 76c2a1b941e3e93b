//! The producers' partitioners, written from their sources in the plainest way.

/// `org.apache.kafka.common.utils.Utils.murmur2` in Java's signed arithmetic, then `Utils.toPositive` and the
/// remainder.
pub fn java(key: &[u8], partitions: u32) -> u32 {
    let length = key.len() as i32;
    let m: i32 = 0x5bd1_e995;
    let mut h: i32 = 0x9747_b28c_u32 as i32 ^ length;
    let byte = |index: usize| i32::from(key[index]) & 0xff;
    for word in 0..key.len() / 4 {
        let i = word * 4;
        let mut k = byte(i) + (byte(i + 1) << 8) + (byte(i + 2) << 16) + byte(i + 3).wrapping_shl(24);
        k = k.wrapping_mul(m);
        k ^= ((k as u32) >> 24) as i32;
        k = k.wrapping_mul(m);
        h = h.wrapping_mul(m);
        h ^= k;
    }
    let tail = key.len() & !3;
    let left = key.len() % 4;
    if left == 3 {
        h ^= byte(tail + 2) << 16;
    }
    if left >= 2 {
        h ^= byte(tail + 1) << 8;
    }
    if left >= 1 {
        h ^= byte(tail);
        h = h.wrapping_mul(m);
    }
    h ^= ((h as u32) >> 13) as i32;
    h = h.wrapping_mul(m);
    h ^= ((h as u32) >> 15) as i32;
    (i64::from(h & 0x7fff_ffff) % i64::from(partitions)) as u32
}

/// librdkafka's `rd_kafka_msg_partitioner_consistent`: `rd_crc32(key) % partition_cnt`, bit by bit.
pub fn librdkafka(key: &[u8], partitions: u32) -> u32 {
    let mut crc: u32 = 0xffff_ffff;
    for byte in key {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    (crc ^ 0xffff_ffff) % partitions
}

/// Sarama's `hashPartitioner`: `partition := int32(hasher.Sum32()) % numPartitions; if partition < 0 { -partition }`.
pub fn sarama(key: &[u8], partitions: u32) -> u32 {
    let mut hash: u32 = 2_166_136_261;
    for byte in key {
        hash ^= u32::from(*byte);
        hash = hash.wrapping_mul(16_777_619);
    }
    let partition = i64::from(hash as i32) % i64::from(partitions);
    (if partition < 0 { -partition } else { partition }) as u32
}

/// Returns XXH3's 64-bit hash of seed 0 for up to 240 bytes, from its specification
/// (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>). `None` for longer keys.
pub fn xxh3(key: &[u8]) -> Option<u64> {
    const P64_1: u64 = 0x9e37_79b1_85eb_ca87;
    const P64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
    const P64_3: u64 = 0x1656_67b1_9e37_79f9;
    const PMX1: u64 = 0x1656_6791_9e37_79f9;
    const PMX2: u64 = 0x9fb2_1c65_1e98_df25;
    let secret = |at: usize| u64_at(&SECRET, at);
    let secret32 = |at: usize| u32_at(&SECRET, at);
    let avalanche = |mut hash: u64| {
        hash ^= hash >> 37;
        hash = hash.wrapping_mul(PMX1);
        hash ^ (hash >> 32)
    };
    let avalanche64 = |mut hash: u64| {
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(P64_2);
        hash ^= hash >> 29;
        hash = hash.wrapping_mul(P64_3);
        hash ^ (hash >> 32)
    };
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let mix = |at: usize, secret_at: usize| {
        fold(u64_at(key, at) ^ secret(secret_at), u64_at(key, at + 8) ^ secret(secret_at + 8))
    };
    let length = key.len();
    let long = length as u64;
    Some(match length {
        0 => avalanche64(secret(56) ^ secret(64)),
        1..=3 => {
            let (first, middle, last) = (key[0], key[length >> 1], key[length - 1]);
            let combined = u32::from(last) | (long as u32) << 8 | u32::from(first) << 16 | u32::from(middle) << 24;
            avalanche64(u64::from(secret32(0) ^ secret32(4)) ^ u64::from(combined))
        }
        4..=8 => {
            let combined = u64::from(u32_at(key, length - 4)) | u64::from(u32_at(key, 0)) << 32;
            let mut value = (secret(8) ^ secret(16)) ^ combined;
            value ^= value.rotate_left(49) ^ value.rotate_left(24);
            value = value.wrapping_mul(PMX2);
            value ^= (value >> 35).wrapping_add(long);
            value = value.wrapping_mul(PMX2);
            value ^ (value >> 28)
        }
        9..=16 => {
            let low = (secret(24) ^ secret(32)) ^ u64_at(key, 0);
            let high = (secret(40) ^ secret(48)) ^ u64_at(key, length - 8);
            avalanche(long.wrapping_add(low.swap_bytes()).wrapping_add(high).wrapping_add(fold(low, high)))
        }
        17..=128 => {
            let mut hash = long.wrapping_mul(P64_1);
            for round in (0..=(length - 1) >> 5).rev() {
                hash = hash.wrapping_add(mix(round * 16, round * 32));
                hash = hash.wrapping_add(mix(length - round * 16 - 16, round * 32 + 16));
            }
            avalanche(hash)
        }
        129..=240 => {
            let mut hash = long.wrapping_mul(P64_1);
            for block in 0..8 {
                hash = hash.wrapping_add(mix(block * 16, block * 16));
            }
            hash = avalanche(hash);
            for block in 8..length >> 4 {
                hash = hash.wrapping_add(mix(block * 16, (block - 8) * 16 + 3));
            }
            hash = hash.wrapping_add(mix(length - 16, 136 - 17));
            avalanche(hash)
        }
        _ => return None,
    })
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    (0..8).map(|index| u64::from(bytes[at + index]) << (8 * index)).sum()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u64_at(&[&bytes[at..at + 4], &[0; 4]].concat(), 0) as u32
}

/// The specification's default secret.
#[rustfmt::skip]
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];
