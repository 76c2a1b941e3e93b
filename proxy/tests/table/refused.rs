//! Requests that their pod refuses: when each is tried again, and when it is given up.

use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::GateStage;
use segue_proxy::routing::permit::QueuedPermit;
use segue_proxy::routing::table::{AdmissionError, Bounce, StashLimits};
use tokio::time::Instant;

use super::{LIMITS, P0, is_pending, passes, stage, switch, table, waits};

#[tokio::test]
async fn requests_of_a_key_that_their_pod_refuses_go_again_in_the_order_in_which_they_came() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let [first, second, third] = [(); 3].map(|()| passes(&worker, Some(7)));
    // The pod answers as it likes.
    let mut third = third.put_back(Bounce::Unreachable).unwrap();
    let mut first = first.put_back(Bounce::Unreachable).unwrap();
    let mut second = second.put_back(Bounce::Unreachable).unwrap();
    switch(&table, P0, "b", 2);
    assert!(is_pending(&mut third).await && is_pending(&mut second).await, "one at a time");
    let mut permit = (&mut first).await.unwrap();
    permit.delivered();
    assert!(is_pending(&mut third).await);
    (&mut second).await.unwrap().delivered();
    (&mut third).await.unwrap().delivered();
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_goes_first_again_and_the_pod_is_left_alone_for_a_while() {
    let (table, mut notices) = table(1);
    let worker = table.worker(0);
    switch(&table, P0, "a", 1);
    let refused = passes(&worker, Some(7)).put_back(Bounce::Unreachable).unwrap();
    let (at, retry_at) = DataPlane::stage(&*table, P0);
    assert_eq!(at, GateStage::Closed);
    assert_eq!(retry_at, Some(Instant::now() + Duration::from_millis(5)));
    let mut later = waits(&worker, Some(7));
    while notices.try_recv().is_ok() {}
    switch(&table, P0, "a", 1);
    let again = refused.await.unwrap().put_back(Bounce::Unreachable).unwrap();
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
    let mut held = vec![(3, third.put_back(Bounce::Unreachable).unwrap()), (4, waits(&other, Some(7)))];
    held.extend([
        (2, second.put_back(Bounce::Unreachable).unwrap()),
        (1, first.put_back(Bounce::Unreachable).unwrap()),
    ]);
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
    assert_eq!(permit.put_back(Bounce::Unreachable).unwrap().await.unwrap_err(), AdmissionError::Shutdown);
    assert_eq!((table.in_flight(P0), table.stashed(P0)), (0, (0, 0)));
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
                true => match permit.put_back(Bounce::Misdirected) {
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
    tokio::time::advance(Duration::from_secs(1)).await;
    switch(&table, P0, "a", 1);
    assert_eq!(tries(&mut tickets, |number| number == 1).await, (2, true), "another key's after three");
    assert_eq!(tries(&mut tickets, |_| true).await, (1, false), "refused for good");
    assert!(matches!(stage(&table, P0), GateStage::Open(_)), "it holds up no flush again");
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

/// As of a service that comes up: it refuses, takes a request, and refuses again for some milliseconds.
#[tokio::test(start_paused = true)]
async fn no_request_is_given_up_within_a_second_of_its_first_refusal() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let mut tickets = vec![(1, waits(&worker, Some(7)))];
    let begun = Instant::now();
    let mut next = 1;
    while begun.elapsed() < Duration::from_millis(950) {
        next += 1;
        tickets.push((next, waits(&worker, Some(7 + u64::from(next)))));
        let mut taken = false;
        while !taken {
            switch(&table, P0, "a", 1);
            let (number, is_held) = tries(&mut tickets, |number| number == 1).await;
            assert!(is_held, "request {number} was given up after {:?}", begun.elapsed());
            taken = number != 1;
        }
        let tried_at_once = tries(&mut tickets, |number| number == 1).await;
        assert_eq!(tried_at_once, (1, true), "after {:?}", begun.elapsed());
        tokio::time::advance(Duration::from_millis(50)).await;
    }
    assert!(next > 10, "others were taken meanwhile");
    switch(&table, P0, "a", 1);
    assert_eq!(tries(&mut tickets, |_| false).await, (1, true), "and then it is taken itself");
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

#[tokio::test(start_paused = true)]
async fn a_reload_changes_no_deadline_of_a_request_that_was_held_already() {
    let (table, _notices) = table(1);
    let worker = table.worker(0);
    let began = Instant::now();
    let held = waits(&worker, Some(7));
    tokio::time::advance(Duration::from_secs(20)).await;
    table.set_limits(StashLimits { max_wait: Duration::from_secs(1), ..LIMITS });
    switch(&table, P0, "a", 1);
    let again = held.await.unwrap().put_back(Bounce::Unreachable).unwrap();
    assert!(matches!(again.await.unwrap_err(), AdmissionError::Waited(_)));
    assert_eq!(began.elapsed().as_secs(), 30);
}
