//! Random lives of a keyspace: pods and routers come, go, restart and drain, leaders change, writes are lost. Every
//! plan is checked for its invariants. Once the faults stop, the keyspace must come to rest in the expected state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::world::{World, policy};
use crate::ids::{Epoch, Incarnation, PartitionId};
use crate::planning::{CancelReason, MoveCause, Plan, PlannedWrite, Policy, Strategy as Name};
use crate::records::{Mode, Phase, PodStatus};
use crate::view::View;

#[derive(Debug, Clone)]
enum Happening {
    JoinPod(u8, u32),
    DrainPod(u8),
    KillPod(u8),
    RestartPod(u8),
    Silence(u8),
    JoinRouter(u8),
    KillRouter(u8),
    Stick(u8),
    Participate(u8),
    ParticipateAll,
    Pass(u32),
    LoseWrites(u64),
    Elect,
    Grow,
    DeleteHandoff(u8),
    Beat(u8, u32),
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    prop_oneof![
        4 => (0..5u8, prop::sample::select(&[1000u32, 1000, 500, 2000][..])).prop_map(|(pod, weight)| JoinPod(pod, weight)),
        2 => (0..5u8).prop_map(DrainPod),
        3 => (0..5u8).prop_map(KillPod),
        2 => (0..5u8).prop_map(RestartPod),
        1 => (0..5u8).prop_map(Silence),
        2 => (0..3u8).prop_map(JoinRouter),
        2 => (0..3u8).prop_map(KillRouter),
        1 => (0..3u8).prop_map(Stick),
        6 => (0..12u8).prop_map(Participate),
        6 => Just(ParticipateAll),
        8 => (1..4000u32).prop_map(Pass),
        1 => (60_000..400_000u32).prop_map(Pass),
        2 => any::<u64>().prop_map(LoseWrites),
        1 => Just(Elect),
        1 => Just(Grow),
        1 => (0..12u8).prop_map(DeleteHandoff),
        4 => (0..5u8, 0..50u32).prop_map(|(pod, load)| Beat(pod, load)),
    ]
}

/// A world and what was observed in it.
struct Watched {
    world: World,
    /// The last ownership of each partition.
    owned: BTreeMap<PartitionId, (Epoch, String, Incarnation)>,
    /// The next writes to lose, by bit.
    lose: u64,
}

impl Watched {
    fn lead(&mut self) {
        let view = self.world.view();
        let mut twin = self.world.clone();
        let plan = self.world.plan();
        assert_eq!((twin.plan(), &twin.memory), (plan.clone(), &self.world.memory), "the plan is a function");
        check(&view, &self.world.policy, &plan);
        for action in &plan.actions {
            let lost = self.lose & 1 == 1;
            self.lose >>= 1;
            assert!(lost || self.world.carry_out(action), "nothing interfered with {action:?}");
        }
        self.world.say_mapping();
        self.watch_ownerships();
    }

    fn watch_ownerships(&mut self) {
        for (partition, assignment) in &self.world.view().assignments {
            let assignment = &assignment.value;
            let is = (assignment.epoch, assignment.owner.clone(), assignment.incarnation);
            if let Some(was) = self.owned.insert(*partition, is.clone()) {
                assert!(is.0 > was.0 || is == was, "partition {partition} went from {was:?} to {is:?}");
            }
        }
    }

    /// Leads at every moment that the leader has asked for, until `span` has passed.
    fn pass(&mut self, span: Duration) {
        let end = self.world.now + span;
        while let Some(wake) = self.world.wake.filter(|wake| *wake <= end) {
            self.world.now = wake;
            self.lead();
        }
        self.world.now = end;
    }

    fn happen(&mut self, happening: &Happening) {
        let (pod, router) = (|number: u8| format!("w-{number}"), |number: u8| format!("r-{number}"));
        let world = &mut self.world;
        match happening {
            Happening::JoinPod(number, weight) => world.put_pod(&pod(*number), PodStatus::Ready, *weight, None),
            Happening::DrainPod(number) if world.view().pods.contains_key(&pod(*number)) => {
                world.drain_pod(&pod(*number));
            }
            Happening::DrainPod(_) => {}
            Happening::KillPod(number) => world.kill_pod(&pod(*number)),
            Happening::RestartPod(number) => world.restart_pod(&pod(*number)),
            Happening::Silence(number) => drop(world.silent.insert(pod(*number))),
            Happening::JoinRouter(number) => world.join_router(&router(*number)),
            Happening::KillRouter(number) => world.kill_router(&router(*number)),
            Happening::Stick(number) => drop(world.stuck.insert(router(*number))),
            Happening::Participate(partition) => drop(world.participate(PartitionId::new(u32::from(*partition)))),
            Happening::ParticipateAll => drop(world.participate_all()),
            Happening::Pass(millis) => self.pass(Duration::from_millis(u64::from(*millis))),
            Happening::LoseWrites(which) => self.lose = *which,
            Happening::Elect => world.elect(),
            Happening::Grow => world.policy.partitions = (world.policy.partitions + 1).min(12),
            // Partitions of one pod have different loads.
            Happening::Beat(number, load) => drop(world.beat(&pod(*number), |partition| load * (1 + partition.get()))),
            Happening::DeleteHandoff(partition) => {
                world.store.delete(world.keys.handoff(PartitionId::new(u32::from(*partition))))
            }
        }
        self.watch_ownerships();
        self.lead();
    }
}

/// Checks the invariants of every plan.
fn check(view: &View, policy: &Policy, plan: &Plan) {
    let mut seen = BTreeSet::new();
    let (mut urgent, mut planned) = (0, 0);
    let mut warming: BTreeMap<(&str, Incarnation), usize> = BTreeMap::new();
    for handoff in view.handoffs.values().map(|handoff| &handoff.value).filter(|it| it.phase == Phase::Warming) {
        *warming.entry((&handoff.new_owner, handoff.new_incarnation)).or_default() += 1;
    }
    for action in &plan.actions {
        assert!(seen.insert(action.partition()), "two actions for one partition: {:?}", plan.actions);
        match action {
            PlannedWrite::Create { handoff, cause, .. } => {
                let from = (handoff.old_owner.as_deref(), handoff.old_incarnation);
                assert_ne!(from, (Some(handoff.new_owner.as_str()), handoff.new_incarnation), "moves to itself");
                let partition = handoff.partition;
                assert!(!view.handoffs.contains_key(&partition), "partition {partition} is pinned");
                assert!(partition < PartitionId::new(view.partitions()), "partition {partition} does not exist");
                let to = view.live_pod(&handoff.new_owner, handoff.new_incarnation).expect("the new owner lives");
                assert_eq!(to.status, PodStatus::Ready, "a draining pod is a target");
                let last = view.assignments.get(&partition);
                let from = last.map(|assignment| &assignment.value);
                assert_eq!(handoff.old_owner.as_ref(), from.map(|from| &from.owner));
                assert_eq!(handoff.old_incarnation, from.map_or(Incarnation::NONE, |from| from.incarnation));
                let at_least = from.map_or_else(Epoch::default, |from| from.epoch.next());
                assert!(handoff.epoch >= at_least.max(Epoch::planned_at(view.epoch_floor(), view.revision)));
                // Only an epoch that was written by hand is above the revision that wrote it.
                let is_from_a_plan =
                    last.is_none_or(|last| last.value.epoch < Epoch::planned_at(view.epoch_floor(), last.mod_revision));
                assert!(!is_from_a_plan || handoff.epoch == Epoch::planned_at(view.epoch_floor(), view.revision));
                assert_eq!(cause.is_urgent(), view.live_owner(partition).is_none());
                assert_eq!(*cause, MoveCause::of(view, policy.strategy, handoff));
                assert!(handoff.mode == Mode::Barrier || (policy.mode == Mode::Independent && view.routers.len() < 2));
                assert!(!handoff.reason.is_empty());
                if cause.is_urgent() {
                    urgent += 1
                } else {
                    planned += 1
                }
                let warms = warming.entry((&handoff.new_owner, handoff.new_incarnation)).or_default();
                *warms += 1;
                // Urgent moves may exceed the limit of a pod, but not the limit of all.
                let may_warm = cause.is_urgent() || *warms <= policy.max_warming_per_pod;
                assert!(may_warm, "{} warms {warms} partitions", handoff.new_owner);
            }
            PlannedWrite::Assign { assignment, .. } => {
                assert!(view.assignments.is_empty() && view.handoffs.is_empty(), "it is no new keyspace");
                let pod = view.live_pod(&assignment.owner, assignment.incarnation).expect("the owner lives");
                assert!(pod.nothing_to_warm && pod.status == PodStatus::Ready);
            }
            PlannedWrite::Cancel { observed, reason, .. } => {
                assert!(!observed.handoff.value.is_past_no_return());
                assert!(CancelReason::NAMES.contains(&reason.as_str()), "{reason:?}");
            }
            PlannedWrite::Abandon { observed } => {
                let handoff = &observed.handoff.value;
                assert!(handoff.is_past_no_return() && view.live_new_owner(handoff).is_none());
            }
            PlannedWrite::Answer { .. } | PlannedWrite::DropPin { .. } | PlannedWrite::ForgetOperations { .. } => {
                panic!("there is no operator: {action}")
            }
            PlannedWrite::WriteConfig { .. }
            | PlannedWrite::Delete { .. }
            | PlannedWrite::Sweep { .. }
            | PlannedWrite::ForgetCheckpoints { .. } => {}
        }
    }
    let in_flight = view.handoffs.values().map(|handoff| &handoff.value);
    let (live, dead): (Vec<_>, Vec<_>) = in_flight.partition(|handoff| view.live_old_owner(handoff).is_some());
    let (limit, in_all) = (policy.max_concurrent_handoffs, dead.len() + live.len() + urgent + planned);
    assert!(urgent + planned == 0 || in_all <= limit, "{in_all} moves in all");
    assert!(planned == 0 || live.len() + planned <= (limit / 2).max(1), "{} + {planned} planned moves", live.len());
}

/// Checks the state after the faults have stopped and everything has come to rest.
fn check_rest(world: &World) {
    let view = world.view();
    assert!(
        view.handoffs.is_empty() && view.acks.is_empty(),
        "still in flight: {:?}, acks {:?}",
        view.handoffs,
        view.acks
    );
    let partitions = u64::from(view.partitions());
    for partition in PartitionId::all(view.partitions()) {
        let (_, owner) = view.live_owner(partition).expect("every partition has a live owner");
        assert_eq!(owner.status, PodStatus::Ready, "a draining pod has given up everything");
    }
    if world.policy.strategy != Name::Sticky {
        return;
    }
    let ready = || view.pods.iter().filter(|(_, pod)| pod.value.status == PodStatus::Ready);
    let sum: u64 = ready().map(|(_, pod)| u64::from(pod.value.weight.0)).sum();
    for (name, pod) in ready() {
        let share = partitions * u64::from(pod.value.weight.0);
        let fair = share / sum..=share.div_ceil(sum);
        let has = world.balance()[name] as u64;
        assert!(fair.contains(&has), "{name} has {has} of {fair:?}");
    }
}

fn live(happenings: &[Happening], mode: Mode, strategy: Name, (in_all, per_pod): (usize, usize)) {
    let budget =
        Policy { max_concurrent_handoffs: in_all, max_warming_per_pod: per_pod, balance_load: true, ..policy(8) };
    let world = World::new(Policy { mode, strategy, ..budget });
    let mut watched = Watched { world, owned: BTreeMap::new(), lose: 0 };
    for happening in happenings {
        watched.happen(happening);
    }
    let mut world = watched.world;
    world.silent.clear();
    world.stuck.clear();
    // A pod that has missed heartbeats gets no partitions; one without any does.
    world.view().loads.keys().for_each(|pod| world.store.delete(world.keys.load(pod)));
    world.join_pod("w-9");
    world.run_until_quiet();
    check_rest(&world);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_plan_applied_until_quiet_converges_after_any_life(
        happenings in prop::collection::vec(happening(), 0..60),
        independent in any::<bool>(),
        (_, strategy) in prop::sample::select(Name::NAMES),
        limits in (1..5usize, 1..4usize),
    ) {
        let mode = if independent { Mode::Independent } else { Mode::Barrier };
        live(&happenings, mode, strategy, limits);
    }
}
