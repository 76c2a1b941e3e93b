//! A pod's callbacks and acknowledgements in a handoff, phase by phase.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use segue_coordination::pod::{HandlerError, HandoffContext, PodAddress, PodSettings};
use segue_protocol::ids::{Epoch, HandoffId, PartitionId, Revision};
use segue_protocol::records::{Capabilities, Mode, Phase, PodAckKind, RouterRecord, encode};
use segue_protocol::txn::{Keys, Op};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::fixture::{Call, Conduct, Fixture, Pod, fail_writes};

const E1: Epoch = Epoch::new(1);
const E2: Epoch = Epoch::new(2);
const E5: Epoch = Epoch::new(5);
const P0: PartitionId = PartitionId::new(0);

fn part(epoch: u64, handoff: HandoffId) -> HandoffContext {
    HandoffContext {
        keyspace: "default".to_owned(),
        partition: P0,
        epoch: epoch.into(),
        handoff,
        checkpoint: None,
        partitions: 4,
        from: None,
        to: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_owner_warms_assigns_itself_and_serves_only_from_then_on() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    pod.service.let_it("warm", Conduct::Last);
    let handoff = fixture.begin(P0, None, &pod, 1).await;
    assert_eq!(pod.call().await, Call::Began("warm", part(1, handoff)));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.handoff(P0).await.unwrap().phase, Phase::Warming);
    assert_eq!(pod.status_of(P0, 1).await, 421, "not its yet");

    pod.service.let_it("warm", Conduct::Succeed);
    fixture.assigned(P0).await;
    pod.until("serving", |state| state.owned.get(&P0) == Some(&E1)).await;
    assert_eq!(pod.status_of(P0, 1).await, 200);
    assert_eq!(pod.call().await, Call::Ended("warm", part(1, handoff)));
    assert!(pod.calls.try_recv().is_err(), "nothing else was called");
}

#[tokio::test(start_paused = true)]
async fn with_many_routers_callbacks_that_end_together_lead_to_one_write() {
    for (routers, writes) in [(1, 4), (200, 1)] {
        let (fixture, _) = Fixture::new();
        for number in 0..routers {
            let name = format!("r-{number}");
            let register = Op::put(fixture.keys.router(&name), encode(&RouterRecord::new(&name)));
            fixture.commit(vec![], vec![register]).await;
        }
        let mut pod = Pod::start(&fixture, "w").await;
        pod.service.let_it("warm", Conduct::Last);
        for partition in PartitionId::all(4) {
            fixture.begin(partition, None, &pod, 1).await;
            pod.call().await;
        }
        pod.service.let_it("warm", Conduct::Succeed);
        for partition in PartitionId::all(4) {
            fixture.assigned(partition).await;
        }
        let view = fixture.view().await;
        let revisions: BTreeSet<Revision> = view.assignments.values().map(|record| record.mod_revision).collect();
        assert_eq!((view.assignments.len(), revisions.len()), (4, writes), "{routers} routers");
    }
}

#[tokio::test(start_paused = true)]
async fn a_callback_that_fails_or_panics_is_tried_again_and_nothing_is_said_before() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    pod.service.let_it("warm", Conduct::Fail);
    let handoff = fixture.begin(P0, None, &pod, 1).await;
    for _ in 0..3 {
        assert_eq!(pod.call().await, Call::Began("warm", part(1, handoff)));
    }
    pod.service.let_it("warm", Conduct::Panic);
    assert_eq!(pod.call().await, Call::Began("warm", part(1, handoff)));
    assert_eq!(fixture.handoff(P0).await.unwrap().phase, Phase::Warming);
    pod.service.let_it("warm", Conduct::Succeed);
    fixture.assigned(P0).await;
}

#[tokio::test(start_paused = true)]
async fn an_old_owner_says_drained_only_when_nothing_is_in_flight_and_refuses_from_the_start() {
    let (fixture, _) = Fixture::new();
    let mut old = Pod::start(&fixture, "old").await;
    let new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;

    let first = old.send(P0, 1);
    let working = old.arrival().await;
    let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    assert_eq!(old.status_of(P0, 1).await, 200, "in Ready the routers stop, not the pod");
    fixture.move_to(P0, Phase::Syncing).await;
    old.until("it refuses", |state| state.owned.is_empty()).await;
    assert_eq!(old.status_of(P0, 1).await, 421);
    let has_drained = || fixture.has_said(P0, "old", PodAckKind::Drained, handoff);
    sleep(Duration::from_secs(60)).await;
    assert!(!has_drained().await, "the service still works on the first request");

    // The answer's head alone does not end it.
    let (frames, body) = mpsc::channel::<Result<Frame<Bytes>, HandlerError>>(1);
    let body = StreamBody::new(tokio_stream(body));
    assert!(working.answer.send(Response::new(body.boxed())).is_ok());
    let mut response = first.await.unwrap();
    frames.send(Ok(Frame::data(Bytes::from("half")))).await.unwrap();
    assert!(response.body_mut().frame().await.unwrap().is_ok());
    sleep(Duration::from_secs(60)).await;
    assert!(!has_drained().await, "the answer has not ended");

    drop(frames);
    assert!(response.body_mut().frame().await.is_none());
    fixture.until("drained", |view| view.pod_ack(P0, "old", PodAckKind::Drained, handoff).is_some()).await;
    assert_eq!(old.status_of(P0, 1).await, 421);
}

#[tokio::test(start_paused = true)]
async fn drained_waits_for_what_the_service_holds_and_for_its_drain() {
    let (fixture, _) = Fixture::new();
    let mut old = Pod::start(&fixture, "old").await;
    let new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    let sent = old.send(P0, 1);
    let arrival = old.arrival().await;
    let background = arrival.owned.hold().unwrap();
    let owned = arrival.owned.clone();
    assert!(arrival.answer.send(super::fixture::whole("accepted")).is_ok());
    drop(sent.await.unwrap());

    old.service.let_it("drain", Conduct::Last);
    while old.calls.try_recv().is_ok() {}
    let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    sleep(Duration::from_secs(10)).await;
    assert!(old.calls.try_recv().is_err(), "drain is called with nothing in flight");
    drop(background);
    assert_eq!(old.call().await, Call::Began("drain", part(1, handoff)));
    assert!(owned.hold().is_none(), "too late");
    sleep(Duration::from_secs(10)).await;
    assert!(!fixture.has_said(P0, "old", PodAckKind::Drained, handoff).await);
    old.service.let_it("drain", Conduct::Succeed);
    fixture.until("drained", |view| view.pod_ack(P0, "old", PodAckKind::Drained, handoff).is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn the_pods_carry_a_handoff_from_drain_to_release_by_themselves() {
    let (fixture, _) = Fixture::new();
    let mut old = Pod::start(&fixture, "old").await;
    let mut new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    while old.calls.try_recv().is_ok() {}
    old.service.let_it("drain", Conduct::Last);
    new.service.let_it("sync", Conduct::Last);

    let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    assert_eq!(old.call().await, Call::Began("drain", part(1, handoff)));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(new.call().await, Call::Began("warm", part(2, handoff)));
    assert_eq!(new.call().await, Call::Ended("warm", part(2, handoff)));
    assert!(new.calls.try_recv().is_err(), "the tail is read only when the log is at rest");
    old.service.let_it("drain", Conduct::Succeed);
    assert_eq!(new.call().await, Call::Began("sync", part(2, handoff)));
    assert_eq!(fixture.handoff(P0).await.unwrap().phase, Phase::Syncing);
    // The last acknowledgement moves the phase. There is no coordinator here that could.
    new.service.let_it("sync", Conduct::Succeed);
    fixture.in_phase(P0, Phase::Switching).await;
    new.until("it serves", |state| state.owned.get(&P0) == Some(&E2)).await;
    assert_eq!(new.status_of(P0, 2).await, 200);
    assert_eq!(old.status_of(P0, 1).await, 421);

    old.service.let_it("release", Conduct::Last);
    fixture.move_to(P0, Phase::Complete).await;
    assert_eq!(old.call().await, Call::Ended("drain", part(1, handoff)));
    assert!(matches!(old.call().await, Call::Began("release", HandoffContext { epoch: E1, .. })));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.handoff(P0).await.unwrap().phase, Phase::Complete, "while it lets go");
    old.service.let_it("release", Conduct::Succeed);
    fixture.end(P0).await;
    assert!(fixture.view().await.acks.is_empty());
    sleep(Duration::from_secs(200)).await;
    assert!(matches!(old.call().await, Call::Ended("release", _)));
    assert!(old.calls.try_recv().is_err(), "released once");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_warm_up_is_stopped_before_its_state_is_released() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    pod.service.let_it("warm", Conduct::Last);
    let handoff = fixture.begin(P0, None, &pod, 1).await;
    assert_eq!(pod.call().await, Call::Began("warm", part(1, handoff)));
    fixture.delete(P0).await;
    assert_eq!(pod.call().await, Call::Dropped("warm", part(1, handoff)));
    assert_eq!(pod.call().await, Call::Began("release", part(1, handoff)));
    assert_eq!(pod.call().await, Call::Ended("release", part(1, handoff)));
    sleep(Duration::from_secs(200)).await;
    assert!(pod.calls.try_recv().is_err(), "once");
    assert!(pod.state().emptied);
}

#[tokio::test(start_paused = true)]
async fn a_handoff_that_follows_a_cancelled_one_gets_fresh_state() {
    let (fixture, memory) = Fixture::new();
    let old = Pod::start(&fixture, "old").await;
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &old, 1).await;
    let first = fixture.begin(P0, Some(&old), &pod, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    while pod.calls.try_recv().is_ok() {}
    // The pod sees neither the cancel nor the new record by themselves: it takes a snapshot that shows the latter.
    memory.set_available(false);
    sleep(Duration::from_millis(1)).await;
    memory.set_available(true);
    fixture.delete(P0).await;
    let second = fixture.begin(P0, Some(&old), &pod, 2).await;
    assert!(matches!(pod.call().await, Call::Began("release", part) if part.handoff == first));
    assert!(matches!(pod.call().await, Call::Ended("release", part) if part.handoff == first));
    assert!(matches!(pod.call().await, Call::Began("warm", part) if part.handoff == second));
    fixture.in_phase(P0, Phase::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_drain_reopens_and_the_next_one_counts_anew() {
    let (fixture, _) = Fixture::new();
    let mut old = Pod::start(&fixture, "old").await;
    let new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    // The new owner cannot read the tail, so that the phase stays.
    new.service.let_it("sync", Conduct::Last);
    let first = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    fixture.until("drained", |view| view.pod_ack(P0, "old", PodAckKind::Drained, first).is_some()).await;
    fixture.delete(P0).await;
    old.until("it serves again", |state| state.owned.get(&P0) == Some(&E1)).await;
    assert_eq!(old.status_of(P0, 1).await, 200);

    let sent = old.send(P0, 1);
    let working = old.arrival().await;
    let second = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    sleep(Duration::from_secs(60)).await;
    assert!(!fixture.has_said(P0, "old", PodAckKind::Drained, second).await);
    assert!(working.answer.send(super::fixture::whole("done")).is_ok());
    drop(sent.await.unwrap());
    fixture.until("drained", |view| view.pod_ack(P0, "old", PodAckKind::Drained, second).is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn in_independent_mode_the_tail_is_read_before_the_first_request() {
    let (fixture, _) = Fixture::new();
    let old = Pod::start(&fixture, "old").await;
    let mut new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    new.service.let_it("sync", Conduct::Last);
    fixture.begin_in(Mode::Independent, P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    assert_eq!(new.status_of(P0, 2).await, 421);
    // Routers with nothing to send do not wait for it.
    fixture.flip(P0, Phase::Complete).await;
    fixture.delete(P0).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(new.status_of(P0, 2).await, 421);
    new.service.let_it("sync", Conduct::Succeed);
    new.until("it serves", |state| state.owned.get(&P0) == Some(&E2)).await;
    assert_eq!(new.status_of(P0, 2).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_sync_is_not_asked_to() {
    let (fixture, _) = Fixture::new();
    let old = Pod::start(&fixture, "old").await;
    let capabilities = Capabilities { sync: false, ..Capabilities::ALL };
    let mut new =
        Pod::start_with(&fixture, PodSettings { capabilities, ..PodSettings::new("new", "127.0.0.1:2") }).await;
    fixture.place(P0, &old, 1).await;
    let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    fixture.in_phase(P0, Phase::Switching).await;
    new.until("it serves", |state| state.owned.get(&P0) == Some(&E2)).await;
    assert_eq!(new.call().await, Call::Began("warm", part(2, handoff)));
    assert_eq!(new.call().await, Call::Ended("warm", part(2, handoff)));
    assert!(new.calls.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_assignment_that_an_operator_wrote_is_warmed_before_it_is_served() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    pod.service.let_it("warm", Conduct::Last);
    fixture.commit(vec![], vec![fixture.assignment(P0, "w", pod.incarnation(), 5)]).await;
    assert_eq!(pod.call().await, Call::Began("warm", part(5, HandoffId::NONE)));
    assert_eq!(pod.status_of(P0, 5).await, 421);
    pod.service.let_it("warm", Conduct::Succeed);
    pod.until("it serves", |state| state.owned.get(&P0) == Some(&E5)).await;
    assert_eq!(pod.status_of(P0, 5).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_closes_the_partition_and_costs_no_state() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    while pod.calls.try_recv().is_ok() {}
    fixture.put(fixture.keys.assignment(P0), b"{".to_vec()).await;
    pod.until("it refuses", |state| state.owned.is_empty()).await;
    assert_eq!(pod.status_of(P0, 1).await, 421);
    fixture.commit(vec![], vec![fixture.assignment(P0, "w", pod.incarnation(), 1)]).await;
    pod.until("it serves", |state| state.owned.get(&P0) == Some(&E1)).await;
    assert!(pod.calls.try_recv().is_err(), "nothing was released or warmed");
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_said_is_said_when_the_store_is_back() {
    let (fixture, memory) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    pod.service.let_it("warm", Conduct::Last);
    let handoff = fixture.begin(P0, None, &pod, 1).await;
    assert_eq!(pod.call().await, Call::Began("warm", part(1, handoff)));
    memory.set_available(false);
    pod.service.let_it("warm", Conduct::Succeed);
    assert_eq!(pod.call().await, Call::Ended("warm", part(1, handoff)));
    sleep(Duration::from_secs(3)).await;
    memory.set_available(true);
    let back = Instant::now();
    fixture.assigned(P0).await;
    assert!(back.elapsed() < Duration::from_secs(2));
    assert!(pod.calls.try_recv().is_err(), "it is not warmed twice");
}

/// The watch goes on throughout, so no snapshot makes the pod look again.
#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_is_tried_again_whether_it_was_carried_out_or_not() {
    for carried_out in [false, true] {
        let (fixture, store) = Fixture::with_faults();
        let mut pod = Pod::start(&fixture, "w").await;
        fail_writes(&store, 2, carried_out);
        fixture.place(P0, &pod, 1).await;
        fail_writes(&store, 2, carried_out);
        pod.handle.set_draining();
        pod.until("it is draining", |state| state.draining).await;
        assert_eq!(pod.status_of(P0, 1).await, 200);
        assert_eq!(pod.state().resyncs, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_rewritten_under_its_identity_does_not_lose_the_word() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    pod.service.let_it("warm", Conduct::Last);
    let handoff = fixture.begin(P0, None, &pod, 1).await;
    assert_eq!(pod.call().await, Call::Began("warm", part(1, handoff)));
    // Both at once: the pod's compare may lose against this put, and revisions of other keys go by.
    pod.service.let_it("warm", Conduct::Succeed);
    let mut record = fixture.handoff(P0).await.unwrap();
    record.phase = Phase::Warming;
    record.reason = "rewritten".to_owned();
    let key = fixture.keys.handoff(P0);
    assert!(!fixture.store.snapshot(&Keys::One(key.clone())).await.unwrap().entries.is_empty());
    fixture.put(key, encode(&record)).await;
    for other in 0..10 {
        fixture.put(format!("/elsewhere/{other}"), vec![]).await;
    }
    fixture.assigned(P0).await;
}

/// A channel's receiving end as a stream.
fn tokio_stream<T>(receiver: mpsc::Receiver<T>) -> impl futures_util::Stream<Item = T> {
    futures_util::stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}

#[tokio::test(start_paused = true)]
async fn an_old_owner_is_told_once_that_routers_stop_and_by_whom_it_is_replaced() {
    let (fixture, _) = Fixture::new();
    let old = Pod::start(&fixture, "old").await;
    let new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    sleep(Duration::from_secs(60)).await;
    let told = old.service.contexts("leaving");
    let [told] = &told[..] else { panic!("{told:?}") };
    assert_eq!((told.partition, told.epoch, told.handoff), (P0, E1, handoff));
    let pod = |side: &Option<PodAddress>| side.as_ref().map(|side| side.pod.clone());
    assert_eq!((pod(&told.from), pod(&told.to)), (Some("old".to_owned()), Some("new".to_owned())));
    assert_eq!(told.partitions, fixture.view().await.partitions());
    assert_eq!(old.state().owned.get(&P0), Some(&E1), "it goes on serving");
    assert!(new.service.contexts("leaving").is_empty());
    let warm = new.service.contexts("warm").pop().unwrap();
    assert_eq!(pod(&warm.from), Some("old".to_owned()), "from whom to copy");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_in_leaving_holds_up_no_handoff_and_one_that_fails_is_told_again() {
    for conduct in [Conduct::Last, Conduct::Fail] {
        let (fixture, _) = Fixture::new();
        let old = Pod::start(&fixture, "old").await;
        let new = Pod::start(&fixture, "new").await;
        fixture.place(P0, &old, 1).await;
        old.service.let_it("leaving", conduct);
        let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
        fixture.in_phase(P0, Phase::Ready).await;
        sleep(Duration::from_secs(10)).await;
        let told = old.service.contexts("leaving").len();
        assert_eq!(told > 1, conduct == Conduct::Fail, "{told}");
        fixture.move_to(P0, Phase::Syncing).await;
        fixture.until("drained", |view| view.pod_ack(P0, "old", PodAckKind::Drained, handoff).is_some()).await;
    }
}
