//! Partitions that are added while requests arrive, and a lease that ends and is confirmed again.

use super::*;

/// A thread that sees a partition in the count finds it made.
#[test]
fn a_partition_that_counts_is_there() {
    explore("growing::a_partition_that_counts_is_there", None, || {
        let world = World::new(1, Duration::ZERO);
        let worker = world.worker(0, |client| {
            if client.worker.partitions() > 0 {
                drop(client.enter(1));
            }
        });
        world.table.set_partitions(1);
        world.switch(1);
        worker.join().unwrap();
        world.assert_at_rest(GateState::Open);
    });
}

/// The router's lease is over: a request that arrives closes the gate, waits, and starts once the lease is confirmed.
#[test]
fn a_lease_that_is_confirmed_again_lets_everyone_go_on() {
    explore("growing::a_lease_that_is_confirmed_again_lets_everyone_go_on", Some(1), || {
        let mut world = World::open(2);
        world.table.trust_until(world.began);
        let workers = [0, 1]
            .map(|index| world.worker(index, move |client| client.permit(index as u32 + 1).served(index as u32 + 1)));
        world.table.trust_until(world.began + Duration::from_secs(86_400));
        world.keep_open(2, 2);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        world.assert_at_rest(GateState::Open);
    });
}
