//! When an owner makes a checkpoint, whom a new owner waits for, and what the store accepts.
use std::collections::BTreeSet;
use std::time::Duration;

use segue_protocol::handoff::checkpoint::{PendingCheckpoint, Schedule, Waits, awaited, is_recorded, newest, record};
use segue_protocol::handoff::parties::Parties;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{PodMessages, RemotePod};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Assignment, Capabilities, Checkpoint, Handoff, Phase, PodRecord, encode};
use segue_protocol::txn::{Compare, Field, KeyValue, Op, Snapshot};
use segue_protocol::view::View;

const PARTITIONS: u32 = 100;
const P: PartitionId = PartitionId::new(3);
const OLD: Epoch = Epoch::new(5);
const NEW: Epoch = Epoch::new(20);
const H: HandoffId = HandoffId::created_at(Revision::new(60));
const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(4);

fn keys() -> Keyspace {
    Keyspace::new("/segue/", "test")
}

/// The handoff of the partition `next` after `P`.
fn handoff_of(next: u32) -> HandoffId {
    HandoffId::created_at(Revision::new(H.get() + u64::from(next)))
}

fn life(pod: &str) -> Incarnation {
    Incarnation::registered_at(Revision::new(if pod == "a" { 1 } else { 2 }))
}

/// A keyspace in which `a` owns every partition.
struct World {
    able: bool,
    old_lives: bool,
    interval: Duration,
    handoff: Option<Phase>,
    /// How many partitions, from `P` on, move in that phase.
    handoffs: u32,
    checkpoint: Option<(Checkpoint, u64)>,
}

impl Default for World {
    fn default() -> Self {
        World { able: true, old_lives: true, interval: INTERVAL, handoff: None, handoffs: 1, checkpoint: None }
    }
}

impl World {
    fn view(&self) -> View {
        let entry = |key, value, revision, lease: Option<i64>| {
            let (create_revision, mod_revision) = (Revision::new(revision), Revision::new(revision));
            KeyValue { key, value, create_revision, mod_revision, lease: lease.map(LeaseId::new) }
        };
        let config = serde_json::json!({ "partitions": PARTITIONS, "planning": {
            "checkpoint_interval_ms": self.interval.as_millis() as u64,
            "checkpoint_timeout_ms": TIMEOUT.as_millis() as u64,
        }});
        let mut entries = vec![entry(keys().config(), config.to_string().into_bytes(), 4, None)];
        for pod in ["a", "b"].into_iter().filter(|pod| *pod == "b" || self.old_lives) {
            let capabilities = Capabilities { checkpoint: self.able, ..Capabilities::ALL };
            let value = PodRecord { capabilities, ..PodRecord::new(pod, "127.0.0.1:1") };
            entries.push(entry(keys().pod(pod), encode(&value), life(pod).get(), Some(1)));
        }
        for partition in PartitionId::all(PARTITIONS) {
            let value = Assignment::new(partition, "a", life("a"), OLD);
            entries.push(entry(keys().assignment(partition), encode(&value), 9, None));
        }
        for next in 0..self.handoff.map_or(0, |_| self.handoffs) {
            let partition = PartitionId::new(P.get() + next);
            let moves = Handoff::new(partition, "b", life("b"), NEW).taken_from("a", life("a"));
            let value = Handoff { phase: self.handoff.unwrap(), ..moves };
            entries.push(entry(keys().handoff(partition), encode(&value), handoff_of(next).get(), None));
        }
        if let Some((value, revision)) = &self.checkpoint {
            entries.push(entry(keys().checkpoint(P), encode(value), *revision, None));
        }
        View::from_snapshot(keys(), Snapshot { revision: Revision::new(90), entries })
    }

    fn in_phase(phase: Phase) -> Self {
        World { handoff: Some(phase), ..World::default() }
    }
}

fn checkpoint(handoff: HandoffId) -> Checkpoint {
    let name = Some("at 42".to_owned().try_into().unwrap());
    Checkpoint { partition: P, checkpoint: name, pod_name: "a".to_owned(), epoch: OLD, taken_at: 7, handoff }
}

fn due(schedule: &mut Schedule, view: &View, partition: PartitionId, now: Duration) -> bool {
    let epoch = schedule.due(view, "a", life("a"), partition, now);
    assert!(epoch.is_none_or(|epoch| epoch == OLD));
    epoch.is_some()
}

#[test]
fn the_checkpoints_of_a_pods_partitions_are_spread_evenly_over_the_interval() {
    let view = World::default().view();
    for began in [0, 7_777, 1_000_003].map(Duration::from_millis) {
        let mut tenths = [0; 10];
        for partition in PartitionId::all(PARTITIONS) {
            let mut schedule = Schedule::default();
            let mut moments = (0..2_000).map(|at| Duration::from_millis(at * 10));
            let first = moments.find(|at| due(&mut schedule, &view, partition, began + *at)).unwrap();
            tenths[(first.as_millis() / 1_000).min(9) as usize] += 1;
            assert!(first <= INTERVAL + Duration::from_millis(10), "{partition}: {first:?}");
        }
        assert!(tenths.iter().all(|count| (8..=12).contains(count)), "{tenths:?}");
    }
}

#[test]
fn a_checkpoint_stays_due_until_it_is_recorded_and_the_next_is_due_at_the_next_moment() {
    let mut world = World::default();
    let (mut schedule, mut recorded) = (Schedule::default(), Vec::new());
    for second in 0..60 {
        let now = Duration::from_secs(second);
        if due(&mut schedule, &world.view(), P, now) {
            assert!(due(&mut schedule, &world.view(), P, now), "it is level-triggered");
            recorded.push(second);
            world.checkpoint = Some((checkpoint(HandoffId::NONE), 50 + second));
            assert!(!due(&mut schedule, &world.view(), P, now), "it is recorded");
        }
    }
    let apart: BTreeSet<u64> = recorded.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((recorded.len(), apart), (6, BTreeSet::from([10])), "{recorded:?}");
}

#[test]
fn only_an_owner_that_can_make_checkpoints_in_a_keyspace_that_wants_them_has_one_to_make() {
    let late = INTERVAL * 5;
    let is_due = |world: &World, pod| {
        let mut schedule = Schedule::default();
        let view = world.view();
        assert_eq!(schedule.due(&view, pod, life(pod), P, Duration::ZERO), None);
        schedule.due(&view, pod, life(pod), P, late).is_some()
    };
    assert!(is_due(&World::default(), "a") && !is_due(&World::default(), "b"));
    assert!(!is_due(&World { able: false, ..World::default() }, "a"));
    assert!(!is_due(&World { interval: Duration::ZERO, ..World::default() }, "a"));
    let mut schedule = Schedule::default();
    assert!(!due(&mut schedule, &World::default().view(), PartitionId::new(PARTITIONS), late), "there is no such one");
    // Requests are held from here on.
    for phase in [Phase::Ready, Phase::Syncing, Phase::Switching] {
        assert!(!is_due(&World::in_phase(phase), "a"), "{phase:?}");
    }
}

#[test]
fn a_move_makes_a_checkpoint_due_at_once_and_only_until_the_owner_has_answered() {
    let asks = World::in_phase(Phase::Warming);
    assert!(due(&mut Schedule::default(), &asks.view(), P, Duration::ZERO));
    assert_eq!(awaited(&asks.view(), P, H), Some("a"));
    for (handoff, waits) in [(HandoffId::NONE, true), (H, false)] {
        let world = World { checkpoint: Some((checkpoint(handoff), 70)), ..World::in_phase(Phase::Warming) };
        assert_eq!(awaited(&world.view(), P, H).is_some(), waits);
        assert_eq!(due(&mut Schedule::default(), &world.view(), P, Duration::ZERO), waits);
        assert_eq!(newest(&world.view(), P).unwrap().as_str(), "at 42");
    }
    let later = HandoffId::created_at(Revision::new(61));
    assert_eq!(awaited(&asks.view(), P, later), None, "another handoff is not waited for");
    for world in [
        World { old_lives: false, ..World::in_phase(Phase::Warming) },
        World { able: false, ..World::in_phase(Phase::Warming) },
        World { interval: Duration::ZERO, ..World::in_phase(Phase::Warming) },
        World::in_phase(Phase::Ready),
        World::default(),
    ] {
        assert_eq!(awaited(&world.view(), P, H), None);
    }
}

#[test]
fn the_store_accepts_a_checkpoint_only_from_the_owner_of_its_epoch() {
    let made = |epoch| PendingCheckpoint {
        epoch,
        name: Some("at 43".to_owned().try_into().unwrap()),
        at: 8,
        replaces: Revision::new(70),
    };
    let world = World { checkpoint: Some((checkpoint(HandoffId::NONE), 70)), ..World::in_phase(Phase::Warming) };
    let view = world.view();
    let txn = record(&view, "a", life("a"), P, &made(OLD)).unwrap();
    let [Op::Put { key, value, lease: None }] = txn.then.as_slice() else { panic!("{txn:?}") };
    assert_eq!(*key, keys().checkpoint(P));
    let value: Checkpoint = serde_json::from_slice(value).unwrap();
    assert_eq!((value.checkpoint, value.taken_at, value.handoff), (made(OLD).name, 8, H), "it answers the handoff");
    let guards = [
        Compare::created_at(keys().pod("a"), life("a").revision()),
        Compare::unchanged_since(keys().assignment(P), Revision::new(9)),
    ];
    assert_eq!(txn.when, guards);
    assert!(txn.when.iter().all(|guard| !matches!(guard.field, Field::Value(_))));
    assert_eq!(record(&view, "a", life("a"), P, &made(Epoch::new(4))), None);
    assert_eq!(record(&view, "a", life("b"), P, &made(OLD)), None);
    assert_eq!(record(&view, "b", life("b"), P, &made(NEW)), None);
}

#[test]
fn a_checkpoint_of_the_same_name_as_the_one_before_is_recorded_too() {
    let name = checkpoint(HandoffId::NONE).checkpoint;
    let made = PendingCheckpoint { epoch: OLD, name, at: 7, replaces: Revision::new(70) };
    let recorded_at =
        |revision| World { checkpoint: Some((checkpoint(HandoffId::NONE), revision)), ..World::default() };
    assert!(!is_recorded(&recorded_at(70).view(), P, &made), "that is the one before");
    assert!(is_recorded(&recorded_at(71).view(), P, &made));
}

#[test]
fn an_owner_with_nothing_new_answers_with_what_is_recorded() {
    let nothing = PendingCheckpoint { epoch: OLD, name: None, at: 8, replaces: Revision::ZERO };
    assert!(is_recorded(&World::default().view(), P, &nothing), "nobody asks");
    let before = checkpoint(HandoffId::NONE);
    let asks = World { checkpoint: Some((before.clone(), 70)), ..World::in_phase(Phase::Warming) };
    let value_of = |world: &World| -> Checkpoint {
        let txn = record(&world.view(), "a", life("a"), P, &nothing).unwrap();
        let [Op::Put { value, .. }] = txn.then.as_slice() else { panic!("{txn:?}") };
        serde_json::from_slice(value).unwrap()
    };
    assert!(!is_recorded(&asks.view(), P, &nothing));
    assert_eq!(value_of(&asks), Checkpoint { handoff: H, ..before });
    let first = value_of(&World::in_phase(Phase::Warming));
    assert_eq!((first.checkpoint, first.handoff), (None, H), "there has never been one");
}

fn told(waits: &mut Waits, pod: &mut RemotePod, view: &View, now: Duration) -> PodMessages {
    let concerned: BTreeSet<_> = pod.concerned(&Parties::of(view)).into_iter().filter(|at| *at == P).collect();
    pod.update(view, concerned, now, waits)
}

#[test]
fn a_remote_owner_is_asked_once_and_a_remote_new_owner_is_told_to_warm_after_the_timeout_at_the_latest() {
    let (quiet, asks) = (World::default().view(), World::in_phase(Phase::Warming).view());
    let mut a = RemotePod::new(&quiet, "a", life("a"), [(P, OLD)]);
    let mut b = RemotePod::new(&quiet, "b", life("b"), []);
    let (mut waits, begin) = (Waits::default(), Duration::from_secs(1_000));
    assert!(told(&mut waits, &mut a, &quiet, begin).tasks.is_empty());
    let task = told(&mut waits, &mut a, &asks, begin).tasks[0];
    assert_eq!((task.callback, task.handoff, task.epoch), (Callback::Checkpoint, HandoffId::NONE, OLD));
    assert!(told(&mut waits, &mut a, &asks, begin).is_empty() && told(&mut waits, &mut b, &asks, begin).is_empty());
    let before = begin + TIMEOUT - Duration::from_millis(1);
    assert!(b.overdue(&asks, before).is_empty() && told(&mut waits, &mut b, &asks, before).is_empty());
    assert_eq!((b.overdue(&asks, begin + TIMEOUT), b.waits_until()), (vec![P], Some(begin + TIMEOUT)));
    let warms = |changes: &PodMessages| changes.tasks.iter().map(|task| task.callback).eq([Callback::Warm]);
    assert!(warms(&told(&mut waits, &mut b, &asks, begin + TIMEOUT)));
    assert!(told(&mut waits, &mut b, &asks, begin + TIMEOUT * 2).is_empty(), "once");
    assert_eq!(b.waits_until(), None);

    let answered = World { checkpoint: Some((checkpoint(H), 70)), ..World::in_phase(Phase::Warming) }.view();
    let (mut b, mut waits) = (RemotePod::new(&quiet, "b", life("b"), []), Waits::default());
    assert!(told(&mut waits, &mut b, &asks, begin).is_empty());
    assert!(warms(&told(&mut waits, &mut b, &answered, begin)), "as soon as it is there");
}

#[test]
fn a_remote_owner_is_asked_when_its_moment_has_come() {
    let (view, mut waits) = (World::default().view(), Waits::default());
    let mut a = RemotePod::new(&view, "a", life("a"), [(P, OLD)]);
    assert!(told(&mut waits, &mut a, &view, Duration::ZERO).tasks.is_empty());
    assert_eq!(a.overdue(&view, INTERVAL), [P]);
    assert_eq!(told(&mut waits, &mut a, &view, INTERVAL).tasks[0].callback, Callback::Checkpoint);
    assert!(a.overdue(&view, INTERVAL * 9).is_empty(), "it has been told");
}

#[test]
fn a_remote_owner_with_nothing_new_is_asked_again_an_interval_later_or_once_somebody_waits() {
    let (quiet, asks) = (World::default().view(), World::in_phase(Phase::Warming).view());
    let is_asked = |changes: &PodMessages| changes.tasks.iter().map(|task| task.callback).eq([Callback::Checkpoint]);
    let (mut a, mut waits) = (RemotePod::new(&quiet, "a", life("a"), [(P, OLD)]), Waits::default());
    let mut at = |pod: &mut RemotePod, view: &View, now| told(&mut waits, pod, view, now);
    assert!(at(&mut a, &quiet, Duration::ZERO).tasks.is_empty());
    assert!(is_asked(&at(&mut a, &quiet, INTERVAL)));
    a.has_nothing_new(P, INTERVAL);
    assert!(at(&mut a, &quiet, INTERVAL).is_empty() && a.tasks().next().is_none());
    assert!(is_asked(&at(&mut a, &quiet, INTERVAL * 2)));
    a.has_nothing_new(P, INTERVAL * 2);
    assert!(is_asked(&at(&mut a, &asks, INTERVAL * 2)), "a handoff has begun before the stream looked");
}

#[test]
fn a_wait_for_a_checkpoint_goes_on_when_the_new_owner_connects_again() {
    let (asks, mut waits) = (World::in_phase(Phase::Warming).view(), Waits::default());
    let mut connects_at = |now| {
        let mut b = RemotePod::new(&asks, "b", life("b"), []);
        !told(&mut waits, &mut b, &asks, now).tasks.is_empty()
    };
    assert!(!connects_at(Duration::ZERO));
    assert!(!connects_at(TIMEOUT - Duration::from_millis(1)));
    assert!(connects_at(TIMEOUT));
    assert!(connects_at(TIMEOUT * 9), "it is not waited for twice");
}

#[test]
fn a_warm_that_another_instance_told_stays_due_if_the_pod_works_on_it() {
    let asks = World::in_phase(Phase::Warming).view();
    let first_look = |works_on: &[(PartitionId, HandoffId)]| {
        let (b, mut waits) = (RemotePod::new(&asks, "b", life("b"), []), Waits::default());
        b.works_on(&asks, works_on.iter().copied(), &mut waits);
        let mut look = || told(&mut waits, &mut b.clone(), &asks, Duration::ZERO).tasks;
        let tasks = look();
        assert_eq!(look(), tasks, "and so for a later stream");
        tasks.iter().map(|task| (task.callback, task.handoff)).collect::<Vec<_>>()
    };
    assert_eq!(first_look(&[]), [], "an instance that has not told it waits");
    assert_eq!(first_look(&[(P, H)]), [(Callback::Warm, H)]);
    let (elsewhere, earlier) = (PartitionId::new(P.get() + 1), handoff_of(1));
    assert_eq!(first_look(&[(P, earlier), (elsewhere, H), (PartitionId::new(u32::MAX), H)]), [], "of no handoff");
    let (a, mut waits) = (RemotePod::new(&asks, "a", life("a"), []), Waits::default());
    a.works_on(&asks, [(P, H)], &mut waits);
    assert_eq!(waits, Waits::default(), "of another pod");

    // The wait of this instance may have begun, and the owner is not late because of it.
    let (mut b, mut waits) = (RemotePod::new(&asks, "b", life("b"), []), Waits::default());
    assert!(told(&mut waits, &mut b, &asks, Duration::ZERO).tasks.is_empty());
    b.works_on(&asks, [(P, H)], &mut waits);
    assert_eq!(told(&mut waits, &mut b, &asks, TIMEOUT).tasks.len(), 1);
    let second = World { handoffs: 2, ..World::in_phase(Phase::Warming) }.view();
    assert_eq!(waits.until(&second, elsewhere, handoff_of(1), TIMEOUT), Some(TIMEOUT * 2));
}

#[test]
fn an_owner_that_made_no_checkpoint_in_time_is_not_waited_for_until_it_has_made_one() {
    let view = World { handoffs: 3, ..World::in_phase(Phase::Warming) }.view();
    let [second, third] = [1, 2].map(|next| (PartitionId::new(P.get() + next), handoff_of(next)));
    let mut waits = Waits::default();
    assert_eq!(waits.until(&view, P, H, Duration::ZERO), Some(TIMEOUT));
    assert_eq!(waits.until(&view, P, H, TIMEOUT), None);
    assert_eq!(waits.until(&view, second.0, second.1, TIMEOUT), None, "the owner has let another one wait in vain");
    let made = (checkpoint(H), 95);
    let view = World { handoffs: 3, checkpoint: Some(made), ..World::in_phase(Phase::Warming) }.view();
    assert_eq!(waits.until(&view, third.0, third.1, TIMEOUT), Some(TIMEOUT * 2), "it makes checkpoints again");
    assert_eq!(waits.until(&view, second.0, second.1, TIMEOUT), None, "a wait that is over does not begin anew");
}
