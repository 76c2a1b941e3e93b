//! What a pod in another process is told along a handoff, for every choice of views that the instance skips.
use std::time::Duration;

use segue_protocol::handoff::checkpoint::Waits;
use segue_protocol::handoff::parties::Parties;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{PodMessages, RemotePod, RemoteTask, ReportVerdict, TaskReport, judge};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Assignment, Capabilities, Handoff, Phase, PodAck, PodAckKind, PodRecord, encode};
use segue_protocol::txn::{KeyValue, Snapshot};
use segue_protocol::view::View;

const P: PartitionId = PartitionId::new(3);
const OLD: Epoch = Epoch::new(5);
const NEW: Epoch = Epoch::new(20);
const H: HandoffId = HandoffId::created_at(Revision::new(10));

fn keys() -> Keyspace {
    Keyspace::new("/segue/", "test")
}

fn life(pod: &str) -> Incarnation {
    Incarnation::registered_at(Revision::new(if pod == "a" { 1 } else { 2 }))
}

fn entry(key: String, value: Vec<u8>, revision: u64, lease: Option<i64>) -> KeyValue {
    let (create_revision, mod_revision) = (Revision::new(revision), Revision::new(revision));
    KeyValue { key, value, create_revision, mod_revision, lease: lease.map(LeaseId::new) }
}

/// The pods `a` and `b`, the owner of the partition, and the handoff from `a` to `b` in its phase with its acks.
fn view(owner: Option<(&str, Epoch)>, handoff: Option<(HandoffId, Epoch, Phase)>, acks: &[(&str, PodAckKind)]) -> View {
    let mut entries: Vec<KeyValue> = ["a", "b"]
        .map(|pod| {
            let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(pod, "127.0.0.1:1") };
            entry(keys().pod(pod), encode(&record), life(pod).get(), Some(1))
        })
        .to_vec();
    if let Some((owner, epoch)) = owner {
        entries.push(entry(keys().assignment(P), encode(&Assignment::new(P, owner, life(owner), epoch)), 9, None));
    }
    if let Some((id, epoch, phase)) = handoff {
        let record = Handoff { phase, ..Handoff::new(P, "b", life("b"), epoch).taken_from("a", life("a")) };
        entries.push(entry(keys().handoff(P), encode(&record), id.get(), None));
        for &(pod, ack) in acks {
            let record = PodAck { pod_name: pod.to_owned(), partition: P, handoff: id, ack, acked_at: 0, reason: None };
            entries.push(entry(keys().pod_ack(P, pod, ack), encode(&record), 30, None));
        }
    }
    View::from_snapshot(keys(), Snapshot { revision: Revision::new(40), entries })
}

/// The views of a whole move.
fn steps() -> Vec<View> {
    use PodAckKind::{Drained, Released, Synced};
    let before = Some(("a", OLD));
    let after = Some(("b", NEW));
    vec![
        view(before, None, &[]),
        view(before, Some((H, NEW, Phase::Warming)), &[]),
        view(before, Some((H, NEW, Phase::Ready)), &[]),
        view(before, Some((H, NEW, Phase::Syncing)), &[]),
        view(before, Some((H, NEW, Phase::Syncing)), &[("a", Drained)]),
        view(after, Some((H, NEW, Phase::Switching)), &[("a", Drained), ("b", Synced)]),
        view(after, Some((H, NEW, Phase::Complete)), &[("a", Drained), ("b", Synced)]),
        view(after, Some((H, NEW, Phase::Complete)), &[("a", Drained), ("b", Synced), ("a", Released)]),
        view(after, None, &[]),
    ]
}

fn pod(view: &View, name: &str, holdings: &[(PartitionId, Epoch)]) -> RemotePod {
    RemotePod::new(view, name, life(name), holdings.iter().copied())
}

fn told(pod: &mut RemotePod, view: &View) -> PodMessages {
    let concerned = pod.concerned(&Parties::of(view));
    pod.update(view, concerned, Duration::ZERO, &mut Waits::default())
}

fn task(callback: Callback, handoff: HandoffId, epoch: Epoch) -> RemoteTask {
    RemoteTask { partition: P, callback, handoff, epoch, cancelled: false }
}

#[test]
fn the_old_owner_alone_is_told_once_on_each_stream_that_routers_stop() {
    let steps = steps();
    let (mut a, mut b) = (pod(&steps[0], "a", &[(P, OLD)]), pod(&steps[0], "b", &[]));
    for (number, view) in steps.iter().enumerate() {
        let expected = if number == 2 { vec![task(Callback::Leaving, H, OLD)] } else { Vec::new() };
        assert_eq!(a.tell_leaving(view, [P]), expected, "step {number}");
        assert_eq!(a.tell_leaving(view, [P]), [], "again in step {number}");
        assert_eq!(b.tell_leaving(view, [P]), [], "the new owner in step {number}");
    }
    let mut reconnected = pod(&steps[2], "a", &[(P, OLD)]);
    assert_eq!(reconnected.tell_leaving(&steps[2], [P]), [task(Callback::Leaving, H, OLD)]);
}

#[test]
fn both_pods_are_told_each_step_of_a_move_once() {
    let steps = steps();
    let (mut a, mut b) = (pod(&steps[0], "a", &[(P, OLD)]), pod(&steps[0], "b", &[]));
    let (mut by_a, mut by_b) = (Vec::new(), Vec::new());
    for view in &steps {
        by_a.push(told(&mut a, view));
        by_b.push(told(&mut b, view));
        assert!(told(&mut a, view).is_empty() && told(&mut b, view).is_empty(), "nothing is told twice");
    }
    let nothing = PodMessages::default;
    let owned = |epoch| PodMessages { owned: vec![(P, epoch)], ..nothing() };
    let due = |callback, epoch| PodMessages { tasks: vec![task(callback, H, epoch)], ..nothing() };
    let mut expected = vec![nothing(); steps.len()];
    expected[0] = owned(OLD);
    expected[3] = PodMessages { gone: vec![P], ..due(Callback::Drain, OLD) };
    expected[6] = due(Callback::Release, OLD);
    assert_eq!(by_a, expected);
    let mut expected = vec![nothing(); steps.len()];
    expected[1] = due(Callback::Warm, NEW);
    expected[4] = due(Callback::Sync, NEW);
    expected[5] = owned(NEW);
    assert_eq!(by_b, expected);
}

#[test]
fn whatever_views_are_skipped_a_move_ends_the_same_and_nobody_serves_what_it_has_not_warmed() {
    let steps = steps();
    for seen in 0..1_u32 << (steps.len() - 1) {
        let (mut a, mut b) = (pod(&steps[0], "a", &[(P, OLD)]), pod(&steps[0], "b", &[]));
        let (mut a_has, mut b_has, mut a_serves, mut b_serves) = (true, false, false, false);
        for (index, view) in steps.iter().enumerate() {
            // The pod's reports are what moves these phases on, so it was told before.
            let is_seen = seen & (1 << index) != 0 || [1, 3, 4, 8].contains(&index);
            if !is_seen {
                continue;
            }
            for (pod, has, serves) in [(&mut a, &mut a_has, &mut a_serves), (&mut b, &mut b_has, &mut b_serves)] {
                let changes = told(pod, view);
                *serves = (*serves || !changes.owned.is_empty()) && changes.gone.is_empty();
                for task in changes.tasks {
                    *has = (*has || task.callback == Callback::Warm) && task.callback != Callback::Release;
                }
                assert!(*has || !*serves, "{seen:b} at {index}");
            }
            assert!(!(a_serves && b_serves), "{seen:b} at {index}");
        }
        assert_eq!((a_serves, b_serves, a_has, b_has), (false, true, false, true), "{seen:b}");
    }
}

#[test]
fn a_pod_that_comes_back_is_told_what_is_due_and_serves_only_what_it_has() {
    for (index, view) in steps().iter().enumerate() {
        let first = told(&mut pod(view, "b", &[(P, NEW)]), view);
        let due = match index {
            0 => Some(RemoteTask { cancelled: true, ..task(Callback::Release, HandoffId::NONE, NEW) }),
            1 => Some(task(Callback::Warm, H, NEW)),
            4 => Some(task(Callback::Sync, H, NEW)),
            _ => None,
        };
        assert_eq!(first.tasks, Vec::from_iter(due), "{index}");
        assert_eq!(first.owned, if index >= 5 { vec![(P, NEW)] } else { vec![] }, "{index}");

        let without = told(&mut pod(view, "b", &[]), view);
        assert!(without.owned.is_empty(), "{index}");
        let due = match index {
            1 | 4 => Some(task(Callback::Warm, H, NEW)),
            5.. => Some(task(Callback::Warm, HandoffId::NONE, NEW)),
            _ => None,
        };
        assert_eq!(without.tasks, Vec::from_iter(due), "{index}");
    }
}

#[test]
fn a_partition_that_was_assigned_by_hand_is_served_once_the_pod_has_warmed_it() {
    let view = view(Some(("b", NEW)), None, &[]);
    let mut b = pod(&view, "b", &[]);
    assert_eq!(told(&mut b, &view).tasks, [task(Callback::Warm, HandoffId::NONE, NEW)]);
    b.warmed_by_hand(P);
    assert_eq!(told(&mut b, &view).owned, [(P, NEW)]);
}

#[test]
fn a_cancelled_drain_is_dropped_and_a_cancelled_copy_is_released_before_the_next_one() {
    let steps = steps();
    let mut a = pod(&steps[0], "a", &[(P, OLD)]);
    let mut b = pod(&steps[0], "b", &[]);
    for view in [&steps[0], &steps[1], &steps[3]] {
        told(&mut a, view);
        told(&mut b, view);
    }
    let again = told(&mut a, &steps[0]);
    assert_eq!((again.owned, again.dropped, again.tasks), (vec![(P, OLD)], vec![(P, H)], vec![]));

    let (next, epoch) = (HandoffId::created_at(Revision::new(35)), Epoch::new(35));
    let changes = told(&mut b, &view(Some(("a", OLD)), Some((next, epoch, Phase::Warming)), &[]));
    let release = RemoteTask { cancelled: true, ..task(Callback::Release, H, NEW) };
    assert_eq!(changes.tasks, [release, task(Callback::Warm, next, epoch)]);
}

#[test]
fn a_record_that_cannot_be_read_stops_service_and_releases_nothing() {
    let good = view(Some(("a", OLD)), None, &[]);
    let mut a = pod(&good, "a", &[(P, OLD)]);
    told(&mut a, &good);
    let torn = entry(keys().handoff(P), b"{".to_vec(), 12, None);
    let mut entries = vec![torn];
    let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new("a", "127.0.0.1:1") };
    entries.push(entry(keys().pod("a"), encode(&record), life("a").get(), Some(1)));
    let bad = View::from_snapshot(keys(), Snapshot { revision: Revision::new(41), entries });
    assert_eq!(told(&mut a, &bad), PodMessages { gone: vec![P], ..PodMessages::default() });
    assert_eq!(told(&mut a, &good), PodMessages { owned: vec![(P, OLD)], ..PodMessages::default() });
}

#[test]
fn a_report_is_written_only_when_it_is_due_and_known_or_stale_afterwards() {
    let word = |verdict| match verdict {
        ReportVerdict::Commit(_) => 'w',
        ReportVerdict::Known => 'k',
        ReportVerdict::Stale => 's',
        ReportVerdict::TooEarly => 'e',
    };
    let steps = steps();
    let judged = |pod: &str, callback| -> String {
        steps.iter().map(|view| word(judge(view, pod, life(pod), &report(callback, H, None), 0))).collect()
    };
    assert_eq!(judged("b", Callback::Warm), "swkkkkkks");
    assert_eq!(judged("b", Callback::Sync), "seeewkkks");
    assert_eq!(judged("a", Callback::Drain), "seewkkkks");
    assert_eq!(judged("a", Callback::Release), "seeeeewks");
    for (pod, callback) in [("a", Callback::Warm), ("a", Callback::Sync), ("b", Callback::Drain)] {
        assert_eq!(judged(pod, callback), "sssssssss", "{pod} {callback:?}");
    }
    let later = HandoffId::created_at(Revision::new(99));
    let verdict = judge(&steps[1], "b", life("b"), &report(Callback::Warm, later, None), 0);
    assert_eq!(verdict, ReportVerdict::TooEarly, "not seen yet");
    let failed = |pod: &str, callback| -> String {
        let report = report(callback, H, Some("no disk"));
        steps.iter().map(|view| word(judge(view, pod, life(pod), &report, 0))).collect()
    };
    assert_eq!(failed("b", Callback::Warm), "swsssssss");
    assert_eq!(failed("b", Callback::Sync), "seeewssss");
    for (pod, callback) in [("a", Callback::Warm), ("a", Callback::Drain), ("b", Callback::Release)] {
        assert_eq!(failed(pod, callback), "sssssssss", "{pod} {callback:?}");
    }
}

fn report(callback: Callback, handoff: HandoffId, failure: Option<&str>) -> TaskReport {
    TaskReport { partition: P, handoff, callback, failure: failure.map(str::to_owned) }
}

#[test]
fn a_failure_for_good_is_stored_with_its_reason_and_its_task_is_due_no_more() {
    let owner = Some(("a", OLD));
    let warming = view(owner, Some((H, NEW, Phase::Warming)), &[]);
    let ReportVerdict::Commit(txn) = judge(&warming, "b", life("b"), &report(Callback::Warm, H, Some("no disk")), 7)
    else {
        panic!("it is due");
    };
    assert!(format!("{txn:?}").contains(&keys().pod_ack(P, "b", PodAckKind::Failed)), "{txn:?}");
    let failed = view(owner, Some((H, NEW, Phase::Warming)), &[("b", PodAckKind::Failed)]);
    let again = judge(&failed, "b", life("b"), &report(Callback::Warm, H, Some("no disk")), 7);
    assert_eq!(again, ReportVerdict::Known);
    let mut b = pod(&warming, "b", &[]);
    assert_eq!(told(&mut b, &warming).tasks, [task(Callback::Warm, H, NEW)]);
    assert!(told(&mut b, &failed).is_empty());
    assert!(told(&mut pod(&failed, "b", &[]), &failed).is_empty(), "nor after a reconnect");
    let cancelled = told(&mut b, &view(owner, None, &[]));
    assert_eq!(cancelled.tasks, [RemoteTask { cancelled: true, ..task(Callback::Release, H, NEW) }]);
}

#[test]
fn a_pod_is_concerned_by_its_own_partitions_and_moves_and_by_what_it_was_told() {
    let steps = steps();
    let mut parties = Parties::of(&steps[0]);
    let mut idle = pod(&steps[0], "c", &[]);
    let (mut a, mut b) = (pod(&steps[0], "a", &[(P, OLD)]), pod(&steps[0], "b", &[]));
    for view in &steps {
        parties.update(view, [P]);
        assert_eq!(parties, Parties::of(view), "kept up to date as if made anew");
        assert!(idle.concerned(&parties).is_empty());
        assert!(idle.update(view, [P], Duration::ZERO, &mut Waits::default()).is_empty(), "and nothing is missed");
        for pod in [&mut a, &mut b] {
            let concerned = pod.concerned(&parties);
            let mut other = pod.clone();
            assert_eq!(
                pod.update(view, concerned, Duration::ZERO, &mut Waits::default()),
                other.update(view, [P], Duration::ZERO, &mut Waits::default())
            );
        }
    }
    assert_eq!((parties.partitions("a").count(), parties.partitions("b").count()), (0, 1));
}
