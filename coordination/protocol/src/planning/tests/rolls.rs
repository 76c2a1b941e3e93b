//! Rolling restarts of whole StatefulSets: how often each partition moves. `make strategies` prints the table.

use std::collections::BTreeMap;
use std::time::Duration;

use super::world::{World, policy, secs};
use crate::ids::{Epoch, PartitionId};
use crate::planning::{Notice, ROLL_PATIENCE};
use crate::records::PodStatus;

/// A rolling restart of all pods, the last one first. Each pod drains, exits, and comes back after `away`. The next one
/// follows after `rest`.
#[derive(Clone, Copy)]
struct Roll {
    pods: usize,
    partitions: u32,
    away: Duration,
    rest: Duration,
    /// The version of the pods before and after it.
    versions: [Option<&'static str>; 2],
}

const NONE: [Option<&str>; 2] = [None, None];
const SAME: [Option<&str>; 2] = [Some("v1"), Some("v1")];
const NEW: [Option<&str>; 2] = [Some("v1"), Some("v2")];

/// Observations during a rolling restart.
#[derive(Debug)]
struct Outcome {
    moves: u32,
    /// Most partitions of one pod at any time.
    most: usize,
    /// Partitions of the pods at the end.
    balance: Vec<usize>,
}

struct Rolling {
    world: World,
    epochs: BTreeMap<PartitionId, Epoch>,
    outcome: Outcome,
}

impl Rolling {
    fn new(roll: Roll) -> Self {
        let names: Vec<String> = (0..roll.pods).map(name).collect();
        let mut world = World::new(policy(roll.partitions));
        world.join_router("r-0");
        for name in &names {
            world.put_pod_of(name, PodStatus::Ready, roll.versions[0]);
        }
        world.run_until_quiet();
        let mut rolling =
            Rolling { world, epochs: BTreeMap::new(), outcome: Outcome { moves: 0, most: 0, balance: Vec::new() } };
        rolling.look();
        rolling.outcome.moves = 0;
        rolling
    }

    /// Counts the ownerships that have begun.
    fn look(&mut self) {
        for (partition, assignment) in &self.world.view().assignments {
            let epoch = assignment.value.epoch;
            self.outcome.moves += u32::from(self.epochs.insert(*partition, epoch) != Some(epoch));
        }
        self.outcome.most = self.outcome.most.max(self.world.balance().into_values().max().unwrap_or(0));
    }

    /// Runs the leader and the participants until nothing is left to do now. Counts after each step.
    fn act(&mut self) {
        loop {
            self.world.lead();
            if !self.world.participate_all() {
                return;
            }
            self.look();
        }
    }

    /// Runs the leader at every time that it asks for.
    fn run(&mut self, span: Duration) {
        let end = self.world.now + span;
        while self.world.now < end {
            self.act();
            self.world.now = self.world.wake.map_or(end, |wake| wake.min(end));
        }
        self.act();
    }

    /// Restarts one pod with the next version.
    fn restart(&mut self, roll: Roll, number: usize) {
        let name = name(number);
        self.world.put_pod_of(&name, PodStatus::Draining, roll.versions[0]);
        self.act();
        let began = self.world.now;
        while self.world.balance()[&name] > 0 || !self.world.view().handoffs.is_empty() {
            self.run(secs(1));
            assert!(self.world.now < began + secs(60), "{name} does not get empty: {:?}", self.world.balance());
        }
        self.world.kill_pod(&name);
        self.run(roll.away);
        self.world.put_pod_of(&name, PodStatus::Ready, roll.versions[1]);
        self.run(roll.rest);
    }
}

fn name(number: usize) -> String {
    format!("w-{number:03}")
}

fn roll(roll: Roll) -> Outcome {
    let mut rolling = Rolling::new(roll);
    for number in (0..roll.pods).rev() {
        rolling.restart(roll, number);
    }
    rolling.run(ROLL_PATIENCE + secs(30));
    rolling.outcome.balance = rolling.world.balance().into_values().collect();
    rolling.outcome
}

/// Returns the fewest moves of any planner. Every partition leaves its pod once. Those of the first pod go to a pod
/// that has not been restarted yet, and leave that one as well. Those of the pod that came back last had a place on
/// another restarted pod before.
fn fewest(roll: Roll) -> u32 {
    let share = roll.partitions / roll.pods as u32;
    roll.partitions + 2 * share
}

const QUICK: Roll = Roll { pods: 5, partitions: 20, away: secs(10), rest: secs(5), versions: NEW };

#[test]
fn a_roll_moves_no_more_partitions_than_any_planner_has_to() {
    let shapes = [
        QUICK,
        Roll { away: secs(50), ..QUICK },
        Roll { rest: secs(50), ..QUICK },
        Roll { pods: 3, partitions: 12, ..QUICK },
        Roll { pods: 2, partitions: 4, ..QUICK },
    ];
    for rolled in shapes.into_iter().flat_map(|roll| [NEW, SAME].map(|versions| Roll { versions, ..roll })) {
        let outcome = roll(rolled);
        assert_eq!(outcome.moves, fewest(rolled), "{outcome:?}");
        let remaining = rolled.partitions as usize / (rolled.pods - 1);
        assert_eq!(outcome.most, remaining, "and no pod has more than its share while one is away");
        let share = rolled.partitions as usize / rolled.pods;
        assert!(outcome.balance.iter().all(|count| *count == share), "{outcome:?}");
    }
}

#[test]
fn the_last_pod_of_a_roll_is_filled_in_the_next_round() {
    for versions in [NEW, SAME] {
        let roll = Roll { pods: 3, partitions: 24, rest: secs(4), versions, ..QUICK };
        let mut rolling = Rolling::new(roll);
        for number in (0..roll.pods).rev() {
            rolling.restart(roll, number);
        }
        assert!(rolling.world.balance().into_values().all(|count| count == 8), "{:?}", rolling.world.balance());
    }
}

#[test]
fn the_last_pod_of_a_roll_is_filled_by_a_new_leader_too_if_versions_tell_that_it_is_the_last() {
    let roll = Roll { pods: 3, partitions: 24, rest: secs(4), ..QUICK };
    let mut rolling = Rolling::new(roll);
    for number in (0..roll.pods).rev() {
        if number == 0 {
            rolling.world.elect();
        }
        rolling.restart(roll, number);
    }
    assert!(rolling.world.balance().into_values().all(|count| count == 8), "{:?}", rolling.world.balance());
}

#[test]
fn pods_without_a_version_are_filled_although_others_have_one() {
    let mut rolling = Rolling::new(Roll { pods: 1, partitions: 24, ..QUICK });
    rolling.world.put_pod_of("w-001", PodStatus::Ready, None);
    rolling.world.put_pod_of("w-002", PodStatus::Ready, None);
    rolling.run(secs(20));
    assert!(rolling.world.balance().into_values().all(|count| count == 8), "{:?}", rolling.world.balance());
}

#[test]
fn a_pod_without_a_version_ends_no_roll() {
    let roll = Roll { pods: 3, partitions: 24, rest: secs(4), ..QUICK };
    let mut rolling = Rolling::new(roll);
    rolling.restart(roll, 2);
    rolling.world.put_pod_of("w-009", PodStatus::Ready, None);
    rolling.run(secs(4));
    assert!(rolling.world.plan().notices.contains(&Notice::Roll { newest: Some("v2".into()) }));
}

#[test]
fn a_roll_that_pauses_leaves_no_pod_empty() {
    for versions in [NEW, SAME] {
        let roll = Roll { versions, ..QUICK };
        let mut rolling = Rolling::new(roll);
        rolling.restart(roll, 4);
        assert_eq!(rolling.world.balance()[&name(4)], 0);
        let notice = Notice::Roll { newest: versions[1].map(Into::into) };
        assert!(rolling.world.plan().notices.contains(&notice));
        rolling.run(ROLL_PATIENCE);
        assert!(rolling.world.balance().into_values().all(|count| count == 4), "{:?}", rolling.world.balance());
        assert!(!rolling.world.plan().notices.contains(&notice));
    }
}

#[test]
fn a_pod_without_a_version_that_comes_back_is_filled_at_once() {
    let roll = Roll { versions: NONE, rest: secs(10), ..QUICK };
    let mut rolling = Rolling::new(roll);
    rolling.restart(roll, 4);
    assert_eq!(rolling.world.balance()[&name(4)], 4);
}

#[test]
fn a_pod_that_comes_back_late_or_drained_by_an_operator_is_filled_at_once() {
    let roll = Roll { versions: SAME, ..QUICK };
    let mut rolling = Rolling::new(roll);
    rolling.restart(Roll { away: ROLL_PATIENCE + secs(1), ..roll }, 4);
    assert_eq!(rolling.world.balance()[&name(4)], 4, "after more than {ROLL_PATIENCE:?}");

    rolling.world.operator_drains(&name(4));
    rolling.run(secs(10));
    rolling.world.kill_pod(&name(4));
    rolling.run(secs(10));
    rolling.world.put_pod_of(&name(4), PodStatus::Ready, Some("v1"));
    rolling.world.store.delete(rolling.world.keys.drain(&name(4)));
    rolling.run(secs(10));
    assert_eq!(rolling.world.balance()[&name(4)], 4, "after an operator's drain");
}

#[test]
fn a_roll_to_the_same_version_that_a_new_leader_takes_over_ends_within_a_minute() {
    let roll = Roll { versions: SAME, ..QUICK };
    let mut rolling = Rolling::new(roll);
    for number in (0..roll.pods).rev() {
        rolling.restart(roll, number);
        if number == 2 {
            rolling.world.elect();
        }
    }
    assert_eq!(rolling.world.balance()[&name(0)], 0);
    rolling.run(ROLL_PATIENCE);
    assert!(rolling.world.balance().into_values().all(|count| count == 4), "{:?}", rolling.world.balance());
}

#[test]
fn a_pod_that_restarts_again_and_again_does_not_hold_balance_up() {
    let mut rolling = Rolling::new(QUICK);
    rolling.restart(QUICK, 4);
    for _ in 0..3 {
        rolling.world.kill_pod(&name(4));
        rolling.run(secs(2));
        rolling.world.put_pod_of(&name(4), PodStatus::Ready, Some("v2"));
        rolling.run(secs(20));
    }
    assert!(rolling.world.balance()[&name(4)] > 0);
}

#[test]
fn a_pod_that_drains_and_comes_back_again_and_again_does_not_hold_balance_up() {
    let roll = Roll { versions: SAME, away: secs(2), rest: secs(20), ..QUICK };
    let mut rolling = Rolling::new(roll);
    for _ in 0..4 {
        rolling.restart(roll, 4);
    }
    rolling.restart(roll, 4);
    assert!(rolling.world.balance()[&name(4)] > 0);
}

/// Prints what the table of `docs/performance.md` sums up.
#[test]
#[ignore = "takes a minute; make strategies"]
#[allow(clippy::print_stdout)]
fn table_of_rolls() {
    println!(
        "| pods | partitions | back after | next after | version | moves | mean | fewest possible | most of a pod |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (pods, partitions) in [(3, 12), (5, 20), (10, 90)] {
        for (away, rest) in [(10, 5), (50, 30), (10, 90)] {
            for versions in [NONE, SAME, NEW] {
                let rolled = Roll { pods, partitions, away: secs(away), rest: secs(rest), versions };
                let outcome = roll(rolled);
                let version = match versions {
                    NONE => "none",
                    SAME => "the same",
                    _ => "new",
                };
                let fewest = fewest(rolled);
                let mean = f64::from(outcome.moves) / f64::from(partitions);
                println!(
                    "| {pods} | {partitions} | {away} s | {rest} s | {version} | {} | {mean:.2} | {fewest} | {} |",
                    outcome.moves, outcome.most
                );
                assert!(outcome.moves >= fewest);
            }
        }
    }
}
