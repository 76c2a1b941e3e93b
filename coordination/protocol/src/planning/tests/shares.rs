//! The plans of participants of an assignment round, which act at the same time, each for its share.

use std::collections::BTreeMap;

use super::load::{balancing, hot};
use super::world::{World, policy, secs};
use crate::authority::Authority;
use crate::ids::{Incarnation, PartitionId, Revision};
use crate::planning::{FIRST_BACK_OFF, Memory, MoveCause, OVERLOADS_BEFORE_MOVE, Plan, PlannedWrite, Policy, plan};

const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);

/// A participant of a round, with its own memory.
struct Participant {
    authority: Authority,
    memory: Memory,
}

impl Participant {
    fn new(rank: u32, of: u32, mut memory: Memory) -> Self {
        memory.acts_anew();
        let (name, incarnation) = (rank.to_string(), Incarnation::NONE);
        let authority = Authority::Round { name, incarnation, round: Revision::ZERO, rank, of };
        Participant { authority, memory }
    }

    /// Returns participants that have just begun.
    fn new_ones(of: u32) -> Vec<Self> {
        (0..of).map(|rank| Participant::new(rank, of, Memory::default())).collect()
    }

    fn plan(&mut self, world: &World) -> Plan {
        plan(&world.view(), &world.policy, &self.authority, &mut self.memory, world.now)
    }

    /// Returns the partitions that it begins to move, after changes have settled.
    fn begins(&mut self, world: &World) -> Vec<PartitionId> {
        let mut later = world.clone();
        later.now += world.policy.settle;
        let plans = [self.plan(world), self.plan(&later)];
        plans.iter().flat_map(begun).map(|(partition, _)| partition).collect()
    }
}

fn begun(plan: &Plan) -> BTreeMap<PartitionId, (String, MoveCause)> {
    let begun = plan.actions.iter().filter_map(|action| match action {
        PlannedWrite::Create { handoff, cause, .. } => Some((handoff.partition, (handoff.new_owner.clone(), *cause))),
        _ => None,
    });
    begun.collect()
}

#[test]
fn a_partition_that_backs_off_at_its_participant_keeps_no_place_from_those_of_others() {
    let mut world = World::new(Policy { max_concurrent_handoffs: 1, ..policy(2) });
    world.join_pod("w-0");
    world.wait(secs(5));
    assert!(world.view().handoffs.contains_key(&P0) && world.view().handoffs.len() == 1);
    world.now += world.policy.warm_timeout;
    for cancel in world.plan().actions {
        assert!(matches!(cancel, PlannedWrite::Cancel { .. }));
        world.carry_out(&cancel);
    }
    // The first saw the move of its partition fail. The second has just begun, and remembers nothing.
    let (mut first, mut second) =
        (Participant::new(0, 2, world.memory.clone()), Participant::new(1, 2, Memory::default()));
    assert_eq!(first.begins(&world), [], "it backs off");
    assert_eq!(second.begins(&world), [P1]);
    world.now += FIRST_BACK_OFF;
    assert_eq!(first.begins(&world), [P0]);
}

#[test]
fn participants_share_the_places_and_together_exceed_them_by_less_than_their_number() {
    for (of, each) in [(1, 7), (2, 4), (3, 3), (10, 1)] {
        let mut world = World::new(Policy { max_concurrent_handoffs: 7, ..policy(40) });
        ["w-0", "w-1", "w-2", "w-3"].into_iter().for_each(|pod| world.join_pod(pod));
        world.lead();
        for mut participant in Participant::new_ones(of) {
            let begun = participant.begins(&world);
            assert_eq!(begun.len(), each, "{of} participants");
            assert!(begun.iter().all(|partition| participant.authority.acts_for(Some(*partition))));
        }
    }
}

#[test]
fn planned_moves_of_all_participants_exceed_half_of_the_places_by_less_than_their_number() {
    for (of, each) in [(1, 8), (2, 4), (3, 3), (5, 2), (16, 1)] {
        let limits = Policy { max_concurrent_handoffs: 16, max_warming_per_pod: 64, ..policy(160) };
        let mut world = World::settled(limits, &["w-0"]);
        world.join_pod("w-1");
        for mut participant in Participant::new_ones(of) {
            let begun = participant.begins(&world);
            assert_eq!(begun.len(), each, "{of} participants");
            let of = of as usize;
            assert!(begun.len() * of < 8 + of);
        }
    }
}

#[test]
fn a_pod_warms_no_more_partitions_because_several_participants_move_them() {
    let planned = Policy { max_warming_per_pod: 4, max_concurrent_handoffs: 64, ..policy(24) };
    let mut world = World::settled(planned, &["w-0"]);
    world.join_pod("w-1");
    let begun = Participant::new_ones(2).iter_mut().map(|participant| participant.begins(&world).len()).sum::<usize>();
    assert_eq!(begun, 4);
}

#[test]
fn urgent_moves_cancel_no_others_while_there_are_places_that_a_participant_leaves_to_another() {
    let limits = Policy { max_concurrent_handoffs: 16, max_warming_per_pod: 16, ..policy(48) };
    let mut world = World::settled(limits, &["w-0", "w-1"]);
    world.wait(secs(10));
    world.join_pod("w-2");
    world.wait(secs(1));
    assert_eq!(world.view().handoffs.len(), 8, "half of the places");
    world.kill_pod("w-0");
    for mut participant in Participant::new_ones(3) {
        participant.plan(&world);
        let mut later = world.clone();
        later.now += secs(1);
        let plan = participant.plan(&later);
        assert_eq!(begun(&plan).len(), 3, "its share of the other half");
        assert!(!plan.actions.iter().any(|action| matches!(action, PlannedWrite::Cancel { .. })), "{:?}", plan.actions);
    }
}

#[test]
fn an_exchange_for_load_is_the_work_of_one_participant() {
    let mut exchanges = 0;
    for of in 1..12 {
        let mut world = balancing(24, &["w-0", "w-1", "w-2"]);
        let load = hot(&world);
        world.beat_all(OVERLOADS_BEFORE_MOVE - 1, load);
        for pod in ["w-0", "w-1", "w-2"] {
            assert!(world.beat(pod, load));
        }
        let mut later = world.clone();
        later.plan();
        later.now += world.policy.heartbeat;
        let begun: Vec<usize> = (0..of)
            .map(|rank| begun(&Participant::new(rank, of, later.memory.clone()).plan(&later)).len())
            .filter(|begun| *begun > 0)
            .collect();
        assert!(begun.is_empty() || begun == [2], "{of} participants: {begun:?}");
        exchanges += begun.len();
    }
    assert!(exchanges > 0);
}

#[test]
fn a_new_authority_does_not_wait_for_the_plan_of_the_old_one() {
    let mut world = World::new(Policy { min_interval: secs(20), ..policy(2) });
    world.join_pod("w-0");
    world.lead();
    let mut participant = Participant::new(0, 2, Memory::default());
    assert_eq!(participant.begins(&world), [P0]);
    // The other one dies, and nothing else changes. Nobody has begun its move.
    world.now += world.policy.settle;
    participant.authority = Participant::new(0, 1, Memory::default()).authority;
    participant.memory.acts_anew();
    assert!(begun(&participant.plan(&world)).contains_key(&P1));
}
