//! Heartbeats with load: suspected pods, and moves that relieve an overloaded pod.

use std::time::Duration;

use super::world::{World, policy, secs};
use crate::ids::{LeaseId, PartitionId};
use crate::planning::heartbeats::Heartbeats;
use crate::planning::{
    MISSED_BEFORE_SUSPECTED, MoveCause, Notice, OVERLOADS_BEFORE_MOVE, PlannedWrite, Policy, Strategy, stored,
    uses_load,
};
use crate::records::{KeyspaceConfig, MAX_LISTED, PartitionLoad, PodLoad, Thousandths, encode};
use crate::registration::heartbeat;
use crate::txn::{Batch, Event, KeyValue};

/// Time between two heartbeats, and between them and a suspicion.
const INTERVAL: u64 = 5;
const SUSPECTED_AFTER: u64 = INTERVAL * MISSED_BEFORE_SUSPECTED as u64;

impl World {
    /// Sends a heartbeat of a pod whose partitions have the load that `load` names.
    pub(super) fn beat(&mut self, pod: &str, load: impl Fn(PartitionId) -> u32) -> bool {
        let view = self.view();
        let life = view.incarnation_of(pod);
        let owned =
            view.assignments.values().map(|it| &it.value).filter(|it| it.owner == pod && it.incarnation == life);
        let load = |partition| PartitionLoad { load: Thousandths(1000 * load(partition)), keys: None };
        let partitions = owned.map(|it| (it.partition, load(it.partition))).collect();
        let record = PodLoad::new(life, INTERVAL * 1000, partitions);
        self.store.commit(&heartbeat(&self.keys, pod, LeaseId::new(1), &record))
    }

    /// Lets all pods send `count` heartbeats.
    pub(super) fn beat_all(
        &mut self,
        count: u32,
        load: impl Fn(PartitionId) -> u32 + Copy,
    ) -> Vec<(PartitionId, String)> {
        let mut begun = Vec::new();
        for _ in 0..count {
            let pods: Vec<String> = self.view().pods.keys().cloned().collect();
            pods.iter().for_each(|pod| assert!(self.beat(pod, load)));
            for plan in self.wait(secs(INTERVAL)) {
                begun.extend(plan.actions.iter().filter_map(|action| match action {
                    PlannedWrite::Create { handoff, cause, .. } => {
                        assert_eq!(*cause, MoveCause::Load, "{}", handoff.reason);
                        assert_eq!(*cause, MoveCause::of(&self.view(), self.policy.strategy, handoff));
                        Some((handoff.partition, handoff.new_owner.clone()))
                    }
                    _ => None,
                }));
            }
            while self.participate_all() {}
        }
        begun
    }

    fn suspects(&mut self, pod: &str) -> bool {
        self.plan().notices.contains(&Notice::Suspected { pod: pod.to_owned() })
    }
}

pub(super) fn balancing(partitions: u32, pods: &[&str]) -> World {
    World::settled(Policy { balance_load: true, heartbeat: secs(INTERVAL), ..policy(partitions) }, pods)
}

/// The partitions of the first pod have four times the load of the others.
pub(super) fn hot(world: &World) -> impl Fn(PartitionId) -> u32 + Copy + use<> {
    let first = world.owner(PartitionId::new(0));
    let mut is_hot = [false; 24];
    (0..).zip(&mut is_hot).take(world.view().assignments.len()).for_each(|(partition, is_hot)| {
        *is_hot = world.owner(PartitionId::new(partition)) == first;
    });
    move |partition| if is_hot[partition.index()] { 40 } else { 10 }
}

#[test]
fn a_pod_that_misses_heartbeats_is_suspected_until_it_sends_one() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    world.wait(secs(SUSPECTED_AFTER));
    assert!(!world.suspects("w-0"), "it may be a pod that sends none");
    world.beat("w-0", |_| 1);
    world.lead();
    world.wait(secs(SUSPECTED_AFTER - 1));
    assert!(!world.suspects("w-0"));
    let plans = world.wait(secs(1));
    assert!(plans.iter().any(|plan| plan.notices.contains(&Notice::Suspected { pod: "w-0".into() })), "{plans:?}");
    world.beat("w-0", |_| 1);
    assert!(!world.suspects("w-0"));
    world.elect();
    world.wait(secs(SUSPECTED_AFTER - 1));
    assert!(!world.suspects("w-0"), "a new leader measures anew");
}

#[test]
fn a_suspected_pod_keeps_its_partitions_and_gets_no_more() {
    let rounds = Policy { heartbeat: secs(INTERVAL), ..policy(24) };
    let mut world = World::settled(rounds, &["w-0", "w-1", "w-2"]);
    world.beat("w-0", |_| 1);
    world.lead();
    world.wait(secs(SUSPECTED_AFTER));
    assert!(world.suspects("w-0") && world.view().handoffs.is_empty());
    assert_eq!(Vec::from_iter(world.balance().into_values()), [8, 8, 8], "nothing moves for a suspicion");
    world.drain_pod("w-1");
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [8, 0, 16]);
    world.beat("w-0", |_| 1);
    world.lead();
    world.wait(secs(SUSPECTED_AFTER - 1));
    assert!(!world.view().handoffs.is_empty(), "it is given its share again in the next round");
}

#[test]
fn nothing_moves_for_balance_to_a_suspected_pod_although_all_are_suspected() {
    let rounds = Policy { heartbeat: secs(INTERVAL), ..policy(8) };
    let mut world = World::settled(rounds, &["w-0", "w-1"]);
    world.drain_pod("w-0");
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [0, 8]);
    world.beat("w-0", |_| 1);
    world.beat("w-1", |_| 1);
    world.lead();
    world.wait(secs(SUSPECTED_AFTER));
    world.join_pod("w-0");
    world.wait(secs(60));
    assert!(world.suspects("w-0") && world.suspects("w-1"));
    assert!(world.view().handoffs.is_empty(), "what is served stays");
    world.beat("w-0", |_| 1);
    world.lead();
    world.wait(secs(SUSPECTED_AFTER - 1));
    assert!(!world.view().handoffs.is_empty(), "it is given its share again");
}

#[test]
fn a_heartbeat_of_an_earlier_life_says_nothing() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let early = world.view();
    world.beat("w-0", |_| 1);
    world.lead();
    world.restart_pod("w-0");
    assert!(world.view().load("w-0").is_none());
    let record = PodLoad::new(early.incarnation_of("w-0"), 1000, Default::default());
    assert!(!world.store.commit(&heartbeat(&world.keys, "w-0", LeaseId::new(1), &record)), "nor is it written");
    world.lead();
    world.wait(secs(SUSPECTED_AFTER));
    assert!(!world.suspects("w-0"));
}

#[test]
fn an_overloaded_pod_exchanges_a_partition_and_the_number_of_each_stays() {
    let mut world = balancing(24, &["w-0", "w-1", "w-2"]);
    let (load, owner) = (hot(&world), world.owner(PartitionId::new(0)));
    assert_eq!(world.beat_all(OVERLOADS_BEFORE_MOVE - 1, load), [], "a short peak moves nothing");
    let begun = (0..2).map(|_| world.beat_all(1, load)).find(|begun| !begun.is_empty()).unwrap();
    assert_eq!(begun.len(), 2, "{begun:?}");
    assert!(begun.iter().any(|(_, to)| *to == owner) && begun.iter().any(|(_, to)| *to != owner));
    assert_eq!(Vec::from_iter(world.balance().into_values()), [8, 8, 8]);
    assert_eq!(world.beat_all(OVERLOADS_BEFORE_MOVE - 1, load), [], "the next one needs heartbeats of its own");
}

#[test]
fn overloads_of_an_earlier_life_do_not_count_in_the_next() {
    let mut world = balancing(8, &["w-0", "w-1"]);
    assert!(world.beat("w-1", |_| 10));
    let mut heartbeats = Heartbeats::default();
    let load = [(PartitionId::new(0), PartitionLoad { load: Thousandths(100_000), keys: None })];
    let mut beats = |world: &mut World| {
        let record = PodLoad::new(world.view().incarnation_of("w-0"), INTERVAL * 1000, load.into());
        world.store.put_leased(world.keys.load("w-0"), encode(&record));
        heartbeats.observe(&world.view(), &world.policy, secs(0));
        heartbeats.is_overloaded("w-0")
    };
    for _ in 1..OVERLOADS_BEFORE_MOVE {
        assert!(!beats(&mut world));
    }
    // The next look shows the new life with its first heartbeat.
    world.restart_pod("w-0");
    for heartbeat in 1..OVERLOADS_BEFORE_MOVE {
        assert!(!beats(&mut world), "heartbeat {heartbeat} of the new life");
    }
    assert!(beats(&mut world));
}

#[test]
fn moves_for_load_end_and_do_not_go_back_and_forth() {
    let mut world = balancing(24, &["w-0", "w-1", "w-2"]);
    let load = hot(&world);
    let begun = world.beat_all(60, load);
    let mut moved: Vec<PartitionId> = begun.iter().map(|(partition, _)| *partition).collect();
    moved.sort_unstable();
    moved.dedup();
    assert_eq!(moved.len(), begun.len(), "no partition moves twice");
    assert_eq!(world.beat_all(20, load), []);
    let view = world.view();
    let totals: Vec<u32> = view.loads.values().map(|it| it.value.total.0 / 1000).collect();
    assert_eq!(totals.iter().sum::<u32>(), 8 * 40 + 16 * 10);
    assert!(totals.iter().all(|total| *total <= 160 * 125 / 100), "{totals:?}");
}

#[test]
fn a_partition_that_has_just_moved_is_not_exchanged_for_load() {
    for (cool_down, is_exchanged) in [(secs(0), true), (secs(3600), false)] {
        let mut world = balancing(8, &["w-0", "w-1"]);
        world.policy.cool_down = cool_down;
        world.join_pod("w-2");
        world.drain_pod("w-1");
        world.run_until_quiet();
        let has_moved: Vec<bool> = PartitionId::all(8).map(|partition| world.owner(partition) == "w-2").collect();
        assert_eq!(has_moved.iter().filter(|has_moved| **has_moved).count(), 4);
        let begun = world.beat_all(20, |partition| if has_moved[partition.index()] { 40 } else { 10 });
        assert_eq!(!begun.is_empty(), is_exchanged, "{begun:?}");
    }
}

#[test]
fn an_exchange_for_load_stays_within_the_budget() {
    // Planned moves take at most half of the places, and an exchange takes two.
    for (places, is_exchanged) in [(3, false), (4, true)] {
        let mut world = balancing(24, &["w-0", "w-1", "w-2"]);
        world.policy.max_concurrent_handoffs = places;
        let load = hot(&world);
        assert_eq!(!world.beat_all(3 * OVERLOADS_BEFORE_MOVE, load).is_empty(), is_exchanged, "{places} places");
        assert_eq!(Vec::from_iter(world.balance().into_values()), [8, 8, 8]);
    }
    let mut world = balancing(24, &["w-0", "w-1", "w-2"]);
    world.policy.phase_timeout = secs(3600);
    let load = hot(&world);
    world.silent.extend(["w-0", "w-1", "w-2"].map(str::to_owned));
    assert_eq!(world.beat_all(4 * OVERLOADS_BEFORE_MOVE, load).len(), 2, "none begins while one is in flight");
    assert_eq!(world.view().handoffs.len(), 2);
}

#[test]
fn load_moves_nothing_unless_told_to() {
    let mut world = World::settled(policy(24), &["w-0", "w-1", "w-2"]);
    let load = hot(&world);
    assert_eq!(world.beat_all(30, load), []);
}

#[test]
fn a_partition_with_too_many_keys_is_named() {
    let mut world = World::settled(Policy { max_keys_per_partition: 2000, ..policy(2) }, &["w-0"]);
    let record = |keys| {
        let load = PartitionLoad { load: Thousandths(0), keys: Some(keys) };
        let life = world.view().incarnation_of("w-0");
        PodLoad::new(life, 1000, [(PartitionId::new(1), load)].into())
    };
    let (few, many) = (record(2000), record(2001));
    let named = Notice::TooManyKeys { partition: PartitionId::new(1), pod: "w-0".into(), keys: 2001, most: 2000 };
    for (record, is_named) in [(few, false), (many, true)] {
        world.store.put_leased(world.keys.load("w-0"), encode(&record));
        assert_eq!(world.plan().notices.contains(&named), is_named);
    }
}

#[test]
fn an_operator_is_told_that_no_pod_reports_keys() {
    let mut world = World::settled(Policy { max_keys_per_partition: 2000, ..policy(2) }, &["w-0"]);
    let missed = |world: &mut World| world.plan().notices.contains(&Notice::NoKeys { most: 2000 });
    world.now += Duration::from_secs(60);
    assert!(missed(&mut world));
    let beat = |world: &mut World, keys| {
        let load = PartitionLoad { load: Thousandths(0), keys };
        let life = world.view().incarnation_of("w-0");
        let record = PodLoad::new(life, 1_000_000, [(PartitionId::new(1), load)].into());
        world.store.put_leased(world.keys.load("w-0"), encode(&record));
    };
    beat(&mut world, None);
    assert!(missed(&mut world), "a heartbeat without them");
    beat(&mut world, Some(0));
    assert!(!missed(&mut world));
    beat(&mut world, None);
    assert!(!missed(&mut world), "pods have time to report them");
    world.now += Duration::from_secs(60);
    assert!(missed(&mut world));
}

#[test]
fn an_operator_is_told_of_a_large_partition_again_only_when_it_has_doubled() {
    let mut world = World::settled(Policy { max_keys_per_partition: 2000, ..policy(2) }, &["w-0"]);
    let mut named = |keys: [u64; 2]| {
        let load = |keys| PartitionLoad { load: Thousandths(0), keys: Some(keys) };
        let partitions = PartitionId::all(2).zip(keys.map(load)).collect();
        let record = PodLoad::new(world.view().incarnation_of("w-0"), 1000, partitions);
        world.store.put_leased(world.keys.load("w-0"), encode(&record));
        world.plan().notices.into_iter().find_map(|notice| match notice {
            Notice::TooManyKeys { partition, keys, .. } => Some((partition.get(), keys)),
            _ => None,
        })
    };
    let shown: Vec<_> = [
        [2000, 2000],
        [2000, 2001],
        [2000, 2500],
        [2600, 2500],
        [2600, 4001],
        [4002, 4001],
        [8001, 7000],
        [8002, 2000],
        [4500, 2000],
        [0, 0],
        [0, 2001],
    ]
    .map(&mut named)
    .into();
    let expected = [
        None,
        Some((1, 2001)),
        Some((1, 2001)),
        Some((1, 2001)),
        Some((1, 2001)),
        Some((0, 4002)),
        Some((0, 4002)),
        Some((0, 4002)),
        Some((0, 4002)),
        None,
        Some((1, 2001)),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn pods_learn_from_the_settings_whether_planning_uses_their_load() {
    let uses = |policy: &Policy| {
        let mut world = World::settled(policy.clone(), &[]);
        let config = KeyspaceConfig { planning: Some(stored(policy)), ..KeyspaceConfig::new(2) };
        world.store.put(world.keys.config(), encode(&config));
        uses_load(&world.view())
    };
    assert!(!uses(&policy(2)), "a keyspace that does not use heartbeats has none");
    assert!(uses(&Policy { balance_load: true, ..policy(2) }));
    assert!(uses(&Policy { max_keys_per_partition: 1, ..policy(2) }));
    assert!(!uses(&Policy { balance_load: true, strategy: Strategy::Ring, ..policy(2) }), "only sticky moves for load");
}

#[test]
fn a_heartbeat_is_bounded_and_makes_nobody_reconsider_a_partition() {
    let all = PartitionId::all(5000)
        .map(|partition| (partition, PartitionLoad { load: Thousandths(partition.get()), keys: Some(u64::MAX) }));
    let mut world = World::settled(policy(1), &["w-0"]);
    let record = PodLoad::new(world.view().incarnation_of("w-0"), 5000, all.collect());
    assert_eq!(record.total.0, (0..5000).sum::<u32>(), "the total counts all");
    assert_eq!((record.partitions.len(), record.partitions.keys().next()), (MAX_LISTED, Some(&PartitionId::new(4000))));
    let value = encode(&record);
    assert!(value.len() < 64 * 1024, "{} bytes", value.len());
    let mut view = world.view();
    let revision = view.revision.next();
    let entry =
        KeyValue { key: world.keys.load("w-0"), value, create_revision: revision, mod_revision: revision, lease: None };
    let delta = view.apply(Batch { revision, events: vec![Event::Put(entry)] });
    assert_eq!(delta, Default::default());
    assert_eq!(view.load("w-0"), Some(&record));
    world.lead();
}
