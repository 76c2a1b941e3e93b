//! The pod as a shell: it registers, follows the store, and reconsiders each partition when something has changed.
//!
//! One task owns the view and the state of all partitions. Callbacks and writes run beside it (`work`).
//!
//! # Invariants
//!
//! * A pod registers, then takes its snapshot, then accepts requests.
//! * It fences before it gives its registration up.
//! * A callback that hangs never blocks the loop, whose progress keeps the lease alive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::checkpoint::Waits;
use segue_protocol::ids::{Incarnation, LeaseId, PartitionId};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{CheckpointName, PodStatus};
use segue_protocol::view::{View, ViewDelta};
use tokio::sync::watch;
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::heartbeat::Heartbeat;
use super::lease_window::ends_at;
use super::ownership::Ownership;
use super::partition_work::{PartitionWork, PendingWrite, WRITE_RETRY_PAUSE};
use super::service::Service;
use super::service_watch::{Unanswered, Watched};
use super::{HandlerError, HandoffHandler, PodSettings, PodState};
use crate::session::{
    LeaseState, Leases, OwnKey, Registration, Sight, Update, Watcher, WriteQueue, lease_now, wakes_at,
};
use crate::store::Store;

/// How long a pod that was told to end waits for another one that could take over from it.
const ALONE_PATIENCE: Duration = Duration::from_secs(2);

/// The reason why an unregistered pod accepts nothing.
pub(super) const NOT_REGISTERED: &str = "not registered";

/// The service's request to its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Serve,
    Drain,
    End { hand_over_until: Instant, until: Instant },
}

/// The result of a callback: of a checkpoint its name, of any other nothing.
pub(super) type CallbackResult = Result<Option<CheckpointName>, HandlerError>;

pub(super) enum End {
    Shutdown,
    RegistrationGone,
    /// The service is down, and nothing that it was given can take effect any more.
    ServiceDown,
}

/// What the view shows that has not been acted on.
#[derive(Debug, Default)]
enum News {
    #[default]
    None,
    Snapshot,
    Batch(ViewDelta),
}

impl News {
    fn brings_settings(&self) -> bool {
        match self {
            News::None => false,
            News::Snapshot => true,
            News::Batch(delta) => delta.settings,
        }
    }
}

pub(super) struct Driver {
    pub(super) store: Arc<dyn Store>,
    pub(super) leases: Leases,
    pub(super) keys: Keyspace,
    pub(super) settings: PodSettings,
    pub(super) handler: Arc<dyn HandoffHandler>,
    pub(super) service: Arc<dyn Service>,
    pub(super) ownership: Arc<Ownership>,
    pub(super) state: watch::Sender<PodState>,
    pub(super) intent: watch::Receiver<Intent>,
    pub(super) view: View,
    /// 0 while the pod is not registered; the view is empty then.
    pub(super) incarnation: Incarnation,
    pub(super) lease: Option<LeaseId>,
    /// The view includes a snapshot from after the registration.
    pub(super) synced: bool,
    /// Nothing is handed over any more: the remaining partitions are refused.
    pub(super) ending: bool,
    /// Since when this pod, which was told to end, has seen no other one that could take over from it.
    alone_since: Option<Instant>,
    /// The service is down: no request is admitted.
    pub(super) refusing: bool,
    /// The own record is `Draining` only because the service is down.
    pub(super) drains_for_service: bool,
    /// The service says that it is unhealthy, and this pod has asked the store whether it may give way to another one, or
    /// gives way.
    pub(super) gives_way: bool,
    pub(super) unanswered: Unanswered,
    // Ordered, because a simulated run has to repeat exactly.
    pub(super) work: BTreeMap<PartitionId, PartitionWork>,
    pub(super) callbacks: JoinSet<CallbackResult>,
    pub(super) running: HashMap<task::Id, PartitionId>,
    pub(super) writes: WriteQueue<PendingWrite>,
    /// When to reconsider a partition or, without one, the own record.
    pub(super) timers: BTreeSet<(Instant, Option<PartitionId>)>,
    /// When to look for checkpoints that have become due.
    pub(super) next_look: Option<Instant>,
    pub(super) waits: Waits,
}

impl Driver {
    pub(super) fn new(
        leases: Leases,
        keys: Keyspace,
        settings: PodSettings,
        (handler, service): (Arc<dyn HandoffHandler>, Arc<dyn Service>),
        ownership: Arc<Ownership>,
        state: watch::Sender<PodState>,
        intent: watch::Receiver<Intent>,
    ) -> Self {
        let store = leases.store().clone();
        Driver {
            view: View::empty(keys.clone()),
            writes: WriteQueue::new(store.clone(), "pod report cannot be written; retrying", WRITE_RETRY_PAUSE),
            store,
            leases,
            keys,
            settings,
            handler,
            service,
            ownership,
            state,
            intent,
            incarnation: Incarnation::NONE,
            lease: None,
            synced: false,
            ending: false,
            alone_since: None,
            refusing: false,
            drains_for_service: false,
            gives_way: false,
            unanswered: Unanswered::default(),
            work: BTreeMap::new(),
            callbacks: JoinSet::new(),
            running: HashMap::new(),
            timers: BTreeSet::new(),
            next_look: None,
            waits: Waits::default(),
        }
    }

    pub(super) async fn run(mut self) {
        self.publish(None);
        let mut ended = Incarnation::NONE;
        while let Some(registration) = self.registered(ended).await {
            ended = registration.incarnation;
            match self.live(&registration).await {
                End::Shutdown => {
                    self.ownership.close();
                    self.deregister(registration).await;
                    break;
                }
                End::RegistrationGone => {
                    // The pod has fenced. Its next life vouches for no work of this one.
                    self.service.settle(Instant::now()).await;
                    // The old key is gone or expires: this process drops its lease.
                    self.deregister(registration).await;
                }
                End::ServiceDown => self.deregister(registration).await,
            }
        }
        self.ownership.close();
        self.service.settle(self.ends_by()).await;
        self.state.send_modify(|state| state.not_ready = Some("shut down".to_owned()));
        info!(pod = self.settings.name, "ended");
    }

    async fn live(&mut self, registration: &Registration) -> End {
        let mut lease_state = registration.lease.state();
        (self.incarnation, self.lease) = (registration.incarnation, Some(registration.lease.id()));
        let mut watcher = Watcher::start(self.store.clone(), self.keys.clone());
        let mut own_key = OwnKey::of(self.store.clone(), registration);
        let (store, keys, pod) = (self.store.clone(), self.keys.clone(), self.settings.name.clone());
        let mut heartbeat = Heartbeat::of(store, keys, pod, self.settings.load_interval, registration);
        let (mut sight, mut looks_at) = (Sight::default(), None);
        (self.refusing, self.gives_way) = (false, false);
        let (mut watched, mut turn) = self.watch(Watched::Up);
        let (mut lent, mut news) = (None, News::None);
        loop {
            // A pod without sight of the store does not act. With its lease kept alive, every handoff would wait for
            // it.
            registration.lease.turns(sight.is_clear());
            let state = *lease_state.borrow_and_update();
            if state.lost {
                return self.registration_gone("pod lease lost");
            }
            self.lend(&mut lent, ends_at(state));
            if self.synced {
                if !self.keep_key(&mut own_key) {
                    return self.registration_gone("the registration is gone or replaced");
                }
                self.ownership.trust(state);
                if news.brings_settings() {
                    heartbeat.follow(&self.view);
                }
                self.react(std::mem::take(&mut news));
                heartbeat.send(&self.ownership, &*self.handler);
                looks_at = self.look_for_checkpoints();
            }
            self.publish(Some(state));
            self.send_writes();
            let now = Instant::now();
            let ends_at = self.may_end(now);
            if ends_at.is_some_and(|until| until <= now) && watched != Watched::Parting {
                (watched, turn) = self.watch(Watched::Parting);
            }
            let beat = heartbeat.due().filter(|_| self.synced);
            let wake = beat.into_iter().chain(looks_at).fold(self.wakes_at(now, ends_at, state), Instant::min);
            tokio::select! {
                biased;
                update = watcher.next() => self.updated(update, &mut watcher, &mut sight, &mut news),
                Some(ended) = self.callbacks.join_next_with_id(), if !self.callbacks.is_empty() => self.ended(ended),
                turned = &mut turn => match self.service_turned(watched, turned) {
                    Ok(next) => (watched, turn) = self.watch(next),
                    Err(end) => return end,
                },
                results = self.writes.next_results() => self.written(results),
                () = own_key.written() => {}
                () = heartbeat.written() => {}
                changed = self.intent.changed() => match changed {
                    Ok(()) => self.keep_record(),
                    Err(_) => return End::Shutdown,
                },
                () = sleep_until(wake) => self.due(),
                changed = lease_state.changed() => if changed.is_err() {
                    return self.registration_gone("the lease is not kept any more");
                },
            }
        }
    }

    /// Applies an update of the watch.
    fn updated(&mut self, update: Update, watcher: &mut Watcher, sight: &mut Sight, news: &mut News) {
        match update {
            Update::Snapshot(view) => {
                // Settings that cannot be read leave the last ones in force.
                self.view.resync(view.of_pod(&self.settings.name));
                self.synced = true;
                sight.is_back();
                *news = News::Snapshot;
            }
            Update::Batch(batch) if self.synced => *news = News::Batch(watcher.apply(&mut self.view, batch)),
            Update::Batch(_) => {}
            Update::Lost(error) if sight.lost(&error) => {
                warn!(%error, "store watch lost; resyncing");
                self.state.send_modify(|state| state.resyncs += 1);
            }
            Update::Lost(_) => {}
        }
    }

    /// Lends the service the lease that stands until then, unless it has been lent already.
    fn lend(&self, lent: &mut Option<Instant>, until: Instant) {
        if lent.replace(until) != Some(until) {
            self.service.lend(until);
        }
    }

    /// Returns when to look again although nothing has happened.
    fn wakes_at(&self, now: Instant, ends_at: Option<Instant>, lease: LeaseState) -> Instant {
        let trusted = lease_now() < lease.trusted_until;
        let others = [
            ends_at.filter(|until| *until > now),
            self.timers.first().map(|(at, _)| *at),
            trusted.then(|| wakes_at(lease.trusted_until)),
        ];
        others.into_iter().flatten().fold(now + self.settings.lease_ttl / 6, Instant::min)
    }

    /// Returns when this pod may end, if it was told to. Once it is emptied or its time for handing over is up, the
    /// remaining partitions are refused.
    fn may_end(&mut self, now: Instant) -> Option<Instant> {
        let Intent::End { hand_over_until, until } = *self.intent.borrow() else {
            return None;
        };
        let alone_since = self.has_no_successor().then(|| self.alone_since.unwrap_or(now));
        self.alone_since = alone_since;
        let hand_over_until = alone_since.map_or(hand_over_until, |since| hand_over_until.min(since + ALONE_PATIENCE));
        if !self.ending && now < hand_over_until && !self.is_emptied() {
            return Some(hand_over_until);
        }
        if !std::mem::replace(&mut self.ending, true) {
            let left = self.state.borrow().owned.len();
            match left {
                0 => info!("no partition left; deregistering"),
                _ if alone_since.is_some() => warn!(left, "no other pod accepts partitions; refusing them"),
                _ => warn!(left, "partitions not handed over in time; refusing them"),
            }
            self.reconcile_all();
        }
        let is_done = self.work.is_empty() && self.writes.is_empty();
        Some(if is_done { now } else { until })
    }

    /// Returns until when the remaining work may end by itself.
    pub(super) fn ends_by(&self) -> Instant {
        match *self.intent.borrow() {
            Intent::End { until, .. } => until,
            Intent::Serve | Intent::Drain => Instant::now(),
        }
    }

    pub(super) fn registration_gone(&mut self, why: &str) -> End {
        warn!(why, "pod fenced; registering again");
        // The order matters: nothing may be accepted or acknowledged once the registration is given up.
        self.ownership.fence();
        (self.incarnation, self.lease, self.synced) = (Incarnation::NONE, None, false);
        self.view.resync(View::empty(self.keys.clone()));
        self.writes.clear();
        for work in self.work.values_mut() {
            work.invalidate();
        }
        self.reconcile_all();
        self.publish(None);
        End::RegistrationGone
    }

    fn react(&mut self, news: News) {
        match news {
            News::None => {}
            News::Snapshot => {
                self.writes.forget(|_| true);
                self.reconcile_all();
            }
            News::Batch(delta) => match delta.affected(&self.view) {
                None => self.reconcile_all(),
                Some(affected) => self.reconsider(affected, &delta),
            },
        }
    }

    /// Reconciles the partitions that a batch of changes affects.
    fn reconsider(&mut self, mut affected: BTreeSet<PartitionId>, delta: &ViewDelta) {
        if delta.pods.contains(&self.settings.name) {
            // There may be work on a partition that no record connects with this pod any more.
            affected.extend(self.work.keys());
            self.keep_record();
        }
        affected.into_iter().for_each(|partition| self.reconcile(partition));
    }

    pub(super) fn reconcile_all(&mut self) {
        let view = &self.view;
        let known = view.assignments.keys().chain(view.handoffs.keys()).chain(self.work.keys());
        for partition in known.copied().collect::<BTreeSet<_>>() {
            self.reconcile(partition);
        }
        self.keep_record();
    }

    pub(super) fn due(&mut self) {
        let now = Instant::now();
        while let Some(&(at, what)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, what));
            match what {
                Some(partition) => self.reconcile(partition),
                None => self.keep_record(),
            }
        }
    }

    fn publish(&self, lease: Option<LeaseState>) {
        let now = lease_now();
        let not_ready = match lease {
            None => Some(NOT_REGISTERED),
            Some(_) if !self.synced => Some("the store's state is not loaded yet"),
            Some(lease) if now >= lease.trusted_until => Some("the store has not confirmed the lease in time"),
            Some(_) => None,
        };
        let lease_id = self.lease;
        let attached = self.view.pods.get(&self.settings.name).filter(|own| own.lease == lease_id);
        let own = attached.filter(|own| own.incarnation() == self.incarnation).map(|own| &own.value);
        let (emptied, incarnation) = (self.is_emptied(), self.incarnation);
        self.state.send_if_modified(|state| {
            let facts = |state: &PodState| {
                (state.not_ready.clone(), state.incarnation, state.draining, state.emptied, state.stands_until)
            };
            let before = facts(state);
            state.not_ready = not_ready.map(str::to_owned);
            state.incarnation = incarnation;
            // An operator's status survives a lost registration.
            state.draining = own.map_or(state.draining, |own| own.status == PodStatus::Draining);
            state.emptied = emptied;
            state.trusted_until = lease.map(|lease| lease.trusted_until);
            state.stands_until = lease.map(|lease| lease.stands_until);
            if state.not_ready != before.0 {
                match &state.not_ready {
                    None => info!(incarnation = incarnation.get(), "ready"),
                    Some(reason) => info!(reason, "not ready"),
                }
            }
            facts(state) != before
        });
    }
}
