//! Held requests: their order, their timers, and the bounds of the stash.

use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_coordination::session::{count_by_tokio, lease_now, suspend};
use segue_protocol::handoff::router::{GateStage, HoldCause};
use segue_proxy::routing::table::{AdmissionError, StashTotal, Table};
use tokio::time::Instant;

use super::{LIMITS, P0, P1, P2, is_pending, passes, stage, switch, table, waits};

#[tokio::test(start_paused = true)]
async fn requests_of_one_key_reach_the_pod_in_order_and_newcomers_go_behind() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let first = waits(&worker, Some(7));
    let mut second = waits(&worker, Some(7));
    switch(&table, P0, "a", 1);
    let mut first = first.await.unwrap();
    assert!(is_pending(&mut second).await);
    let mut third = waits(&worker, Some(7));
    first.delivered();
    let mut second = second.await.unwrap();
    assert!(is_pending(&mut third).await);
    second.delivered();
    let mut third = third.await.unwrap();
    assert!(matches!(stage(&table, P0), GateStage::Flushing(_)), "the last one's outcome is not known yet");
    third.delivered();
    assert!(matches!(stage(&table, P0), GateStage::Open(_)));
}

#[tokio::test(start_paused = true)]
async fn past_the_lease_clock_nothing_passes_until_it_is_confirmed() {
    let (table, mut notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    while notices.try_recv().is_ok() {}
    table.trust_until(Instant::now() + Duration::from_secs(10));
    drop(passes(&worker, None));
    tokio::time::advance(Duration::from_secs(10)).await;
    let held = waits(&worker, None);
    assert_eq!(notices.try_recv(), Ok(P0));
    table.trust_until(Instant::now() + Duration::from_secs(10));
    switch(&table, P0, "a", 1);
    held.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_suspension_the_first_request_sees_that_the_lease_may_be_over() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    table.trust_until(lease_now() + Duration::from_secs(10));
    let passing = passes(&worker, None);
    suspend(Duration::from_secs(10));
    assert!(!passing.may_still_go(), "nor may one that is about to be sent");
    drop(passing);
    let mut held = waits(&worker, None);
    assert!(is_pending(&mut held).await);
    table.trust_until(lease_now() + Duration::from_secs(10));
    switch(&table, P0, "a", 1);
    held.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_let_in_after_the_lease_clock_ran_out_goes_back_instead_of_slipping_through() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let mut held = waits(&worker, None);
    switch(&table, P0, "a", 1);
    // Let in, but the process sleeps before the request is forwarded.
    table.trust_until(Instant::now());
    assert!(is_pending(&mut held).await);
    assert_eq!(table.in_flight(P0), 0);
    table.trust_until(Instant::now() + Duration::from_secs(10));
    switch(&table, P0, "a", 1);
    held.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_held_request_has_its_own_timer_and_is_told_what_held_it() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let held = waits(&worker, None);
    DataPlane::name_cause(&*table, P0, HoldCause::NoOwner);
    let begin = Instant::now();
    assert_eq!(held.await.unwrap_err(), AdmissionError::Waited(HoldCause::NoOwner));
    assert_eq!(begin.elapsed().as_secs(), 30);
    assert_eq!(table.stashed(P0), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_takes_its_request_along() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let (first, second) = (waits(&worker, Some(7)), waits(&worker, Some(7)));
    drop(first);
    assert_eq!(table.stashed(P0), (1, 10));
    switch(&table, P0, "a", 1);
    // Also when it was let in and has not noticed yet.
    drop(second);
    assert_eq!(table.in_flight(P0), 0);
    assert!(matches!(stage(&table, P0), GateStage::Open(_)));
}

#[tokio::test(start_paused = true)]
async fn the_stash_is_bounded_by_count_by_bytes_and_in_total() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let enter = |partition, bytes| worker.enter(partition, None, bytes, Instant::now());
    let held: Vec<_> = (0..100).map(|_| enter(P0, 10).unwrap()).collect();
    assert_eq!(enter(P0, 10).unwrap_err(), AdmissionError::Full);
    let large = enter(P1, 10_000).unwrap();
    assert_eq!(enter(P1, 1).unwrap_err(), AdmissionError::Full);
    assert_eq!(enter(P2, 5_000).unwrap_err(), AdmissionError::Full, "over the total");
    drop((held, large));
    enter(P2, 5_000).unwrap();
}

#[tokio::test(start_paused = true)]
async fn tables_with_one_total_bound_what_waits_in_all_of_them() {
    count_by_tokio();
    let total = StashTotal::default();
    let tables = [(); 2].map(|()| Table::sharing(1, LIMITS, &total));
    tables.iter().for_each(|(table, _)| table.set_partitions(8));
    let workers = tables.each_ref().map(|(table, _)| table.worker(0));
    let enter = |table: usize, bytes| workers[table].enter(P0, None, bytes, Instant::now());
    let first = enter(0, 10_000).unwrap();
    assert_eq!(enter(1, 5_001).unwrap_err(), AdmissionError::Full);
    let second = enter(1, 5_000).unwrap();
    drop(first);
    let third = enter(0, 10_000).unwrap();
    assert_eq!(enter(1, 1).unwrap_err(), AdmissionError::Full);
    drop((second, third));
    enter(1, 10_000).unwrap();
}

#[tokio::test(start_paused = true)]
async fn ending_refuses_those_who_wait() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let held = waits(&worker, None);
    table.shut_down();
    assert_eq!(held.await.unwrap_err(), AdmissionError::Shutdown);
    assert_eq!(worker.enter(P0, None, 1, Instant::now()).unwrap_err(), AdmissionError::Shutdown);
}
