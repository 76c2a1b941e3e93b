//! The public interface of the stash: the places of a flush, and requests that are put back.
use segue_proxy::routing::stash::{Arrival, QueuePosition, Stash};

/// Returns the position of the request that arrived as this number.
fn place(order: Option<u64>, number: u32) -> QueuePosition {
    QueuePosition::new(order, Arrival { at: number.into(), worker: 0 })
}

/// Returns a stash in which requests of these keys wait, in this order.
fn holding(keys: &[Option<u64>]) -> Stash<u32> {
    let mut stash = Stash::default();
    for (number, key) in (1..).zip(keys) {
        stash.insert(place(*key, number), 1, number);
    }
    stash
}

fn started(stash: &mut Stash<u32>) -> Vec<u32> {
    std::iter::from_fn(|| stash.start_next()).map(|(_, name)| name).collect()
}

#[test]
fn a_place_that_is_given_away_goes_to_another_key_and_the_own_key_waits_on() {
    let mut stash = holding(&[Some(7), Some(7), Some(8), None, Some(9)]);
    stash.begin_flush(1);
    assert_eq!(started(&mut stash), [1]);
    assert!(stash.give_way(place(Some(7), 1)) && !stash.give_way(place(Some(7), 1)));
    assert_eq!(started(&mut stash), [3]);
    stash.give_way(place(Some(8), 3));
    assert_eq!(started(&mut stash), [4]);
    stash.done(place(Some(8), 3));
    assert_eq!(started(&mut stash), [] as [u32; 0], "one that gave its place away has none to give back");
    stash.done(place(None, 4));
    assert_eq!(started(&mut stash), [5]);
    stash.done(place(Some(7), 1));
    stash.done(place(Some(9), 5));
    assert_eq!(started(&mut stash), [2]);
}

#[test]
fn a_flush_is_under_way_once_nothing_but_what_is_slow_holds_its_key() {
    let mut stash = holding(&[Some(7), Some(7), None]);
    assert!(!stash.is_under_way());
    stash.begin_flush(64);
    assert!(!stash.is_under_way(), "requests wait");
    assert_eq!(started(&mut stash), [1, 3]);
    assert!(!stash.is_under_way(), "the next of the key could start at any time");
    stash.give_way(place(Some(7), 1));
    assert!(stash.is_under_way() && !stash.is_flushed());
    // Newcomers are no part of it.
    assert!(stash.start_at_once(place(Some(8), 4)) && stash.is_under_way());
    stash.done(place(Some(7), 1));
    assert!(!stash.is_under_way(), "the second of the key is due");
    assert_eq!(started(&mut stash), [2]);
    stash.done(place(Some(7), 2));
    assert!(stash.is_under_way() && !stash.is_flushed(), "a newcomer is being tried");
    stash.done(place(Some(8), 4));
    assert!(stash.is_flushed());
}

#[test]
fn a_newcomer_goes_at_once_only_if_nobody_is_before_it() {
    let mut stash = holding(&[Some(7), Some(7), Some(8)]);
    assert!(!stash.start_at_once(place(Some(9), 4)), "there is no flush");
    stash.begin_flush(2);
    assert_eq!(started(&mut stash), [1, 3]);
    assert!(!stash.start_at_once(place(Some(9), 4)), "there is no place");
    stash.give_way(place(Some(7), 1));
    assert!(!stash.start_at_once(place(Some(7), 4)), "two of its key came before it");
    assert!(stash.start_at_once(place(Some(9), 4)));
    assert!(!stash.start_at_once(place(None, 5)), "the place is taken");
}

/// What others send brings the release nearer, but does not release a key that was there when the flush began.
#[test]
fn a_key_behind_a_slow_request_keeps_its_order_although_the_rest_is_released() {
    let mut stash = holding(&[Some(7), Some(7)]);
    stash.begin_flush(1);
    assert_eq!(started(&mut stash), [1]);
    stash.give_way(place(Some(7), 1));
    for number in 3..100 {
        let newcomer = place(Some(u64::from(number) + 1000), number);
        assert!(stash.start_at_once(newcomer), "{number}");
        stash.done(newcomer);
    }
    assert_eq!(started(&mut stash), [] as [u32; 0], "the second is let go before the first one's outcome");
    assert!(!stash.start_at_once(place(Some(7), 100)), "it would overtake");
    stash.insert(place(Some(7), 101), 1, 101);
    stash.done(place(Some(7), 1));
    assert_eq!(started(&mut stash), [2]);
    // As many again have gone one at a time after these two; then the rest goes.
    stash.done(place(Some(7), 2));
    assert_eq!(started(&mut stash), [101]);
    (102..=105).for_each(|number| stash.insert(place(Some(7), number), 1, number));
    stash.done(place(Some(7), 101));
    assert_eq!(started(&mut stash), [102], "the last in strict order");
    assert!(stash.sent(place(Some(7), 102)));
    assert_eq!(started(&mut stash), [103, 104, 105]);
    (103..=105).for_each(|number| assert!(stash.sent(place(Some(7), number))));
    assert!(stash.is_flushed());
}

#[test]
fn a_request_of_higher_rank_lets_other_keys_go_first_and_no_one_of_its_own() {
    let mut stash = holding(&[Some(7), Some(7), Some(8), None]);
    let first = place(Some(7), 1);
    assert_eq!(stash.remove(first), Some(1));
    stash.insert_ranked(first, 1, 1, 1);
    stash.begin_flush(1);
    let mut order = Vec::new();
    while let Some((place, name)) = stash.start_next() {
        order.push(name);
        stash.done(place);
    }
    assert_eq!(order, [3, 4, 1, 2]);
}

#[test]
fn a_pod_is_tried_out_by_one_request_at_a_time_the_newest_if_asked_for() {
    let mut stash = holding(&[None, None, None]);
    stash.insert_ranked(place(None, 4), 1, 1, 4);
    stash.begin_flush(64);
    stash.probe(true);
    assert_eq!(started(&mut stash), [3], "the newest of the lowest rank");
    stash.done(place(None, 3));
    stash.probe(false);
    assert_eq!(started(&mut stash), [1]);
    stash.forget_ranks();
    stash.probe(true);
    stash.done(place(None, 1));
    assert_eq!(started(&mut stash), [4]);
    stash.limit_flush(64);
    assert_eq!(started(&mut stash), [2]);
}
