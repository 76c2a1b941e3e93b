//! Measures the pause of a cutover in process (stop, drain, switch and flush) by the number of requests that wait or
//! are in flight.

use std::time::{Duration, Instant as StdInstant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;

mod support;
use support::{open_table, permit, switch, wait};

const P0: PartitionId = PartitionId::new(0);

/// Measures the stop, and the time from the switch until all requests that waited have been admitted. With requests in
/// flight, measures the time from the stop until the partition is switched.
fn pause(criterion: &mut Criterion) {
    // Queued permits have timers, which need a runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let mut group = criterion.benchmark_group("cutover");
    for stashed in [0_u64, 1, 100, 10_000] {
        group.throughput(Throughput::Elements(stashed.max(1)));
        group.bench_with_input(BenchmarkId::new("stashed", stashed), &stashed, |bencher, stashed| {
            let table = open_table(1);
            let worker = table.worker(0);
            let mut epoch = 1;
            bencher.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    epoch += 1;
                    let begin = StdInstant::now();
                    table.stop(P0, HoldCause::Handoff);
                    total += begin.elapsed();
                    let now = Instant::now();
                    let waiting: Vec<_> = (0..*stashed).map(|_| wait(&worker, P0, now)).collect();
                    let begin = StdInstant::now();
                    switch(&table, P0, "pod", epoch);
                    // Each request is admitted and ends at once. The flush admits the next ones as the earlier ones
                    // end.
                    runtime.block_on(async {
                        for queued in waiting {
                            drop(queued.await.expect("let in"));
                        }
                    });
                    total += begin.elapsed();
                }
                total
            });
        });
    }
    for in_flight in [1_usize, 64] {
        group.throughput(Throughput::Elements(1));
        group.bench_with_input(BenchmarkId::new("in flight", in_flight), &in_flight, |bencher, in_flight| {
            let table = open_table(1);
            let worker = table.worker(0);
            let mut epoch = 1;
            bencher.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    epoch += 1;
                    let now = Instant::now();
                    let passes: Vec<_> = (0..*in_flight).map(|_| permit(&worker, P0, now)).collect();
                    let begin = StdInstant::now();
                    table.stop(P0, HoldCause::Handoff);
                    drop(passes);
                    switch(&table, P0, "pod", epoch);
                    total += begin.elapsed();
                }
                total
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pause);
criterion_main!(benches);
