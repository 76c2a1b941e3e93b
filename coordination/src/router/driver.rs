//! The work of a registered router: it follows the store, makes the data plane do what each partition needs, and
//! acknowledges the results.
//!
//! Not here: registration and departure ([`router`](super)), the content of acks ([`acks`](super::acks)), the order of
//! stops ([`stop_limiter`](super::stop_limiter)), drains that take too long ([`drains`](super::drains)).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::router::{
    GateStage, HoldCause, Route, RouteStep, Target, Trust, may_stop_later, next_step, route, waits_for_exchange,
};
use segue_protocol::ids::{HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::view::{View, ViewDelta};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, debug, warn};

use super::acks::{AckId, AckKind, Acks};
use super::drains::{DrainStep, Drains, EXCHANGE_CHECK_INTERVAL};
use super::mapping::Mapping;
use super::ready_pods::tell_ready_pods;
use super::stop_limiter::StopLimiter;
use super::troubles::TroubleReporter;
use super::{Cutover, DataPlane, RouterObserver, RouterPorts, RouterSettings, RouterStatus};
use crate::session::{
    Claim, Event, KeptLease, LeaseState, Leases, LifeEnd, Participant, Registration, WriteResults, lease_now, register,
    wakes_at,
};
use crate::store::Store;

/// Time between two checks for requests in flight while the router leaves.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Why a life of a router has ended.
pub(super) enum RouterEnd {
    Shutdown,
    RegistrationGone,
}

/// A router's side of the protocol: the view, the data plane, and further state of each partition.
pub(super) struct RouterDriver {
    store: Arc<dyn Store>,
    keys: Keyspace,
    settings: RouterSettings,
    plane: Arc<dyn DataPlane>,
    observer: Arc<dyn RouterObserver>,
    status: watch::Sender<RouterStatus>,
    notices: mpsc::UnboundedReceiver<PartitionId>,
    view: View,
    mapping: Mapping,
    incarnation: Incarnation,
    trust: Trust,
    acks: Acks,
    stop_limiter: StopLimiter,
    /// When to reconsider a partition.
    timers: BTreeSet<(Instant, PartitionId)>,
    drains: Drains,
    /// The stops that are due and postponed.
    stops_due: HashMap<PartitionId, DueStop>,
}

/// A stop that is due.
#[derive(Debug, Clone, Copy)]
struct DueStop {
    /// The revision that made it due.
    ready_since: Revision,
    /// When this router first saw that.
    seen_at: Instant,
}

impl RouterDriver {
    pub(super) fn new(store: Arc<dyn Store>, keys: Keyspace, settings: RouterSettings, ports: RouterPorts) -> Self {
        let RouterPorts { plane, notices, observer, status } = ports;
        RouterDriver {
            view: View::empty(keys.clone()),
            mapping: Mapping::of(store.clone(), keys.clone(), settings.partitioner.clone()),
            acks: Acks::of(store.clone(), &settings.name),
            drains: Drains::new(settings.clone()),
            store,
            keys,
            settings,
            plane,
            observer,
            status,
            notices,
            incarnation: Incarnation::NONE,
            trust: Trust::Gone,
            stop_limiter: StopLimiter::default(),
            timers: BTreeSet::new(),
            stops_due: HashMap::new(),
        }
    }

    /// Registers once the keyspace maps requests as this router does. Cancel-safe.
    pub(super) async fn registered(&self, leases: &Leases) -> Registration {
        let (key, ttl) = (self.keys.router(&self.settings.name), self.settings.lease_ttl);
        let claim = Claim::new(&self.keys, key, ttl).with(self.keys.trouble(&self.settings.name));
        let claim = claim.awaiting_settings().after(self.incarnation);
        self.mapping.agree(&self.view, &*self.observer, |reason| self.publish(Some(reason))).await;
        register(leases, &claim, |_| self.settings.record()).await
    }

    pub(super) async fn live(&mut self, registration: &Registration, shutdown: &CancellationToken) -> RouterEnd {
        self.incarnation = registration.incarnation;
        let _reports = AbortOnDropHandle::new(tokio::spawn(self.reports(registration).run().in_current_span()));
        let mut participant = Participant::start(&self.store, &self.keys, registration);
        let tick = self.settings.lease_ttl / 6;
        let mut event = Event::Turn;
        loop {
            let lease = match participant.turn() {
                Ok(lease) => lease,
                Err(end) => {
                    match end {
                        LifeEnd::LeaseLost => warn!("router lease lost; holding requests and registering again"),
                        LifeEnd::OtherProtocol(why) => warn!(why, "router fenced; registering again"),
                    }
                    self.fence();
                    return RouterEnd::RegistrationGone;
                }
            };
            if participant.is_synced() {
                if !self.keep_key(&mut participant) {
                    warn!("router registration gone or replaced; holding requests");
                    self.fence();
                    return RouterEnd::RegistrationGone;
                }
                if self.mapping.differs_from(&self.view) {
                    return self.mapping_gone(&registration.lease, shutdown).await;
                }
                self.set_trust(lease);
            }
            self.react(event);
            self.take_turns();
            self.acks.send(&self.view, self.incarnation);
            let now = Instant::now();
            let is_trusted = lease_now() < lease.trusted_until;
            let trust_ends = if is_trusted { wakes_at(lease.trusted_until) } else { now + tick };
            let timer = self.timers.first().map_or(now + tick, |(at, _)| *at);
            let wake = timer.min(trust_ends).min(now + tick).min(self.stop_limiter.due().unwrap_or(timer));
            event = tokio::select! {
                biased;
                () = shutdown.cancelled() => return RouterEnd::Shutdown,
                event = participant.next(&mut self.view) => event,
                Some(partition) = self.notices.recv() => self.noticed(partition),
                results = self.acks.next_results() => self.written(results),
                () = sleep_until(wake) => self.due(),
            };
        }
    }

    fn reports(&self, registration: &Registration) -> TroubleReporter {
        TroubleReporter {
            store: self.store.clone(),
            keys: self.keys.clone(),
            router: self.settings.name.clone(),
            life: (registration.incarnation, registration.lease.id()),
            plane: self.plane.clone(),
            observer: self.observer.clone(),
        }
    }

    /// Keeps this router's key. Returns `false` if the registration is gone or another life's.
    fn keep_key(&self, participant: &mut Participant<'_>) -> bool {
        let name = &self.settings.name;
        let intact = !self.view.malformed.contains_key(&self.keys.router(name));
        participant.keep_key(&self.view, self.view.routers.get(name), intact, || self.settings.record())
    }

    /// Fences, and leaves once nothing is in flight or a drain's longest time has passed. Handoffs wait for this router
    /// until then: an owner without `drained` may still be working on its requests.
    async fn mapping_gone(&mut self, lease: &KeptLease, shutdown: &CancellationToken) -> RouterEnd {
        warn!("keyspace maps requests to partitions in another way than this router; holding requests");
        self.fence();
        let until = Instant::now() + self.settings.drain.timeout;
        while !self.is_drained() && Instant::now() < until && !lease.state().borrow().lost {
            lease.made_progress();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return RouterEnd::Shutdown,
                Some(partition) = self.notices.recv() => drop(self.noticed(partition)),
                () = sleep(DRAIN_CHECK_INTERVAL) => {}
            }
        }
        RouterEnd::RegistrationGone
    }

    fn is_drained(&self) -> bool {
        self.mapping.all().all(|partition| matches!(self.plane.stage(partition), (GateStage::Closed, _)))
    }

    /// Holds all requests. The order matters: no request may pass once the registration is given up.
    pub(super) fn fence(&mut self) {
        self.trust = Trust::Gone;
        self.plane.trust_until(lease_now());
        self.reconcile_all();
        self.publish(Some("fenced".to_owned()));
    }

    fn set_trust(&mut self, state: LeaseState) {
        self.plane.trust_until(state.trusted_until);
        let trust = match lease_now() < state.trusted_until {
            true => Trust::Held,
            false => Trust::RunOut(self.settings.on_store_loss),
        };
        self.status.send_if_modified(|status| {
            let changed = status.trusted_until != Some(state.trusted_until);
            status.trusted_until = Some(state.trusted_until);
            changed
        });
        if std::mem::replace(&mut self.trust, trust) != trust {
            if trust != Trust::Held {
                warn!("router lease not confirmed in time; holding requests");
                self.publish(Some("the store has not confirmed the lease in time".to_owned()));
            }
            self.reconcile_all();
            // A router is ready once it has opened its routes.
            if trust == Trust::Held {
                self.publish(None);
            }
        }
    }

    pub(super) fn publish(&self, not_ready: Option<String>) {
        self.status.send_modify(|status| {
            status.not_ready =
                not_ready.or_else(|| (self.trust != Trust::Held).then(|| "lease not trusted".to_owned()));
            status.incarnation = self.incarnation;
        });
    }

    /// Acts on what has happened in the store.
    fn react(&mut self, event: Event) {
        match event {
            Event::Synced { .. } => {
                self.acks.resync();
                self.reconcile_all();
                self.publish(None);
            }
            Event::Changed(delta) => {
                self.publish(None);
                self.reconsider(&delta);
            }
            Event::Blind { error, is_new: true } => {
                self.observer.resync(&error);
                self.status.send_modify(|status| status.resyncs += 1);
            }
            Event::Blind { .. } | Event::Turn => {}
        }
    }

    /// Reconciles the partitions that changes affect.
    fn reconsider(&mut self, delta: &ViewDelta) {
        let Some(mut affected) = delta.affected(&self.view) else { return self.reconcile_all() };
        if !delta.pods.is_empty() {
            tell_ready_pods(&*self.plane, &self.view, self.settings.on_store_loss);
        }
        if delta.membership {
            // Requests may be in flight to a pod that no record names any more.
            affected.extend(self.drains.partitions());
        }
        let known = affected.range(..PartitionId::new(self.mapping.partitions())).copied();
        for partition in known.collect::<Vec<_>>() {
            self.plane.retry_now(partition);
            self.reconcile(partition);
        }
    }

    fn reconcile_all(&mut self) {
        self.mapping.take_number(&self.view);
        tell_ready_pods(&*self.plane, &self.view, self.settings.on_store_loss);
        self.plane.set_partitions(self.mapping.partitions());
        for partition in self.mapping.all() {
            self.plane.retry_now(partition);
            self.reconcile(partition);
        }
    }

    fn noticed(&mut self, partition: PartitionId) -> Event {
        self.note_cutover(partition);
        self.reconcile(partition);
        Event::Turn
    }

    fn written(&mut self, results: WriteResults<AckId>) -> Event {
        let partitions = self.acks.written(results, &self.view);
        self.stop_limiter.write_takes(self.acks.round_trip());
        partitions.into_iter().for_each(|partition| self.reconcile(partition));
        Event::Turn
    }

    fn due(&mut self) -> Event {
        let now = Instant::now();
        while let Some(&(at, partition)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, partition));
            self.reconcile(partition);
        }
        Event::Turn
    }

    /// Records the times of a cutover that has ended.
    fn note_cutover(&mut self, partition: PartitionId) {
        if let Some(times) = self.plane.take_times(partition) {
            if let (GateStage::Open(target), _) = self.plane.stage(partition) {
                let severed = self.acks.severed(partition);
                let cutover = Cutover { partition, target, times, severed };
                debug!(
                    partition = partition.get(),
                    pod = cutover.target.pod,
                    epoch = cutover.target.epoch.get(),
                    ?times,
                    "requests flow"
                );
                self.observer.cutover(&cutover);
            }
            self.acks.set_times(partition, times);
        }
    }

    /// Carries out all current steps of a partition.
    pub(super) fn reconcile(&mut self, partition: PartitionId) {
        if partition.get() >= self.mapping.partitions() {
            return;
        }
        let plane = self.plane.clone();
        let wanted = route(&self.view, partition, self.trust);
        loop {
            let (stage, retry_at) = plane.stage(partition);
            let backing_off = retry_at.filter(|at| *at > Instant::now());
            if let Some(at) = backing_off {
                self.timers.insert((at, partition));
            }
            match next_step(&self.view, partition, self.trust, &stage, backing_off.is_some()) {
                Some(RouteStep::Stop) => {
                    // Queried only where the stop may wait. Partitions that have their turn keep it.
                    let ready_since = may_stop_later(&self.view, partition, self.trust, &stage);
                    if ready_since.is_some_and(|since| self.postpones(partition, since)) {
                        break;
                    }
                    let due_since = self.stops_due.remove(&partition).map_or_else(Instant::now, |due| due.seen_at);
                    let cause = match wanted {
                        Route::Hold(cause) => cause,
                        Route::To(_) => HoldCause::Handoff,
                    };
                    self.observer.cuts_over(partition, self.view.handoffs.get(&partition));
                    plane.stop(partition, cause);
                    self.drains.stopped(partition, due_since);
                    self.expect_new_owner(partition);
                }
                Some(RouteStep::Switch(target)) => {
                    let Some(pod) = self.view.live_pod(&target.pod, target.incarnation) else {
                        break;
                    };
                    let without_lease = self.settings.on_store_loss.serves_without_lease(pod.capabilities);
                    self.drains.switched(partition, pod.capabilities);
                    // A partition whose owner died was stopped before its handoff existed.
                    if let Some(handoff) = self.view.handoffs.get(&partition) {
                        self.observer.cuts_over(partition, Some(handoff));
                    }
                    plane.switch(partition, &target, pod, without_lease);
                    self.stop_limiter.over(partition);
                }
                Some(RouteStep::AckDrained(handoff)) => {
                    self.ack(partition, handoff, AckKind::Drained);
                    break;
                }
                Some(RouteStep::AckCutover(handoff)) => {
                    // If no request was held, the gate opens in the switch itself, before the table's notification
                    // arrives.
                    self.note_cutover(partition);
                    self.ack(partition, handoff, AckKind::Cutover);
                    break;
                }
                None => break,
            }
        }
        if let Route::Hold(cause) = wanted {
            plane.name_cause(partition, cause);
        }
        let DrainStep { severed, gives_up, again } = self.drains.watch(&*self.plane, &self.view, partition, &wanted);
        if severed > 0 {
            self.acks.add_severed(partition, severed);
        }
        if let Some(again) = again {
            self.timers.insert((again, partition));
        }
        let handoff = self.view.handoffs.get(&partition).map(|handoff| handoff.id()).filter(|_| gives_up);
        if let Some(handoff) = handoff.filter(|handoff| !self.acks.has_answered(partition, *handoff)) {
            self.ack(partition, handoff, AckKind::GaveUp);
        }
    }

    /// Queues an ack, unless it is written or being written.
    fn ack(&mut self, partition: PartitionId, handoff: HandoffId, kind: AckKind) {
        if let Some(again) = self.acks.want(AckId { partition, handoff, kind }) {
            self.timers.insert((again, partition));
        }
    }

    /// Returns whether a partition's stop, due since the revision `ready_since`, is postponed: for a long exchange, for a
    /// store that refuses writes, or for the stops of other partitions.
    fn postpones(&mut self, partition: PartitionId, ready_since: Revision) -> bool {
        let now = Instant::now();
        let new = DueStop { ready_since, seen_at: now };
        let due = self.stops_due.entry(partition).or_insert(new);
        if due.ready_since != ready_since {
            *due = new;
        }
        let waited = now - due.seen_at;
        let oldest = self.plane.oldest_exchange(partition).map(|since| now.saturating_duration_since(since));
        if waits_for_exchange(oldest, waited, self.settings.drain.patience) {
            self.timers.insert((now + EXCHANGE_CHECK_INTERVAL, partition));
            return true;
        }
        // The acknowledgement of this stop could not be written, so nobody would begin to serve.
        if let Some(until) = self.acks.refused_until() {
            self.timers.insert((until, partition));
            return true;
        }
        !self.stop_limiter.take(partition, ready_since, now)
    }

    /// Opens connections to the new owner while the old one drains, so that held requests need not wait for them.
    fn expect_new_owner(&self, partition: PartitionId) {
        let handoff = self.view.handoffs.get(&partition).map(|handoff| &handoff.value);
        let Some((handoff, pod)) = handoff.and_then(|it| Some((it, self.view.live_new_owner(it)?))) else { return };
        let (name, incarnation) = (handoff.new_owner.clone(), handoff.new_incarnation);
        let without_lease = self.settings.on_store_loss.serves_without_lease(pod.capabilities);
        self.plane.expect(&Target { pod: name, incarnation, epoch: handoff.epoch }, pod, without_lease);
    }

    /// Stops partitions whose turn has come.
    fn take_turns(&mut self) {
        while let Some(partition) = self.stop_limiter.next(Instant::now()) {
            self.reconcile(partition);
        }
    }
}
