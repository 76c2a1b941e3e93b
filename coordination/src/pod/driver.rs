//! The pod as a shell: it registers, follows the store, and reconsiders each partition when something has changed.
//!
//! One task owns the view and the state of all partitions. Callbacks and writes run beside it ([`work`](super::work)).
//!
//! # Invariants
//!
//! * A pod registers, then takes its snapshot, then accepts requests.
//! * It fences before it gives its registration up.
//! * A callback that hangs never blocks the loop, whose progress keeps the lease alive.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::Incarnation;
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::moves_go_in_step;
use segue_protocol::records::PodStatus;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::heartbeat::Heartbeat;
use super::lease_window::ends_at;
use super::membership::{Intent, Membership};
use super::ownership::Ownership;
use super::service::Service;
use super::service_watch::{Reaction, ServiceWatch};
use super::work::Work;
use super::{HandoffHandler, PodSettings, PodState};
use crate::session::{Event, LeaseState, Leases, LifeEnd, Participant, Registration, lease_now, register, wakes_at};
use crate::store::Store;

/// How long a pod that was told to end waits for another one that could take over from it.
const ALONE_PATIENCE: Duration = Duration::from_secs(2);

/// The reason why an unregistered pod accepts nothing.
pub(super) const NOT_REGISTERED: &str = "not registered";

/// Why a life of a pod has ended.
enum PodEnd {
    Shutdown,
    RegistrationGone,
    /// The service is down, and nothing that it was given can take effect any more.
    ServiceDown,
}

/// A pod's side of the protocol.
pub(super) struct PodDriver {
    store: Arc<dyn Store>,
    leases: Leases,
    handler: Arc<dyn HandoffHandler>,
    service: Arc<dyn Service>,
    service_watch: ServiceWatch,
    ownership: Arc<Ownership>,
    work: Work,
    /// Since when this pod, which was told to end, has seen no other one that could take over from it.
    alone_since: Option<Instant>,
}

impl PodDriver {
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
        let pod = Membership::new(keys, settings, !handler.warms(), intent, state);
        PodDriver {
            service_watch: ServiceWatch::of(service.clone(), store.clone()),
            work: Work::new(store.clone(), pod, (handler.clone(), service.clone()), ownership.clone()),
            store,
            leases,
            handler,
            service,
            ownership,
            alone_since: None,
        }
    }

    pub(super) async fn run(mut self) {
        self.publish(None);
        let mut ended = Incarnation::NONE;
        while let Some(registration) = self.registered(ended).await {
            ended = registration.incarnation;
            let end = self.live(&registration).await;
            self.service_watch.end();
            match end {
                PodEnd::Shutdown => self.ownership.close(),
                // The pod has fenced. Its next life vouches for no work of this one.
                PodEnd::RegistrationGone => self.service.settle(Instant::now()).await,
                PodEnd::ServiceDown => {}
            }
            // The old key is gone or expires if it cannot be deleted: this process drops its lease.
            if let Err(error) = registration.withdraw().await {
                warn!(%error, "cannot deregister; the registration ends with its lease");
            }
            if matches!(end, PodEnd::Shutdown) {
                break;
            }
        }
        self.ownership.close();
        self.service.settle(self.work.pod.ends_by()).await;
        self.work.pod.state.send_modify(|state| state.not_ready = Some("shut down".to_owned()));
        info!(pod = self.work.pod.settings.name, "ended");
    }

    /// Registers, and meanwhile releases what an earlier life has left. `ended` is this process's earlier life. Returns
    /// `None` if the pod ends instead.
    async fn registered(&mut self, ended: Incarnation) -> Option<Registration> {
        let (leases, service) = (self.leases.clone(), self.service.clone());
        let (claim, record) = (self.work.pod.claim(ended), self.work.pod.record());
        let mut registered = pin!(async {
            service.up().await;
            register(&leases, &claim, |_| record()).await
        });
        let ttl = self.work.pod.settings.lease_ttl;
        loop {
            let intent = *self.work.pod.intent.borrow_and_update();
            let until = match intent {
                Intent::End { until, .. } if self.work.is_empty() || until <= Instant::now() => return None,
                Intent::End { until, .. } => until,
                _ => Instant::now() + ttl,
            };
            let wake = self.work.next_due().map_or(until, |at| until.min(at));
            tokio::select! {
                biased;
                registration = &mut registered => return Some(registration),
                changed = self.work.pod.intent.changed() => changed.ok()?,
                Some(ended) = self.work.callbacks.join_next_with_id(), if !self.work.callbacks.is_empty() => {
                    self.work.ended(ended);
                }
                () = sleep_until(wake) => self.work.due(),
            }
        }
    }

    async fn live(&mut self, registration: &Registration) -> PodEnd {
        let pod = &mut self.work.pod;
        pod.begin(registration);
        self.service_watch.begin(pod);
        let mut participant = Participant::start_pod(&self.store, &pod.keys, registration, &pod.settings.name);
        let (store, keys, interval) = (self.store.clone(), pod.keys.clone(), pod.settings.load_interval);
        let mut heartbeat = Heartbeat::of(store, keys, pod.settings.name.clone(), interval, registration);
        let (mut lent, mut looks_at, mut event) = (None, None, Event::Turn);
        loop {
            let lease = match participant.turn() {
                Ok(lease) => lease,
                Err(LifeEnd::LeaseLost) => return self.registration_gone("pod lease lost"),
                Err(LifeEnd::OtherProtocol(why)) => return self.registration_gone(&why),
            };
            self.lend(&mut lent, ends_at(lease));
            self.work.pod.synced = participant.is_synced();
            if participant.is_synced() {
                if !self.work.pod.keep_key(&mut participant) {
                    return self.registration_gone("the registration is gone or replaced");
                }
                self.ownership.trust(lease);
            }
            self.react(std::mem::replace(&mut event, Event::Turn), &mut heartbeat);
            if participant.is_synced() {
                heartbeat.send(&self.ownership, &*self.handler);
                looks_at = self.work.look_for_checkpoints();
            }
            self.publish(Some(lease));
            self.work.send_writes();
            let now = Instant::now();
            self.work.tell_changes(now);
            let ends_at = self.may_end(now);
            if ends_at.is_some_and(|until| until <= now) {
                self.service_watch.part(&mut self.work.pod);
            }
            let beat = heartbeat.due().filter(|_| participant.is_synced());
            let wake = beat.into_iter().chain(looks_at).fold(self.wakes_at(now, ends_at, lease), Instant::min);
            tokio::select! {
                biased;
                next = participant.next(&mut self.work.pod.view) => event = next,
                Some(ended) = self.work.callbacks.join_next_with_id(), if !self.work.callbacks.is_empty() => {
                    self.work.ended(ended);
                    if moves_go_in_step(&self.work.pod.view) {
                        self.others_ended().await;
                    }
                }
                turned = self.service_watch.turned() => match self.service_watch.act(turned, &mut self.work.pod) {
                    Reaction::GoOn => {}
                    Reaction::Reconsider => self.work.reconcile_all(),
                    Reaction::Deregister => {
                        self.registration_gone("service is down");
                        return PodEnd::ServiceDown;
                    }
                    Reaction::ShutDown => return PodEnd::Shutdown,
                },
                results = self.work.writes.next_results() => self.work.written(results),
                () = heartbeat.written() => {}
                changed = self.work.pod.intent.changed() => match changed {
                    Ok(()) => self.work.keep_record(),
                    Err(_) => return PodEnd::Shutdown,
                },
                () = sleep_until(wake) => self.work.due(),
            }
        }
    }

    /// Handles the callbacks that end at the same moment as one that has ended. Their acknowledgements share a request.
    async fn others_ended(&mut self) {
        yield_now().await;
        while let Some(ended) = self.work.callbacks.try_join_next_with_id() {
            self.work.ended(ended);
        }
    }

    /// Acts on what has happened in the store.
    fn react(&mut self, event: Event, heartbeat: &mut Heartbeat) {
        match event {
            Event::Synced { .. } => {
                heartbeat.follow(&self.work.pod.view);
                self.work.resync();
            }
            Event::Changed(delta) => {
                if delta.settings {
                    heartbeat.follow(&self.work.pod.view);
                }
                self.work.reconsider(&delta);
            }
            Event::Blind { is_new: true, .. } => self.work.pod.state.send_modify(|state| state.resyncs += 1),
            Event::Blind { .. } | Event::Turn => {}
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
            self.work.next_due(),
            trusted.then(|| wakes_at(lease.trusted_until)),
        ];
        others.into_iter().flatten().fold(now + self.work.pod.settings.lease_ttl / 6, Instant::min)
    }

    /// Returns when this pod may end, if it was told to. Once it is emptied or its time for handing over is up, the
    /// remaining partitions are refused.
    fn may_end(&mut self, now: Instant) -> Option<Instant> {
        let Intent::End { hand_over_until, until } = *self.work.pod.intent.borrow() else {
            return None;
        };
        let alone_since = self.work.pod.has_no_successor().then(|| self.alone_since.unwrap_or(now));
        self.alone_since = alone_since;
        let hand_over_until = alone_since.map_or(hand_over_until, |since| hand_over_until.min(since + ALONE_PATIENCE));
        if !self.work.pod.ending && now < hand_over_until && !self.work.is_emptied() {
            return Some(hand_over_until);
        }
        if !std::mem::replace(&mut self.work.pod.ending, true) {
            let left = self.work.pod.state.borrow().owned.len();
            match left {
                0 => info!("no partition left; deregistering"),
                _ if alone_since.is_some() => warn!(left, "no other pod accepts partitions; refusing them"),
                _ => warn!(left, "partitions not handed over in time; refusing them"),
            }
            self.work.reconcile_all();
        }
        Some(if self.work.is_done() { now } else { until })
    }

    fn registration_gone(&mut self, why: &str) -> PodEnd {
        warn!(why, "pod fenced; registering again");
        // The order matters: nothing may be accepted or acknowledged once the registration is given up.
        self.ownership.fence();
        self.work.end_life();
        self.publish(None);
        PodEnd::RegistrationGone
    }

    fn publish(&self, lease: Option<LeaseState>) {
        let (pod, now) = (&self.work.pod, lease_now());
        let not_ready = match lease {
            None => Some(NOT_REGISTERED),
            Some(_) if !pod.synced => Some("the store's state is not loaded yet"),
            Some(lease) if now >= lease.trusted_until => Some("the store has not confirmed the lease in time"),
            Some(_) => None,
        };
        let attached = pod.view.pods.get(&pod.settings.name).filter(|own| own.lease == pod.lease);
        let own = attached.filter(|own| own.incarnation() == pod.incarnation).map(|own| &own.value);
        let (emptied, incarnation) = (self.work.is_emptied(), pod.incarnation);
        pod.state.send_if_modified(|state| {
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
                    None => debug!(incarnation = incarnation.get(), "ready"),
                    Some(reason) => debug!(reason, "not ready"),
                }
            }
            facts(state) != before
        });
    }
}
