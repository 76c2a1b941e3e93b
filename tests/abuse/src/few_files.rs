//! A router with a low limit of open files, and more silent clients than it has files for.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use segue_tests::http::is_ready;

use crate::cluster::{Cluster, PARTITIONS};
use crate::gauge::{FileLimits, files};
use crate::judge::Verdict;
use crate::wire::{ATTACKER, Raw};

const FILES: usize = 256;
const SILENT: usize = 400;
const NEWCOMERS: usize = 5;
/// Each of them wants a connection to a pod at the same time.
const AT_ONCE: usize = 4;
const PATIENCE: Duration = Duration::from_secs(3);

/// A client that comes until it is served.
async fn is_served(router: std::net::SocketAddr, path: &str, partition: usize) -> bool {
    let begun = Instant::now();
    let partition = partition % PARTITIONS as usize;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: {partition}\r\nconnection: close\r\n\r\n");
    while begun.elapsed() < PATIENCE {
        let Ok(mut raw) = Raw::connect_from(1, router).await else { continue };
        if raw.ask(&request, Duration::from_secs(2)).await.statuses() == [200] {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

pub(crate) async fn run(cluster: &Cluster) -> anyhow::Result<Verdict> {
    let router = cluster.router_with(FileLimits::of(FILES as u64), "r-few", "").await?;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.extend(Raw::connect_from(ATTACKER, router.address).await.ok());
    }
    let mut served = 0;
    for number in 0..NEWCOMERS {
        served += usize::from(is_served(router.address, "/echo", number).await);
    }
    // More than there are idle connections to pods: some have to be made.
    let at_once = join_all((0..AT_ONCE).map(|number| is_served(router.address, "/slow", number))).await;
    let at_once = at_once.into_iter().filter(|served| *served).count();
    let admin = router.admin;
    let ready = tokio::task::spawn_blocking(move || is_ready(admin)).await?;
    let open = files(router.pid());
    let harmless = served == NEWCOMERS && at_once == AT_ONCE && ready && open < FILES;
    let mark = if harmless { "ok  " } else { "HARM" };
    let line = format!(
        "{mark} few-files                {} silent connections to a router of {FILES} files: {served}/{NEWCOMERS} newcomers \
         served, {at_once}/{AT_ONCE} at a time; it {} its store and pages, and has {open} files open",
        silent.len(),
        if ready { "reaches" } else { "has LOST" },
    );
    Ok(Verdict::certain(harmless, line))
}
