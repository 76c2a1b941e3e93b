//! The public interface of the routing table: workers with requests, and a control side that stops and switches.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_coordination::session::{count_by_tokio, lease_now, suspend};
use segue_protocol::handoff::router::{HoldCause, Stage, Target};
use segue_protocol::ids::{Epoch, Incarnation, PartitionId, Revision};
use segue_protocol::records::PodRecord;
use segue_proxy::routing::permit::{Admission, Permit, QueuedPermit, TableHandle};
use segue_proxy::routing::table::{AdmissionError, StashLimits, Table};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

const I1: Incarnation = Incarnation::registered_at(Revision::new(1));
const E1: Epoch = Epoch::new(1);
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);
const P2: PartitionId = PartitionId::new(2);

const LIMITS: StashLimits = StashLimits {
    max_requests: 100,
    max_bytes: 10_000,
    max_total_bytes: 15_000,
    max_wait: Duration::from_secs(30),
    flush_concurrency: 64,
};

fn table(workers: usize) -> (Arc<Table>, UnboundedReceiver<PartitionId>) {
    count_by_tokio();
    let (table, notices) = Table::new(workers, LIMITS);
    table.set_partitions(8);
    table.trust_until(Instant::now() + Duration::from_secs(3600));
    (table, notices)
}

fn target(pod: &str, epoch: u64) -> Target {
    Target { pod: pod.to_owned(), incarnation: I1, epoch: epoch.into() }
}

fn switch(table: &Table, partition: PartitionId, pod: &str, epoch: u64) {
    let record = PodRecord::new(pod, format!("{pod}:80"));
    DataPlane::switch(table, partition, &target(pod, epoch), &record, false);
}

fn stage(table: &Table, partition: PartitionId) -> Stage {
    DataPlane::stage(table, partition).0
}

fn passes(worker: &TableHandle, order: Option<u64>) -> Permit {
    match worker.enter(P0, order, 10, Instant::now()).unwrap() {
        Admission::Admitted(permit) => permit,
        Admission::Queued(_) => panic!("held"),
    }
}

fn waits(worker: &TableHandle, order: Option<u64>) -> QueuedPermit {
    match worker.enter(P0, order, 10, Instant::now()).unwrap() {
        Admission::Queued(queued) => queued,
        Admission::Admitted(_) => panic!("passed"),
    }
}

async fn is_pending(queued: &mut QueuedPermit) -> bool {
    tokio::select! {
        biased;
        _ = queued => false,
        () = std::future::ready(()) => true,
    }
}

#[tokio::test]
async fn requests_of_a_key_that_their_pod_refuses_go_again_in_the_order_in_which_they_came() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let [first, second, third] = [(); 3].map(|()| passes(&worker, Some(7)));
    // The pod answers as it likes.
    let mut third = third.put_back();
    let mut first = first.put_back();
    let mut second = second.put_back();
    switch(&table, P0, "b", 2);
    assert!(is_pending(&mut third).await && is_pending(&mut second).await, "one at a time");
    let mut permit = (&mut first).await.unwrap();
    permit.delivered();
    assert!(is_pending(&mut third).await);
    (&mut second).await.unwrap().delivered();
    (&mut third).await.unwrap().delivered();
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_leads_nowhere_holds_and_lets_in_once_it_leads_somewhere() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let queued = waits(&worker, None);
    switch(&table, P0, "a", 1);
    let permit = queued.await.unwrap();
    assert_eq!((permit.pod().name.as_str(), permit.epoch()), ("a", E1));
    assert_eq!(stage(&table, P0), Stage::Open(target("a", 1)));
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
    assert_eq!(stage(&table, P0), Stage::Draining(target("a", 1)));
    switch(&table, P0, "b", 2);
    assert_eq!(stage(&table, P0), Stage::Draining(target("a", 1)), "it must not lead elsewhere before it is empty");
    assert!(is_pending(&mut held).await);
    drop(second);
    assert_eq!(stage(&table, P0), Stage::Closed);
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
    assert!(matches!(stage(&table, P0), Stage::Flushing(_)), "the last one's outcome is not known yet");
    third.delivered();
    assert!(matches!(stage(&table, P0), Stage::Open(_)));
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_goes_first_again_and_the_pod_is_left_alone_for_a_while() {
    let (table, mut notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let refused = passes(&worker, Some(7)).put_back();
    let (at, retry_at) = DataPlane::stage(&*table, P0);
    assert_eq!(at, Stage::Closed);
    assert_eq!(retry_at, Some(Instant::now() + Duration::from_millis(5)));
    let mut later = waits(&worker, Some(7));
    while notices.try_recv().is_ok() {}
    switch(&table, P0, "a", 1);
    let again = refused.await.unwrap().put_back();
    assert_eq!(DataPlane::stage(&*table, P0).1, Some(Instant::now() + Duration::from_millis(10)), "longer each time");
    switch(&table, P0, "b", 2);
    let mut permit = again.await.unwrap();
    assert!(is_pending(&mut later).await);
    permit.delivered();
    assert_eq!(later.await.unwrap().pod().name, "b");
}

/// Sends these requests to the pod. Returns their numbers in the order in which they leave.
async fn order_of_leaving(tickets: Vec<(u32, QueuedPermit)>) -> Vec<u32> {
    let mut waiting = tickets;
    let mut left = Vec::new();
    while !waiting.is_empty() {
        for index in 0..waiting.len() {
            let passed = tokio::select! {
                biased;
                permit = &mut waiting[index].1 => Some(permit.unwrap()),
                () = std::future::ready(()) => None,
            };
            if let Some(mut permit) = passed {
                left.push(waiting.remove(index).0);
                permit.delivered();
                break;
            }
        }
    }
    left
}

#[tokio::test(start_paused = true)]
async fn requests_that_were_refused_together_leave_in_the_order_in_which_they_came() {
    let (table, _notices) = table(2);
    let (one, other) = (table.worker(0), table.worker(1));
    switch(&table, P0, "a", 1);
    let (first, second) = (passes(&one, Some(7)), passes(&one, Some(7)));
    // Another worker goes by the same clock.
    tokio::time::advance(Duration::from_micros(1)).await;
    let third = passes(&other, Some(7));
    // Their refusals come in another order than they were sent.
    let mut held = vec![(3, third.put_back()), (4, waits(&other, Some(7)))];
    held.extend([(2, second.put_back()), (1, first.put_back())]);
    switch(&table, P0, "b", 2);
    assert_eq!(order_of_leaving(held).await, [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_back_while_the_router_ends_is_refused() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let permit = passes(&worker, Some(7));
    table.shut_down();
    assert_eq!(permit.put_back().await.unwrap_err(), AdmissionError::Shutdown);
    assert_eq!((table.in_flight(P0), table.stashed(P0)), (0, (0, 0)));
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
    let again = held.await.unwrap().put_back();
    tokio::time::advance(Duration::from_millis(40)).await;
    switch(&table, P0, "b", 2);
    again.await.unwrap().delivered();
    assert_eq!(DataPlane::take_times(&*table, P0).unwrap().pause, Duration::from_millis(43));
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
    assert!(matches!(stage(&table, P0), Stage::Open(_)));
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
async fn ending_refuses_those_who_wait() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let held = waits(&worker, None);
    table.shut_down();
    assert_eq!(held.await.unwrap_err(), AdmissionError::Shutdown);
    assert_eq!(worker.enter(P0, None, 1, Instant::now()).unwrap_err(), AdmissionError::Shutdown);
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
    assert!(matches!(stage(&table, P0), Stage::Flushing(_)));
    tokio::time::advance(Duration::from_millis(250)).await;
    while notices.try_recv().is_ok() {}
    first.give_way();
    assert_eq!(stage(&table, P0), Stage::Open(target("a", 1)), "for the handoff the flush is over");
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
    assert_eq!(stage(&table, P0), Stage::Draining(target("a", 1)));
    assert!(is_pending(&mut second).await);
    first.delivered();
    drop(first);
    tokio::time::advance(Duration::from_millis(30)).await;
    switch(&table, P0, "b", 2);
    second.await.unwrap().delivered();
    let times = DataPlane::take_times(&*table, P0).unwrap();
    assert_eq!(times.pause, Duration::from_millis(30), "counted from the second stop");
}

/// Admits the next of these requests and has its pod refuse or accept it.
async fn tries(tickets: &mut Vec<(u32, QueuedPermit)>, refuses: impl Fn(u32) -> bool) -> (u32, bool) {
    loop {
        for index in 0..tickets.len() {
            let permit = tokio::select! {
                biased;
                permit = &mut tickets[index].1 => permit.unwrap(),
                () = std::future::ready(()) => continue,
            };
            let (number, _) = tickets.remove(index);
            return match refuses(number) {
                true => match permit.refused() {
                    Ok(queued) => {
                        tickets.insert(index, (number, queued));
                        (number, true)
                    }
                    Err(_) => (number, false),
                },
                false => {
                    let mut permit = permit;
                    permit.delivered();
                    (number, true)
                }
            };
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_while_another_is_taken_is_tried_once_more() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let mut tickets = vec![(1, waits(&worker, Some(7)))];
    let mut seen = Vec::new();
    for _ in 0..3 {
        switch(&table, P0, "a", 1);
        seen.push(tries(&mut tickets, |_| true).await);
        if tickets.len() == 1 {
            tickets.push((2, waits(&worker, Some(8))));
        }
    }
    assert_eq!(seen, [(1, true); 3]);
    switch(&table, P0, "a", 1);
    assert_eq!(tries(&mut tickets, |number| number == 1).await, (2, true), "another key's after three");
    assert_eq!(tries(&mut tickets, |_| true).await, (1, false), "refused for good");
    assert!(matches!(stage(&table, P0), Stage::Open(_)), "it holds up no flush again");
    assert_eq!((table.in_flight(P0), table.stashed(P0)), (0, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_not_given_up_while_its_pod_takes_nothing() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let mut tickets = vec![(1, waits(&worker, Some(7))), (2, waits(&worker, Some(8)))];
    let mut tried = [0; 3];
    for _ in 0..20 {
        switch(&table, P0, "a", 1);
        let (number, is_held) = tries(&mut tickets, |_| true).await;
        assert!(is_held, "given up although the pod takes nothing");
        tried[number as usize] += 1;
    }
    assert!(tried[1] >= 5 && tried[2] >= 5, "both are tried: {tried:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_between_two_that_are_refused_for_ever_is_tried() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let mut tickets = vec![(1, waits(&worker, Some(7)))];
    let mut seen = Vec::new();
    for _ in 0..5 {
        switch(&table, P0, "a", 1);
        seen.push(tries(&mut tickets, |number| number != 2).await.0);
        if seen.len() == 1 {
            tickets.push((2, waits(&worker, Some(8))));
            tickets.push((3, waits(&worker, Some(9))));
        }
    }
    assert_eq!(seen, [1, 1, 1, 3, 2], "the oldest three times, the newest, and then one that nobody has tried");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ended_without_an_answer_does_not_show_that_its_pod_takes_any() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let mut tickets = vec![(1, waits(&worker, Some(7)))];
    for _ in 0..3 {
        switch(&table, P0, "a", 1);
        tries(&mut tickets, |_| true).await;
    }
    let ended = waits(&worker, Some(8));
    switch(&table, P0, "a", 1);
    drop(ended.await.unwrap());
    assert_eq!(tries(&mut tickets, |_| true).await, (1, true), "given up although the pod has taken nothing");
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
        while stage(&table, P0) != Stage::Closed {
            std::thread::yield_now();
        }
        switch(&table, P0, "pod", epoch);
        while !matches!(stage(&table, P0), Stage::Open(_)) {
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
