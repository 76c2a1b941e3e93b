//! A pod that is overloaded or refuses all requests. Clients beyond its capacity get an error at once, the pod gets no
//! more requests than it can serve, and the router recovers with the pod.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, PARTITIONS};
use crate::good::answer;
use crate::judge::{Harm, Verdict, millis};
use crate::service::{AT_A_TIME, WORK};

/// What the router lets the pod have at a time: a worker's share is half of it.
const BOUND: usize = 4 * AT_A_TIME;
/// As many clients as keep the pod busy, and many more.
const ENOUGH: usize = AT_A_TIME;
const TOO_MANY: usize = 300;
const LASTS: Duration = Duration::from_secs(4);
/// How long clients may be refused after a pod has recovered.
const RECOVERY: Duration = Duration::from_secs(30);
/// How long a client that was refused waits.
const PAUSE: Duration = Duration::from_millis(100);
/// The least goodput under overload and afterwards, as a share of the calm one.
const LEAST: f64 = 0.7;

#[derive(Debug, Default)]
struct Load {
    statuses: BTreeMap<u16, u64>,
    errors: u64,
    /// Refused for another reason than is due.
    otherwise: BTreeMap<String, u64>,
    times: Vec<Duration>,
}

/// What clients ask for, of so many partitions. `reason`: why some are refused.
#[derive(Clone, Copy)]
struct Asking {
    path: &'static str,
    partitions: u32,
    reason: &'static str,
}

/// So many clients, each as fast as it is served.
async fn load(router: SocketAddr, asking: Asking, clients: usize) -> Load {
    let load = Arc::new(Mutex::new(Load::default()));
    let (mut running, until) = (JoinSet::new(), Instant::now() + LASTS);
    for key in 0..clients {
        let load = load.clone();
        running.spawn(async move {
            if client(router, asking, key, until, &load).await.is_err() {
                load.lock().unwrap_or_else(PoisonError::into_inner).errors += 1;
            }
        });
    }
    while running.join_next().await.is_some() {}
    std::mem::take(&mut *load.lock().unwrap_or_else(PoisonError::into_inner))
}

async fn client(
    router: SocketAddr,
    asking: Asking,
    key: usize,
    until: Instant,
    load: &Mutex<Load>,
) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(router).await?;
    stream.set_nodelay(true)?;
    let Asking { path, partitions, reason } = asking;
    let partition = key % partitions as usize;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: {partition}\r\nx-key: {key}\r\n\r\n");
    let reason = format!("\"{reason}\"");
    loop {
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let (status, body) = tokio::time::timeout(Duration::from_secs(10), answer(&mut stream)).await??;
        {
            let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
            *load.statuses.entry(status).or_default() += 1;
            if status == 200 {
                load.times.push(began.elapsed());
            } else if !String::from_utf8_lossy(&body).contains(&reason) {
                *load.otherwise.entry(String::from_utf8_lossy(&body).into_owned()).or_default() += 1;
            }
        }
        if status != 200 {
            tokio::time::sleep(PAUSE).await;
        }
        if Instant::now() >= until {
            return Ok(());
        }
    }
}

/// Returns how long it takes until each of so many clients has been served, if that is not too long.
async fn served_again(router: SocketAddr, asking: Asking, clients: usize) -> Option<Duration> {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for key in 0..clients {
        running.spawn(async move {
            loop {
                let load = Mutex::default();
                // One request: its time is over at once.
                client(router, asking, key, Instant::now(), &load).await.ok()?;
                let load = load.into_inner().unwrap_or_else(PoisonError::into_inner);
                if load.statuses.contains_key(&200) {
                    return Some(());
                }
            }
        });
    }
    let all = tokio::time::timeout(RECOVERY, async {
        while let Some(served) = running.join_next().await {
            served.ok()??;
        }
        Some(began.elapsed())
    });
    all.await.ok()?
}

impl Load {
    fn good(&self) -> f64 {
        *self.statuses.get(&200).unwrap_or(&0) as f64 / LASTS.as_secs_f64()
    }

    /// What no client should have seen.
    fn faults(&self) -> u64 {
        let odd = self.statuses.keys().filter(|status| ![200, 503].contains(*status)).count() as u64;
        self.errors + self.otherwise.len() as u64 + odd
    }

    fn told(&self) -> String {
        format!("{:?}, {} errors, {:?}", self.statuses, self.errors, self.otherwise)
    }

    fn shed(&self) -> u64 {
        *self.statuses.get(&503).unwrap_or(&0)
    }

    fn p99(&mut self) -> Duration {
        self.times.sort_unstable();
        self.times.get(self.times.len() * 99 / 100).copied().unwrap_or_default()
    }
}

fn harm(certain: bool, in_time: bool) -> Option<Harm> {
    if certain { Some(Harm::Certain) } else { (!in_time).then_some(Harm::Slow) }
}

pub(crate) async fn run(cluster: &Cluster) -> anyhow::Result<Verdict> {
    let router = cluster.router("r-overload", &format!("upstream.max_in_flight_per_pod = {BOUND}")).await?;
    let asking = Asking { path: "/limited", partitions: 1, reason: "overload" };
    let mut calm = load(router.address, asking, ENOUGH).await;
    cluster.pods.seen.take_most_in_flight();
    let mut over = load(router.address, asking, TOO_MANY).await;
    let most = cluster.pods.seen.take_most_in_flight();
    let mut after = load(router.address, asking, ENOUGH).await;
    let certain = most > BOUND || [&calm, &over, &after].into_iter().any(|load| load.faults() > 0);
    let in_time = over.shed() > 0
        && after.shed() == 0
        && over.good() >= LEAST * calm.good()
        && after.good() >= LEAST * calm.good()
        && over.p99() < WORK * (BOUND / AT_A_TIME) as u32 * 10;
    let harm = harm(certain, in_time);
    let mark = if harm.is_none() { "ok  " } else { "HARM" };
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
    let complaint =
        if harm.is_none() { String::new() } else { format!("\n     {}\n     {}", over.told(), after.told()) };
    Ok(Verdict { line: line + &complaint, harm })
}

/// How long requests are held for a pod that takes nothing, and how many clients ask all the same.
const HELD: &str = "stash.max_wait = \"250ms\"";
const ASKING: usize = 100;
/// What the router may add to what it is asked (`proxy/src/forward/retry_budget.rs`), and its workers.
const AGAIN: f64 = 0.2;
const AGAIN_A_SECOND: f64 = 10.0;
const SAVED: f64 = 100.0;
const WORKERS: f64 = 2.0;

/// A pod that refuses everything for a while gets little more than it is sent anew, and all of it once it accepts.
pub(crate) async fn outage(cluster: &Cluster) -> anyhow::Result<Verdict> {
    let router = cluster.router("r-outage", HELD).await?;
    let asking = Asking { path: "/slow", partitions: PARTITIONS, reason: "no-owner" };
    let calm = load(router.address, asking, ASKING).await;
    let began = Instant::now();
    cluster.pods.seen.refuse(true);
    let during = load(router.address, asking, ASKING).await;
    let got = cluster.pods.seen.refuse(false);
    let asked = during.statuses.values().sum::<u64>() + ASKING as u64;
    let allowed = asked as f64 * (1.0 + AGAIN) + WORKERS * (SAVED + AGAIN_A_SECOND * began.elapsed().as_secs_f64());
    // Each worker finds out by itself, when it next tries the pod.
    let recovery = served_again(router.address, asking, ASKING).await;
    let after = load(router.address, asking, ASKING).await;
    let certain = got as f64 > allowed || [&calm, &during, &after].into_iter().any(|load| load.faults() > 0);
    let in_time =
        got > 0 && recovery.is_some() && during.shed() > 0 && after.shed() == 0 && after.good() >= LEAST * calm.good();
    let harm = harm(certain, in_time);
    let mark = if harm.is_none() { "ok  " } else { "HARM" };
    let line = format!(
        "{mark} outage                   a pod that refuses everything for {} s: asked {asked} times, it got {got} requests \
         (bound {allowed:.0}); {} told so; all served again {}; answers {:.0}/{:.0} a second before/after",
        LASTS.as_secs(),
        during.shed(),
        recovery.map_or("never".into(), |took| format!("after {} ms", millis(took))),
        calm.good(),
        after.good(),
    );
    let complaint =
        if harm.is_none() { String::new() } else { format!("\n     {}\n     {}", during.told(), after.told()) };
    Ok(Verdict { line: line + &complaint, harm })
}
