//! Measures the cost of routing a request: finding its partition in its head, and passing the routing table.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use http::request::Parts;
use http::{HeaderName, Request};
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{KeySource, PartitionSource};
use tokio::time::Instant;

mod support;
use support::{PARTITIONS, open_table, permit};

/// Returns a request head like that of a browser behind a load balancer.
fn head() -> Parts {
    let mut request = Request::get("/persons/0190a5b2-7c3e-7d11-8a58-2b6f4d0f6a10/events?after=17");
    for (name, value) in [
        ("host", "persons.example"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
        ("accept", "application/json"),
        ("accept-encoding", "gzip, deflate, br"),
        ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
        ("x-forwarded-for", "192.0.2.7"),
        ("x-request-id", "6c5b1f1e"),
        ("x-partition", "41"),
    ] {
        request = request.header(name, value);
    }
    request.body(()).expect("a valid head").into_parts().0
}

fn routing(criterion: &mut Criterion) {
    let head = head();
    let number = PartitionSource::Number { header: HeaderName::from_static("x-partition"), order_by: None };
    let path = KeySource::Path("/persons/{key}".parse().expect("a valid template"));
    let key = PartitionSource::Key { source: path, hash: KeyHash::Murmur2 };
    let table = open_table(1);
    let worker = table.worker(0);
    for (name, source) in [("by header", number), ("by key in the path, murmur2", key)] {
        criterion.bench_function(&format!("routing/partition {name}"), |bencher| {
            bencher.iter(|| black_box(source.locate(black_box(&head), PARTITIONS)));
        });
        criterion.bench_function(&format!("routing/partition {name}, clock, gate and lease"), |bencher| {
            bencher.iter(|| {
                let located = source.locate(black_box(&head), PARTITIONS).expect("a partition");
                drop(black_box(permit(&worker, located.partition, Instant::now())));
            });
        });
    }
}

criterion_group!(benches, routing);
criterion_main!(benches);
