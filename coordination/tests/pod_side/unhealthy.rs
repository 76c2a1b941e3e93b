//! Pods whose services say that they are unhealthy, and accept requests all the same.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::PodHandle;
use segue_coordination::store::{Fault, StoreCall};
use segue_protocol::records::{PodRecord, PodStatus, encode};
use segue_protocol::registration::give_way;
use segue_protocol::txn::{Keys, Op};
use tokio::time::sleep;

use super::behind::{Scripted, pod_named};
use super::fixture::Fixture;

/// Starts a pod whose service is up, and returns it once it is ready.
async fn ready(fixture: &Fixture, name: &str, fence: bool) -> (PodHandle, Arc<Scripted>) {
    let (handle, service) = pod_named(fixture, name, fence);
    service.up.send_replace(true);
    service.settled.send_replace(true);
    handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap();
    (handle, service)
}

/// Registers a pod that the test plays.
async fn join(fixture: &Fixture, name: &str) {
    let lease = fixture.store.grant(Duration::from_secs(3600)).await.unwrap();
    let value = encode(&PodRecord::new(name, "127.0.0.1:1"));
    fixture.commit(vec![], vec![Op::put_leased(fixture.keys.pod(name), value, lease)]).await;
}

/// Returns the registered pods that accept partitions.
async fn accepting(fixture: &Fixture) -> Vec<String> {
    let pods = fixture.store.snapshot(&Keys::Prefix(fixture.keys.pod(""))).await.unwrap();
    let records = pods.entries.iter().map(|entry| serde_json::from_slice::<PodRecord>(&entry.value).unwrap());
    records.filter(|record| record.status == PodStatus::Ready).map(|record| record.pod_name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_service_says_that_it_is_unhealthy_stays_until_another_pod_is_ready() {
    for fence in [true, false] {
        let (fixture, _) = Fixture::new();
        let (handle, service) = ready(&fixture, "w", fence).await;
        service.unhealthy.send_replace(true);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(accepting(&fixture).await, ["w"], "fence: {fence}");
        assert!(!*service.told_to_settle.borrow() && handle.status().borrow().not_ready.is_none(), "fence: {fence}");
        join(&fixture, "other").await;
        fixture.until("it gives way", |view| view.pods.get("w").is_none_or(|own| own.value.gives_way)).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(accepting(&fixture).await, ["other"], "fence: {fence}");
        service.unhealthy.send_replace(false);
        let is_back = |view: &segue_protocol::view::View| {
            view.pods.get("w").is_some_and(|own| own.value.status == PodStatus::Ready && !own.value.gives_way)
        };
        fixture.until("it is healthy again, and others may give way to it", is_back).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_service_is_healthy_again_gives_way_to_nobody() {
    let (fixture, _) = Fixture::new();
    let (handle, service) = ready(&fixture, "w", true).await;
    let life = handle.status().borrow().incarnation;
    service.unhealthy.send_replace(true);
    sleep(Duration::from_secs(10)).await;
    service.unhealthy.send_replace(false);
    sleep(Duration::from_secs(10)).await;
    join(&fixture, "other").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(accepting(&fixture).await, ["other", "w"]);
    assert_eq!(handle.status().borrow().incarnation, life);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_down_after_it_was_unhealthy_is_given_up_without_another_pod() {
    let (fixture, _) = Fixture::new();
    let (_handle, service) = ready(&fixture, "w", true).await;
    service.unhealthy.send_replace(true);
    sleep(Duration::from_secs(10)).await;
    service.up.send_replace(false);
    fixture.until("it is gone", |view| view.pods.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn of_pods_whose_services_are_all_unhealthy_one_goes_on() {
    for fence in [true, false] {
        let (fixture, _) = Fixture::new();
        let mut pods = Vec::new();
        for name in ["a", "b", "c"] {
            pods.push(ready(&fixture, name, fence).await);
        }
        fixture.until("all are there", |view| view.pods.len() == 3).await;
        for (_, service) in &pods {
            service.unhealthy.send_replace(true);
        }
        sleep(Duration::from_secs(60)).await;
        assert_eq!(accepting(&fixture).await.len(), 1, "fence: {fence}");
    }
}

/// Returns whether this call marks a registration as one that gives way.
fn marks(call: &StoreCall) -> bool {
    let puts_it = |op: &Op| matches!(op, Op::Put { value, .. } if String::from_utf8_lossy(value).contains("gives_way"));
    matches!(call, StoreCall::Commit(txn) if txn.then.iter().any(puts_it))
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_the_pod_sees_before_the_store_has_answered_stays() {
    let (fixture, faulty) = Fixture::with_faults();
    let (_handle, service) = ready(&fixture, "w", true).await;
    join(&fixture, "other").await;
    sleep(Duration::from_secs(1)).await;
    faulty.next(1, marks, || Fault::hold_answer(sleep(Duration::from_secs(10))));
    service.unhealthy.send_replace(true);
    sleep(Duration::from_secs(9)).await;
    assert!(fixture.view().await.pods["w"].value.gives_way, "the pod has seen it for long");
    fixture.until("it is gone", |view| !view.pods.contains_key("w")).await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_whose_write_was_not_answered_does_not_outlast_the_cause() {
    let (fixture, faulty) = Fixture::with_faults();
    let (handle, service) = ready(&fixture, "w", true).await;
    let life = handle.status().borrow().incarnation;
    join(&fixture, "other").await;
    sleep(Duration::from_secs(1)).await;
    faulty.next(1, marks, || Fault::LoseAnswer);
    service.unhealthy.send_replace(true);
    // Before the pod looks again.
    sleep(Duration::from_millis(500)).await;
    service.unhealthy.send_replace(false);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(faulty.count(marks), 1);
    let own = fixture.view().await.pods["w"].clone();
    assert_eq!((own.incarnation(), own.value.gives_way), (life, false));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_store_does_not_let_give_way_goes_on_and_asks_less_and_less() {
    let (fixture, faulty) = Fixture::with_faults();
    let (handle, service) = ready(&fixture, "w", true).await;
    join(&fixture, "other").await;
    sleep(Duration::from_secs(1)).await;
    faulty.refuse_puts();
    service.unhealthy.send_replace(true);
    sleep(Duration::from_secs(600)).await;
    let asked = faulty.count(marks);
    assert!((20..=60).contains(&asked), "{asked} times in ten minutes");
    assert!(handle.status().borrow().not_ready.is_none());
    assert_eq!(accepting(&fixture).await, ["other", "w"]);
    faulty.pass();
    fixture.until("it is gone", |view| !view.pods.contains_key("w")).await;
}

#[tokio::test(start_paused = true)]
async fn two_pods_that_see_each_other_ready_do_not_both_give_way() {
    let (fixture, _) = Fixture::new();
    join(&fixture, "a").await;
    join(&fixture, "b").await;
    let view = fixture.until("both are there", |view| view.pods.len() == 2).await;
    let mut committed = 0;
    for pod in ["a", "b"] {
        let own = &view.pods[pod];
        let txn = give_way(&view, pod, own.incarnation(), own.lease.unwrap()).unwrap();
        committed += usize::from(fixture.store.commit(txn).await.unwrap().committed());
    }
    assert_eq!(committed, 1);
    let view = fixture.until("one gives way", |view| view.pods.values().any(|it| it.value.gives_way)).await;
    let other = view.pods.iter().find(|(_, it)| !it.value.gives_way).unwrap();
    assert!(give_way(&view, other.0, other.1.incarnation(), other.1.lease.unwrap()).is_none());
}
