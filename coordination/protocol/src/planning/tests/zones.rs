//! Zones against brute force: they decide among placements that are as balanced and move as few partitions, and only
//! among those.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::placement::{has_takers, is_balanced, layouts, loads, moves};
use crate::planning::Strategy as Name;
use crate::planning::placement::{Eligibility, Layout};

/// What a placement is worth, the best least. In this order: moves, the remainders of the shares that are rounded up, the
/// pods of the newest version among those, and the unevenness of the zones.
type Worth = (usize, Reverse<u64>, Reverse<usize>, u64);

/// Returns the worth of a balanced placement.
fn worth(layout: &Layout<'_>, places: &[Option<usize>]) -> Worth {
    let takes = |member: usize| layout.members[member].eligibility != Eligibility::Leaving;
    let takers: Vec<usize> = (0..layout.members.len()).filter(|member| takes(*member)).collect();
    let equal = takers.iter().all(|member| layout.members[*member].weight.0 == 0);
    let weight = |member: usize| if equal { 1 } else { u64::from(layout.members[member].weight.0) };
    let (sum, total) = (takers.iter().map(|member| weight(*member)).sum::<u64>(), layout.slots.len() as u64);
    let loads = loads(layout, places);
    let share = |member: usize| total * weight(member);
    let up: Vec<usize> =
        takers.iter().copied().filter(|member| u64::from(loads[*member]) * sum > share(*member)).collect();
    let mut zones: BTreeMap<Option<&str>, i64> = BTreeMap::new();
    for &member in &takers {
        let above = (u64::from(loads[member]) * sum) as i64 - share(member) as i64;
        *zones.entry(layout.members[member].zone).or_default() += above;
    }
    (
        moves(layout, places),
        Reverse(up.iter().map(|member| share(*member) % sum).sum()),
        Reverse(up.iter().filter(|member| layout.members[**member].newest).count()),
        zones.into_values().map(|above| (above * above) as u64).sum(),
    )
}

/// Returns the least worth of any balanced placement, found by trying them all.
fn best(layout: &Layout<'_>) -> Worth {
    let (members, slots) = (layout.members.len(), layout.slots.len());
    let place = |number: usize, slot: usize| Some(number / members.pow(slot as u32) % members);
    let all = (0..members.pow(slots as u32)).map(|number| (0..slots).map(|slot| place(number, slot)).collect());
    let balanced = all.filter(|places: &Vec<_>| is_balanced(layout, places));
    balanced.map(|places| worth(layout, &places)).min().expect("a balanced placement exists")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn of_equally_good_placements_the_one_with_the_most_even_zones_is_taken(
        layout in prop_oneof![layouts(5, 5, &[1000]), layouts(4, 6, &[0, 500, 1000, 3000])],
    ) {
        if has_takers(&layout) {
            let places = Name::Sticky.placement().place(&layout);
            prop_assert_eq!(worth(&layout, &places), best(&layout), "{:?}", places);
        }
    }
}
