//! The strategy `external`: partitions follow the key `wanted`.

use std::collections::BTreeMap;

use super::failed::fail;
use super::world::{World, policy, secs};
use crate::ids::PartitionId;
use crate::planning::external::{WriteError, write};
use crate::planning::{MoveCause, Notice, Plan, PlannedWrite, Policy, RoundCause, Strategy};
use crate::records::{Wanted, WantedDefault};

fn world(pods: &[&str]) -> World {
    World::settled(Policy { strategy: Strategy::External, ..policy(8) }, pods)
}

fn wanted(generation: u64, owners: &[(u32, &str)]) -> Wanted {
    let owners = owners.iter().map(|(partition, pod)| (PartitionId::new(*partition), (*pod).to_owned()));
    Wanted { generation, owners: owners.collect(), default: WantedDefault::Keep }
}

fn want(world: &mut World, generation: u64, owners: &[(u32, &str)]) {
    let txn = write(&world.view(), &wanted(generation, owners)).unwrap();
    assert!(world.store.commit(&txn));
}

fn owners(world: &World) -> BTreeMap<u32, String> {
    PartitionId::all(8).map(|partition| (partition.get(), world.owner(partition))).collect()
}

fn begun(plans: &[Plan]) -> Vec<(u32, String, MoveCause, String)> {
    let actions = plans.iter().flat_map(|plan| &plan.actions);
    let begun = actions.filter_map(|action| match action {
        PlannedWrite::Create { handoff, cause, .. } => {
            Some((handoff.partition.get(), handoff.new_owner.clone(), *cause, handoff.reason.clone()))
        }
        _ => None,
    });
    begun.collect()
}

#[test]
fn the_record_is_written_as_documented() {
    let text = r#"{"generation":41,"owners":{"0":"w-1"},"default":"keep"}"#;
    assert_eq!(serde_json::to_string(&wanted(41, &[(0, "w-1")])).unwrap(), text);
    assert_eq!(serde_json::from_str::<Wanted>(text).unwrap(), wanted(41, &[(0, "w-1")]));
    assert!(serde_json::from_str::<Wanted>(r#"{"generation":41,"default":"spread"}"#).is_err());
}

#[test]
fn only_the_partitions_that_are_wanted_elsewhere_move() {
    let mut world = world(&["w-0", "w-1"]);
    let before = owners(&world);
    let (partition, elsewhere) = (3, if before[&3] == "w-0" { "w-1" } else { "w-0" });
    want(&mut world, 41, &[(partition, elsewhere), (4, &before[&4])]);
    let plans = world.wait(secs(3));
    assert!(plans.iter().any(|plan| plan.round == Some(RoundCause::Config)));
    let begun = begun(&plans);
    assert_eq!(begun.len(), 1);
    let (moved, to, cause, reason) = &begun[0];
    assert_eq!((*moved, to.as_str(), *cause), (partition, elsewhere, MoveCause::Wanted));
    assert!(reason.contains("generation 41"), "{reason}");
    world.run_until_quiet();
    let mut after = before;
    after.insert(partition, elsewhere.to_owned());
    assert_eq!(owners(&world), after);
}

#[test]
fn a_partition_that_is_served_follows_no_wish_to_a_suspected_pod_although_all_are_suspected() {
    let mut world = world(&["w-0", "w-1"]);
    let elsewhere = if owners(&world)[&3] == "w-0" { "w-1" } else { "w-0" };
    for pod in ["w-0", "w-1"] {
        assert!(world.beat(pod, |_| 1));
    }
    world.lead();
    world.wait(secs(60));
    want(&mut world, 41, &[(3, elsewhere)]);
    assert_eq!(begun(&world.wait(secs(60))), []);
    assert!(world.beat(elsewhere, |_| 1));
    assert_eq!(begun(&world.wait(secs(10))).len(), 1);
}

#[test]
fn a_pod_that_joins_gets_nothing_until_it_is_wanted() {
    let mut world = world(&["w-0", "w-1"]);
    world.join_pod("w-2");
    assert_eq!(world.run_until_quiet(), 0);
    want(&mut world, 1, &[(0, "w-2"), (1, "w-2")]);
    assert_eq!(world.run_until_quiet(), 2);
    assert_eq!(world.balance()["w-2"], 2);
}

#[test]
fn a_partition_whose_wanted_pod_drains_or_is_not_there_stays() {
    let mut world = world(&["w-0", "w-1"]);
    world.join_pod("w-2");
    world.drain_pod("w-2");
    want(&mut world, 1, &[(0, "w-2"), (1, "w-9")]);
    assert_eq!(world.run_until_quiet(), 0);
    let absent = Notice::WantedAbsent { pods: BTreeMap::from([("w-9".to_owned(), 1)]) };
    assert!(world.plan().notices.contains(&absent), "and the operator is told");
    world.join_pod("w-9");
    assert_eq!(world.run_until_quiet(), 1, "it moves once the pod is there");
    assert_eq!(world.owner(PartitionId::new(1)), "w-9");
    assert!(!world.plan().notices.contains(&absent));
}

#[test]
fn the_partitions_of_a_dead_owner_move_without_being_named() {
    let mut world = world(&["w-0", "w-1", "w-2"]);
    want(&mut world, 7, &[(0, "w-0")]);
    world.run_until_quiet();
    world.kill_pod("w-0");
    let begun = begun(&world.wait(secs(5)));
    assert!(!begun.is_empty());
    assert!(begun.iter().all(|(_, _, cause, reason)| {
        *cause == MoveCause::DeadOwner && reason.contains("generation 7 of wanted does not name")
    }));
    world.run_until_quiet();
    assert!(!owners(&world).values().any(|owner| owner == "w-0"));
}

#[test]
fn wanted_owners_that_cannot_be_read_move_nothing_and_are_not_overwritten() {
    let mut world = world(&["w-0", "w-1"]);
    world.store.put(world.keys.wanted(), b"{".to_vec());
    assert_eq!(world.run_until_quiet(), 0);
    let view = world.view();
    assert!(view.wanted.is_none() && view.malformed.contains_key(&world.keys.wanted()));
    let notices: Vec<String> = world.plan().notices.iter().map(ToString::to_string).collect();
    let repair = "; to remove it: etcdctl del /segue/default/wanted";
    assert!(notices.iter().any(|notice| notice.ends_with(repair)), "{notices:?}");
    let refused = write(&view, &wanted(1, &[])).unwrap_err();
    assert_eq!(refused, WriteError::Unreadable { key: world.keys.wanted() });
}

#[test]
fn wanted_owners_are_replaced_only_by_a_later_generation_of_what_was_seen() {
    let mut world = world(&["w-0", "w-1"]);
    let early = world.view();
    want(&mut world, 5, &[]);
    assert!(!world.store.commit(&write(&early, &wanted(9, &[])).unwrap()), "the key has changed since");
    let view = world.view();
    assert_eq!(write(&view, &wanted(5, &[])), Err(WriteError::Outdated { stored: 5 }));
    let beyond = WriteError::NoSuchPartition { partition: PartitionId::new(8), partitions: 8 };
    assert_eq!(write(&view, &wanted(6, &[(8, "w-0")])), Err(beyond));
    assert!(world.store.commit(&write(&view, &wanted(6, &[])).unwrap()));
}

#[test]
fn wanted_moves_keep_to_the_budget() {
    let mut world = world(&["w-0", "w-1"]);
    world.policy.max_concurrent_handoffs = 4;
    let all: Vec<(u32, &str)> = (0..8).map(|partition| (partition, "w-1")).collect();
    want(&mut world, 1, &all);
    assert_eq!(begun(&world.wait(secs(3))).len(), 2, "half of the places");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-1"], 8);
}

#[test]
fn a_partition_stays_with_its_owner_while_the_wanted_pod_cannot_take_it() {
    for pods in [&["w-0", "w-1"][..], &["w-0", "w-1", "w-2"]] {
        let mut world = world(pods);
        let before = owners(&world);
        let elsewhere = if before[&0] == "w-0" { "w-1" } else { "w-0" };
        want(&mut world, 41, &[(0, elsewhere)]);
        world.wait(secs(2));
        assert_eq!(fail(&mut world, Some("no disk")), elsewhere);
        world.lead();
        let plans = world.wait(secs(2));
        assert_eq!(begun(&plans), [], "nobody else is wanted");
        assert_eq!(owners(&world), before);
        // The planner retries that pod and no other.
        let again = begun(&world.wait(secs(15)));
        assert!(again.iter().all(|(_, to, ..)| to == elsewhere), "{again:?}");
    }
}

#[test]
fn a_wanted_owner_that_another_strategy_chooses_too_is_no_cause() {
    let mut world = World::settled(policy(8), &["w-0"]);
    let all: Vec<(u32, &str)> = (0..8).map(|partition| (partition, "w-1")).collect();
    want(&mut world, 1, &all);
    world.join_pod("w-1");
    world.wait(secs(3));
    let view = world.view();
    assert_eq!(view.handoffs.len(), 4);
    for handoff in view.handoffs.values() {
        assert_eq!(MoveCause::of(&view, Strategy::Sticky, &handoff.value), MoveCause::Balance);
    }
}
