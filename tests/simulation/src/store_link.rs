//! A process's link to the store: late, cut off, or silent half-way through a write.
//!
//! A call is a message to the store, its execution there, and a message back. A caller that gives up does not take back
//! what it has sent, and a caller that hears nothing does not know whether it was done. The link also stops with its
//! process: a stopped process sends its calls and receives their results when it resumes.

use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use segue_coordination::store::{SharedHorizon, Store, StoreError, Survey, Usage, Watch};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::keys::{KeyName, Keyspace};
use segue_protocol::records::KeyspaceConfig;
use segue_protocol::txn::{Batch, Event, Keys, Op, Snapshot, Txn, TxnOutcome};
use segue_protocol::view::View;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::contract::Author;
use crate::process::Process;
use crate::sabotage::Sabotage;
use crate::world::World;

/// How long an answer is waited for, as with etcd.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The kind of a process, as far as its link cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Coordinator,
    Router,
    Pod,
}

/// The state of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct State {
    cut: bool,
    /// The watch brings nothing although calls go through.
    stalled: bool,
    /// How often watches were broken.
    breaks: u64,
    heartbeats: Heartbeats,
}

/// What becomes of a pod's heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Heartbeats {
    #[default]
    Pass,
    Fail,
    Wait(Duration),
}

/// Which writes the store refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Refuses {
    #[default]
    Nothing,
    /// Puts that come alone, as an etcd without space does: it does not count those of nested transactions.
    LonePuts,
    /// Everything, as to a role that was revoked.
    Writes,
}

impl Refuses {
    fn refuses(self, txns: &[Txn]) -> bool {
        match self {
            Refuses::Nothing => false,
            Refuses::LonePuts => txns.len() == 1 && txns.iter().any(Txn::puts),
            Refuses::Writes => true,
        }
    }
}

/// A [`State`] that can be waited for, first come, first served. (Whom a `tokio::sync::watch` wakes first is random.)
#[derive(Debug, Default)]
struct Condition {
    state: Mutex<State>,
    changed: Notify,
}

impl Condition {
    fn get(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_waiters();
    }

    async fn becomes(&self, holds: impl Fn(State) -> bool) {
        loop {
            // Made before the look, so that no change after it is missed.
            let changed = self.changed.notified();
            if holds(self.get()) {
                return;
            }
            changed.await;
        }
    }
}

/// One process's way to the store.
#[derive(Debug)]
pub(crate) struct StoreLink {
    world: Arc<World>,
    /// The worlds of all keyspaces.
    worlds: Arc<[Arc<World>]>,
    process: Arc<Process>,
    kind: Kind,
    /// By how many thousandths the process's clock is off.
    drift: i64,
    state: Arc<Condition>,
}

impl StoreLink {
    /// The link of a process that takes part in the keyspaces of these worlds.
    pub(crate) fn new(worlds: Arc<[Arc<World>]>, process: &Arc<Process>, kind: Kind) -> Arc<Self> {
        let world = worlds[0].clone();
        let most = world.setting.drift as i64;
        let drift = world.rng.among(0..=2 * most as u64) as i64 - most;
        let state = Arc::new(Condition::default());
        Arc::new(StoreLink { world, worlds, process: process.clone(), kind, drift, state })
    }

    pub(crate) fn set_cut(&self, cut: bool) {
        self.state.change(|state| state.cut = cut);
    }

    pub(crate) fn set_stalled(&self, stalled: bool) {
        self.state.change(|state| state.stalled = stalled);
    }

    pub(crate) fn set_heartbeats(&self, heartbeats: Heartbeats) {
        self.state.change(|state| state.heartbeats = heartbeats);
    }

    /// Ends the watches that stand: their reader has to begin anew.
    pub(crate) fn break_watches(&self) {
        self.state.change(|state| state.breaks += 1);
    }

    /// Carries `act` to the store and its answer back.
    async fn call<T, F>(&self, write: bool, act: impl FnOnce(Arc<World>) -> F + Send + 'static) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.process.awake().await;
        let world = self.world.clone();
        let (there, back) =
            (world.rng.millis(0..=world.setting.store_ms), world.rng.millis(0..=world.setting.store_ms));
        // Whether a caller that is cut off notices, or waits in vain.
        let notices = world.rng.percent(50);
        let (link, (answer, answered)) = (self.state.clone(), oneshot::channel());
        tokio::spawn(async move {
            sleep(there).await;
            if write {
                let disk = *world.disk.lock().unwrap_or_else(PoisonError::into_inner);
                sleep(disk).await;
            }
            if link.get().cut {
                return lost(answer, notices).await;
            }
            let result = act(world.clone()).await;
            sleep(back).await;
            if link.get().cut {
                world.trace.seen("the outcome of a store call stayed unknown");
                return lost(answer, notices).await;
            }
            let _ = answer.send(result);
        });
        let result = match timeout(CALL_TIMEOUT, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Unavailable("the connection broke".into())),
            Err(_) => Err(StoreError::Unavailable("no answer".into())),
        };
        self.process.awake().await;
        result
    }
}

/// No answer arrives: the caller notices soon, or never.
async fn lost<T>(answer: oneshot::Sender<T>, notices: bool) {
    if !notices {
        sleep(2 * CALL_TIMEOUT).await;
    }
    drop(answer);
}

/// Looks at all keyspaces, if calls are checked.
async fn look<'a>(worlds: &[Arc<World>], author: impl Fn(usize) -> Author<'a>) {
    if !worlds[0].setting.checks_calls {
        return;
    }
    for (number, world) in worlds.iter().enumerate() {
        world.look(author(number)).await;
    }
}

/// The transaction writes, in any of its branches, a key below this one.
fn writes_below(txn: &Txn, root: &str) -> bool {
    let is_below = |op: &Op| match op {
        Op::Put { key, .. } | Op::Delete(Keys::One(key) | Keys::Prefix(key)) => key.starts_with(root),
        Op::Delete(Keys::Between(from, _)) => from.starts_with(root),
    };
    txn.then.iter().any(is_below) || txn.otherwise.as_ref().is_some_and(|txn| writes_below(txn, root))
}

impl World {
    /// Looks at the store; leases whose time is over end before that.
    pub(crate) async fn look(&self, author: Author<'_>) {
        // Unavailable: then nothing is written either.
        if let Ok(snapshot) = self.store.snapshot(&Keys::Prefix(self.keys.root().to_owned())).await {
            self.contract.look(snapshot, author);
        }
    }

    /// Takes the store as it is, after it has gone back.
    pub(crate) async fn begin_anew(&self) {
        if let Ok(snapshot) = self.store.snapshot(&Keys::Prefix(self.keys.root().to_owned())).await {
            self.contract.begin_anew(snapshot);
        }
    }

    /// Follows the store without checking how it got there.
    pub(crate) async fn follow(&self) {
        if let Ok(snapshot) = self.store.snapshot(&Keys::Prefix(self.keys.root().to_owned())).await {
            self.contract.follow(snapshot);
        }
    }
}

#[async_trait]
impl Store for StoreLink {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        let whole = !matches!(keys, Keys::One(_));
        let keys = keys.clone();
        let snapshot = self.call(false, |world| async move { world.store.snapshot(&keys).await }).await?;
        if whole {
            self.world.trace.event(format_args!("{} sees all at {}", self.process.name, snapshot.revision));
        }
        Ok(snapshot)
    }

    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError> {
        let keys = keys.clone();
        self.call(false, move |world| async move { world.store.survey(&keys, since).await }).await
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        let asked = keys.clone();
        let open = self.call(false, move |world| async move { world.store.watch(&asked, from).await });
        let inner = match open.await {
            Err(error @ StoreError::Compacted { .. }) => {
                self.world.trace.seen("a watch fell behind a compaction");
                return Err(error);
            }
            other => other?,
        };
        let (out, batches) = mpsc::channel(64);
        let (name, state) = (self.process.name.clone(), self.state.clone());
        tokio::spawn(relay(self.world.clone(), name, inner, state, out));
        Ok(Watch::new(batches))
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let mut outcomes = self.commit_all(vec![txn]).await;
        outcomes.pop().unwrap_or_else(|| Err(StoreError::Unavailable("no outcome".into())))
    }

    async fn commit_all(&self, mut txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        let count = txns.len();
        if let Some(sabotage) = self.world.sabotage {
            for txn in &mut txns {
                for world in self.worlds.iter() {
                    let floor = world.contract.with_view(View::epoch_floor);
                    sabotage.strip(&world.keys, floor, txn);
                }
            }
        }
        let is_a_heartbeat =
            |txn: &Txn| self.worlds.iter().any(|world| txn.then.iter().any(|op| is_a_heartbeat(&world.keys, op)));
        if txns.iter().any(is_a_heartbeat) {
            match self.state.get().heartbeats {
                Heartbeats::Pass => {}
                Heartbeats::Wait(delay) => sleep(delay).await,
                Heartbeats::Fail => {
                    return vec![Err(StoreError::Unavailable("heartbeats get lost".into())); count];
                }
            }
        }
        let (name, kind, worlds) = (self.process.name.clone(), self.kind, self.worlds.clone());
        let outcomes = self.call(true, move |world| async move {
            let refuses = *world.refuses.lock().unwrap_or_else(PoisonError::into_inner);
            if refuses.refuses(&txns) {
                world.trace.seen("the store refused a write");
                return Ok(vec![Err(StoreError::Refused("the storm wants it".into())); txns.len()]);
            }
            look(&worlds, |_| Author::Other).await;
            let is_elective =
                |txn: &Txn| txn.then.iter().any(|op| worlds.iter().any(|world| needs_no_authority(world, op)));
            let elects = txns.iter().any(is_elective);
            let writes_below = |root: &str| txns.iter().any(|txn| writes_below(txn, root));
            let roots: Vec<_> = worlds.iter().map(|world| writes_below(world.keys.root())).collect();
            let outcomes = world.store.commit_all(txns).await;
            let coordinates = kind == Kind::Coordinator && !elects;
            let author =
                |number: usize| if coordinates && roots[number] { Author::Coordinator(&name) } else { Author::Other };
            look(&worlds, author).await;
            for TxnOutcome { revision, branch } in outcomes.iter().flatten() {
                world.trace.event(format_args!("{name} commits: {revision} {branch:?}"));
                if branch.is_none() {
                    world.trace.seen("a guard refused a write");
                }
            }
            Ok(outcomes)
        });
        outcomes.await.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        // A fast clock of the store's is a short lease.
        let thousandths = (1000 + self.drift) as u32;
        let ttl = ttl * thousandths / 1000;
        self.call(true, move |world| async move { world.store.grant(ttl).await }).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let name = self.process.name.clone();
        let result = self.call(false, move |world| async move {
            let result = world.store.keep_alive(lease).await;
            if matches!(result, Err(StoreError::LeaseNotFound)) {
                world.trace.event(format_args!("{name} hears that its lease is gone"));
                world.trace.seen("a lease ran out");
            }
            result
        });
        if self.world.is_sabotaged(Sabotage::LeaseClock) {
            // At once, and whatever the store says.
            let _ = timeout(Duration::from_millis(100), result).await;
            return Ok(());
        }
        result.await
    }

    fn forget_lease(&self, lease: LeaseId) {
        self.world.store.forget_lease(lease);
    }

    fn horizon(&self) -> Option<&SharedHorizon> {
        None
    }

    async fn usage(&self, _key: &str, _since: Revision) -> Result<Option<Usage>, StoreError> {
        Ok(None)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let worlds = self.worlds.clone();
        self.call(true, move |world| async move {
            let result = world.store.revoke(lease).await;
            look(&worlds, |_| Author::Other).await;
            result
        })
        .await
    }
}

/// Brings the batches of a watch, in order, each late.
async fn relay(
    world: Arc<World>,
    name: String,
    mut inner: Watch,
    state: Arc<Condition>,
    out: mpsc::Sender<Result<Batch, StoreError>>,
) {
    let breaks = state.get().breaks;
    loop {
        let batch = tokio::select! {
            biased;
            () = out.closed() => return,
            () = state.becomes(|state| state.breaks != breaks) => Err(StoreError::Unavailable("the watch broke".into())),
            batch = inner.next() => batch,
        };
        sleep(world.rng.millis(0..=world.setting.store_ms)).await;
        tokio::select! {
            biased;
            () = out.closed() => return,
            () = state.becomes(|state| (!state.cut && !state.stalled) || state.breaks != breaks) => {}
        }
        let batch = match state.get().breaks == breaks {
            true => batch,
            false => Err(StoreError::Unavailable("the watch broke".into())),
        };
        match &batch {
            Ok(batch) => {
                world.delivered.fetch_add(batch.events.len() as u64, Relaxed);
                world.trace.event(format_args!("{name} sees {} ({})", batch.revision, deletes(batch)));
            }
            Err(error) => {
                if matches!(error, StoreError::Compacted { .. }) {
                    world.trace.seen("a watch fell behind a compaction");
                }
                world.trace.event(format_args!("{name} loses its watch"));
                world.trace.seen("a watch was lost");
            }
        }
        let ends = batch.is_err();
        if out.send(batch).await.is_err() || ends {
            return;
        }
    }
}

fn deletes(batch: &Batch) -> usize {
    batch.events.iter().filter(|event| matches!(event, Event::Delete { .. })).count()
}

/// A coordinator writes this without authority: its seat, or a higher floor of epochs.
fn needs_no_authority(world: &World, op: &Op) -> bool {
    let raises = |value: &[u8]| {
        let settings = serde_json::from_slice::<KeyspaceConfig>(value);
        settings.is_ok_and(|settings| settings.epoch_floor > world.contract.with_view(View::epoch_floor))
    };
    is_about_a_seat(&world.keys, op)
        || matches!(op, Op::Put { key, value, .. } if *key == world.keys.config() && raises(value))
}

/// The write takes or leaves the seat of a coordinator, or is a step of an assignment round.
fn is_about_a_seat(keys: &Keyspace, op: &Op) -> bool {
    let (Op::Put { key, .. } | Op::Delete(Keys::One(key))) = op else { return false };
    matches!(keys.parse(key), Some(KeyName::Rounds(_))) || matches!(op, Op::Put { .. } if *key == keys.leader())
}

fn is_a_heartbeat(keys: &Keyspace, op: &Op) -> bool {
    matches!(op, Op::Put { key, .. } if matches!(keys.parse(key), Some(KeyName::Load(_))))
}
