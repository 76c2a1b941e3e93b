//! A single measurement: a cluster in this process against a real etcd, a checked load, and partitions that move.
//!
//! A cutover of one partition finds a store that has written nothing for some milliseconds. To compare, the time of a put
//! into such a store is measured under the same load, before and after the moves.
//!
//! The bench begins moves by writing their records, as the coordinator does, so that the wanted number begins at once.
//! Everything after that is production code. The moves swap partitions between two pods: the placement stays balanced, and
//! the coordinator plans no other move.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use segue_coordination::session::{Update, Watcher};
use segue_coordination::store::{EtcdOptions, EtcdStore, Store};
use segue_demo::check::{Evidence, Harm, check};
use segue_demo::clock::Nanos;
use segue_demo::cluster::Cluster;
use segue_demo::load::{LoadSettings, RunningLoad};
use segue_demo::measure::{Distribution, Latencies, latencies};
use segue_demo::record::Outcome;
use segue_demo::timeline::{Timeline, windows};
use segue_demo::writer::names;
use segue_demo::{Options, clock};
use segue_protocol::ids::{Epoch, PartitionId, Revision};
use segue_protocol::records::{Handoff, encode};
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use segue_protocol::view::View;
use segue_tests::etcd::Etcd;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);
/// Time without moves before and after the measurement, for the steady latency.
const STEADY: Duration = Duration::from_millis(700);
/// Time between two puts without moves.
const PUT_PAUSE: Duration = Duration::from_millis(20);
/// Number of records that one transaction writes. etcd accepts 128 operations in a transaction.
const BEGUN_TOGETHER: usize = 64;

/// The moves of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Moves {
    /// The bench begins `at_once` moves at a time, `rounds` times.
    Begun { at_once: u32, rounds: u32 },
    /// A pod hands its partitions over, leaves and comes back. The coordinator plans the moves of half of all
    /// partitions.
    Planned,
}

/// The results of a measurement.
#[derive(Debug)]
pub(crate) struct Measurement {
    /// Time for which a router held a partition beyond the longest drain of any router, for each router and move.
    pub(crate) pause: Distribution,
    /// The same times including the drain.
    pub(crate) whole: Distribution,
    /// Latencies that clients saw.
    pub(crate) latency: Latencies,
    /// Times of puts while nothing moved.
    pub(crate) put_times: Vec<Nanos>,
    /// The same while partitions moved.
    pub(crate) puts_amid: Distribution,
    /// Time of the slowest round, from its start until nothing moved any more.
    pub(crate) moved_in: Duration,
    /// Number of moves.
    pub(crate) moves: u64,
    /// Transactions that wrote to the store, per move.
    pub(crate) transactions: f64,
    /// Keys put, per move.
    pub(crate) puts: f64,
    /// Most requests that waited for one partition in one router.
    pub(crate) stashed: u64,
    /// Number of requests that were refused.
    pub(crate) refused: u64,
    pub(crate) requests: u64,
    pub(crate) harm: Harm,
}

/// The client URL of the etcd that the cluster uses.
#[derive(Debug)]
struct EtcdOfDemo(String);

impl segue_demo::etcd::Etcd for EtcdOfDemo {
    fn url(&self) -> &str {
        &self.0
    }

    fn connect(&self) -> Arc<dyn Store> {
        let store = EtcdStore::connect(EtcdOptions::new([&self.0]));
        Arc::new(store.unwrap_or_else(|error| panic!("{}: {error}", self.0)))
    }
}

/// Starts a cluster, measures the moves and stops the cluster.
pub(crate) async fn measure(etcd: &Etcd, options: Options, moves: Moves) -> anyhow::Result<Measurement> {
    let timeline = Arc::new(Timeline::default());
    let options = Options { etcd: Some(Arc::new(EtcdOfDemo(etcd.endpoint()))), pods: 2, ..options };
    let mut cluster = Cluster::start(&options, timeline.clone()).await?;
    ensure!(cluster.settled(PATIENCE).await, "the cluster did not get ready: {:?}", cluster.snapshot());
    let load = RunningLoad::start(load_settings(&options, &cluster));
    let mut put_times = puts(etcd, PUT_PAUSE, ending_after(STEADY)).await?;

    timeline.events().holds.clear();
    let mut bystander = Bystander::start(&cluster).await?;
    let before = Count::now(etcd, &bystander).await?;
    let mut moved_in = Duration::ZERO;
    let moving = CancellationToken::new();
    let puts_amid = tokio::spawn(puts(etcd, PUT_PAUSE, moving.clone()));
    match moves {
        Moves::Begun { at_once, rounds } => {
            for round in 0..rounds {
                let begun = Instant::now();
                let moving = bystander.begin(at_once, round).await?;
                bystander.wait_until_complete(&moving).await?;
                moved_in = moved_in.max(begun.elapsed());
            }
        }
        Moves::Planned => {
            for _ in 0..2 {
                let pod = cluster.pods()[0].clone();
                let begun = Instant::now();
                cluster.remove_pod(&pod).await;
                ensure!(cluster.settled(PATIENCE).await, "{pod} has left something: {:?}", cluster.snapshot());
                moved_in = moved_in.max(begun.elapsed());
                tokio::time::sleep(STEADY).await;
                let begun = Instant::now();
                cluster.add_pod(&pod).await?;
                ensure!(cluster.settled(PATIENCE).await, "{pod} has not got its share: {:?}", cluster.snapshot());
                moved_in = moved_in.max(begun.elapsed());
                tokio::time::sleep(STEADY).await;
            }
        }
    }
    moving.cancel();
    let puts_amid = Distribution::of(puts_amid.await??);
    let after = Count::now(etcd, &bystander).await?;
    drop(bystander);

    put_times.extend(puts(etcd, PUT_PAUSE, ending_after(STEADY)).await?);
    let exchanges = load.finish().await;
    let (log, owners) = (cluster.log().read_all()?, cluster.history().seen().owners.clone());
    let evidence = Evidence { exchanges, log: Some(log), owners: Some(owners) };
    let (evidence, harm) = tokio::task::spawn_blocking(move || {
        let harm = check(&evidence);
        (evidence, harm)
    })
    .await?;
    cluster.stop().await;

    let events = timeline.events();
    // The cutovers of all routers, by move: a partition and an epoch.
    let mut cutovers: HashMap<(PartitionId, Epoch), Vec<_>> = HashMap::new();
    for hold in &events.holds {
        cutovers.entry((hold.partition, hold.epoch)).or_default().push(hold.times);
    }
    let moves = cutovers.len() as u64;
    let mut beyond = Vec::new();
    for routers in cutovers.values() {
        let drained = routers.iter().map(|times| times.drain).max().unwrap_or_default();
        beyond.extend(routers.iter().map(|times| clock::nanos(times.pause.saturating_sub(drained))));
    }
    let own_puts = puts_amid.count as f64;
    let refused = |outcome: &Outcome| matches!(outcome, Outcome::Refused { .. });
    Ok(Measurement {
        pause: Distribution::of(beyond),
        whole: Distribution::of(events.holds.iter().map(|hold| clock::nanos(hold.times.pause))),
        latency: latencies(&evidence.exchanges, windows(&events)),
        put_times,
        puts_amid,
        moved_in,
        moves,
        transactions: ((after.revision.get() - before.revision.get()) as f64 - own_puts) / moves.max(1) as f64,
        puts: (after.puts - before.puts - own_puts) / moves.max(1) as f64,
        stashed: events.holds.iter().map(|hold| hold.times.stashed).max().unwrap_or(0),
        refused: evidence.exchanges.iter().filter(|exchange| refused(&exchange.outcome)).count() as u64,
        requests: evidence.exchanges.len() as u64,
        harm,
    })
}

/// Puts a key until `stop` is cancelled, with a pause after each put. Returns how long each took.
pub(crate) fn puts(
    etcd: &Etcd,
    pause: Duration,
    stop: CancellationToken,
) -> impl Future<Output = anyhow::Result<Vec<Nanos>>> + Send + use<> {
    let store = EtcdStore::connect(EtcdOptions::new([etcd.endpoint()]));
    async move {
        let (store, mut times) = (store?, Vec::new());
        while !stop.is_cancelled() {
            let value = vec![b'x'; 200 + times.len() % 2];
            let put = Op::Put { key: "/bench/put".to_owned(), value, lease: None };
            let begun = Instant::now();
            store.commit(Txn { then: vec![put], ..Txn::default() }).await?;
            times.push(clock::nanos(begun.elapsed()));
            stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
        Ok(times)
    }
}

/// Returns a token that is cancelled after this time.
pub(crate) fn ending_after(time: Duration) -> CancellationToken {
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        cancelled.cancel();
    });
    token
}

fn load_settings(options: &Options, cluster: &Cluster) -> LoadSettings {
    LoadSettings {
        routers: cluster.addresses().into_iter().map(Into::into).collect(),
        partitions: options.partitions,
        clients: options.clients,
        bursts: options.clients.div_ceil(8),
        rate: options.rate,
        // Bursts press on the partitions that move, so that hardly a cutover is without a request in flight.
        paces_bursts: false,
        patience: PATIENCE,
        seed: options.seed,
        partition_header: Some(names::PARTITION),
        snapshot: Some(cluster.watch_snapshot()),
    }
}

/// The amount of writes to the store so far.
struct Count {
    revision: Revision,
    puts: f64,
}

impl Count {
    async fn now(etcd: &Etcd, bystander: &Bystander) -> anyhow::Result<Self> {
        let names = ["etcd_mvcc_put_total", "etcd_debugging_mvcc_put_total"];
        let puts = names.iter().find_map(|name| etcd.metric(name)).context("etcd counts no puts")?;
        let revision = bystander.store.snapshot(&Keys::One(bystander.view.keys().config())).await?.revision;
        Ok(Count { revision, puts })
    }
}

/// Begins moves and waits until they are complete.
struct Bystander {
    store: Arc<dyn Store>,
    watcher: Watcher,
    view: View,
}

impl Bystander {
    async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let store: Arc<dyn Store> = Arc::new(cluster.history().clone());
        let mut watcher = Watcher::start(store.clone(), cluster.keys().clone());
        let Update::Snapshot(view) = watcher.next().await else { anyhow::bail!("etcd cannot be read") };
        Ok(Bystander { store, watcher, view: *view })
    }

    /// Begins `at_once` moves, half of them from either pod, so that the placement stays balanced.
    async fn begin(&mut self, at_once: u32, round: u32) -> anyhow::Result<Vec<(PartitionId, Epoch)>> {
        let mut owned: Vec<(String, Vec<PartitionId>)> =
            self.view.pods.keys().map(|pod| (pod.clone(), Vec::new())).collect();
        for (partition, assignment) in &self.view.assignments {
            let owner = owned.iter_mut().find(|(pod, _)| *pod == assignment.value.owner).context("a dead owner")?;
            owner.1.push(*partition);
        }
        // The pod with more partitions comes first. It gives one more if `at_once` is odd.
        owned.sort_by_key(|(_, partitions)| std::cmp::Reverse(partitions.len()));
        let mut shares: Vec<Vec<_>> = Vec::new();
        for (from, (old, partitions)) in owned.iter().enumerate() {
            let share = (at_once as usize + 1 - from) / 2;
            let first = round as usize * share % partitions.len().max(1);
            let new = &owned[1 - from].0;
            let share = partitions.iter().cycle().skip(first).take(share);
            shares.push(share.map(|partition| (*partition, old, new)).collect());
        }
        // In turn, so that the placement is balanced after each transaction: otherwise the coordinator might begin a move.
        let longest = shares.iter().map(Vec::len).max().unwrap_or(0);
        let nth = |at: usize| shares.iter().filter_map(move |share| share.get(at));
        let records: Vec<_> = (0..longest).flat_map(nth).collect();
        let mut moving = Vec::new();
        let mut txns = Vec::new();
        for chunk in records.chunks(BEGUN_TOGETHER) {
            let mut txn = Txn::default();
            for (partition, old, new) in chunk {
                let key = self.view.keys().handoff(*partition);
                let handoff = self.handoff(*partition, old, new);
                moving.push((*partition, handoff.epoch));
                txn.when.push(Compare::unchanged_since(key.clone(), Revision::ZERO));
                txn.then.push(Op::Put { key, value: encode(&handoff), lease: None });
            }
            txns.push(self.store.commit(txn));
        }
        for outcome in futures_util::future::join_all(txns).await {
            ensure!(outcome?.committed(), "something moves already");
        }
        Ok(moving)
    }

    fn handoff(&self, partition: PartitionId, old: &str, new: &str) -> Handoff {
        let life = |pod: &str| self.view.incarnation_of(pod);
        let epoch = self.view.assignments.get(&partition).map_or(Epoch::default(), |it| it.value.epoch);
        Handoff {
            reason: "to be measured".to_owned(),
            ..Handoff::new(partition, new, life(new), epoch.next()).taken_from(old, life(old))
        }
    }

    /// Waits until these moves are complete.
    async fn wait_until_complete(&mut self, moving: &[(PartitionId, Epoch)]) -> anyhow::Result<()> {
        let complete = async {
            let mut left = moving.to_vec();
            loop {
                left.retain(|(partition, epoch)| {
                    let arrived = self.view.assignments.get(partition).is_some_and(|it| it.value.epoch >= *epoch);
                    !arrived || self.view.handoffs.contains_key(partition)
                });
                if left.is_empty() {
                    return;
                }
                match self.watcher.next().await {
                    Update::Snapshot(view) => self.view = *view,
                    Update::Batch(batch) => drop(self.view.apply(batch)),
                    Update::Lost(_) => {}
                }
                while let Some(batch) = self.watcher.try_next_batch() {
                    self.view.apply(batch);
                }
            }
        };
        tokio::time::timeout(PATIENCE, complete).await.context("moves do not end")
    }
}
