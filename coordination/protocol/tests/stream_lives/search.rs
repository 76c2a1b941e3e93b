//! Searches every order of steps around one move of one partition between two pods with streams: an event is late or
//! lost, a pod connects again to an instance that is behind, a process restarts, a handoff is cancelled and planned
//! again, and acknowledgements come late and twice.
//!
//! The search is breadth first, to a number of states: what it has not reached by then is left to the random lives.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Step::{self, *};
use super::World;

/// How many states are searched.
const STATES: usize = 2_500;

/// Steps that may be taken as often as they change something.
const FREE: [Step; 15] = [
    Advance(0),
    CatchUp(0),
    CatchUp(1),
    Deliver(0),
    Deliver(1),
    Work(0, 0),
    Work(1, 0),
    Acknowledge(0, 0, 0),
    Acknowledge(0, 1, 0),
    Acknowledge(1, 0, 0),
    Acknowledge(1, 1, 0),
    Repeat(0, 0),
    Repeat(0, 1),
    Repeat(1, 0),
    Repeat(1, 1),
];
/// Steps that may be taken this often.
const COUNTED: [(Step, u8); 8] = [
    (Plan(0), 2),
    (Cancel(0), 1),
    (Write(0, 0), 2),
    (Write(1, 0), 1),
    (Connect(0, 1), 1),
    (Connect(1, 0), 1),
    (Break(0), 1),
    (Restart(0), 1),
];

/// Returns a world in which pod `a` owns the partition.
fn placed() -> World {
    let mut world = World::new();
    let placed = [Connect(0, 0), Connect(1, 1), Plan(0), CatchUp(0), Deliver(0), Deliver(0), Work(0, 0)];
    let owned = [Acknowledge(0, 0, 0), Advance(0), Advance(0), Advance(0), CatchUp(0), CatchUp(1), Deliver(0)];
    placed.iter().chain(&owned).for_each(|step| world.take(step));
    assert_eq!(world.clients[0].owned.len(), 1);
    world
}

/// Returns a world in which `b` has warmed the partition that it takes over, and has not said so.
fn warmed() -> World {
    let mut world = placed();
    [Plan(0), CatchUp(0), CatchUp(1), Deliver(1), Deliver(1), Work(1, 0)].iter().for_each(|step| world.take(step));
    assert_eq!(world.clients[1].acks.len(), 1);
    world
}

fn hash(world: &World, left: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    // All that is in it has an order. The revision is in the entries that it wrote.
    (format!("{:?}{:?}{:?}{:?}", world.entries, world.clients, world.streams, world.logs), left).hash(&mut hasher);
    world.views.iter().for_each(|view| view.revision.hash(&mut hasher));
    hasher.finish()
}

/// Returns the number of states, or the steps to the first one that breaks an assertion.
fn search(start: World, at_most: usize) -> Result<usize, Vec<Step>> {
    let mut seen = BTreeSet::new();
    let left = COUNTED.map(|(_, often)| often);
    let mut queue = VecDeque::from([(start, left, Vec::new())]);
    while let Some((world, left, path)) = queue.pop_front() {
        let counted = COUNTED.iter().zip(left).enumerate().filter(|(_, (_, left))| *left > 0);
        let counted = counted.map(|(place, ((step, _), _))| (step, Some(place)));
        for (step, place) in FREE.iter().map(|step| (step, None)).chain(counted) {
            let (mut next, mut left, mut path) = (world.clone(), left, path.clone());
            place.into_iter().for_each(|place: usize| left[place] -= 1);
            path.push(step.clone());
            if catch_unwind(AssertUnwindSafe(|| next.take(step))).is_err() {
                return Err(path);
            }
            if seen.len() < at_most && seen.insert(hash(&next, &left)) {
                queue.push_back((next, left, path));
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_order_of_a_moves_steps_lets_a_write_be_lost() {
    let found = search(warmed(), STATES);
    assert_eq!(found, Ok(STATES));
}

#[test]
fn the_search_finds_a_service_that_takes_an_acknowledgement_of_an_earlier_handoff() {
    let mut faulty = warmed();
    faulty.takes_late_acks = true;
    let found = search(faulty, STATES);
    let path = found.expect_err("a late ack counts");
    assert!(path.iter().any(|step| matches!(step, Repeat(..) | Acknowledge(..))), "{path:?}");
}
