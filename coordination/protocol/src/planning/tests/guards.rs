//! The guards of the coordinator's transactions, tested with the concurrent writes that they must lose against.

use super::world::{World, policy, secs};
use crate::ids::PartitionId;
use crate::planning::{CancelReason, ObservedHandoff, PlannedWrite, Policy, txn};
use crate::records::{HandoffEnd, HistoryEntry, Mode, Phase};
use crate::txn::Txn;

const P0: PartitionId = PartitionId::new(0);

/// Returns a world and a due action for each kind of action.
fn due() -> Vec<(&'static str, World, PlannedWrite)> {
    let settled = || World::settled(policy(1), &["w-0"]);
    let moving = |mode, phase| {
        let mut world = World::settled(Policy { mode, ..policy(1) }, &["w-0"]);
        world.join_pod("w-1");
        world.drain_pod("w-0");
        world.wait(secs(3));
        while world.handoff(P0).phase < phase {
            assert!(world.participate(P0));
        }
        world
    };
    let mut due: Vec<(&'static str, World)> = Vec::new();

    due.push(("config", World::new(policy(1))));
    let mut create = settled();
    create.join_pod("w-1");
    create.drain_pod("w-0");
    create.plan();
    create.now = create.wake.unwrap();
    due.push(("create", create));
    for phase in [Phase::Warming, Phase::Ready, Phase::Syncing] {
        let mut cancel = moving(Mode::Barrier, phase);
        cancel.kill_pod("w-1");
        due.push(("cancel", cancel));
    }
    for (mode, phase) in [(Mode::Barrier, Phase::Switching), (Mode::Independent, Phase::Ready)] {
        let mut abandon = moving(mode, phase);
        abandon.kill_pod("w-1");
        due.push(("abandon", abandon));
    }
    let mut delete = moving(Mode::Barrier, Phase::Complete);
    delete.plan();
    delete.now += secs(61);
    due.push(("delete", delete));
    let mut sweep = moving(Mode::Barrier, Phase::Syncing);
    sweep.plan();
    sweep.store.delete(sweep.keys.handoff(P0));
    sweep.kill_pod("w-1");
    sweep.drain_pod("w-0");
    while sweep.plan().round != Some(crate::planning::RoundCause::Heartbeat) {
        sweep.now = sweep.wake.unwrap();
    }
    sweep.now = sweep.wake.unwrap();
    while !sweep.clone().plan().actions.contains(&PlannedWrite::Sweep { partition: P0 }) {
        sweep.plan();
        sweep.now = sweep.wake.unwrap();
    }
    due.push(("sweep", sweep));

    let action = |(name, mut world): (&'static str, World)| {
        let actions = world.plan().actions;
        assert_eq!(actions.len(), 1, "{name}: {actions:?}");
        (name, world, actions[0].clone())
    };
    due.into_iter().map(action).collect()
}

fn txn_of(world: &World, action: &PlannedWrite) -> Txn {
    txn(&world.view(), action, &world.authority(), 0).unwrap()
}

#[test]
fn each_action_takes_effect_when_nothing_interferes() {
    for (name, mut world, action) in due() {
        let txn = txn_of(&world, &action);
        assert!(world.store.commit(&txn), "{name}");
        assert!(name == "sweep" || !world.store.commit(&txn), "{name}: twice");
    }
}

#[test]
fn whatever_ends_a_handoff_leaves_its_entry_with_the_reason() {
    for (name, mut world, action) in due() {
        let (result, cause, reason) = match name {
            "cancel" => (HandoffEnd::Cancelled, "new_owner_dead", "the new owner is dead"),
            "abandon" => (HandoffEnd::Abandoned, "new_owner_dead", "the new owner died after it had taken over"),
            "delete" => (HandoffEnd::Completed, "not_released", "ended without waiting for pod w-0 to release"),
            _ => continue,
        };
        let (record, now) = (world.view().handoffs[&P0].clone(), 1_000_000_000_000);
        let txn = txn(&world.view(), &action, &world.authority(), now).unwrap();
        assert!(world.store.commit(&txn), "{name}");
        let key = world.keys.history_entry(P0, record.id());
        let entry: HistoryEntry = serde_json::from_slice(&world.store.entries[&key].value).unwrap();
        assert_eq!((entry.result, entry.end_cause.as_str(), entry.end_reason.as_str()), (result, cause, reason));
        assert_eq!((entry.cause.as_str(), entry.ended_at), ("draining_owner", now), "{name}");
        assert_eq!(entry.phases.last().unwrap().phase, record.value.phase, "{name}");
        assert_eq!(entry.phases.len(), record.value.past.len() + 1, "{name}");
    }
}

#[test]
fn a_zombie_leaders_transaction_fails() {
    for (name, mut world, action) in due() {
        let txn = txn_of(&world, &action);
        world.elect();
        assert!(!world.store.commit(&txn), "{name}");
    }
}

#[test]
fn a_view_that_does_not_show_the_election_yields_no_transaction() {
    for (name, mut world, action) in due() {
        let old = world.view();
        world.elect();
        assert_eq!(txn(&old, &action, &world.authority(), 0), None, "{name}");
    }
}

#[test]
fn an_action_fails_once_the_record_or_the_assignment_is_another() {
    for (name, world, action) in due() {
        let keys = [world.keys.handoff(P0), world.keys.assignment(P0)];
        for (index, key) in keys.into_iter().enumerate() {
            if name == "config" || (name == "sweep" && index == 1) {
                continue;
            }
            let mut touched = world.clone();
            let value = touched.store.entries.get(&key).map_or(b"{}".to_vec(), |entry| entry.value.clone());
            touched.store.put(key.clone(), value);
            assert!(!touched.store.commit(&txn_of(&world, &action)), "{name} after {key} was written");
            let mut gone = world.clone();
            if gone.store.entries.contains_key(&key) {
                gone.store.delete(key.clone());
                assert!(!gone.store.commit(&txn_of(&world, &action)), "{name} after {key} was deleted");
            }
        }
    }
}

#[test]
fn what_was_decided_under_an_old_view_cannot_be_carried_out_under_a_later_one() {
    for (phase, later) in [(Phase::Warming, Phase::Ready), (Phase::Syncing, Phase::Switching)] {
        let mut world = World::settled(policy(1), &["w-0"]);
        world.join_pod("w-1");
        world.drain_pod("w-0");
        world.wait(secs(3));
        while world.handoff(P0).phase < phase {
            assert!(world.participate(P0));
        }
        world.silent.insert("w-1".into());
        world.lead();
        world.now += secs(301);
        let cancel = world.plan().actions.remove(0);
        assert!(matches!(cancel, PlannedWrite::Cancel { .. }));
        world.silent.clear();
        while world.handoff(P0).phase < later {
            assert!(world.participate(P0));
        }
        assert!(!world.carry_out(&cancel), "the guards are of what was seen, not of what the later view shows");
        assert_eq!(world.handoff(P0).phase, later);
    }
}

#[test]
fn a_create_fails_if_its_new_owner_is_gone_or_lives_anew() {
    let (_, world, create) = due().into_iter().find(|(name, ..)| *name == "create").unwrap();
    let mut gone = world.clone();
    gone.kill_pod("w-1");
    assert!(!gone.carry_out(&create));
    gone.join_pod("w-1");
    assert!(!gone.carry_out(&create));
}

#[test]
fn a_create_that_was_delayed_fails_once_another_one_of_its_decision_has_ended() {
    let (_, mut world, create) = due().into_iter().find(|(name, ..)| *name == "create").unwrap();
    let delayed = txn_of(&world, &create);
    assert!(world.carry_out(&create));
    let cancelled = ObservedHandoff {
        handoff: world.view().handoffs[&P0].clone(),
        assignment: world.view().assignment_revision(P0),
    };
    assert!(world.carry_out(&PlannedWrite::Cancel {
        observed: cancelled,
        reason: CancelReason::WarmTimeout,
        back_offs: Vec::new()
    }));
    assert!(!world.store.commit(&delayed), "its epoch has been given");
    let PlannedWrite::Create { handoff, cause, assignment, .. } = create else { unreachable!() };
    let seen = world.view().revision;
    assert!(world.carry_out(&PlannedWrite::Create { handoff, cause, assignment, seen }), "decided anew");
}

#[test]
fn what_the_death_of_the_new_owner_justifies_fails_while_its_key_stands() {
    for (name, world, action) in due() {
        if !matches!(name, "cancel" | "abandon") {
            continue;
        }
        let (PlannedWrite::Cancel { observed, .. } | PlannedWrite::Abandon { observed }) = &action else {
            unreachable!()
        };
        let mut stands = world.clone();
        let key = stands.keys.pod("w-1");
        stands.join_pod("w-1");
        assert!(stands.clone().carry_out(&action), "{name}: another life of it is no obstacle");
        let entry = stands.store.entries.get_mut(&key).unwrap();
        entry.create_revision = observed.handoff.value.new_incarnation.revision();
        assert!(!stands.carry_out(&action), "{name}");
    }
}

#[test]
fn an_independent_create_fails_if_a_router_registers_meanwhile() {
    for (mode, committed) in [(Mode::Independent, false), (Mode::Barrier, true)] {
        let mut world = World::settled(Policy { mode, ..policy(2) }, &["w-0"]);
        world.join_pod("w-1");
        world.plan();
        world.now = world.wake.unwrap();
        let create = world.plan().actions.remove(0);
        world.join_router("r-1");
        assert_eq!(world.carry_out(&create), committed, "{mode:?}");
    }
}

#[test]
fn the_settings_are_not_written_over_another_leaders() {
    let mut world = World::new(policy(8));
    let write = world.plan().actions.remove(0);
    world.store.put(world.keys.config(), br#"{"partitions":64}"#.to_vec());
    assert!(!world.carry_out(&write));
    assert_eq!(world.view().partitions(), 64);
}
