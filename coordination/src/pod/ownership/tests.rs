//! The ownership under contention, and at the end of a lease.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use segue_protocol::ids::{Epoch, PartitionId};

use super::*;

const E1: Epoch = Epoch::new(1);
const P0: PartitionId = PartitionId::new(0);

fn trusted() -> LeaseState {
    let now = lease_now();
    LeaseState {
        trusted_until: now + Duration::from_secs(1000),
        stands_until: now + Duration::from_secs(1500),
        lost: false,
    }
}

/// Requests on other threads against a partition that closes and opens: once it is closed and idle, none is inside.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn nothing_gets_in_after_a_closed_partition_was_seen_idle() {
    let ownership = Arc::new(Ownership::new("default"));
    ownership.trust(trusted());
    let (ended, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (ownership, ended) = (ownership.clone(), ended.clone());
            let (inside, accepted) = (inside.clone(), accepted.clone());
            std::thread::spawn(move || {
                while !ended.load(SeqCst) {
                    if let EntryVerdict::In(in_flight) = ownership.try_enter(P0, E1, lease_now()) {
                        inside.fetch_add(1, SeqCst);
                        accepted.fetch_add(1, SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        drop(in_flight);
                    }
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    for _ in 0..500 {
        ownership.set(P0, Some(E1), E1);
        let before = accepted.load(SeqCst);
        while accepted.load(SeqCst) == before {
            std::thread::yield_now();
        }
        ownership.set(P0, None, E1);
        ownership.idle(P0).await;
        for _ in 0..20 {
            assert_eq!(inside.load(SeqCst), 0);
            // Time for a request that was about to enter.
            std::thread::yield_now();
        }
    }
    ended.store(true, SeqCst);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn state_that_was_lost_does_not_wait_for_ever_for_requests_that_nobody_drops() {
    let ownership = Ownership::new("default");
    ownership.trust(trusted());
    ownership.set(P0, Some(E1), E1);
    let EntryVerdict::In(stuck) = ownership.try_enter(P0, E1, lease_now()) else { panic!("refused") };
    ownership.fence();
    assert!(stuck.is_lost());
    ownership.idle(P0).await;
    ownership.trust(trusted());
    ownership.set(P0, None, E1);
    // The next life counts only its own requests.
    ownership.idle(P0).await;
    drop(stuck);
    assert_eq!(ownership.total_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_ownership_that_was_closed_is_never_trusted_again() {
    let ownership = Ownership::new("default");
    ownership.trust(trusted());
    ownership.close();
    ownership.trust(trusted());
    ownership.set(P0, Some(E1), E1);
    assert!(matches!(ownership.try_enter(P0, E1, lease_now()), EntryVerdict::Refused(Rejection::Fenced)));
}
