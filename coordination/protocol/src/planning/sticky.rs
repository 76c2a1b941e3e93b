//! The default strategy: every pod gets its quota with the fewest moves possible.
//!
//! A pod's *fair share* is `partitions × weight / sum of weights`; its quota is the share rounded down or up. The pods
//! that round up are chosen so that the fewest partitions move: first pods that already have one more than their
//! rounded-down share, then those with the largest remainder, then those of the newest version, then those in the zone
//! that is furthest below its own share, then by a hash of keyspace and name, which differs from keyspace to keyspace: the
//! odd partitions of many keyspaces would otherwise all go to the same pods. These are only tie-breaks: they never cost a
//! move or a pod's balance. Zones are even if the sum of the squares of what each has above or below its share is small.
//! During a rolling restart, partitions that have to move go to pods of the newest version first.
//!
//! No balanced placement moves fewer. With `have[i]` partitions on pod `i` now and `gets[i]` afterwards, at least
//! `have[i] - gets[i]` must leave it, and no more do. The sum is smallest when odd partitions go to pods with `have >
//! floor`, each of which saves exactly one move, and those are served first.
//!
//! A shunned pod gets no more than it has, and a pod to which operators have pinned more than its share keeps that many.
//! The other pods share the rest by the same rule. If every weight is 0, all pods count the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::jump::mix;
use super::placement::{Eligibility, Layout, Mobility, Placement};
use super::ring::fnv1a;

/// The default strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sticky;

impl Placement for Sticky {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        let mut room = quotas(layout);
        let mut placed: Vec<Option<usize>> = vec![None; layout.slots.len()];
        // The partitions that move least readily are the first to keep their place.
        for mobility in [Mobility::Fixed, Mobility::Pinned, Mobility::Reluctant, Mobility::Free] {
            for (slot, place) in layout.slots.iter().zip(&mut placed) {
                if slot.mobility == mobility {
                    *place = slot.owner.filter(|owner| take(&mut room, *owner));
                }
            }
        }
        for (slot, place) in layout.slots.iter().zip(&mut placed) {
            if place.is_none() {
                *place = slot.home.filter(|home| take(&mut room, *home));
            }
        }
        // Round robin, so that neighbours do not all go to one pod. Pods of the newest version come first, and so do
        // partitions that have to move.
        let with_room = (0..room.len()).filter(|member| room[*member] > 0);
        let (mut newest, mut others): (VecDeque<usize>, VecDeque<usize>) =
            with_room.partition(|member| layout.members[*member].newest);
        for for_balance in [false, true] {
            for (slot, place) in layout.slots.iter().zip(&mut placed) {
                let stays = |owner: usize| layout.members[owner].eligibility != Eligibility::Leaving;
                if place.is_some() || slot.owner.is_some_and(stays) != for_balance {
                    continue;
                }
                let takers = if newest.is_empty() { &mut others } else { &mut newest };
                let Some(taker) = takers.pop_front() else { return placed };
                *place = Some(taker);
                room[taker] -= 1;
                if room[taker] > 0 {
                    takers.push_back(taker);
                }
            }
        }
        placed
    }
}

fn take(room: &mut [u32], member: usize) -> bool {
    let free = room[member] > 0;
    room[member] -= u32::from(free);
    free
}

/// Returns how many partitions each member gets.
fn quotas(layout: &Layout<'_>) -> Vec<u32> {
    let counts = layout.counts();
    let mut gets = vec![0; layout.members.len()];
    let unbounded = layout.has_no_other_choice();
    let fixed = layout.slots.iter().filter(|slot| slot.mobility == Mobility::Fixed);
    let mut least = vec![0u32; layout.members.len()];
    fixed.filter_map(|slot| slot.owner).for_each(|owner| least[owner] += 1);
    let most = |member: usize| match layout.members[member].eligibility {
        Eligibility::Shunned if !unbounded => counts[member],
        _ => u32::MAX,
    };
    let mut sharing: Vec<usize> =
        (0..gets.len()).filter(|member| layout.members[*member].eligibility != Eligibility::Leaving).collect();
    let mut total = layout.slots.len() as u128;
    // Members whose share is out of their bounds are set aside. Only those on the side that is off by more are set aside
    // in one turn: that changes the shares of the others in the direction that keeps those set aside out of bounds.
    let shares = loop {
        let shares = ExactShares::of(layout, &sharing, total);
        let bound = |count: u32| u128::from(count).saturating_mul(shares.sum);
        let below = |member: usize| bound(least[member]).saturating_sub(shares.exact(member));
        let above = |member: usize| shares.exact(member).saturating_sub(bound(most(member)));
        let off = |by: &dyn Fn(usize) -> u128| sharing.iter().map(|member| by(*member)).sum::<u128>();
        let (is_below, is_above) = (off(&below), off(&above));
        if is_below == 0 && is_above == 0 {
            break shares;
        }
        let raises = is_below >= is_above;
        let (aside, within): (Vec<usize>, Vec<usize>) =
            sharing.iter().partition(|member| if raises { below(**member) > 0 } else { above(**member) > 0 });
        for member in aside {
            gets[member] = if raises { least[member] } else { most(member) };
            total -= u128::from(gets[member]);
        }
        sharing = within;
    };
    let mut odd = total;
    for &member in &sharing {
        gets[member] = shares.floor(member);
        odd -= u128::from(gets[member]);
    }
    let mut below: BTreeMap<Option<&str>, i128> = BTreeMap::new();
    for &member in &sharing {
        *below.entry(layout.members[member].zone).or_default() += shares.remainder(member) as i128;
    }
    let mut candidates = sharing;
    candidates.retain(|member| shares.remainder(*member) > 0);
    for _ in 0..odd {
        let best = candidates.iter().enumerate().min_by_key(|(_, member)| {
            let has_one_more = counts[**member] > gets[**member];
            let zone_is_below = below.get(&layout.members[**member].zone).copied().unwrap_or(0);
            let remainder = shares.remainder(**member);
            let is_old = !layout.members[**member].newest;
            let tie = tie_break(layout.keyspace, layout.members[**member].name);
            (!has_one_more, Reverse(remainder), is_old, Reverse(zone_is_below), tie, **member)
        });
        let Some((at, _)) = best else { break };
        let member = candidates.swap_remove(at);
        gets[member] += 1;
        *below.entry(layout.members[member].zone).or_default() -= shares.sum as i128;
    }
    gets
}

/// Returns the rank of a pod among pods that are alike in a keyspace. The least comes first.
fn tie_break(keyspace: &str, pod: &str) -> u64 {
    mix(fnv1a(keyspace.as_bytes()) ^ mix(fnv1a(pod.as_bytes())))
}

/// The exact shares of a total, as fractions of one denominator, so that rounding never decides.
struct ExactShares {
    weights: Vec<u128>,
    sum: u128,
    total: u128,
}

impl ExactShares {
    fn of(layout: &Layout<'_>, sharing: &[usize], total: u128) -> Self {
        let mut weights: Vec<u128> = layout.members.iter().map(|member| u128::from(member.weight.0)).collect();
        if sharing.iter().all(|member| weights[*member] == 0) {
            weights.fill(1);
        }
        let sum = sharing.iter().map(|member| weights[*member]).sum::<u128>().max(1);
        ExactShares { weights, sum, total }
    }

    /// Returns the share times `sum`.
    fn exact(&self, member: usize) -> u128 {
        self.total * self.weights[member]
    }

    fn floor(&self, member: usize) -> u32 {
        // A share is at most the number of partitions, which is a u32.
        (self.exact(member) / self.sum) as u32
    }

    fn remainder(&self, member: usize) -> u128 {
        self.exact(member) % self.sum
    }
}
