//! A consistent hash ring with bounded loads over the pods' names.
//!
//! For deployments that want a partition's place to follow from the pods' names and weights alone, whichever pod comes or
//! goes. A pod has 128 points on the ring for a weight of 1.0. A partition belongs to the pod of the first point behind
//! its own that is not full: no pod takes more than 1.25 times its share. When a pod comes or goes, about its share of
//! the partitions moves, and somewhat more where a pod fills up or empties. The ring ignores zones and moves more than
//! [`sticky`](super::sticky) does, which balances to within one partition. A partition's place does not depend on the
//! keyspace, so that equal partitions of several keyspaces are on one pod.
//!
//! D. Karger and others: *Consistent Hashing and Random Trees*, 1997. V. Mirrokni, M. Thorup, M. Zadimoghaddam:
//! *Consistent Hashing with Bounded Loads*, 2016, arXiv:1608.01350.
//!
//! # Invariants
//!
//! * A pod is due at most 1.25 times its share, rounded up. Only partitions that avoid a shunned pod may exceed that.
//! * The order of the members does not matter.

use super::jump::mix;
use super::placement::{Eligibility, Layout, Placement};

/// Points of a pod with a weight of 1.0.
const POINTS: u64 = 128;
/// Most points of a pod. One with a weight above 8.0 is due its share, but more of it depends on other pods being full.
const MAX_POINTS: u64 = 8 * POINTS;
/// A weight of 1.0, in thousandths.
const UNIT_WEIGHT: u64 = 1000;
/// Most load of a pod as a multiple of its share: 5/4.
const MAX_LOAD: (u64, u64) = (5, 4);

/// The consistent hash ring strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ring;

impl Placement for Ring {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        let weights = weights(layout);
        let points = points(layout, &weights);
        let due = due(layout, &weights, &points);
        let no_other_choice = layout.has_no_other_choice();
        let is_open = |member: usize| match layout.members[member].eligibility {
            Eligibility::Open => true,
            Eligibility::Shunned => no_other_choice,
            Eligibility::Leaving => false,
        };
        let place = |(partition, slot): (usize, &super::placement::PartitionSlot)| {
            let first = due[partition]?;
            if is_open(first) {
                return Some(first);
            }
            // The pod is shunned: the partition stays with its owner, or else goes to an open pod for as long.
            let stays = slot.owner.filter(|owner| layout.members[*owner].eligibility != Eligibility::Leaving);
            let next = || clockwise(&points, partition).find(|member| is_open(*member));
            stays.or_else(next).or_else(|| (0..layout.members.len()).find(|member| is_open(*member)))
        };
        layout.slots.iter().enumerate().map(place).collect()
    }
}

/// Returns the weight of each member in thousandths: 0 for one that leaves, and alike for all others if none has any.
fn weights(layout: &Layout<'_>) -> Vec<u64> {
    let stays = |index: &usize| layout.members[*index].eligibility != Eligibility::Leaving;
    let all_zero = (0..layout.members.len()).filter(stays).all(|index| layout.members[index].weight.0 == 0);
    let weight = |index: usize| match stays(&index) {
        false => 0,
        true if all_zero => UNIT_WEIGHT,
        true => u64::from(layout.members[index].weight.0),
    };
    (0..layout.members.len()).map(weight).collect()
}

/// Returns the points of the ring in their order, each with its member.
fn points(layout: &Layout<'_>, weights: &[u64]) -> Vec<(u64, usize)> {
    let mut points = Vec::new();
    for (index, (member, weight)) in layout.members.iter().zip(weights).enumerate().filter(|(_, (_, w))| **w > 0) {
        let name = fnv1a(member.name.as_bytes());
        let count = (weight * POINTS / UNIT_WEIGHT).clamp(1, MAX_POINTS);
        points.extend((0..count).map(|number| (mix(name ^ mix(number)), index)));
    }
    // Two points in one place are ordered by name, as the members are.
    points.sort_unstable();
    points
}

/// Returns the members on the ring from a partition's hash on, once around, each as often as it has points.
fn clockwise(points: &[(u64, usize)], partition: usize) -> impl Iterator<Item = usize> {
    // Another sequence than that of a pod's points.
    let hash = mix(!(partition as u64));
    let start = points.partition_point(|(point, _)| *point < hash);
    points[start..].iter().chain(&points[..start]).map(|(_, member)| *member)
}

/// Returns the member that each partition is due to, whoever is shunned. `None` if all members leave.
fn due(layout: &Layout<'_>, weights: &[u64], points: &[(u64, usize)]) -> Vec<Option<usize>> {
    let (total, sum) = (layout.slots.len() as u64, weights.iter().sum::<u64>().max(1));
    let mut room: Vec<u64> =
        weights.iter().map(|weight| (total * weight * MAX_LOAD.0).div_ceil(sum * MAX_LOAD.1)).collect();
    let mut find = |partition: usize| {
        let member = clockwise(points, partition).find(|member| room[*member] > 0)?;
        room[member] -= 1;
        Some(member)
    };
    (0..layout.slots.len()).map(&mut find).collect()
}

/// Returns the hash of a name: FNV-1a with 64 bits (G. Fowler, L. C. Noll, K.-P. Vo).
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, Revision};
    use crate::planning::placement::{Member, Mobility, PartitionSlot};
    use crate::records::Thousandths;

    fn layout(names: &[String], slots: usize) -> Layout<'_> {
        let member = |name| Member {
            name,
            incarnation: Incarnation::registered_at(Revision::new(1)),
            weight: Thousandths(1000),
            zone: None,
            newest: true,
            eligibility: Eligibility::Open,
        };
        let slot = PartitionSlot { owner: None, home: None, wanted: None, mobility: Mobility::Free };
        Layout {
            keyspace: "default",
            members: names.iter().map(|name| member(name.as_str())).collect(),
            slots: vec![slot; slots],
        }
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("writer-{number:03}")).collect()
    }

    fn loads(layout: &Layout<'_>) -> Vec<u64> {
        let mut loads = vec![0; layout.members.len()];
        Ring.place(layout).into_iter().flatten().for_each(|member| loads[member] += 1);
        loads
    }

    #[test]
    fn hashes_are_those_of_other_implementations() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }

    /// A new version of Segue must not move partitions that lie still.
    #[test]
    fn places_are_the_same_in_every_version() {
        let names = names(3);
        let places: Vec<usize> = Ring.place(&layout(&names, 16)).into_iter().flatten().collect();
        assert_eq!(places, [1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 1, 2, 0, 0, 2]);
    }

    #[test]
    fn no_pod_is_due_more_than_a_quarter_beyond_its_share() {
        for pods in 1..40 {
            let names = names(pods);
            let mut layout = layout(&names, 1024);
            for (index, member) in layout.members.iter_mut().enumerate() {
                member.weight = Thousandths([1000, 500, 3000][index % 3]);
            }
            let sum: u64 = layout.members.iter().map(|member| u64::from(member.weight.0)).sum();
            for (member, load) in layout.members.iter().zip(loads(&layout)) {
                let most = (1024 * u64::from(member.weight.0) * 5).div_ceil(4 * sum);
                assert!(load <= most, "{pods} pods: {} has {load} of at most {most}", member.name);
            }
        }
    }

    #[test]
    fn a_pod_that_joins_moves_little_more_than_its_share() {
        for pods in 2..40 {
            let names = names(pods);
            let (before, after) = (layout(&names[..pods - 1], 4096), layout(&names, 4096));
            let (before, after) = (Ring.place(&before), Ring.place(&after));
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            assert!(moved * pods * 10 <= 4096 * 13, "pod {pods}: {moved} moved, a share is {}", 4096 / pods);
        }
    }

    #[test]
    fn a_partition_whose_pod_is_shunned_stays_where_it_is() {
        let names = names(5);
        let mut layout = layout(&names, 64);
        let due = Ring.place(&layout);
        layout.slots.iter_mut().enumerate().for_each(|(partition, slot)| slot.owner = Some(1 + partition % 4));
        layout.members[0].eligibility = Eligibility::Shunned;
        for (slot, (due, place)) in layout.slots.iter().zip(due.iter().zip(Ring.place(&layout))) {
            assert_eq!(place, if *due == Some(0) { slot.owner } else { *due });
        }
    }
}
