//! A key at many times its rate, beside well-behaved clients with other keys in the same partitions.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, PARTITIONS};
use crate::good::{Good, answer};
use crate::judge::{Calm, Harm, Verdict, millis};

/// What each key may have in a second, and at once. A well-behaved client sends 50 a second at most.
const RATE: u64 = 60;
const BURST: u64 = 20;
const CLIENTS: usize = 16;
const LASTS: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(10);

/// What the hot key got.
#[derive(Debug, Default)]
struct Got {
    served: u64,
    refused: u64,
}

async fn flood(router: SocketAddr) -> anyhow::Result<Got> {
    let mut stream = TcpStream::connect(router).await?;
    stream.set_nodelay(true)?;
    let (began, mut got) = (Instant::now(), Got::default());
    while began.elapsed() < LASTS {
        let partition = (got.served + got.refused) % u64::from(PARTITIONS);
        let request = format!("GET / HTTP/1.1\r\nhost: h\r\nx-partition: {partition}\r\nx-key: hot\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        match tokio::time::timeout(PATIENCE, answer(&mut stream)).await.context("no answer")?? {
            (200, _) => got.served += 1,
            (429, body) if String::from_utf8_lossy(&body).contains("\"rate\"") => got.refused += 1,
            (status, body) => bail!("{status}: {}", String::from_utf8_lossy(&body)),
        }
    }
    Ok(got)
}

pub(crate) async fn run(cluster: &Cluster) -> anyhow::Result<Verdict> {
    let limits = format!("limits.key = {{ requests_per_second = {RATE}, burst = {BURST} }}");
    let router = cluster.router("r-hot-key", &limits).await?;
    let good = Good::start(router.address, PARTITIONS);
    tokio::time::sleep(Duration::from_secs(1)).await;
    good.take();
    tokio::time::sleep(LASTS).await;
    let measured = good.take();
    ensure!(measured.errors.is_empty(), "not even calm: {:?}", measured.errors.first());
    let calm = Calm { p99: measured.p99(), rss_kib: 0, files: 0 };

    let began = Instant::now();
    let mut floods = JoinSet::new();
    (0..CLIENTS).for_each(|_| drop(floods.spawn(flood(router.address))));
    let mut hot = Got::default();
    while let Some(one) = floods.join_next().await {
        let one = one??;
        hot.served += one.served;
        hot.refused += one.refused;
    }
    let most = BURST + (RATE as f64 * began.elapsed().as_secs_f64()) as u64 + 1;
    let measured = good.take();
    let asked = hot.served + hot.refused;
    let harm = if hot.served > most || hot.served == 0 || !measured.errors.is_empty() || measured.requests == 0 {
        Some(Harm::Certain)
    } else if asked < 10 * most {
        Some(Harm::Late)
    } else {
        (measured.p99() > calm.bound()).then_some(Harm::Slow)
    };
    let mark = if harm.is_none() { "ok  " } else { "HARM" };
    let line = format!(
        "{mark} hot-key                  {asked} requests of one key in {} s: {} served (bound {most}), {} refused with 429 \
         rate | p99 {}/{} ms, {} requests, {} errors of good clients",
        LASTS.as_secs(),
        hot.served,
        hot.refused,
        millis(calm.p99),
        millis(measured.p99()),
        measured.requests,
        measured.errors.len(),
    );
    let complaint = measured.errors.first().map_or_else(String::new, |first| format!("\n     {first}"));
    Ok(Verdict { line: line + &complaint, harm })
}
