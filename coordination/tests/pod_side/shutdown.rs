//! How a pod ends: it hands its partitions over, and gives up its lease.

use std::time::Duration;

use segue_coordination::pod::PodSettings;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Phase;
use tokio::time::{Instant, sleep};

use super::fixture::{Call, Fixture, Pod, fail_writes, whole};
use super::life::is_draining;

const P0: PartitionId = PartitionId::new(0);

#[tokio::test(start_paused = true)]
async fn a_shutdown_hands_over_then_deregisters() {
    let (fixture, _) = Fixture::new();
    let mut old = Pod::start(&fixture, "old").await;
    let new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    let began = Instant::now();
    let ending = tokio::spawn({
        let handle = old.handle.clone();
        async move { handle.shutdown(Duration::from_secs(100)).await }
    });
    fixture.until("draining", |view| is_draining(view, "old")).await;
    assert_eq!(old.status_of(P0, 1).await, 200, "it serves until another has taken over");
    fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    fixture.in_phase(P0, Phase::Switching).await;
    assert!(fixture.view().await.pods.contains_key("old"));
    fixture.move_to(P0, Phase::Complete).await;
    assert!(!ending.is_finished());
    fixture.end(P0).await;
    ending.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "and no longer than it takes");
    assert!(!fixture.view().await.pods.contains_key("old"), "the lease is revoked, not left to end");
    assert_eq!(old.status_of(P0, 1).await, 421);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_with_nothing_to_hand_over_is_announced_all_the_same() {
    let (fixture, store) = Fixture::with_faults();
    let pod = Pod::start(&fixture, "w").await;
    let announced = tokio::spawn({
        let fixture = fixture.clone();
        async move { fixture.until("draining", |view| is_draining(view, "w")).await }
    });
    tokio::task::yield_now().await;
    let began = Instant::now();
    fail_writes(&store, 2, false);
    pod.handle.shutdown(Duration::from_secs(20)).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    // Otherwise a coordinator could begin a handoff to a pod that is about to leave.
    announced.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_cannot_hand_over_ends_in_time_and_lets_requests_end_before_it_deregisters() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    // It accepts partitions, and nobody plans.
    let _other = Pod::start(&fixture, "other").await;
    fixture.place(P0, &pod, 1).await;
    let sent = pod.send(P0, 1);
    let working = pod.arrival().await;
    let began = Instant::now();
    let ending = tokio::spawn({
        let handle = pod.handle.clone();
        async move { handle.shutdown(Duration::from_secs(20)).await }
    });
    pod.until("it refuses", |state| state.owned.is_empty()).await;
    assert_eq!(began.elapsed(), Duration::from_secs(16));
    assert_eq!(pod.status_of(P0, 1).await, 421);
    sleep(Duration::from_secs(1)).await;
    assert!(fixture.view().await.pods.contains_key("w"), "not while it works on something");
    assert!(working.answer.send(whole("done")).is_ok());
    let answer = sent.await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(answer);
    ending.await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(17));
    assert!(!fixture.view().await.pods.contains_key("w"));
    while let Ok(call) = pod.calls.try_recv() {
        if matches!(call, Call::Ended("release", _)) {
            return;
        }
    }
    panic!("the state was not released");
}

#[tokio::test(start_paused = true)]
async fn the_last_pod_waits_a_moment_for_another_one_and_ends() {
    for comes in [false, true] {
        let (fixture, _) = Fixture::new();
        let pod = Pod::start(&fixture, "w").await;
        let drains = Pod::start(&fixture, "drains").await;
        drains.handle.set_draining();
        fixture.until("it gives up its partitions too", |view| is_draining(view, "drains")).await;
        fixture.place(P0, &pod, 1).await;
        let began = Instant::now();
        let ending = pod.handle.shutdown(Duration::from_secs(100));
        let other = async {
            sleep(Duration::from_secs(1)).await;
            if comes { Some(Pod::start(&fixture, "other").await) } else { None }
        };
        let ((), _other) = tokio::join!(ending, other);
        let expected = if comes { 80 } else { 2 };
        assert_eq!(began.elapsed().as_secs(), expected, "another one comes: {comes}");
        assert!(!fixture.view().await.pods.contains_key("w"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_stops_what_does_not_end() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let sent = pod.send(P0, 1);
    let _working = pod.arrival().await;
    let began = Instant::now();
    pod.handle.shutdown(Duration::from_secs(20)).await;
    assert_eq!(began.elapsed(), Duration::from_secs(20));
    assert_eq!(sent.await.unwrap().status(), 500);
    assert!(fixture.view().await.pods.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_can_be_shut_down_before_it_ever_reached_the_store() {
    let (fixture, memory) = Fixture::new();
    memory.set_available(false);
    let pod = Pod::launch(&fixture, PodSettings::new("w", "127.0.0.1:1"));
    sleep(Duration::from_secs(1)).await;
    assert!(pod.state().not_ready.is_some());
    let began = Instant::now();
    pod.handle.shutdown(Duration::from_secs(20)).await;
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_last_handle_is_dropped_is_gone() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    let layer = pod.handle.layer();
    drop(pod);
    fixture.until("gone", |view| view.pods.is_empty()).await;
    drop(layer);
}
