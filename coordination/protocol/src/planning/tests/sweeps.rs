//! Sweeps: the keys that are deleted with a partition or a handoff.

use super::phase_timeouts::{P0, P7, moving};
use super::world::{World, policy, secs};
use crate::ids::HandoffId;
use crate::planning::{Plan, PlannedWrite};
use crate::records::{Checkpoint, KeyspaceConfig, Mode, Phase, encode};

#[test]
fn a_checkpoint_goes_with_its_partition_and_no_other_one_does() {
    let mut world = World::settled(policy(8), &["w-0"]);
    for partition in [P0, P7] {
        let record = Checkpoint {
            partition,
            checkpoint: Some("at 42".to_owned().try_into().unwrap()),
            pod_name: "w-0".to_owned(),
            epoch: world.view().assignments[&partition].value.epoch,
            taken_at: 0,
            handoff: HandoffId::NONE,
        };
        world.store.put(world.keys.checkpoint(partition), encode(&record));
    }
    world.kill_pod("w-0");
    world.wait(secs(60));
    assert_eq!(world.view().checkpoints.len(), 2, "they outlive their pod");
    world.policy.partitions = 7;
    let settings = KeyspaceConfig { partitions: 7, ..world.view().settings().unwrap().clone() };
    world.store.put(world.keys.config(), encode(&settings));
    let forgets = |plan: &Plan| plan.actions.iter().any(|it| matches!(it, PlannedWrite::ForgetCheckpoints { .. }));
    assert!(world.wait(secs(60)).iter().any(forgets));
    assert_eq!(world.view().checkpoints.keys().collect::<Vec<_>>(), [&P0]);
}

#[test]
fn acks_whose_handoff_is_gone_are_swept_by_the_next_heartbeat_and_not_before() {
    let mut world = moving(Mode::Barrier, Phase::Syncing);
    world.drain_pod("w-1");
    world.lead();
    world.store.delete(world.keys.handoff(P0));
    let swept = |plan: &Plan| plan.actions.contains(&PlannedWrite::Sweep { partition: P0 });
    assert!(!world.wait(secs(20)).iter().any(swept));
    assert!(world.wait(secs(20)).iter().any(swept));
    assert!(world.view().acks.is_empty());
}
