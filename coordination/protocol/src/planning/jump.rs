//! Jump consistent hash over the pods in the order of their names.
//!
//! For deployments that want a partition's place to follow from the pods' names alone. When the last name in the order
//! comes or goes, the fewest partitions possible move. When one in the middle does, nearly all partitions of the names
//! behind it move too, so the strategy suits numbered pods (a StatefulSet). It ignores weights and zones, and balances
//! only on average: where those matter use [`sticky`](super::sticky). A partition's place does not depend on the keyspace,
//! so that equal partitions of several keyspaces are on one pod.
//!
//! J. Lamping, E. Veach: *A Fast, Minimal Memory, Consistent Hash Algorithm*, 2014, arXiv:1406.2294.

use super::placement::{Eligibility, Layout, Placement};

/// The jump consistent hash strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Jump;

impl Placement for Jump {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        let members_that = |takes: &dyn Fn(Eligibility) -> bool| -> Vec<usize> {
            let indices = 0..layout.members.len();
            indices.filter(|member| takes(layout.members[*member].eligibility)).collect()
        };
        let staying = members_that(&|eligibility| eligibility != Eligibility::Leaving);
        let open = if layout.has_no_other_choice() {
            staying.clone()
        } else {
            members_that(&|eligibility| eligibility == Eligibility::Open)
        };
        let pick = |partition: usize, from: &[usize]| {
            let bucket = bucket(mix(partition as u64), u32::try_from(from.len()).unwrap_or(u32::MAX));
            from.get(bucket as usize).copied()
        };
        let place = |(partition, slot): (usize, &super::placement::PartitionSlot)| {
            let first = pick(partition, &staying)?;
            if open.binary_search(&first).is_ok() {
                return Some(first);
            }
            // The hashed pod is shunned: the partition stays with its owner, or else goes to an open pod for as long.
            let stays = slot.owner.filter(|owner| staying.binary_search(owner).is_ok());
            stays.or_else(|| pick(partition, &open))
        };
        layout.slots.iter().enumerate().map(place).collect()
    }
}

/// Returns the bucket of `key` among `buckets` (figure 1 of the paper). 0 if there are none.
pub fn bucket(mut key: u64, buckets: u32) -> u32 {
    let (mut at, mut next) = (0u64, 0u64);
    while next < u64::from(buckets) {
        at = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((at + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as u64;
    }
    // Smaller than `buckets`.
    at as u32
}

/// Spreads consecutive numbers over all of u64, as the paper requires of its keys. This is the finaliser of SplitMix64
/// (G. Steele, D. Lea, C. Flood: *Fast Splittable Pseudorandom Number Generators*, 2014).
pub(super) fn mix(number: u64) -> u64 {
    let mut key = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_other_implementations() {
        for (key, buckets, expected) in
            [(1, 1, 0), (42, 57, 43), (0xDEAD_10CC, 1, 0), (0xDEAD_10CC, 666, 361), (256, 1024, 520), (0, 0, 0)]
        {
            assert_eq!(bucket(key, buckets), expected, "{key} among {buckets}");
        }
    }

    #[test]
    fn a_bucket_more_takes_from_the_others_and_moves_nothing_between_them() {
        for buckets in 1..60 {
            let (before, after) = (|key| bucket(mix(key), buckets), |key| bucket(mix(key), buckets + 1));
            let moved: Vec<u32> = (0..1024).filter(|key| before(*key) != after(*key)).map(after).collect();
            assert!(moved.iter().all(|to| *to == buckets));
            let expected = 1024 / (buckets as usize + 1);
            assert!(moved.len() < 2 * expected + 20, "{} moved to bucket {buckets}", moved.len());
        }
    }
}
