//! Orders of operators survive the death of the leader (SIGKILL): the next one acts on what it finds in the store.

use segue_tests::process::until;
use serde_json::Value;

use super::operated::Operated;
use crate::writers::{LeaseTtls, PARTITIONS};

/// Returns how often an operator's order has moved a partition.
fn moves_by_operators(cluster: &Operated, partition: &str) -> usize {
    let history = cluster.json(&["history", partition]);
    let handoffs: &Vec<Value> = history["handoffs"].as_array().unwrap();
    handoffs.iter().filter(|handoff| handoff["cause"] == "operator").count()
}

#[test]
fn the_next_leader_carries_out_what_a_killed_one_has_accepted() {
    let mut cluster =
        Operated::with_leases(LeaseTtls { coordinator: 2, ..LeaseTtls::LONG }, &["w-0", "w-1", "w-2", "w-3"]);
    let (moved, pinned) = (cluster.owned("w-0")[0], cluster.owned("w-2")[0]);
    let (a_move, a_pin, share) = (moved.to_string(), pinned.to_string(), cluster.owned("w-2"));
    // While planned moves are paused, the first leader accepts the other orders and carries none of them out.
    cluster.does(&["pause", "--why", "incident"]);
    cluster.does(&["pin", &a_pin]);
    cluster.does(&["move", &a_move, "--to", "w-1", "--no-wait"]);
    cluster.does(&["drain", "w-2", "--no-wait"]);
    cluster.0.take("c-0").kill();

    // The next one has something to do at once, which shows that it plans: a pod is gone.
    cluster.0.take("w-3").kill();
    cluster.does(&["forget", "pod", "w-3", "--force", "--yes"]);
    cluster.0.coordinator("c-1");
    until("the failover of w-3", || cluster.0.status().is_at_rest(PARTITIONS));
    assert_eq!(
        (cluster.owned("w-2"), cluster.owner(moved).as_str()),
        (share, "w-0"),
        "it obeys the pause and the drain"
    );

    cluster.does(&["resume"]);
    cluster.does(&["wait", "drained", "w-2"]);
    cluster.does(&["wait", "moved", &a_move]);
    assert_eq!((cluster.owned("w-2"), cluster.owner(moved).as_str()), (vec![], "w-1"));
    // The pin outlives the drain that was stronger.
    cluster.does(&["undrain", "w-2"]);
    cluster.does(&["wait", "moved", &a_pin]);
    cluster.does(&["wait", "settled"]);
    assert_eq!((cluster.owner(pinned).as_str(), cluster.owner(moved).as_str()), ("w-2", "w-1"));
}

#[test]
fn the_next_leader_answers_once_what_was_ordered_while_nobody_led() {
    let mut cluster = Operated::with_leases(LeaseTtls { coordinator: 2, ..LeaseTtls::LONG }, &["w-0", "w-1", "w-2"]);
    let owned = cluster.owned("w-0");
    let [moved, kept] = [owned[0], owned[1]].map(|partition| partition.to_string());
    cluster.0.take("c-0").kill();
    let orders = [
        (&["move", &moved, "--to", "w-1", "--id", "a-move"][..], "operation a-move waits for"),
        (&["drain", "w-2"], "pod w-2 owns "),
        (&["pin", &kept, "--id", "a-pin"], "operation a-pin waits for"),
    ];
    let waiting = orders.map(|(words, waits)| (words, cluster.begin(words, waits)));

    cluster.0.coordinator("c-1");
    for (words, command) in waiting {
        cluster.finish(words, command);
    }
    assert_eq!((cluster.owner(owned[0]).as_str(), cluster.owner(owned[1]).as_str()), ("w-1", "w-0"));
    assert_eq!(cluster.owned("w-2"), [0; 0]);
    assert_eq!(moves_by_operators(&cluster, &moved), 1);

    // The orders have ended, and asking for them again gives the answers of the first time.
    cluster.does(&["unpin", &moved]);
    cluster.does(&["unpin", &kept]);
    assert!(cluster.does(&["move", &moved, "--to", "w-1", "--id", "a-move", "--no-wait"]).contains("moves to w-1"));
    assert!(cluster.does(&["pin", &kept, "--id", "a-pin"]).contains("is pinned to w-0"));
    assert_eq!(cluster.json(&["status"])["pins"], serde_json::json!([]));
    assert_eq!(moves_by_operators(&cluster, &moved), 1);
}
