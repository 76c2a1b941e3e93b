//! Load on a cluster of writers, whose records are compared with the writers' logs at the end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use segue_demo::check::{Evidence, check};
use segue_demo::load::{LoadSettings, RunningLoad};
use segue_demo::log::Log;
use segue_demo::record::{LogRecord, Outcome};

use super::PARTITIONS;

const PATIENCE: Duration = Duration::from_secs(60);

pub struct CheckedLoad {
    load: RunningLoad,
    started: Instant,
}

/// What a load has shown.
pub struct Shown {
    pub answered: usize,
    pub reads_checked: u64,
    pub log: Vec<LogRecord>,
}

impl Shown {
    /// Returns how many records are by pods whose name begins with this.
    pub fn records_by(&self, pods: &str) -> usize {
        self.log.iter().filter(|record| record.pod.starts_with(pods)).count()
    }
}

impl CheckedLoad {
    /// Sends requests as fast as they are answered.
    pub fn start(routers: &[SocketAddr], clients: u32, bursts: u32, seed: u64) -> Self {
        let load = RunningLoad::start(LoadSettings {
            routers: routers.iter().map(|router| (*router).into()).collect(),
            partitions: PARTITIONS,
            clients,
            bursts,
            rate: 0,
            paces_bursts: false,
            patience: PATIENCE,
            seed,
            partition_header: Some("x-partition".parse().unwrap()),
            snapshot: None,
        });
        CheckedLoad { load, started: Instant::now() }
    }

    /// Waits until requests are answered.
    pub fn flows(&self, what: &str) {
        let done = || self.load.gauge().ok.load(Relaxed);
        eprintln!("{:6.1} s  {} answered; requests must flow {what}", self.started.elapsed().as_secs_f64(), done());
        let (before, begun) = (done(), Instant::now());
        while done() < before + 200 {
            assert!(begun.elapsed() < PATIENCE, "requests do not flow {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the load and fails if a request was lost, repeated, overtaken or answered by the wrong pod.
    pub async fn finish(self, logs: &Path) -> Shown {
        eprintln!("{:6.1} s  the load ends", self.started.elapsed().as_secs_f64());
        let exchanges = self.load.finish().await;
        eprintln!("{:6.1} s  checking", self.started.elapsed().as_secs_f64());
        let log = Log::in_directory(logs).unwrap().read_all().unwrap();
        let answered = exchanges.iter().filter(|exchange| matches!(exchange.outcome, Outcome::Ok)).count();
        let harm = check(&Evidence { exchanges, log: Some(log.clone()), owners: None });
        for (name, count) in harm.counts() {
            assert_eq!(count.count, 0, "{name}: {:?}", count.examples);
        }
        eprintln!("{answered} answered, {} records, {} reads checked", log.len(), harm.reads_checked);
        Shown { answered, reads_checked: harm.reads_checked, log }
    }
}
