//! A pod's registration and lease: how it comes, is lost, and is given up.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use segue_coordination::pod::{Move, PodSettings};
use segue_coordination::protocol::records::{Phase, PodStatus};
use segue_coordination::store::data::{Keys, Op};
use tokio::time::{Instant, sleep, timeout};

use crate::world::{Call, Conduct, Flaky, Pod, TTL, World, whole};

#[tokio::test(start_paused = true)]
async fn a_restart_under_the_same_name_waits_for_the_earlier_lease_and_owns_nothing() {
    let (world, _) = World::new();
    let mut first = Pod::start(&world, "w").await;
    world.place(0, &first, 1).await;
    let earlier = first.incarnation();
    let crashed = Instant::now();
    first.handle.crash();
    assert_eq!(first.status_of(0, 1).await, 421);

    let mut second = Pod::start(&world, "w").await;
    assert!(crashed.elapsed() > TTL / 2, "the key of the earlier life is left to its lease");
    assert!(second.incarnation() > earlier);
    assert!(second.state().owned.is_empty());
    assert_eq!(second.status_of(0, 1).await, 421);
    assert!(second.calls.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn past_its_lease_clock_a_zombie_refuses_and_before_the_lease_can_end_it_stops_its_work() {
    let (world, memory) = World::new();
    let mut pod = Pod::start(&world, "w").await;
    world.place(0, &pod, 1).await;
    let sent = pod.send(0, 1);
    let mut working = pod.arrival().await;
    let state = pod.state();
    memory.set_available(false);
    let (trusted, stands) = (state.trusted_until.unwrap(), state.stands_until.unwrap());

    tokio::time::sleep_until(trusted - Duration::from_millis(5)).await;
    assert_eq!(pod.status_of(0, 1).await, 200, "a short outage costs nothing");
    tokio::time::sleep_until(trusted).await;
    assert_eq!(pod.status_of(0, 1).await, 421);
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
    assert_eq!(pod.status_of(0, 1).await, 421);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_flows_is_cut_off_when_the_lease_runs_out() {
    let (world, memory) = World::new();
    let mut pod = Pod::start(&world, "w").await;
    world.place(0, &pod, 1).await;
    let sent = pod.send(0, 1);
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
    let (world, memory) = World::new();
    let mut pod = Pod::start(&world, "w").await;
    world.place(0, &pod, 1).await;
    let before = pod.incarnation();
    let sent = pod.send(0, 1);
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
    assert_eq!(pod.status_of(0, 1).await, 200);
    assert!(pod.state().resyncs >= 5);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_key_is_deleted_fences_at_once_lets_go_and_registers_again() {
    let (world, _) = World::new();
    let mut pod = Pod::start(&world, "w").await;
    world.place(0, &pod, 1).await;
    while pod.calls.try_recv().is_ok() {}
    let before = pod.incarnation();
    let sent = pod.send(0, 1);
    let mut working = pod.arrival().await;
    let deleted = Instant::now();
    world.commit(vec![], vec![Op::Delete(Keys::One(world.keys.pod("w")))]).await;
    assert_eq!(sent.await.unwrap().status(), 500, "what was accepted is stopped");
    working.answer.closed().await;
    assert_eq!(deleted.elapsed(), Duration::ZERO, "at once");
    assert!(matches!(pod.call().await, Call::Began("release", Move { epoch: 1, .. })));
    let state = pod.until("it is ready", |state| state.incarnation > before && state.not_ready.is_none()).await;
    assert!(state.owned.is_empty());
    assert_eq!(pod.status_of(0, 1).await, 421, "the assignment is an earlier life's");

    // It takes part again, with fresh state.
    assert!(matches!(pod.call().await, Call::Ended("release", _)));
    world.place(0, &pod, 2).await;
    assert_eq!(pod.status_of(0, 2).await, 200);
    assert!(matches!(pod.call().await, Call::Began("warm", Move { epoch: 2, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_let_go_keeps_the_next_life_from_warming_that_partition_only() {
    let (world, _) = World::new();
    let mut pod = Pod::start(&world, "w").await;
    world.place(0, &pod, 1).await;
    let before = pod.incarnation();
    pod.service.let_it("release", Conduct::Fail);
    world.commit(vec![], vec![Op::Delete(Keys::One(world.keys.pod("w")))]).await;
    pod.until("it is ready", |state| state.incarnation > before && state.not_ready.is_none()).await;
    world.begin(0, None, &pod, 2).await;
    world.place(1, &pod, 1).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.handoff(0).await.unwrap().phase, Phase::Warming);
    pod.service.let_it("release", Conduct::Succeed);
    world.in_phase(0, Phase::Ready).await;
    while let Ok(call) = pod.calls.try_recv() {
        if matches!(call, Call::Began("warm", Move { partition: 0, epoch: 2, .. })) {
            return;
        }
        assert!(!matches!(call, Call::Ended("release", Move { partition: 1, .. })));
    }
    panic!("not warmed");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_told_to_drain_says_so_and_still_goes_with_its_lease() {
    let (world, _) = World::new();
    let pod = Pod::start(&world, "w").await;
    pod.handle.set_draining();
    let view = world.until("draining", |view| is_draining(view, "w")).await;
    assert_eq!(view.pods["w"].create_revision, pod.incarnation(), "the same life");
    pod.until("it knows", |state| state.draining).await;
    pod.handle.emptied().await;
    pod.handle.crash();
    world.until("gone", |view| view.pods.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_an_operator_wrote_outlives_a_lost_registration() {
    let (world, _) = World::new();
    let pod = Pod::start(&world, "w").await;
    let before = pod.incarnation();
    pod.handle.set_draining();
    world.until("draining", |view| is_draining(view, "w")).await;
    world.commit(vec![], vec![Op::Delete(Keys::One(world.keys.pod("w")))]).await;
    let view = world.until("back", |view| view.incarnation_of("w") > before).await;
    assert!(is_draining(&view, "w"), "from its first moment on");
}

fn is_draining(view: &segue_coordination::protocol::view::View, pod: &str) -> bool {
    view.pods.get(pod).is_some_and(|record| record.value.status == PodStatus::Draining)
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_hands_over_then_deregisters() {
    let (world, _) = World::new();
    let mut old = Pod::start(&world, "old").await;
    let new = Pod::start(&world, "new").await;
    world.place(0, &old, 1).await;
    let began = Instant::now();
    let ending = tokio::spawn({
        let handle = old.handle.clone();
        async move { handle.shutdown(Duration::from_secs(100)).await }
    });
    world.until("draining", |view| is_draining(view, "old")).await;
    assert_eq!(old.status_of(0, 1).await, 200, "it serves until another has taken over");
    world.begin(0, Some(&old), &new, 2).await;
    world.in_phase(0, Phase::Ready).await;
    world.move_to(0, Phase::Syncing).await;
    world.in_phase(0, Phase::Switching).await;
    assert!(world.view().await.pods.contains_key("old"));
    world.move_to(0, Phase::Complete).await;
    world.until("released", |view| !view.acks.is_empty() && view.acks[&0].pods.len() == 3).await;
    assert!(!ending.is_finished());
    world.delete(0).await;
    ending.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "and no longer than it takes");
    assert!(!world.view().await.pods.contains_key("old"), "the lease is revoked, not left to end");
    assert_eq!(old.status_of(0, 1).await, 421);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_with_nothing_to_hand_over_is_announced_all_the_same() {
    let (mut world, memory) = World::new();
    let flaky = Arc::new(Flaky::new(memory));
    world.pods_store = flaky.clone();
    let pod = Pod::start(&world, "w").await;
    let announced = tokio::spawn({
        let world = world.clone();
        async move { world.until("draining", |view| is_draining(view, "w")).await }
    });
    tokio::task::yield_now().await;
    let began = Instant::now();
    flaky.fail_next(2, false);
    pod.handle.shutdown(Duration::from_secs(20)).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    // Else a coordinator could begin to hand something to a pod that is about to go.
    announced.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_cannot_hand_over_ends_in_time_and_lets_requests_end_before_it_deregisters() {
    let (world, _) = World::new();
    let mut pod = Pod::start(&world, "w").await;
    world.place(0, &pod, 1).await;
    let sent = pod.send(0, 1);
    let working = pod.arrival().await;
    let began = Instant::now();
    let ending = tokio::spawn({
        let handle = pod.handle.clone();
        async move { handle.shutdown(Duration::from_secs(20)).await }
    });
    pod.until("it refuses", |state| state.owned.is_empty()).await;
    assert_eq!(began.elapsed(), Duration::from_secs(16));
    assert_eq!(pod.status_of(0, 1).await, 421);
    sleep(Duration::from_secs(1)).await;
    assert!(world.view().await.pods.contains_key("w"), "not while it works on something");
    assert!(working.answer.send(whole("done")).is_ok());
    let answer = sent.await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(answer);
    ending.await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(17));
    assert!(world.view().await.pods.is_empty());
    while let Ok(call) = pod.calls.try_recv() {
        if matches!(call, Call::Ended("release", _)) {
            return;
        }
    }
    panic!("the state was not released");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_stops_what_does_not_end() {
    let (world, _) = World::new();
    let mut pod = Pod::start(&world, "w").await;
    world.place(0, &pod, 1).await;
    let sent = pod.send(0, 1);
    let _working = pod.arrival().await;
    let began = Instant::now();
    pod.handle.shutdown(Duration::from_secs(20)).await;
    assert_eq!(began.elapsed(), Duration::from_secs(20));
    assert_eq!(sent.await.unwrap().status(), 500);
    assert!(world.view().await.pods.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_can_be_shut_down_before_it_ever_reached_the_store() {
    let (world, memory) = World::new();
    memory.set_available(false);
    let pod = Pod::launch(&world, PodSettings::new("w", "127.0.0.1:1"));
    sleep(Duration::from_secs(1)).await;
    assert!(pod.state().not_ready.is_some());
    let began = Instant::now();
    pod.handle.shutdown(Duration::from_secs(20)).await;
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_last_handle_is_dropped_is_gone() {
    let (world, _) = World::new();
    let pod = Pod::start(&world, "w").await;
    let layer = pod.handle.layer();
    drop(pod);
    world.until("gone", |view| view.pods.is_empty()).await;
    drop(layer);
}
