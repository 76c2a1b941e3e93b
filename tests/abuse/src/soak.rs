//! A day's load in small: a steady load with handoffs, clients that come and go, and requests that are given up. Memory
//! must not grow.
//!
//! The router runs as a process of this program whose allocator counts live bytes. So memory that is kept can be told
//! from memory that the allocator has not returned. The allocator below is the system's, which returns memory sooner
//! than that of the binary.
//!
//! # Invariants
//!
//! * Everything else is as in `segue run`.

use std::alloc::System;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cap::Cap;
use clap::Parser as _;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, PARTITIONS};
use crate::gauge::{raise_file_limit, rss_kib};
use crate::good::Good;
use crate::say;
use crate::wire::{H, Raw};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(2);
/// How long a pod stays, and stays away.
const STAYS: Duration = Duration::from_secs(6);
/// What may be more at the end: pages in which a few allocations moved, and a histogram's worth of live bytes.
const RSS_KIB: i64 = 6 << 10;
const LIVE_KIB: i64 = 512;

/// `segue run`, and a line a second in a file beside its configuration: how many bytes are live.
pub(crate) fn counted_router(config: &Path) -> ExitCode {
    let live = config.with_extension("live");
    std::thread::spawn(move || {
        loop {
            let _ = std::fs::write(&live, ALLOCATOR.allocated().to_string());
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let arguments = ["segue".as_ref(), "run".as_ref(), "--config".as_ref(), config.as_os_str()];
    match segue::commands::Cli::parse_from(arguments).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What was seen at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    rss_kib: i64,
    live_kib: i64,
}

pub(crate) async fn run(lasts: Duration) -> anyhow::Result<bool> {
    raise_file_limit(4096);
    let cluster = Cluster::start().await?;
    let router = cluster.counted_router("r-soak").await?;
    let live = cluster.folder().join("r-soak.live");
    let good: Vec<Good> = (0..3).map(|_| Good::start(router.address, PARTITIONS)).collect();
    let mut others = JoinSet::new();
    others.spawn(come_and_go(router.address));
    let pods = cluster.pods.clone();
    others.spawn(async move {
        loop {
            tokio::time::sleep(STAYS).await;
            if let Ok(pod) = pods.start("p-1").await {
                tokio::time::sleep(STAYS).await;
                pod.shut_down(Duration::from_secs(10)).await;
            }
        }
    });
    let (mut samples, mut requests, mut errors) = (Vec::new(), 0, Vec::new());
    let began = Instant::now();
    let mut told = 0;
    while began.elapsed() < lasts {
        tokio::time::sleep(EVERY).await;
        for clients in &good {
            let measured = clients.take();
            requests += measured.requests;
            errors.extend(measured.errors);
        }
        // Kept small, as this process is not what is looked at.
        cluster.pods.seen.take_applied_twice();
        let bytes: i64 = std::fs::read_to_string(&live).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let sample = Sample { rss_kib: rss_kib(router.pid()) as i64, live_kib: bytes >> 10 };
        samples.push(sample);
        let minute = began.elapsed().as_secs() / 60;
        if minute > told {
            told = minute;
            let handoffs = router.metric("segue_cutovers_total{result=\"switched\"}");
            say(&format!(
                "{minute} min: {requests} requests, {} errors, {handoffs} cutovers, rss {} KiB, live {} KiB",
                errors.len(),
                sample.rss_kib,
                sample.live_kib
            ));
        }
    }
    let growth = |value: fn(&Sample) -> i64| growth(&samples.iter().map(value).collect::<Vec<_>>());
    let (rss, live) = (growth(|sample| sample.rss_kib), growth(|sample| sample.live_kib));
    if let Some(first) = errors.first() {
        say(&format!("{} errors, such as: {first}", errors.len()));
    }
    let minutes = lasts.as_secs() / 60;
    say(&format!("soak: minutes={minutes} requests={requests} rss_growth_kib={rss} live_growth_kib={live}"));
    Ok(errors.is_empty() && rss <= RSS_KIB && live <= LIVE_KIB && requests > 0)
}

/// By how much the last fifth is above the second: the first is warming up. Medians, as handoffs come and go.
fn growth(values: &[i64]) -> i64 {
    let fifth = (values.len() / 5).max(1);
    let median = |part: &[i64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part.get(part.len() / 2).copied().unwrap_or(0)
    };
    median(&values[values.len().saturating_sub(fifth)..]) - median(values.get(fifth..2 * fifth).unwrap_or_default())
}

/// Clients that leave: without a word, in the middle of a request, before its answer.
async fn come_and_go(router: SocketAddr) {
    let whole = format!("GET /slow HTTP/1.1\r\n{H}\r\n");
    for round in 0.. {
        if let Ok(mut raw) = Raw::connect(router).await {
            let part = [0, whole.len() / 2, whole.len()][round % 3];
            raw.send(&whole[..part], EVERY).await;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_and_noise_is_not() {
        let steady: Vec<i64> = (0..100).map(|at| 1000 + at % 7).collect();
        assert!(growth(&steady).abs() <= 3);
        let leaking: Vec<i64> = (0..100).map(|at| 1000 + 10 * at + at % 7).collect();
        assert!(growth(&leaking) > 500);
    }
}
