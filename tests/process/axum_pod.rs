//! The example of an axum service: counters that move between pods under load.
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use segue_tests::cluster::TestCluster;
use segue_tests::examples::example;
use segue_tests::http::Request;
use segue_tests::ports::free_address;
use segue_tests::process::Process;

const PARTITIONS: usize = 4;

/// Increments the counter of a partition. Returns the count in the response.
fn count(router: SocketAddr, partition: usize) -> Option<u64> {
    let request = Request::post("/", "").header("x-partition", partition).timeout(Duration::from_secs(60));
    let response = request.send(router)?;
    assert_eq!(response.status, 200, "{}", response.body);
    Some(response.body.parse().unwrap())
}

#[test]
fn counters_move_between_axum_pods_and_miss_nothing() {
    let (cluster, router) = (TestCluster::start(env!("CARGO_BIN_EXE_segue")), free_address());
    let config = cluster.config().router("r-0", router).coordinator("c-0", PARTITIONS as u32).quick();
    let mut control = cluster.run("control", &config);
    let folder = cluster.path().join("counters");
    std::fs::create_dir(&folder).unwrap();
    let pod = |name: &str| {
        let mut command = Command::new(example("axum_pod"));
        command.args([&*cluster.etcd().endpoint(), name, &free_address().to_string()]).arg(&folder);
        Process::start(name, cluster.path(), &mut command)
    };
    let first = pod("first");
    control.until("an answer", || count(router, 0) == Some(1));
    let (over, counts) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; PARTITIONS]);
    counts[0].store(1, SeqCst);
    std::thread::scope(|scope| {
        let clients: Vec<_> = counts
            .iter()
            .enumerate()
            .map(|(partition, reached)| {
                let over = &over;
                scope.spawn(move || {
                    while !over.load(SeqCst) {
                        let next = count(router, partition).unwrap();
                        assert_eq!(next, reached.load(SeqCst) + 1, "partition {partition}");
                        reached.store(next, SeqCst);
                    }
                })
            })
            .collect();
        let second = pod("second");
        cluster.settles(PARTITIONS as u32, &["first", "second"]);
        let (status, output) = first.terminate();
        assert!(status.success(), "{output}");
        cluster.settles(PARTITIONS as u32, &["second"]);
        let before = counts.each_ref().map(|count| count.load(SeqCst));
        control.until("counts of the second pod", || {
            clients.iter().any(|client| client.is_finished())
                || counts.iter().zip(before).all(|(count, before)| count.load(SeqCst) > before + 1)
        });
        over.store(true, SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
        drop(second);
    });
}
