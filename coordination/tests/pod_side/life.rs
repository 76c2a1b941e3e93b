//! A pod's registration and lease: how they are gained, lost and put back.

use std::time::Duration;

use http_body_util::BodyExt as _;
use segue_coordination::pod::{HandoffContext, PodSettings};
use segue_coordination::session::Leases;
use segue_protocol::ids::{Epoch, Incarnation, LeaseId, PartitionId};
use segue_protocol::records::{Capabilities, Phase, PodRecord, PodStatus, encode};
use segue_protocol::txn::{Keys, Op};
use segue_protocol::view::View;
use tokio::time::{Instant, sleep, timeout};

use super::fixture::{Call, Conduct, Fixture, Pod, TTL, fail_writes, whole};

const E1: Epoch = Epoch::new(1);
const E2: Epoch = Epoch::new(2);
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);

#[tokio::test(start_paused = true)]
async fn a_restart_under_the_same_name_waits_for_the_earlier_lease_and_owns_nothing() {
    let (fixture, _) = Fixture::new();
    let mut first = Pod::start(&fixture, "w").await;
    fixture.place(P0, &first, 1).await;
    let earlier = first.incarnation();
    let crashed = Instant::now();
    first.handle.crash();
    assert_eq!(first.status_of(P0, 1).await, 421);

    let mut second = Pod::start(&fixture, "w").await;
    assert!(crashed.elapsed() > TTL / 2, "the key of the earlier life is left to its lease");
    assert!(second.incarnation() > earlier);
    assert!(second.state().owned.is_empty());
    assert_eq!(second.status_of(P0, 1).await, 421);
    assert!(second.calls.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_restart_waits_for_an_earlier_life_whose_lease_another_participant_shares() {
    let (fixture, _) = Fixture::new();
    let leases = Leases::new(fixture.store.clone());
    let settings = |name| PodSettings { lease_ttl: TTL, ..PodSettings::new(name, "127.0.0.1:1") };
    let mut other = Pod::start_sharing(&fixture, &leases, settings("other")).await;
    let first = Pod::start_sharing(&fixture, &leases, settings("w")).await;
    let earlier = first.incarnation();
    fixture.place(P0, &first, 1).await;
    let crashed = Instant::now();
    first.handle.crash();

    let second = Pod::start_sharing(&fixture, &leases, settings("w")).await;
    assert!((TTL / 2..TTL * 2).contains(&crashed.elapsed()), "after {:?}", crashed.elapsed());
    assert!(second.incarnation() > earlier);
    assert!(second.state().owned.is_empty());
    assert!(other.calls.try_recv().is_err() && other.state().not_ready.is_none(), "it goes on");
}

#[tokio::test(start_paused = true)]
async fn past_its_lease_clock_a_zombie_refuses_and_before_the_lease_can_end_it_stops_its_work() {
    let (fixture, memory) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let sent = pod.send(P0, 1);
    let mut working = pod.arrival().await;
    let state = pod.state();
    memory.set_available(false);
    let (trusted, stands) = (state.trusted_until.unwrap(), state.stands_until.unwrap());

    tokio::time::sleep_until(trusted - Duration::from_millis(5)).await;
    assert_eq!(pod.status_of(P0, 1).await, 200, "a short outage costs nothing");
    tokio::time::sleep_until(trusted).await;
    assert_eq!(pod.status_of(P0, 1).await, 421);
    assert!(!working.answer.is_closed(), "what was accepted has the last third of the TTL to end");

    let answer = timeout(TTL, sent).await.expect("never stopped").unwrap();
    assert!(Instant::now() > trusted && Instant::now() < stands, "stopped in the last third");
    assert_eq!(answer.status(), 500, "it may have been applied: neither a success nor a 421");
    working.answer.closed().await;
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("lease-lost"));
    assert_eq!(pod.handle.ownership().total_in_flight(), 0);

    // The lease ends, and with it the life: the state goes, and another life begins.
    sleep(TTL).await;
    assert!(pod.state().not_ready.is_some());
    memory.set_available(true);
    let before = state.incarnation;
    let state = pod.until("it is ready", |state| state.not_ready.is_none()).await;
    assert!(state.incarnation > before);
    assert_eq!(pod.status_of(P0, 1).await, 421);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_flows_is_cut_off_when_the_lease_runs_out() {
    let (fixture, memory) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let sent = pod.send(P0, 1);
    let working = pod.arrival().await;
    let endless = http_body_util::StreamBody::new(futures_util::stream::pending());
    assert!(working.answer.send(http::Response::new(endless.boxed())).is_ok());
    let mut response = sent.await.unwrap();
    assert_eq!(response.status(), 200);
    let stands = pod.state().stands_until.unwrap();
    memory.set_available(false);
    let cut_off = timeout(TTL, response.body_mut().frame()).await.expect("never cut off");
    assert!(cut_off.unwrap().is_err());
    assert!(Instant::now() < stands);
    assert_eq!(pod.handle.ownership().total_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_lease_clock_costs_nothing() {
    let (fixture, memory) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let before = pod.incarnation();
    let sent = pod.send(P0, 1);
    let working = pod.arrival().await;
    for _ in 0..5 {
        memory.set_available(false);
        sleep(TTL / 3).await;
        memory.set_available(true);
        sleep(TTL / 3).await;
    }
    assert!(working.answer.send(whole("done")).is_ok());
    assert_eq!(sent.await.unwrap().status(), 200);
    assert_eq!(pod.incarnation(), before);
    assert_eq!(pod.status_of(P0, 1).await, 200);
    assert!(pod.state().resyncs >= 5);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_key_is_deleted_fences_at_once_lets_go_and_registers_again() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    while pod.calls.try_recv().is_ok() {}
    let before = pod.incarnation();
    let sent = pod.send(P0, 1);
    let mut working = pod.arrival().await;
    let deleted = Instant::now();
    fixture.commit(vec![], vec![Op::Delete(Keys::One(fixture.keys.pod("w")))]).await;
    assert_eq!(sent.await.unwrap().status(), 500, "what was accepted is stopped");
    working.answer.closed().await;
    assert_eq!(deleted.elapsed(), Duration::ZERO, "at once");
    assert!(matches!(pod.call().await, Call::Began("release", HandoffContext { epoch: E1, .. })));
    let state = pod.until("it is ready", |state| state.incarnation > before && state.not_ready.is_none()).await;
    assert!(state.owned.is_empty());
    assert_eq!(pod.status_of(P0, 1).await, 421, "the assignment is an earlier life's");

    // It takes part again, with fresh state.
    assert!(matches!(pod.call().await, Call::Ended("release", _)));
    fixture.commit(vec![], vec![Op::Delete(Keys::One(fixture.keys.assignment(P0)))]).await;
    fixture.place(P0, &pod, 2).await;
    assert_eq!(pod.status_of(P0, 2).await, 200);
    assert!(matches!(pod.call().await, Call::Began("warm", HandoffContext { epoch: E2, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_let_go_keeps_the_next_life_from_warming_that_partition_only() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let before = pod.incarnation();
    pod.service.let_it("release", Conduct::Fail);
    let gone = [fixture.keys.pod("w"), fixture.keys.assignment(P0)];
    fixture.commit(vec![], gone.map(|key| Op::Delete(Keys::One(key))).into()).await;
    pod.until("it is ready", |state| state.incarnation > before && state.not_ready.is_none()).await;
    fixture.begin(P0, None, &pod, 2).await;
    fixture.place(P1, &pod, 1).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.handoff(P0).await.unwrap().phase, Phase::Warming);
    pod.service.let_it("release", Conduct::Succeed);
    fixture.assigned(P0).await;
    while let Ok(call) = pod.calls.try_recv() {
        if matches!(call, Call::Began("warm", HandoffContext { partition: P0, epoch: E2, .. })) {
            return;
        }
        assert!(!matches!(call, Call::Ended("release", HandoffContext { partition: P1, .. })));
    }
    panic!("not warmed");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_told_to_drain_says_so_and_still_goes_with_its_lease() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    pod.handle.set_draining();
    let view = fixture.until("draining", |view| is_draining(view, "w")).await;
    assert_eq!(view.pods["w"].incarnation(), pod.incarnation(), "the same life");
    pod.until("it knows", |state| state.draining).await;
    pod.handle.emptied().await;
    pod.handle.crash();
    fixture.until("gone", |view| view.pods.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_an_operator_wrote_outlives_a_lost_registration() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    let before = pod.incarnation();
    pod.handle.set_draining();
    fixture.until("draining", |view| is_draining(view, "w")).await;
    fixture.commit(vec![], vec![Op::Delete(Keys::One(fixture.keys.pod("w")))]).await;
    let view = fixture.until("back", |view| view.incarnation_of("w") > before).await;
    assert!(is_draining(&view, "w"), "from its first moment on");
}

pub(super) fn is_draining(view: &View, pod: &str) -> bool {
    view.pods.get(pod).is_some_and(|record| record.value.status == PodStatus::Draining)
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_lost_sight_of_the_store_gives_up_its_lease() {
    let (fixture, store) = Fixture::with_faults();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let before = pod.incarnation();

    // Its keepalives would still arrive.
    store.blind();
    let blind_since = Instant::now();
    fixture.until("its registration is gone", |view| !view.pods.contains_key("w")).await;
    // Half a TTL without progress, then a whole one from the last keepalive on.
    assert!(blind_since.elapsed() <= TTL * 3 / 2 + TTL / 6, "gone after {:?}", blind_since.elapsed());
    assert_eq!(pod.status_of(P0, 1).await, 421);

    store.pass();
    let state = pod.until("it lives again", |state| state.not_ready.is_none()).await;
    assert!(state.incarnation > before);
}

/// Waits until the pod's key has this lease and the pod's own value.
async fn stands_again(fixture: &Fixture, lease: Option<LeaseId>, incarnation: Incarnation) {
    let own = |view: &View| {
        let record = view.pods.get("w").filter(|record| record.lease == lease && record.incarnation() == incarnation);
        record.is_some_and(|it| {
            it.value.status == PodStatus::Ready
                && it.value.capabilities == Capabilities::ALL
                && view.malformed.is_empty()
        })
    };
    fixture.until("the registration stands again", own).await;
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_another_hand_detached_from_its_lease_is_put_back_and_ends_with_it() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let seen = fixture.view().await.pods["w"].clone();
    let by_hand =
        PodRecord { status: PodStatus::Draining, capabilities: Capabilities::default(), ..seen.value.clone() };
    fixture.put(fixture.keys.pod("w"), encode(&by_hand)).await;
    stands_again(&fixture, seen.lease, pod.incarnation()).await;
    assert_eq!(pod.incarnation(), seen.incarnation(), "the same life");
    assert_eq!(pod.status_of(P0, 1).await, 200, "which serves on");
    let crashed = Instant::now();
    pod.handle.crash();
    fixture.until("gone", |view| view.pods.is_empty()).await;
    assert!(crashed.elapsed() <= TTL);
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_another_hand_made_unreadable_is_put_back_and_no_state_is_lost() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    while pod.calls.try_recv().is_ok() {}
    let seen = fixture.view().await.pods["w"].clone();
    fixture.put(fixture.keys.pod("w"), b"{".to_vec()).await;
    stands_again(&fixture, seen.lease, seen.incarnation()).await;
    pod.until("it serves again", |state| state.owned.contains_key(&P0)).await;
    assert_eq!(pod.status_of(P0, 1).await, 200);
    assert!(pod.calls.try_recv().is_err(), "nothing was released or warmed");
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_an_operator_wrote_stands_after_the_registration_was_put_back() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    let seen = fixture.view().await.pods["w"].clone();
    let drains = PodRecord { status: PodStatus::Draining, ..seen.value.clone() };
    let put = Op::Put { key: fixture.keys.pod("w"), value: encode(&drains), lease: seen.lease };
    fixture.commit(vec![], vec![put]).await;
    pod.until("it drains", |state| state.draining).await;
    fixture.put(fixture.keys.pod("w"), b"{".to_vec()).await;
    fixture.until("the registration stands again", |view| view.pods.contains_key("w")).await;
    let view = fixture.view().await;
    assert!(is_draining(&view, "w") && view.pods["w"].lease == seen.lease);
}

#[tokio::test(start_paused = true)]
async fn capabilities_that_another_hand_took_from_a_registration_are_put_back_and_its_drain_is_obeyed() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    let seen = fixture.view().await.pods["w"].clone();
    let by_hand =
        PodRecord { status: PodStatus::Draining, capabilities: Capabilities::default(), ..seen.value.clone() };
    let put = Op::Put { key: fixture.keys.pod("w"), value: encode(&by_hand), lease: seen.lease };
    fixture.commit(vec![], vec![put]).await;
    let own = |view: &View| view.pods.get("w").is_some_and(|it| it.value.capabilities == Capabilities::ALL);
    fixture.until("its capabilities are back", own).await;
    pod.until("it drains", |state| state.draining).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_lost_its_lease_deletes_its_own_key_that_outlived_the_lease() {
    let (fixture, store) = Fixture::with_faults();
    let pod = Pod::start(&fixture, "w").await;
    let seen = fixture.view().await.pods["w"].clone();
    // Nothing that it writes arrives.
    fail_writes(&store, usize::MAX, false);
    fixture.put(fixture.keys.pod("w"), encode(&seen.value)).await;
    fixture.store.revoke(seen.lease.unwrap()).await.unwrap();
    pod.until("it has fenced", |state| state.incarnation == Incarnation::NONE).await;
    sleep(TTL * 3).await;
    assert_eq!(
        fixture.view().await.incarnation_of("w"),
        Incarnation::registered_at(seen.create_revision),
        "the key has outlived its lease"
    );
    store.pass();
    pod.until("it is ready", |state| state.not_ready.is_none()).await;
    let next = fixture.view().await.pods["w"].clone();
    assert!(next.create_revision > seen.create_revision && next.lease.is_some());
}
