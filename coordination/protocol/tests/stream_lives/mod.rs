//! Random lives of two pods that take part by a stream: streams break and continue at an instance that is behind,
//! events are lost, acknowledgements come late, twice and to another instance, handoffs are cancelled, and processes
//! restart. No write is made without all earlier ones, and everything comes to rest once the faults stop.

use proptest::prelude::*;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::PodAckKind;

use self::world::World;

mod search;
mod world;

const PODS: [&str; 2] = ["a", "b"];
const PARTITIONS: u32 = 2;

/// A choice, taken modulo the number of candidates.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Plan(u8),
    Cancel(u8),
    Advance(u8),
    CatchUp(u8),
    Deliver(u8),
    Work(u8, u8),
    FailForGood(u8, u8),
    Acknowledge(u8, u8, u8),
    Repeat(u8, u8),
    Write(u8, u8),
    Connect(u8, u8),
    Break(u8),
    Restart(u8),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let (pod, partition, any) = (0..2u8, 0..2u8, any::<u8>());
    prop_oneof![
        6 => partition.clone().prop_map(Plan),
        1 => partition.clone().prop_map(Cancel),
        6 => partition.clone().prop_map(Advance),
        5 => (0..2u8).prop_map(CatchUp),
        10 => pod.clone().prop_map(Deliver),
        10 => (pod.clone(), partition.clone()).prop_map(|(pod, partition)| Work(pod, partition)),
        1 => (pod.clone(), partition.clone()).prop_map(|(pod, partition)| FailForGood(pod, partition)),
        10 => (pod.clone(), 0..2u8, any).prop_map(|(pod, instance, ack)| Acknowledge(pod, instance, ack)),
        2 => (pod.clone(), any).prop_map(|(pod, ack)| Repeat(pod, ack)),
        10 => (pod.clone(), partition).prop_map(|(pod, partition)| Write(pod, partition)),
        4 => (pod.clone(), 0..2u8).prop_map(|(pod, instance)| Connect(pod, instance)),
        2 => pod.clone().prop_map(Break),
        1 => pod.prop_map(Restart),
    ]
}

#[test]
fn a_stream_that_continues_at_an_instance_that_is_behind_serves_nothing_that_was_drained() {
    use Step::*;
    let mut world = World::new();
    let placed = [Connect(0, 0), Connect(1, 0), Plan(0), CatchUp(0), Deliver(0), Deliver(0), Work(0, 0)];
    let owned = [Acknowledge(0, 0, 0), Advance(0), Advance(0), Advance(0), CatchUp(0), CatchUp(1), Deliver(0)];
    placed.iter().chain(&owned).for_each(|step| world.take(step));
    assert_eq!(world.clients[0].owned.len(), 1);
    let warm = [Plan(0), CatchUp(0), Deliver(1), Deliver(1), Work(1, 0), Acknowledge(1, 0, 0), Advance(0)];
    let drained = [CatchUp(0), Deliver(0), Work(0, 0), Acknowledge(0, 0, 0)];
    warm.iter().chain(&drained).for_each(|step| world.take(step));
    let record = world.view().handoffs[&PartitionId::new(0)].clone();
    let said = world.view().pod_ack(PartitionId::new(0), "a", PodAckKind::Drained, record.id()).cloned();
    assert!(said.is_some() && world.views[1].handoffs.is_empty(), "{record:?}");
    [Connect(0, 1), Deliver(0), Write(0, 0)].iter().for_each(|step| world.take(step));
    assert!(world.clients[0].owned.is_empty());
}

#[test]
fn state_that_was_warmed_again_outlasts_the_release_of_the_earlier_one() {
    use Step::*;
    let mut world = World::new();
    let first = [Plan(1), Connect(1, 0), Deliver(1), Cancel(1), Connect(1, 1), Work(1, 1)];
    let second = [Plan(1), Connect(0, 1), Deliver(1), Deliver(1), Connect(1, 0), Work(1, 1), Acknowledge(1, 0, 61)];
    // The stream tells of a release of what the pod had when the stream began.
    let served = [Advance(1), Connect(0, 0), Deliver(1), Deliver(1), Work(1, 1)];
    first.iter().chain(&second).chain(&served).for_each(|step| world.take(step));
    assert_eq!(world.clients[1].owned.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pods_by_streams_lose_no_write_and_come_to_rest(steps in prop::collection::vec(step(), 0..400)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        world.settle();
        world.is_settled();
        (0..PARTITIONS).map(PartitionId::new).for_each(|partition| {
            (0..PODS.len()).for_each(|pod| world.accept(pod, partition));
        });
    }
}
