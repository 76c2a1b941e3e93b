//! Operators' intentions in planning: drains, pauses and operations. Pins have a file of their own.

use std::collections::BTreeMap;

use super::failed::fail;
use super::world::{World, policy, secs};
use crate::ids::{Incarnation, PartitionId};
use crate::planning::{
    CancelReason, FIRST_BACK_OFF, KEPT_OPERATIONS, MoveCause, Notice, Plan, PlannedWrite, preview, refusal,
};
use crate::records::*;

const P0: PartitionId = PartitionId::new(0);

fn ann(why: &str) -> Origin {
    Origin { who: "ann".into(), why: why.into(), at: 1 }
}

impl World {
    pub(super) fn operator_drains(&mut self, pod: &str) {
        self.store.put(self.keys.drain(pod), encode(&Drain { origin: ann("kernel update") }));
    }

    fn pause(&mut self) {
        self.store.put(self.keys.pause(), encode(&Pause { origin: ann("incident"), until: None }));
    }

    pub(super) fn pin(&mut self, partition: PartitionId, to: &str, incarnation: Incarnation) {
        self.store.put(self.keys.pin(partition), encode(&Pin { to: to.into(), incarnation, origin: ann("") }));
    }

    pub(super) fn ask(&mut self, id: &str, request: Request) {
        self.store.put(self.keys.operation(id), encode(&Operation { request, origin: ann(""), answer: None }));
    }

    pub(super) fn asks_to_move(&mut self, id: &str, partition: PartitionId, to: &str, pin: bool) {
        self.ask(id, Request::Move { partition, to: to.into(), pin });
    }

    pub(super) fn answer(&self, id: &str) -> Option<Answer> {
        self.view().intentions.operations[id].value.answer.clone()
    }

    pub(super) fn other_than(&self, owner: &str) -> String {
        let view = self.view();
        view.pods.keys().find(|pod| *pod != owner).unwrap().clone()
    }
}

pub(super) fn begun(plans: &[Plan]) -> Vec<(String, MoveCause)> {
    let actions = plans.iter().flat_map(|plan| &plan.actions);
    let creates = actions.filter_map(|action| match action {
        PlannedWrite::Create { handoff, cause, .. } => Some((handoff.reason.clone(), *cause)),
        _ => None,
    });
    creates.collect()
}

#[test]
fn a_drained_pod_gives_up_everything_and_its_record_is_not_touched() {
    let mut world = World::settled(policy(24), &["w-0", "w-1", "w-2"]);
    let record = world.view().pods["w-1"].clone();
    world.operator_drains("w-1");
    let plans = world.wait(secs(2));
    let begun = begun(&plans);
    assert_eq!(begun.len(), 8);
    for (reason, cause) in begun {
        assert_eq!(cause, MoveCause::DrainingOwner);
        assert_eq!(reason, "its owner w-1 is drained by ann (kernel update)");
    }
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [12, 0, 12]);
    assert_eq!(world.view().pods["w-1"], record);
}

#[test]
fn a_drain_outlives_the_pod_until_it_is_undrained() {
    let mut world = World::settled(policy(24), &["w-0", "w-1", "w-2"]);
    world.operator_drains("w-1");
    world.run_until_quiet();
    world.restart_pod("w-1");
    assert_eq!(world.run_until_quiet(), 0, "no partition comes back");
    world.elect();
    assert_eq!(world.run_until_quiet(), 0, "nor under another leader");
    world.store.delete(world.keys.drain("w-1"));
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [8, 8, 8]);
}

#[test]
fn a_warming_move_to_a_pod_that_is_drained_meanwhile_is_cancelled() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.join_pod("w-1");
    world.wait(secs(2));
    assert!(!world.view().handoffs.is_empty());
    world.operator_drains("w-1");
    let plan = world.lead();
    let is_cancel =
        |action: &PlannedWrite| matches!(action, PlannedWrite::Cancel { reason: CancelReason::NewOwnerDraining, .. });
    assert!(plan.actions.iter().any(is_cancel), "{:?}", plan.actions);
}

#[test]
fn an_unreadable_drain_is_a_drain() {
    let mut world = World::settled(policy(24), &["w-0", "w-1", "w-2"]);
    world.store.put(world.keys.drain("w-1"), b"{".to_vec());
    world.run_until_quiet();
    assert_eq!(world.balance()["w-1"], 0);
    let view = world.view();
    assert!(view.malformed.contains_key(&world.keys.drain("w-1")), "and it is named");
}

#[test]
fn when_every_pod_is_drained_partitions_stay_and_the_operator_is_told() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.operator_drains("w-0");
    let plans = world.wait(secs(60));
    assert!(begun(&plans).is_empty());
    assert!(plans.last().unwrap().notices.contains(&Notice::NoPod));
    assert_eq!(world.balance()["w-0"], 4);
}

#[test]
fn while_paused_dead_owners_fail_over_and_nothing_else_moves() {
    let mut world = World::settled(policy(24), &["w-0", "w-1"]);
    world.pause();
    world.join_pod("w-2");
    world.operator_drains("w-0");
    let plans = world.wait(secs(120));
    assert!(begun(&plans).is_empty());
    assert!(plans.last().unwrap().notices.contains(&Notice::Paused { origin: ann("incident") }));
    world.kill_pod("w-1");
    let plans = world.wait(secs(2));
    assert!(!begun(&plans).is_empty());
    assert!(begun(&plans).iter().all(|(_, cause)| *cause == MoveCause::DeadOwner));
    world.run_until_quiet();
    assert_eq!(world.balance(), BTreeMap::from([("w-0".into(), 12), ("w-2".into(), 12)]));
    world.store.delete(world.keys.pause());
    world.run_until_quiet();
    assert_eq!(world.balance(), BTreeMap::from([("w-0".into(), 0), ("w-2".into(), 24)]));
}

#[test]
fn while_paused_a_pod_that_shuts_down_still_hands_over() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.pause();
    world.drain_pod("w-1");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-1"], 0);
}

#[test]
fn an_unreadable_pause_is_a_pause() {
    let mut world = World::settled(policy(8), &["w-0"]);
    world.store.put(world.keys.pause(), b"?".to_vec());
    world.join_pod("w-1");
    assert!(begun(&world.wait(secs(60))).is_empty());
}

#[test]
fn what_would_break_an_invariant_is_refused_with_the_reason() {
    let mut world = World::settled(policy(4), &["w-0", "w-1", "w-2"]);
    world.operator_drains("w-1");
    world.drain_pod("w-2");
    world.run_until_quiet();
    let p4 = PartitionId::new(4);
    for (id, request, why) in [
        ("a", Request::Move { partition: P0, to: "nobody".into(), pin: false }, "no pod nobody is registered"),
        ("b", Request::Move { partition: P0, to: "w-1".into(), pin: true }, "drained by ann (kernel update)"),
        ("c", Request::Move { partition: P0, to: "w-2".into(), pin: false }, "not Ready"),
        ("d", Request::Pin { partition: p4, to: None }, "there is no partition 4: the keyspace has 0 to 3"),
        ("e", Request::Cancel { partition: P0, handoff: crate::ids::HandoffId::created_at(7.into()) }, "ended already"),
    ] {
        world.ask(id, request);
        world.lead();
        let answer = world.answer(id).unwrap();
        assert!(!answer.accepted && answer.text.contains(why), "{why:?}: {answer:?}");
    }
    assert!(world.view().intentions.pins.is_empty());
}

#[test]
fn an_operation_that_cannot_be_read_is_left_alone_and_named() {
    let mut world = World::settled(policy(4), &["w-0"]);
    let key = world.keys.operation("new");
    world.store.put(key.clone(), br#"{"kind":"split","partition":0,"who":"ann"}"#.to_vec());
    assert!(world.lead().actions.is_empty());
    assert!(world.view().malformed.contains_key(&key));
}

#[test]
fn a_cancelled_move_ends_with_its_wish_and_rests() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let owner = world.owner(P0);
    let to = world.other_than(&owner);
    world.asks_to_move("a", P0, &to, false);
    world.wait(secs(3));
    let handoff = world.handoff_id(P0);
    world.ask("b", Request::Cancel { partition: P0, handoff });
    world.lead();
    let answer = world.answer("b").unwrap();
    assert!(answer.accepted && answer.text.contains(&format!("stays with {owner}")), "{answer:?}");
    let view = world.view();
    assert!(!view.handoffs.contains_key(&P0) && view.intentions.pins.is_empty());
    world.run_until_quiet();
    assert_eq!(world.owner(P0), owner);
}

#[test]
fn a_move_that_its_pod_cannot_take_ends_with_the_reason_and_is_not_tried_again() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let owner = world.owner(P0);
    let to = world.other_than(&owner);
    world.asks_to_move("earlier", P0, &owner, false);
    world.wait(secs(1));
    world.asks_to_move("a", P0, &to, false);
    world.wait(secs(3));
    assert!(world.answer("a").unwrap().accepted);
    fail(&mut world, Some("no disk"));
    world.lead();
    let answer = world.answer("a").unwrap();
    assert_eq!((answer.accepted, answer.text), (false, format!("pod {to} cannot take partition 0: no disk")));
    assert!(world.answer("earlier").unwrap().accepted, "it was another move");
    let view = world.view();
    assert!(!view.handoffs.contains_key(&P0) && view.intentions.pins.is_empty());
    assert_eq!(refusal(&view, P0, &to), Some(&*format!("pod {to} cannot take partition 0: no disk")));
    world.run_until_quiet();
    assert_eq!(world.owner(P0), owner);
}

#[test]
fn a_pinned_move_that_its_pod_cannot_take_is_refused_and_stays_wanted() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let to = world.other_than(&world.owner(P0));
    world.asks_to_move("a", P0, &to, true);
    world.wait(secs(3));
    fail(&mut world, Some("no disk"));
    world.lead();
    let answer = world.answer("a").unwrap();
    assert!(!answer.accepted && answer.text.contains("stays pinned"), "{answer:?}");
    assert_eq!(world.view().intentions.pin(P0).unwrap().value.to, to);
    world.run_until_quiet();
    assert_eq!(world.owner(P0), to);
}

#[test]
fn a_cancelled_move_that_the_planner_wanted_is_planned_again_after_its_rest() {
    let mut world = World::settled(policy(2), &["w-0"]);
    world.join_pod("w-1");
    world.wait(secs(2));
    let (partition, handoff) = {
        let view = world.view();
        let (partition, handoff) = view.handoffs.first_key_value().unwrap();
        (*partition, handoff.id())
    };
    world.ask("b", Request::Cancel { partition, handoff });
    world.lead();
    assert!(!world.view().handoffs.contains_key(&partition));
    world.wait(FIRST_BACK_OFF / 2);
    assert!(!world.view().handoffs.contains_key(&partition));
    world.run_until_quiet();
    assert_eq!(world.balance()["w-1"], 1);
}

#[test]
fn nothing_is_cancelled_past_the_point_of_no_return_nor_instead_of_a_later_handoff() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let owner = world.owner(P0);
    let to = world.other_than(&owner);
    world.asks_to_move("a", P0, &to, false);
    world.wait(secs(3));
    let handoff = world.handoff_id(P0);
    world.silent.insert("r-0".into());
    world.participate(P0);
    world.silent.clear();
    while world.handoff(P0).phase < Phase::Switching {
        assert!(world.participate(P0));
    }
    world.ask("b", Request::Cancel { partition: P0, handoff });
    world.lead();
    let answer = world.answer("b").unwrap();
    assert!(!answer.accepted && answer.text.contains("past the point of no return"), "{answer:?}");
    world.run_until_quiet();
    assert_eq!(world.owner(P0), to);
}

#[test]
fn an_answer_that_was_decided_on_an_older_view_is_not_written() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let owner = world.owner(P0);
    let to = world.other_than(&owner);
    world.asks_to_move("a", P0, &to, false);
    let plan = world.plan();
    let answer = plan.actions.iter().find(|action| matches!(action, PlannedWrite::Answer { .. })).unwrap();
    for harm in 0..4 {
        let mut world = world.clone();
        match harm {
            0 => world.operator_drains(&to),
            1 => world.restart_pod(&to),
            2 => world.pin(P0, &owner, Incarnation::NONE),
            _ => assert!(world.carry_out(answer), "the operation has its answer"),
        }
        assert!(!world.carry_out(answer), "{harm}");
    }
    let term = world.term;
    world.elect();
    world.term = term;
    assert!(!world.carry_out(answer), "another coordinator leads");
}

#[test]
fn only_the_last_answered_operations_are_kept() {
    let mut world = World::settled(policy(4), &["w-0"]);
    for number in 0..KEPT_OPERATIONS + 60 {
        world.ask(&format!("a-{number:03}"), Request::Pin { partition: P0, to: None });
        world.lead();
    }
    world.run_until_quiet();
    let view = world.view();
    assert_eq!(view.intentions.operations.len(), KEPT_OPERATIONS);
    assert!(!view.intentions.operations.contains_key("a-059") && view.intentions.operations.contains_key("a-060"));
}

#[test]
fn operations_that_come_faster_than_rounds_are_deleted_between_them() {
    let mut world = World::settled(policy(4), &["w-0"]);
    for number in 0..KEPT_OPERATIONS + 200 {
        let answer = Some(Answer { accepted: true, text: "done".into(), at: 1 });
        let request = Request::Change { what: "drain pod w-0".into() };
        let operation = Operation { request, origin: ann(""), answer };
        world.store.put(world.keys.operation(&format!("c-{number:04}")), encode(&operation));
    }
    for _ in 0..4 {
        let plan = world.plan();
        assert_eq!(plan.round, None);
        assert!(plan.actions.iter().all(|action| world.carry_out(action)));
    }
    assert_eq!(world.view().intentions.operations.len(), KEPT_OPERATIONS);
}

#[test]
fn a_change_without_an_answer_is_refused_because_no_leader_carries_it_out() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.ask("c-1", Request::Change { what: "drain pod w-0".into() });
    world.lead();
    let answer = world.view().intentions.operations["c-1"].value.answer.clone();
    assert!(answer.is_some_and(|answer| !answer.accepted));
}

#[test]
fn a_preview_shows_at_once_all_moves_that_a_leader_makes_one_after_another() {
    let mut world = World::settled(policy(24), &["w-0", "w-1", "w-2"]);
    world.policy.max_concurrent_handoffs = 2;
    world.operator_drains("w-0");
    world.kill_pod("w-1");
    let wanted = begun(&[preview(&world.view(), &world.policy)]);
    assert_eq!(wanted.iter().filter(|(_, cause)| *cause == MoveCause::DeadOwner).count(), 8);
    assert_eq!(wanted.iter().filter(|(_, cause)| *cause == MoveCause::DrainingOwner).count(), 8);
    assert_eq!(world.run_until_quiet(), wanted.len());
    assert!(begun(&[preview(&world.view(), &world.policy)]).is_empty());
}

#[test]
fn an_operation_that_cannot_be_read_is_named_with_its_repair() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.store.put(world.keys.operation("a-1"), b"{".to_vec());
    let notices: Vec<String> = world.plan().notices.iter().map(ToString::to_string).collect();
    let repair = "; to remove it: etcdctl del /segue/default/operations/a-1";
    assert!(notices.iter().any(|notice| notice.ends_with(repair)), "{notices:?}");
}

#[test]
fn two_living_pods_with_one_address_are_named() {
    let mut world = World::settled(policy(4), &["w-0", "w-1", "w-2"]);
    assert!(!world.plan().notices.iter().any(|it| matches!(it, Notice::SharedAddress { .. })));
    for (address, spelling) in [
        ("127.0.0.1:8181", "127.0.0.1:8181"),
        ("127.0.0.1:8181", "localhost:8181"),
        ("127.0.0.1:8181", "[::ffff:127.0.0.1]:8181"),
        ("[fd00::7]:8181", "[fd00:0::07]:8181"),
        ("writer-0.ns:8181", "Writer-0.ns.:8181"),
    ] {
        for (pod, address) in [("w-0", address), ("w-2", spelling)] {
            let record = PodRecord { address: address.to_owned(), ..world.view().pods[pod].value.clone() };
            world.store.put_leased(world.keys.pod(pod), encode(&record));
        }
        let shared = Notice::SharedAddress { address: address.to_owned(), pods: vec!["w-0".into(), "w-2".into()] };
        assert!(world.plan().notices.contains(&shared), "{spelling}");
    }
    let is_shared = |notice: &Notice| matches!(notice, Notice::SharedAddress { .. });
    world.kill_pod("w-0");
    assert!(!world.plan().notices.iter().any(is_shared), "one of them is gone");
}
