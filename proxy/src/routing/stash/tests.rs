//! Unit tests of the stash. Those of its public behaviour are in `proxy/tests/stash.rs`, and a fuzz target compares it with a
//! plainer twin.

use super::*;

/// Returns the position of the `number`-th request.
fn position(order: Option<u64>, number: u64) -> QueuePosition {
    QueuePosition::new(order, Arrival { at: number, worker: 0 })
}

fn started(stash: &mut Stash<u32>) -> Vec<(QueuePosition, u32)> {
    std::iter::from_fn(|| stash.start_next()).collect()
}

fn names(started: &[(QueuePosition, u32)]) -> Vec<u32> {
    started.iter().map(|(_, name)| *name).collect()
}

#[test]
fn requests_of_one_key_leave_one_at_a_time_and_keys_do_not_wait_for_each_other() {
    let mut stash = Stash::default();
    for (order, name) in [(7, 1), (7, 2), (9, 3), (7, 4)] {
        stash.insert(position(Some(order), name.into()), 1, name);
    }
    stash.begin_flush(64);
    let first = started(&mut stash);
    assert_eq!(names(&first), [1, 3]);
    stash.done(first[1].0);
    assert_eq!(names(&started(&mut stash)), [] as [u32; 0]);
    stash.done(first[0].0);
    let second = started(&mut stash);
    assert_eq!(names(&second), [2]);
    stash.done(second[0].0);
    assert_eq!(names(&started(&mut stash)), [4]);
    assert!(!stash.is_flushed(), "the last one is still being tried");
}

#[test]
fn requests_without_a_key_start_in_order_of_arrival_and_do_not_wait() {
    let mut stash = Stash::default();
    for name in 0..5 {
        stash.insert(position(None, name.into()), 1, name);
    }
    stash.begin_flush(64);
    assert_eq!(names(&started(&mut stash)), [0, 1, 2, 3, 4]);
    assert!(stash.is_flushed());
}

#[test]
fn concurrency_bounds_a_flush() {
    let mut stash = Stash::default();
    for name in 0..10 {
        stash.insert(position(None, name.into()), 1, name);
    }
    stash.begin_flush(3);
    let first = started(&mut stash);
    assert_eq!(first.len(), 3);
    stash.done(first[0].0);
    assert_eq!(started(&mut stash).len(), 1);
}

fn drained(stash: &mut Stash<u32>) -> Vec<u32> {
    let mut order = Vec::new();
    while let Some((position, name)) = stash.start_next() {
        order.push(name);
        stash.done(position);
    }
    order
}

#[test]
fn a_request_that_comes_back_stands_where_its_arrival_puts_it() {
    let mut stash = Stash::default();
    stash.insert(position(Some(7), 3), 1, 3);
    stash.insert(position(Some(7), 4), 1, 4);
    stash.begin_flush(64);
    let (third, name) = stash.start_next().unwrap();
    stash.end_flush();
    stash.insert(third, 1, name);
    stash.done(third);
    // These two had passed the open gate before, and were refused in the other order.
    stash.insert(position(Some(7), 2), 1, 2);
    stash.insert(position(Some(7), 1), 1, 1);
    stash.begin_flush(64);
    assert_eq!(drained(&mut stash), [1, 2, 3, 4]);
    assert!(stash.is_flushed() && stash.queues.is_empty() && stash.bytes() == 0);
}

#[test]
fn a_released_request_that_comes_back_stands_before_one_that_passed_the_gate_after_it() {
    let mut stash = Stash::default();
    (1..=3).for_each(|name| stash.insert(position(Some(7), name.into()), 1, name));
    stash.begin_flush(1);
    let (mut tried, mut number) = (Vec::new(), 3);
    while stash.waiting() > 0 {
        // Arrivals keep the key busy until the rest is relaxed.
        let Some((position_of, name)) = stash.start_next() else { break };
        tried.push((position_of, name));
        if tried.len() < 7 {
            stash.done(position_of);
            number += 1;
            stash.insert(position(Some(7), number), 1, number as u32);
        } else {
            assert!(stash.sent(position_of));
        }
    }
    assert!(stash.is_flushed(), "the gate opens while the relaxed ones are in flight");
    let &(relaxed, name) = tried.last().unwrap();
    stash.end_flush();
    stash.insert(position(Some(7), 100), 1, 100);
    stash.insert(relaxed, 1, name);
    stash.done(relaxed);
    stash.begin_flush(64);
    assert_eq!(stash.start_next().map(|(_, first)| first), None, "others of its key are still being tried");
    tried.iter().rev().skip(1).take(tried.len() - 7).for_each(|(position, _)| stash.done(*position));
    assert_eq!(drained(&mut stash), [name, 100]);
}

#[test]
fn a_key_that_never_rests_is_released_in_order_after_a_bounded_number() {
    let mut stash = Stash::default();
    stash.insert(position(Some(7), 0), 1, 0);
    stash.begin_flush(1);
    let mut name = 0;
    // Another request arrives whenever one is done.
    for _ in 0..10 {
        let Some((started, _)) = stash.start_next() else { break };
        for _ in 0..2 {
            name += 1;
            stash.insert(position(Some(7), name.into()), 1, name);
        }
        stash.done(started);
    }
    let rest = started(&mut stash);
    assert!(names(&rest).is_sorted());
    for (position, _) in rest {
        stash.sent(position);
    }
    assert!(stash.waiting() == 0 && stash.is_flushed());
}

/// A stash whose flush has relaxed the order of key 7, with the requests `waiting` of that key left, and one of the
/// key in progress that has been sent.
fn relaxed(waiting: std::ops::RangeInclusive<u32>) -> Stash<u32> {
    let mut stash = Stash::default();
    stash.begin_flush(1);
    let first = position(Some(7), 0);
    assert!(stash.start_at_once(first), "it uses the strict order up");
    waiting.for_each(|name| stash.insert(position(Some(7), name.into()), 1, name));
    stash
}

#[test]
fn newcomers_of_a_relaxed_key_wait_until_what_waited_before_them_has_been_sent() {
    let mut stash = relaxed(1..=2);
    let first = started(&mut stash);
    assert_eq!(names(&first), [1, 2], "they start together");
    assert!(!stash.is_flushed() && !stash.start_at_once(position(Some(7), 3)), "it would overtake both");
    stash.insert(position(Some(7), 3), 1, 3);
    assert!(stash.start_at_once(position(Some(8), 4)), "another key's requests pass");
    assert!(stash.sent(first[0].0) && !stash.sent(first[0].0));
    assert_eq!(names(&started(&mut stash)), [] as [u32; 0], "the second has not been sent");
    stash.done(first[1].0);
    let second = started(&mut stash);
    assert_eq!(names(&second), [3]);
    assert!(stash.sent(second[0].0) && stash.is_flushed() && stash.start_at_once(position(Some(7), 5)));
}

#[test]
fn a_request_that_waits_for_its_client_holds_up_no_newcomer_of_a_relaxed_key() {
    let mut stash = relaxed(1..=1);
    let first = started(&mut stash);
    assert!(!stash.is_flushed() && stash.give_way(first[0].0));
    assert!(stash.is_flushed() && stash.start_at_once(position(Some(7), 2)));
}

#[test]
fn a_newcomer_does_not_take_the_turn_of_one_that_gave_up() {
    let mut stash = relaxed(1..=3);
    let (first, _) = stash.start_next().unwrap();
    assert_eq!(stash.remove(position(Some(7), 3)), Some(3));
    stash.insert(position(Some(7), 4), 1, 4);
    assert_eq!(names(&started(&mut stash)), [2]);
    stash.sent(first);
    assert_eq!(names(&started(&mut stash)), [] as [u32; 0]);
}

#[test]
fn the_gate_opens_after_a_bounded_number_of_starts_even_if_there_is_always_one_unsent() {
    let mut stash = relaxed(1..=1);
    let (mut unsent, mut name) = (started(&mut stash).remove(0).0, 1);
    while !stash.is_flushed() {
        name += 1;
        assert!(name as usize <= GUARDED_STARTS + 1, "one key keeps the gate from opening");
        stash.insert(position(Some(7), name.into()), 1, name);
        stash.sent(unsent);
        unsent = stash.start_next().unwrap().0;
    }
    assert!(stash.start_at_once(position(Some(7), u64::MAX)));
}

#[test]
fn looking_for_somebody_who_may_start_does_not_bring_the_release_nearer() {
    let mut stash = Stash::default();
    stash.insert(position(Some(7), 0), 1, 0);
    stash.insert(position(Some(7), 1), 1, 1);
    stash.begin_flush(64);
    let first = started(&mut stash);
    for _ in 0..200 {
        assert!(stash.start_next().is_none(), "the first of the queue is still being tried");
    }
    stash.done(first[0].0);
    assert_eq!(names(&started(&mut stash)), [1]);
}

#[test]
fn what_has_grown_is_taken_out_with_all_that_it_weighs() {
    let mut stash = Stash::default();
    (1..=2).for_each(|name| stash.insert(position(Some(7), name.into()), 10, name));
    assert!(stash.grow(position(Some(7), 2), 5) && !stash.grow(position(Some(7), 3), 5));
    assert_eq!(stash.bytes(), 25);
    stash.begin_flush(64);
    let first = started(&mut stash);
    assert_eq!((names(&first), stash.bytes()), (vec![1], 15));
    assert!(!stash.grow(first[0].0, 5), "it has been started");
    assert_eq!((stash.remove(position(Some(7), 2)), stash.bytes()), (Some(2), 0));
}

#[test]
fn one_that_gives_up_leaves_no_trace() {
    let mut stash = Stash::default();
    let first = position(Some(7), 1);
    stash.insert(first, 10, 1);
    stash.insert(position(Some(7), 2), 20, 2);
    assert_eq!(stash.remove(first), Some(1));
    assert_eq!(stash.remove(first), None);
    assert_eq!((stash.waiting(), stash.bytes()), (1, 20));
    stash.begin_flush(64);
    assert_eq!(names(&started(&mut stash)), [2]);
}
