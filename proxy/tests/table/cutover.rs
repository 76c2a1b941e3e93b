//! Stopping, switching and severing.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::{GateStage, HoldCause};
use segue_proxy::routing::permit::{Admission, TableHandle};
use segue_proxy::routing::table::{Bounce, StashLimits, Table};
use tokio::time::Instant;

use super::{E1, LIMITS, P0, is_pending, passes, stage, switch, table, target, waits};

#[tokio::test(start_paused = true)]
async fn a_partition_that_leads_nowhere_holds_and_lets_in_once_it_leads_somewhere() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let queued = waits(&worker, None);
    switch(&table, P0, "a", 1);
    let permit = queued.await.unwrap();
    assert_eq!((permit.pod().name.as_str(), permit.epoch()), ("a", E1));
    assert_eq!(stage(&table, P0), GateStage::Open(target("a", 1)));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_partition_is_empty_only_when_the_last_exchange_has_ended() {
    let (table, mut notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let (first, second) = (passes(&worker, None), passes(&worker, None));
    while notices.try_recv().is_ok() {}
    table.stop(P0, HoldCause::Handoff);
    let mut held = waits(&worker, None);
    drop(first);
    assert_eq!(stage(&table, P0), GateStage::Draining(target("a", 1)));
    switch(&table, P0, "b", 2);
    assert_eq!(stage(&table, P0), GateStage::Draining(target("a", 1)), "it must not lead elsewhere before it is empty");
    assert!(is_pending(&mut held).await);
    drop(second);
    assert_eq!(stage(&table, P0), GateStage::Closed);
    assert_eq!(notices.try_recv(), Ok(P0), "the control side is told");
    switch(&table, P0, "b", 2);
    assert_eq!(held.await.unwrap().pod().name, "b");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_handoff_reopens_while_requests_are_still_in_flight() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let _in_flight = passes(&worker, None);
    table.stop(P0, HoldCause::Handoff);
    let held = waits(&worker, None);
    switch(&table, P0, "a", 1);
    assert_eq!(held.await.unwrap().epoch(), E1);
}

#[tokio::test(start_paused = true)]
async fn severing_reaches_a_request_that_was_let_in_and_has_not_noticed_yet() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let held = waits(&worker, None);
    switch(&table, P0, "a", 1);
    assert_eq!(table.sever(P0), 1);
    assert!(held.await.unwrap().sever_token().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_pause_lasts_until_the_partition_leads_to_a_pod_that_takes_it() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    DataPlane::take_times(&*table, P0);
    table.stop(P0, HoldCause::Handoff);
    let held = waits(&worker, Some(7));
    tokio::time::advance(Duration::from_millis(3)).await;
    switch(&table, P0, "b", 2);
    let again = held.await.unwrap().put_back(Bounce::Unreachable).unwrap();
    tokio::time::advance(Duration::from_millis(40)).await;
    switch(&table, P0, "b", 2);
    again.await.unwrap().delivered();
    assert_eq!(DataPlane::take_times(&*table, P0).unwrap().pause, Duration::from_millis(43));
}

#[tokio::test(start_paused = true)]
async fn severing_reaches_what_is_in_flight_and_nothing_that_comes_later() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let permit = passes(&worker, None);
    let token = permit.sever_token();
    assert_eq!(table.sever(P0), 1);
    assert!(token.is_cancelled());
    assert!(!passes(&worker, None).sever_token().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn severing_reaches_an_exchange_that_asks_for_its_token_only_later() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let permit = passes(&worker, None);
    table.sever(P0);
    assert!(permit.sever_token().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_slow_request_holds_up_its_own_key_alone_and_no_acknowledgement() {
    let (table, mut notices) = table(1);
    let worker = table.worker(0);
    let (first, mut second) = (waits(&worker, Some(7)), waits(&worker, Some(7)));
    switch(&table, P0, "a", 1);
    let mut first = first.await.unwrap();
    assert!(matches!(stage(&table, P0), GateStage::Flushing(_)));
    tokio::time::advance(Duration::from_millis(250)).await;
    while notices.try_recv().is_ok() {}
    first.give_way();
    assert_eq!(stage(&table, P0), GateStage::Open(target("a", 1)), "for the handoff the flush is over");
    assert_eq!(notices.try_recv(), Ok(P0), "the control side is told");
    let times = DataPlane::take_times(&*table, P0).unwrap();
    assert_eq!((times.stashed, times.flush), (2, Duration::from_millis(250)));
    // Others go by, as often as they like; none of its key does.
    for _ in 0..500 {
        passes(&worker, Some(8)).delivered();
        drop(passes(&worker, None));
    }
    let mut third = waits(&worker, Some(7));
    assert!(is_pending(&mut second).await && is_pending(&mut third).await);
    first.delivered();
    (&mut second).await.unwrap().delivered();
    third.await.unwrap().delivered();
    drop(first);
    drop(passes(&worker, Some(7)));
    assert_eq!((table.in_flight(P0), table.stashed(P0)), (0, (0, 0)));
    assert_eq!(DataPlane::take_times(&*table, P0), None, "one cutover is acknowledged once");
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_slow_requests_are_tried_begins_another_cutover() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let (first, mut second) = (waits(&worker, Some(7)), waits(&worker, Some(7)));
    switch(&table, P0, "a", 1);
    let mut first = first.await.unwrap();
    first.give_way();
    DataPlane::take_times(&*table, P0).unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    table.stop(P0, HoldCause::Handoff);
    assert_eq!(stage(&table, P0), GateStage::Draining(target("a", 1)));
    assert!(is_pending(&mut second).await);
    first.delivered();
    drop(first);
    tokio::time::advance(Duration::from_millis(30)).await;
    switch(&table, P0, "b", 2);
    second.await.unwrap().delivered();
    let times = DataPlane::take_times(&*table, P0).unwrap();
    assert_eq!(times.pause, Duration::from_millis(30), "counted from the second stop");
}

/// Workers send requests to one partition from their threads while it moves to and fro. Requests of two epochs are never
/// in flight at the same time, and every request passes.
#[test]
fn requests_of_two_owners_are_never_in_flight_together() {
    const WORKERS: usize = 4;
    const MOVES: u64 = 500;
    let limits = StashLimits { max_requests: 1_000_000, max_bytes: usize::MAX, max_total_bytes: usize::MAX, ..LIMITS };
    let (table, mut notices) = Table::new(WORKERS, limits);
    table.set_partitions(1);
    table.trust_until(Instant::now() + Duration::from_secs(3600));
    switch(&table, P0, "pod", 1);
    // The epoch in the upper half, how many are in flight in the lower.
    let in_flight = Arc::new(AtomicU64::new(1 << 32));
    let begun = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicBool::new(false));

    let workers: Vec<_> = (0..WORKERS)
        .map(|index| {
            let (table, in_flight) = (table.clone(), in_flight.clone());
            let (begun, ended) = (begun.clone(), ended.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(hammer(&table.worker(index), &in_flight, &begun, &ended));
            })
        })
        .collect();

    for epoch in 2..2 + MOVES {
        // A move that finds no request on the way tests nothing.
        let before = begun.load(SeqCst);
        while begun.load(SeqCst) == before {
            std::thread::yield_now();
        }
        table.stop(P0, HoldCause::Handoff);
        while stage(&table, P0) != GateStage::Closed {
            std::thread::yield_now();
        }
        switch(&table, P0, "pod", epoch);
        while !matches!(stage(&table, P0), GateStage::Open(_)) {
            std::thread::yield_now();
        }
    }
    ended.store(true, SeqCst);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!((table.in_flight(P0), table.stashed(P0)), (0, (0, 0)));
    while notices.try_recv().is_ok() {}
}

/// Sends one request after the other until told to end.
async fn hammer(worker: &TableHandle, in_flight: &AtomicU64, begun: &AtomicU64, ended: &AtomicBool) {
    let mut number = 0;
    while !ended.load(SeqCst) {
        number += 1;
        let order = (number % 3 != 0).then_some(number % 5);
        let permit = match worker.enter(P0, order, 1, Instant::now()).unwrap() {
            Admission::Admitted(permit) => permit,
            Admission::Queued(queued) => queued.await.unwrap(),
        };
        let entered = in_flight.fetch_update(SeqCst, SeqCst, |seen| {
            let (epoch, count) = (seen >> 32, seen & 0xffff_ffff);
            assert!(epoch == permit.epoch().get() || count == 0, "{} joins {count} of {epoch}", permit.epoch());
            Some((permit.epoch().get() << 32) | (count + 1))
        });
        assert!(entered.is_ok());
        begun.fetch_add(1, SeqCst);
        if number % 7 == 0 {
            tokio::task::yield_now().await;
        }
        in_flight.fetch_sub(1, SeqCst);
    }
}
