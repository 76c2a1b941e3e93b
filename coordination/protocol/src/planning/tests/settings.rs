//! The keyspace's settings: growth, loss, and what planning does without them.

use serde_json::json;

use super::rounds::all_begun;
use super::world::{World, policy, secs};
use crate::ids::{Epoch, PartitionId, Revision};
use crate::planning::{Notice, PlannedWrite, RoundCause, Strategy, with_setting};
use crate::records::{KeyspaceConfig, Partitioner, PodStatus, encode};

#[test]
fn growing_the_keyspace_and_changing_the_strategy_are_rounds() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    world.policy.partitions = 8;
    let plans = world.wait(secs(5));
    assert!(plans.iter().any(|plan| plan.round == Some(RoundCause::Config)));
    assert_eq!(all_begun(&plans).len(), 4);
    world.run_until_quiet();
    world.policy.strategy = Strategy::Jump;
    let plans = world.wait(secs(5));
    assert!(plans.iter().any(|plan| plan.round == Some(RoundCause::Config)));
}

#[test]
fn the_first_leader_writes_which_service_the_keyspace_belongs_to() {
    let mut world = World::new(policy(4));
    world.keys = world.keys.clone().of_service(Some("orders".to_owned()));
    world.lead();
    assert_eq!(world.view().settings().unwrap().service.as_deref(), Some("orders"));
    world.keys = world.keys.clone().of_service(Some("persons".to_owned()));
    world.lead();
    assert_eq!(world.view().settings().unwrap().service.as_deref(), Some("orders"));
}

#[test]
fn a_shrink_is_refused() {
    let mut world = World::settled(policy(8), &["w-0"]);
    world.policy.partitions = 4;
    let plan = world.lead();
    assert!(plan.notices.contains(&Notice::ShrinkRefused {
        wanted: 4,
        kept: 8,
        partitioner: Some(Partitioner::NUMBER)
    }));
    world.run_until_quiet();
    assert_eq!(world.view().partitions(), 8);
    assert_eq!(world.balance()["w-0"], 8);
}

#[test]
fn a_keyspace_whose_keys_are_hashed_does_not_grow() {
    let hashed = Partitioner::Key { key: "header:x-key".into(), hash: "murmur2".into() };
    for partitioner in [Some(hashed), None] {
        let mut world = World::settled(policy(8), &["w-0"]);
        let config = KeyspaceConfig { partitioner: partitioner.clone(), ..KeyspaceConfig::new(8) };
        world.kill_router("r-0");
        world.store.put(world.keys.config(), encode(&config));
        world.policy.partitions = 16;
        let plan = world.lead();
        assert!(plan.actions.is_empty());
        assert!(plan.notices.contains(&Notice::GrowthRefused { wanted: 16, kept: 8, partitioner }));
    }
}

#[test]
fn another_number_under_a_key_hash_is_not_planned_by_and_named_with_the_whole_record() {
    let hashed = Partitioner::Key { key: "header:x-key".into(), hash: "murmur2".into() };
    for (number, keeps_mapping) in [(8, true), (8, false), (2, true)] {
        let mut world = World::settled(policy(4), &["w-0", "w-1"]);
        let config = world.view().config.unwrap().value;
        let right = KeyspaceConfig { partitioner: Some(hashed.clone()), ..config };
        world.store.put(world.keys.config(), encode(&right));
        world.run_until_quiet();
        let partitioner = Some(hashed.clone()).filter(|_| keeps_mapping);
        let wrong = KeyspaceConfig { partitions: number, partitioner, ..right.clone() };
        world.kill_router("r-0");
        world.store.put(world.keys.config(), encode(&wrong));
        world.kill_pod("w-1");
        let plans = world.wait(secs(70));
        let mut begun: Vec<u32> = all_begun(&plans).iter().map(|(handoff, _)| handoff.partition.get()).collect();
        begun.sort_unstable();
        assert_eq!(begun, owned_by_w1(&world), "partitions of the dead pod, and none beyond");
        let notices = &plans.last().unwrap().notices;
        let text = notices.iter().find(|it| matches!(it, Notice::NumberChanged { .. })).unwrap().to_string();
        let record = String::from_utf8(encode(&right)).unwrap();
        assert!(text.contains(&format!("etcdctl put {} '{record}'", world.keys.config())), "{text}");
        world.store.put(world.keys.config(), encode(&right));
        world.run_until_quiet();
        assert_eq!(world.balance()["w-0"], 4);
        assert!(!world.plan().notices.iter().any(|it| matches!(it, Notice::NumberChanged { .. })));
    }
}

/// Returns the partitions whose assignment names w-1.
fn owned_by_w1(world: &World) -> Vec<u32> {
    world.view().assigned_to("w-1").map(PartitionId::get).collect()
}

#[test]
fn the_number_is_free_under_a_key_hash_while_nothing_is_assigned() {
    let hashed = Partitioner::Key { key: "header:x-key".into(), hash: "murmur2".into() };
    let mut world = World::new(policy(4));
    world.lead();
    for number in [4, 8] {
        let config = KeyspaceConfig { partitioner: Some(hashed.clone()), ..KeyspaceConfig::new(number) };
        world.store.put(world.keys.config(), encode(&config));
        world.lead();
    }
    world.join_pod("w-0");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-0"], 8);
}

#[test]
fn settings_deleted_by_hand_come_back_as_they_were() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    let mut config = world.view().config.unwrap().value;
    config.unknown.insert("of_a_later_version".into(), true.into());
    world.store.put(world.keys.config(), encode(&config));
    world.put_pod("w-2", PodStatus::Ready, 1000, None);
    world.wait(secs(3));
    assert!(!world.view().handoffs.is_empty());
    for partitions in [4, 16] {
        world.store.delete(world.keys.config());
        world.policy.partitions = partitions;
        let plan = world.plan();
        let back = PlannedWrite::WriteConfig { config: config.clone(), seen: Revision::ZERO };
        assert_eq!(plan.actions, [back], "whatever the file says, and no handoff is cancelled as beyond it");
    }
    world.policy.partitions = 8;
    world.run_until_quiet();
    assert_eq!(world.balance()["w-2"], 2);
}

#[test]
fn a_leader_that_has_read_no_settings_writes_none_that_the_assignments_deny() {
    for partitions in [4, 16] {
        let mut world = World::settled(policy(8), &["w-0", "w-1"]);
        world.store.delete(world.keys.config());
        world.elect();
        world.policy.partitions = partitions;
        let plan = world.lead();
        assert!(plan.actions.is_empty());
        let missing = plan.notices.iter().find(|it| matches!(it, Notice::ConfigMissing { shown: 8, .. })).unwrap();
        // Partitions that had no owner yet left no trace, so the configuration file may be right.
        let command = format!("etcdctl put {} '{{\"partitions\":8,\"partitioner\":null,", world.keys.config());
        assert!(missing.to_string().contains(&command), "{missing}");
        world.policy.partitions = 8;
        world.lead();
        assert_eq!(world.view().partitions(), 8);
    }
}

#[test]
fn without_readable_settings_planning_goes_on_by_those_that_were_read_last() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.store.put(world.keys.config(), b"{".to_vec());
    world.kill_pod("w-1");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-0"], 8);
    assert_eq!(world.store.entries[&world.keys.config()].value, b"{", "only an operator can say what it was");
}

#[test]
fn epochs_begin_above_the_floor_of_the_settings() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let config = world.view().config.unwrap().value;
    let floor = Epoch::new(1_000_000);
    world.store.put(world.keys.config(), encode(&KeyspaceConfig { epoch_floor: floor, ..config.clone() }));
    world.kill_pod("w-0");
    let revision = world.view().revision;
    let plans = world.wait(secs(5));
    assert!(!all_begun(&plans).is_empty());
    for handoff in world.view().handoffs.values() {
        assert!(handoff.value.epoch >= Epoch::planned_at(floor, revision), "{:?}", handoff.value);
    }
    world.run_until_quiet();
    let value = format!(r#"{{"partitions":4,"epoch_floor":{}}}"#, Epoch::MAX.next());
    world.store.put(world.keys.config(), value.into_bytes());
    assert!(world.view().malformed[&world.keys.config()].contains("above"), "no epoch could follow it");
}

#[test]
fn an_operator_changes_one_planning_setting_and_the_others_stay() {
    let planning = json!({ "settle_ms": 1000, "settle_max_ms": 5000, "of_a_later_version": true });
    let config = KeyspaceConfig { planning: Some(planning), ..KeyspaceConfig::new(4) };
    let changed = with_setting(&config, "settle_ms", json!(2000)).unwrap();
    assert_eq!(changed, json!({ "settle_ms": 2000, "settle_max_ms": 5000, "of_a_later_version": true }));
    assert!(with_setting(&config, "settle_ms", json!(6000)).unwrap_err().to_string().contains("settle_max"));
    for (name, value) in [("strategy", json!("chance")), ("max_concurrent_handoffs", json!(0)), ("mode", json!(7))] {
        assert!(with_setting(&config, name, value).is_err(), "{name}");
    }
    let unreadable = KeyspaceConfig { planning: Some(json!(7)), ..config };
    assert!(with_setting(&unreadable, "settle_ms", json!(1)).is_err());
    assert_eq!(with_setting(&KeyspaceConfig::new(4), "balance_load", json!(true)), Ok(json!({ "balance_load": true })));
}
