//! Partitions that are added while requests arrive, and a lease that ends and is confirmed again.

use std::future::{Future, poll_fn};
use std::pin::pin;

use super::*;

pub(super) const MODELS: &[Model] = models![
    "growing":
    a_partition_that_counts_is_there,
    a_request_that_comes_before_the_partitions_goes_before_one_that_comes_after,
    a_lease_that_is_confirmed_again_lets_everyone_go_on,
];

/// A thread that sees a partition in the count finds it made.
fn a_partition_that_counts_is_there() -> u64 {
    explore(None, || {
        let fixture = Fixture::new(1, Duration::ZERO);
        let worker = fixture.worker(0, |client| {
            if client.worker.partitions() > 0 {
                drop(client.enter(1));
            }
        });
        fixture.table.set_partitions(1);
        fixture.switch(1);
        worker.join().unwrap();
        fixture.assert_at_rest(GateState::Open);
    })
}

/// A worker takes a request before it knows the partitions. A later one of its key enters first and still goes after it.
fn a_request_that_comes_before_the_partitions_goes_before_one_that_comes_after() -> u64 {
    explore(None, || {
        let mut fixture = Fixture::new(1, Duration::from_secs(3600));
        let worker = fixture.worker(0, |client| {
            let early = client.worker.wait_early(client.began + Duration::from_secs(1)).unwrap();
            if block_on(poll_fn(|context| Poll::Ready(pin!(early.known()).poll(context).is_ready()))) {
                return;
            }
            // Loom does not see what tells it.
            while client.worker.partitions() == 0 {
                yield_now();
            }
            let Admission::Queued(later) = client.enter(2).unwrap() else {
                panic!("it overtakes the first");
            };
            let first = early.enter(PARTITION, KEY, 1, client.began + Duration::from_secs(1)).unwrap();
            client.admitted(first).served(1);
            client.admitted(Admission::Queued(later)).served(2);
        });
        fixture.table.set_partitions(1);
        fixture.switch(1);
        fixture.until(GateState::Open);
        worker.join().unwrap();
        fixture.assert_at_rest(GateState::Open);
    })
}

/// The router's lease is over: a request that arrives closes the gate, waits, and starts once the lease is confirmed.
fn a_lease_that_is_confirmed_again_lets_everyone_go_on() -> u64 {
    explore(Some(1), || {
        let mut fixture = Fixture::open(2);
        fixture.table.trust_until(fixture.began);
        let workers = [0, 1]
            .map(|index| fixture.worker(index, move |client| client.permit(index as u32 + 1).served(index as u32 + 1)));
        fixture.table.trust_until(fixture.began + Duration::from_secs(86_400));
        fixture.keep_open(2, 2);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        fixture.assert_at_rest(GateState::Open);
    })
}
