//! Measures the cost of passing the routing table when nothing moves: with one thread, and with two threads on one
//! partition.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant as StdInstant};

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::time::Instant;

mod support;
use segue_protocol::ids::PartitionId;
use support::{open_table, permit};

const P7: PartitionId = PartitionId::new(7);

fn enter_and_leave(criterion: &mut Criterion) {
    let table = open_table(2);
    let now = Instant::now();
    let worker = table.worker(0);
    criterion.bench_function("gate/enter+leave, one thread", |bencher| bencher.iter(|| drop(permit(&worker, P7, now))));
    criterion.bench_function("gate/enter+leave, two threads on one partition", |bencher| {
        bencher.iter_custom(|iterations| both(&table, iterations, now));
    });
    criterion.bench_function("gate/reading the clock, for comparison", |bencher| bencher.iter(Instant::now));
}

/// Returns the time of the slower of two threads that run `iterations` each.
fn both(table: &Arc<segue_proxy::routing::table::Table>, iterations: u64, now: Instant) -> Duration {
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        let run = |index| {
            let barrier = &barrier;
            scope.spawn(move || {
                let worker = table.worker(index);
                barrier.wait();
                let begin = StdInstant::now();
                for _ in 0..iterations {
                    drop(std::hint::black_box(permit(&worker, P7, now)));
                }
                begin.elapsed()
            })
        };
        let (one, two) = (run(0), run(1));
        let join = |handle: std::thread::ScopedJoinHandle<'_, Duration>| handle.join().expect("a bench thread");
        join(one).max(join(two))
    })
}

criterion_group!(benches, enter_and_leave);
criterion_main!(benches);
