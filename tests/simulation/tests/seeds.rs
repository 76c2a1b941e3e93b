//! A handful of seeds in the ordinary test run; `make simulate` runs a thousand.
#![allow(clippy::unwrap_used)]

use segue_simulation::{Sabotage, Scenario, Sweep, run, run_data_path, sweep_data_path};

#[test]
fn a_few_clusters_keep_every_promise_under_random_faults() {
    let sweep = Sweep { seeds: 12, from: 100_000, jobs: 2, sabotage: None, check_all_twice: false, regressions: false };
    let total = sweep.run(|_| {});
    let told: Vec<String> = total.failures.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{}", told.join("\n\n"));
    assert!(!total.unseen().contains(&"an assignment round closed"), "no cluster did without a leader");
}

#[test]
fn the_same_seed_has_the_same_history() {
    let hash = || run(Scenario { seed: 7, sabotage: None, keeps_lines: false }).unwrap().hash;
    assert_eq!(hash(), hash());
    // A thread of its own, so that nothing a thread remembers counts.
    assert_eq!(std::thread::spawn(hash).join().unwrap(), hash());
}

#[test]
fn a_router_that_shows_a_bounce_is_noticed() {
    let sabotage = Some(Sabotage::ShowBounce);
    let sweep = Sweep { seeds: 20, from: 0, jobs: 2, sabotage, check_all_twice: false, regressions: false };
    assert!(!sweep.run(|_| {}).failures.is_empty());
}

#[test]
fn the_data_path_keeps_every_promise_under_random_clients_pods_and_moves() {
    let total = sweep_data_path(100_000, 100, 2).unwrap();
    assert!(total.violations.is_empty(), "{:#?}", total.violations);
    assert!(total.held_pairs > 100 && total.faults > 100, "{total}");
}

#[test]
fn a_seed_of_the_data_path_nearly_always_has_the_same_history() {
    const SEEDS: u64 = 30;
    let lines = |seed| run_data_path(seed, true).unwrap().lines;
    let same = (0..SEEDS).filter(|seed| lines(*seed) == lines(*seed)).count();
    assert!(same as u64 > SEEDS - 3, "{same} of {SEEDS}: something draws lots beside the seed");
}
