//! The planning settings of the keyspace: what changes with the leader's configuration file, and what does not.

use serde_json::{Value, json};

use super::world::{World, policy, secs};
use crate::planning::placement::{Custom, Eligibility, Layout, Placement};
use crate::planning::{Memory, Notice, PlannedWrite, Policy, RoundCause, Strategy, in_force, plan};
use crate::records::{KeyspaceConfig, encode};

fn settled() -> World {
    World::settled(Policy { config_wins: false, ..policy(24) }, &["w-0", "w-1", "w-2"])
}

impl World {
    fn planning(&self) -> Value {
        self.view().config.unwrap().value.planning.unwrap()
    }

    fn put_planning(&mut self, planning: Value) {
        let config = self.view().config.unwrap().value;
        let config = KeyspaceConfig { planning: Some(planning), ..config };
        self.store.put(self.keys.config(), encode(&config));
    }
}

#[test]
fn a_failover_to_a_coordinator_with_another_file_changes_nothing() {
    let mut world = settled();
    let planning = world.planning();
    (world.policy.strategy, world.policy.max_concurrent_handoffs) = (Strategy::Jump, 1);
    world.elect();
    let plan = world.plan();
    let differs = |key: &str, own: &str, kept: &str| {
        let notice = Notice::PolicyDiffers { key: key.into(), own: own.into(), kept: kept.into() };
        plan.notices.contains(&notice)
    };
    assert!(differs("strategy", "\"jump\"", "\"sticky\"") && differs("max_concurrent_handoffs", "1", "64"));
    assert_eq!(world.run_until_quiet(), 0);
    assert_eq!(world.planning(), planning);
    world.kill_pod("w-0");
    world.wait(secs(1));
    assert_eq!(world.view().handoffs.len(), 8, "the budget is the keyspace's");
}

#[test]
fn a_file_that_wins_is_written_as_a_new_round_and_outlasts_its_leader() {
    let mut world = settled();
    let file = Policy { strategy: Strategy::Ring, config_wins: true, ..world.policy.clone() };
    let plan = plan(&world.view(), &file, &world.authority(), &mut Memory::default(), world.now);
    assert!(matches!(&plan.actions[..], [PlannedWrite::WriteConfig { .. }]), "{plan:?}");
    assert!(world.carry_out(&plan.actions[0]));
    assert_eq!(world.planning()["strategy"], "ring");
    let plans = world.wait(secs(6));
    assert!(plans.iter().any(|plan| plan.round == Some(RoundCause::Config)));
    assert!(!world.view().handoffs.is_empty(), "a leader whose file says sticky follows the ring");
    world.run_until_quiet();
    world.elect();
    assert_eq!(world.run_until_quiet(), 0);
}

#[test]
fn under_a_strategy_that_the_leader_does_not_know_only_what_has_to_move_does() {
    let mut world = settled();
    world.put_planning(json!({ "strategy": "mine" }));
    world.join_pod("w-3");
    assert_eq!(world.run_until_quiet(), 0);
    assert_eq!(world.planning()["strategy"], "mine");
    let unreadable = Notice::PolicyUnreadable { key: "strategy".into(), value: "\"mine\"".into() };
    assert!(world.plan().notices.contains(&unreadable));
    world.kill_pod("w-0");
    assert_eq!(world.run_until_quiet(), 8);
    assert_eq!(world.balance().values().sum::<usize>(), 24);
}

#[test]
fn settings_that_are_missing_are_added_and_unknown_ones_kept() {
    let mut world = settled();
    let planning = world.planning();
    world.put_planning(json!({ "settle_ms": 7, "heartbeat_ms": 0, "news": [1] }));
    let in_force = in_force(&world.view(), &world.policy);
    assert_eq!(in_force.settle.as_millis(), 7);
    assert_eq!(in_force.heartbeat, world.policy.heartbeat, "a value that cannot be used is none");
    world.wait(secs(1));
    let mut expected = planning;
    (expected["settle_ms"], expected["heartbeat_ms"], expected["news"]) = (json!(7), json!(0), json!([1]));
    assert_eq!(world.planning(), expected);
}

#[test]
fn planning_settings_of_another_form_leave_the_rest_readable() {
    let mut world = settled();
    world.put_planning(json!("later"));
    let view = world.view();
    assert!(view.malformed.is_empty());
    assert_eq!(in_force(&view, &world.policy).strategy, Strategy::Unknown);
    assert_eq!(world.run_until_quiet(), 0);
    assert_eq!(world.planning(), "later");
}

/// Everything on the last member, and the first partition on a member that is not there.
struct LastMember;

impl Placement for LastMember {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        let last = layout.members.len().checked_sub(1);
        (0..layout.slots.len()).map(|slot| if slot == 0 { Some(usize::MAX) } else { last }).collect()
    }
}

#[test]
fn a_strategy_of_a_users_own_places_partitions_where_they_may_be() {
    const LAST: Strategy = Strategy::Custom(Custom::new("last", &LastMember));
    let mut world = World::settled(Policy { strategy: LAST, ..policy(6) }, &["w-0", "w-1"]);
    assert_eq!(world.planning()["strategy"], "last");
    assert_eq!(Vec::from_iter(world.balance().into_values()), [1, 5], "one is on no member: it goes to the emptiest");
    world.drain_pod("w-1");
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [6, 0], "none is left on a pod that drains");
    let layout = super::placement::even(2, 1);
    assert!(layout.members.iter().all(|member| member.eligibility == Eligibility::Open));
    assert!(layout.may_be_on(&layout.slots[0], 1) && !layout.may_be_on(&layout.slots[0], 2));
}
