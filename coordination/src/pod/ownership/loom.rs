//! The pod's admission of requests in all interleavings that loom knows of: `make loom`. Compiled in `tests/loom` alone,
//! which has `explore`.
//!
//! The models cover requests that enter and leave, the shell that closes, opens and waits until no request is inside,
//! and a lease that ends. A lost wake-up is a deadlock, which loom reports. Notifications, and the creation of waits
//! for them, are steps of their own (`pod/sync/modelled.rs`). The insides of tokio's tokens count as one step, and time
//! does not pass.
//!
//! Each of these defects was introduced once; these models failed:
//!
//! | defect | failed |
//! | --- | --- |
//! | a request is counted after the lock is dropped | `a_closed_partition_…`, `nobody_enters_…` |
//! | the last request leaves without notifying, or checks the fence before it is subtracted | `a_closed_partition_…`, `nobody_enters_…`, `work_that_is_held_…` |
//! | `idle` checks before it creates its wait | `a_closed_partition_…`, `nobody_enters_…`, `work_that_is_held_…` |
//! | the fence changes without notifying; a wait for that is created after the lock is dropped | both of `…_is_not_forgotten` |
//! | a new partition is added without notifying; a wait for it is created after the table is unlocked | `a_request_for_a_partition_…` |
//! | work is held under a second lock, or after the partition was given up | `work_that_is_held_…` |
//! | the fence checks what is in flight before it closes, or does not close | `nobody_enters_…` |
//! | a request with the last epoch is admitted whatever the fence's state | `a_closed_partition_…`, `nobody_enters_…` |
//! | a window is extended in two steps | `a_term_that_is_over_…` |
//! | the notification of a new partition precedes its epoch | none: a waiter that wakes too early waits for the epoch itself |

#![warn(dead_code, reason = "a model that is not listed does not run")]

use std::sync::atomic::Ordering::SeqCst;

use ::loom::future::block_on;
use ::loom::thread::{JoinHandle, spawn};
use segue_protocol::ids::{Epoch, PartitionId};

use super::*;
use crate::{Model, explore, models};

pub(crate) const MODELS: &[Model] = models![
    "ownership":
    a_closed_partition_gets_idle_and_stays_so,
    nobody_enters_after_the_fence,
    work_that_is_held_is_waited_for,
    a_request_that_is_ahead_of_the_view_is_not_forgotten,
    a_request_for_a_partition_that_is_not_seen_yet_is_not_forgotten,
    a_term_that_is_over_stays_over,
];

const E1: Epoch = Epoch::new(1);
const E2: Epoch = Epoch::new(2);

const PARTITION: PartitionId = PartitionId::new(0);
/// A partition that the pod does not know at first.
const OTHER_PARTITION: PartitionId = PartitionId::new(1);

/// A pod with a valid lease, and the expected state of the requests in it.
#[derive(Clone)]
struct Pod {
    ownership: Arc<Ownership>,
    working: Arc<std::sync::atomic::AtomicU64>,
}

impl Pod {
    /// Accepts epoch 1 of the partition.
    fn serving() -> Self {
        let ownership = Arc::new(Ownership::new("default"));
        let now = lease_now();
        let state = LeaseState {
            trusted_until: now + Duration::from_secs(86_400),
            stands_until: now + Duration::from_secs(2 * 86_400),
            lost: false,
        };
        ownership.write().window = Arc::new(LeaseWindow::new(state).unwrap());
        ownership.set(PARTITION, Some(E1), E1);
        Pod { ownership, working: Arc::default() }
    }

    fn thread(&self, run: impl FnOnce(Pod) + Send + 'static) -> JoinHandle<()> {
        let pod = self.clone();
        spawn(move || run(pod))
    }

    /// Sends a request. If it is accepted, it works and leaves.
    fn request(&self) {
        if let EntryVerdict::In(in_flight) = self.ownership.try_enter(PARTITION, E1, lease_now()) {
            self.work(in_flight);
        }
    }

    fn work(&self, in_flight: InFlight) {
        self.working.fetch_add(1, SeqCst);
        ::loom::thread::yield_now();
        self.working.fetch_sub(1, SeqCst);
        drop(in_flight);
    }

    fn assert_at_rest(&self) {
        assert_eq!(self.working.load(SeqCst), 0, "said to be idle with requests inside");
    }

    fn refuses(&self) -> bool {
        !matches!(self.ownership.try_enter(PARTITION, E1, lease_now()), EntryVerdict::In(_))
    }
}

/// Once a closed partition was seen idle, no request is inside and none enters, and the wait for it ends.
fn a_closed_partition_gets_idle_and_stays_so() -> u64 {
    explore(Some(4), || {
        let pod = Pod::serving();
        let requests = [0, 1].map(|_| pod.thread(|pod| pod.request()));
        pod.ownership.set(PARTITION, None, E1);
        block_on(pod.ownership.idle(PARTITION));
        pod.assert_at_rest();
        requests.into_iter().for_each(|request| request.join().unwrap());
        assert!(pod.refuses());
        assert_eq!(pod.ownership.total_in_flight(), 0);
    })
}

/// After the fence no request enters, even one that had checked before. Requests inside are notified and waited for.
fn nobody_enters_after_the_fence() -> u64 {
    explore(Some(4), || {
        let pod = Pod::serving();
        let requests = [0, 1].map(|_| pod.thread(|pod| pod.request()));
        pod.ownership.fence();
        assert!(pod.refuses());
        let lost = pod.ownership.read().lost.get(&PARTITION).cloned();
        if let Some(slot) = lost {
            block_on(slot.idle());
        }
        pod.assert_at_rest();
        requests.into_iter().for_each(|request| request.join().unwrap());
        assert!(pod.refuses());
    })
}

/// Work that outlives its request keeps the partition busy: a granted hold is waited for, and none is granted once the
/// partition was seen idle.
fn work_that_is_held_is_waited_for() -> u64 {
    explore(Some(4), || {
        let pod = Pod::serving();
        let request = pod.thread(|pod| {
            let EntryVerdict::In(in_flight) = pod.ownership.try_enter(PARTITION, E1, lease_now()) else { return };
            let owned = in_flight.owned(PARTITION, tokio_util::sync::CancellationToken::new());
            let other = pod.thread(move |pod| {
                if let Some(held) = owned.hold() {
                    pod.work(held);
                }
            });
            pod.work(in_flight);
            other.join().unwrap();
        });
        pod.ownership.set(PARTITION, None, E1);
        block_on(pod.ownership.idle(PARTITION));
        pod.assert_at_rest();
        request.join().unwrap();
        assert_eq!(pod.ownership.total_in_flight(), 0);
    })
}

/// A request with an epoch that this pod does not know yet is admitted as soon as it does, whenever that is.
fn a_request_that_is_ahead_of_the_view_is_not_forgotten() -> u64 {
    explore(None, || {
        let pod = Pod::serving();
        let request = pod.thread(|pod| {
            loop {
                match pod.ownership.try_enter(PARTITION, E2, Instant::now()) {
                    EntryVerdict::In(in_flight) => return pod.work(in_flight),
                    EntryVerdict::Wait(change) => block_on(change),
                    EntryVerdict::Refused(why) => panic!("{why:?}"),
                }
            }
        });
        pod.ownership.set(PARTITION, None, E1);
        pod.ownership.set(PARTITION, Some(E2), E2);
        request.join().unwrap();
        assert_eq!(pod.ownership.total_in_flight(), 0);
    })
}

/// The same, for a partition that is not known yet.
fn a_request_for_a_partition_that_is_not_seen_yet_is_not_forgotten() -> u64 {
    explore(None, || {
        let pod = Pod::serving();
        let request = pod.thread(|pod| {
            loop {
                match pod.ownership.try_enter(OTHER_PARTITION, E1, Instant::now()) {
                    EntryVerdict::In(in_flight) => return pod.work(in_flight),
                    EntryVerdict::Wait(change) => block_on(change),
                    EntryVerdict::Refused(why) => panic!("{why:?}"),
                }
            }
        });
        pod.ownership.set(OTHER_PARTITION, Some(E1), E1);
        request.join().unwrap();
    })
}

/// A lease that is confirmed at the moment at which the window ends does not revive it.
fn a_term_that_is_over_stays_over() -> u64 {
    explore(None, || {
        let pod = Pod::serving();
        let window = pod.ownership.read().window.clone();
        let confirmed = {
            let window = window.clone();
            let until = lease_now() + Duration::from_secs(3 * 86_400);
            spawn(move || window.extend(LeaseState { trusted_until: until, stands_until: until, lost: false }))
        };
        window.end();
        confirmed.join().unwrap();
        assert!(!window.is_trusted(lease_now()) && window.is_over(lease_now()));
    })
}
