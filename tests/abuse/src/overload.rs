//! More than a pod can do: the rest is told so at once, what is taken is answered, and it is over when it is over.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::good::answer;
use crate::judge::millis;
use crate::service::{AT_A_TIME, WORK};
use crate::site::Site;

/// What the router lets the pod have at a time: a worker's share is half of it.
const BOUND: usize = 4 * AT_A_TIME;
/// As many clients as keep the pod busy, and many more.
const ENOUGH: usize = AT_A_TIME;
const TOO_MANY: usize = 300;
const LASTS: Duration = Duration::from_secs(4);
/// How long a client that was refused waits.
const PAUSE: Duration = Duration::from_millis(100);
/// The least goodput under overload and afterwards, as a share of the calm one.
const LEAST: f64 = 0.7;

#[derive(Debug, Default)]
struct Load {
    statuses: BTreeMap<u16, u64>,
    errors: u64,
    without_retry_after: u64,
    times: Vec<Duration>,
}

/// So many clients, each as fast as it is served.
async fn load(router: SocketAddr, clients: usize) -> Load {
    let load = Arc::new(Mutex::new(Load::default()));
    let (mut running, until) = (JoinSet::new(), Instant::now() + LASTS);
    for key in 0..clients {
        let load = load.clone();
        running.spawn(async move {
            if client(router, key, until, &load).await.is_err() {
                load.lock().unwrap_or_else(PoisonError::into_inner).errors += 1;
            }
        });
    }
    while running.join_next().await.is_some() {}
    std::mem::take(&mut *load.lock().unwrap_or_else(PoisonError::into_inner))
}

async fn client(router: SocketAddr, key: usize, until: Instant, load: &Mutex<Load>) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(router).await?;
    stream.set_nodelay(true)?;
    // One partition: its pod is the one that has too much to do.
    let request = format!("GET /limited HTTP/1.1\r\nhost: h\r\nx-partition: 1\r\nx-key: {key}\r\n\r\n");
    while Instant::now() < until {
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let (status, body) = tokio::time::timeout(Duration::from_secs(10), answer(&mut stream)).await??;
        {
            let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
            *load.statuses.entry(status).or_default() += 1;
            if status == 200 {
                load.times.push(began.elapsed());
            } else if !body.windows(8).any(|window| window == b"overload") {
                load.without_retry_after += 1;
            }
        }
        if status != 200 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

impl Load {
    fn good(&self) -> f64 {
        *self.statuses.get(&200).unwrap_or(&0) as f64 / LASTS.as_secs_f64()
    }

    fn shed(&self) -> u64 {
        *self.statuses.get(&503).unwrap_or(&0)
    }

    fn p99(&mut self) -> Duration {
        self.times.sort_unstable();
        self.times.get(self.times.len() * 99 / 100).copied().unwrap_or_default()
    }
}

pub(crate) async fn run(site: &Site) -> anyhow::Result<(bool, String)> {
    let router = site.router("r-overload", "", "", &format!("max_in_flight_per_pod = {BOUND}")).await?;
    let mut calm = load(router.address, ENOUGH).await;
    site.pods.seen.take_most_in_flight();
    let mut over = load(router.address, TOO_MANY).await;
    let most = site.pods.seen.take_most_in_flight();
    let mut after = load(router.address, ENOUGH).await;
    let others = |load: &Load| {
        load.errors
            + load.without_retry_after
            + load.statuses.keys().filter(|status| ![200, 503].contains(*status)).count() as u64
    };
    let harmless = over.shed() > 0
        && after.shed() == 0
        && over.good() >= LEAST * calm.good()
        && after.good() >= LEAST * calm.good()
        && most <= BOUND
        && over.p99() < WORK * (BOUND / AT_A_TIME) as u32 * 10
        && [&calm, &over, &after].into_iter().all(|load| others(load) == 0);
    let mark = if harmless { "ok  " } else { "HARM" };
    let line = format!(
        "{mark} overload                 {TOO_MANY} clients on a pod for {ENOUGH}: goodput {:.0}/{:.0}/{:.0} a second \
         before/during/after, {} shed with 503 overload, at most {most} in the pod (bound {BOUND}); p99 of what was \
         taken {}/{}/{} ms",
        calm.good(),
        over.good(),
        after.good(),
        over.shed(),
        millis(calm.p99()),
        millis(over.p99()),
        millis(after.p99()),
    );
    let complaint = if harmless { String::new() } else { format!("\n     {:?} {:?}", over.statuses, after.statuses) };
    Ok((harmless, line + &complaint))
}
