//! The pod as a member of its keyspace: its registration, and what it has seen of the keyspace.
//!
//! # Invariants
//!
//! * A status that was written with the pod's own lease is an operator's request, and kept.
//! * A record that another writer has put is restored under the pod's lease.

use std::time::Duration;

use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{PodRecord, PodStatus, encode};
use segue_protocol::txn::{Compare, Op, Txn};
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{PodSettings, PodState};
use crate::session::{Claim, Participant, Registration, unix_millis};

/// The service's request to its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Serve,
    Drain,
    End { hand_over_until: Instant, until: Instant },
}

/// A pod, registered or not.
pub(super) struct Membership {
    pub(super) keys: Keyspace,
    pub(super) settings: PodSettings,
    nothing_to_warm: bool,
    pub(super) intent: watch::Receiver<Intent>,
    pub(super) state: watch::Sender<PodState>,
    pub(super) view: View,
    /// 0 while the pod is not registered; the view is empty then.
    pub(super) incarnation: Incarnation,
    pub(super) lease: Option<LeaseId>,
    /// The view includes a snapshot from after the registration.
    pub(super) synced: bool,
    /// Nothing is handed over any more: the remaining partitions are refused.
    pub(super) ending: bool,
    /// The service is down: no request is admitted.
    pub(super) refusing: bool,
    /// The own record is `Draining` only because the service is down.
    drains_for_service: bool,
    /// The service says that it is unhealthy, and this pod has asked the store whether it may give way to another one, or
    /// gives way.
    pub(super) gives_way: bool,
}

impl Membership {
    pub(super) fn new(
        keys: Keyspace,
        settings: PodSettings,
        nothing_to_warm: bool,
        intent: watch::Receiver<Intent>,
        state: watch::Sender<PodState>,
    ) -> Self {
        Membership {
            view: View::empty(keys.clone()),
            keys,
            settings,
            nothing_to_warm,
            intent,
            state,
            incarnation: Incarnation::NONE,
            lease: None,
            synced: false,
            ending: false,
            refusing: false,
            drains_for_service: false,
            gives_way: false,
        }
    }

    /// Returns the claim to the pod's key after the earlier life `ended` of this process.
    pub(super) fn claim(&self, ended: Incarnation) -> Claim {
        let name = &self.settings.name;
        let claim = Claim::new(&self.keys, self.keys.pod(name), self.settings.lease_ttl);
        claim.awaiting_settings().with(self.keys.load(name)).after(ended)
    }

    /// Returns what writes the value of the pod's key.
    pub(super) fn record(&self) -> impl Fn() -> Vec<u8> + Send + use<> {
        let own = self.registration();
        move || encode(&timed(own.clone()))
    }

    /// Returns the registration with its times unset.
    fn registration(&self) -> PodRecord {
        let settings = &self.settings;
        PodRecord {
            pod_name: settings.name.clone(),
            address: settings.address.clone(),
            status: if self.is_draining() { PodStatus::Draining } else { PodStatus::Ready },
            registered_at: 0,
            last_heartbeat: 0,
            weight: settings.weight.into(),
            zone: settings.zone.clone(),
            load: None,
            capabilities: settings.capabilities,
            admin: settings.admin.clone(),
            version: settings.version.clone(),
            work_ends_within_ms: settings.work_ends_within.map(millis),
            lease_ttl_ms: Some(millis(settings.lease_ttl)),
            resume_digest: None,
            gives_way: false,
            nothing_to_warm: self.nothing_to_warm,
        }
    }

    /// Begins a life.
    pub(super) fn begin(&mut self, registration: &Registration) {
        (self.incarnation, self.lease) = (registration.incarnation, Some(registration.lease.id()));
        (self.refusing, self.gives_way) = (false, false);
    }

    /// Ends the life.
    pub(super) fn end(&mut self) {
        (self.incarnation, self.lease, self.synced) = (Incarnation::NONE, None, false);
        self.view.resync(View::empty(self.keys.clone()));
    }

    /// Keeps this pod's key. Returns `false` if the registration is gone or another life's.
    pub(super) fn keep_key(&self, participant: &mut Participant<'_>) -> bool {
        let mut own = self.registration();
        let key = self.view.pod_key(&self.settings.name);
        let is_attached = key.as_ref().is_some_and(|key| key.lease == self.lease);
        let seen = self.view.live_pod(&self.settings.name, self.incarnation);
        // A status that was written with the lease is an operator's request, and obeyed.
        if let Some(seen) = seen.filter(|_| is_attached) {
            own.status = seen.status;
        }
        let intact = seen.is_some_and(|seen| untimed(seen) == own);
        participant.keep_key(&self.view, key.as_ref(), intact, || encode(&timed(own)))
    }

    /// Returns whether this pod's own record exists and cannot be read at the moment.
    pub(super) fn is_unreadable(&self) -> bool {
        self.view.live_pod(&self.settings.name, self.incarnation).is_none()
            && self.incarnation != Incarnation::NONE
            && self.view.incarnation_of(&self.settings.name) == self.incarnation
    }

    pub(super) fn is_draining(&self) -> bool {
        *self.intent.borrow() != Intent::Serve || self.state.borrow().draining
    }

    /// Returns whether the store shows that this pod owns nothing and hands nothing over. If it was told to drain, its record
    /// says so.
    pub(super) fn has_handed_over(&self) -> bool {
        let (me, life) = (&self.settings.name, self.incarnation);
        let Some(own) = self.view.live_pod(me, life) else {
            return false;
        };
        let is_told = *self.intent.borrow() == Intent::Serve || own.status == PodStatus::Draining;
        let gives = self
            .view
            .handoffs
            .values()
            .any(|it| (it.value.old_owner.as_ref(), it.value.old_incarnation) == (Some(me), life));
        is_told && !self.view.owns_any(me, life) && !gives
    }

    /// Returns whether nothing is being handed over by this pod, and no other pod accepts partitions.
    pub(super) fn has_no_successor(&self) -> bool {
        let (view, me) = (&self.view, &self.settings.name);
        let gives = view.handoffs.values().any(|it| it.value.old_owner.as_ref() == Some(me));
        let accepts = |other: &String| other != me && !view.is_draining(other);
        self.synced && !gives && !view.pods.keys().any(accepts)
    }

    /// Returns until when the remaining work may end by itself.
    pub(super) fn ends_by(&self) -> Instant {
        match *self.intent.borrow() {
            Intent::End { until, .. } => until,
            Intent::Serve | Intent::Drain => Instant::now(),
        }
    }

    /// Returns whether the service is down and the pod cannot vouch for the end of its work. Its partitions must be
    /// handed over then.
    fn is_sick(&self) -> bool {
        self.refusing && !self.settings.capabilities.fence
    }

    /// Admits requests or none from now on, because of the service.
    pub(super) fn refuse(&mut self, refusing: bool) {
        self.refusing = refusing;
        self.gives_way &= refusing;
        self.drains_for_service |= self.is_sick() && !self.is_draining();
    }

    /// Follows the status of the own record. Returns whether it has to be changed.
    pub(super) fn follow_record(&mut self) -> bool {
        let own = self.view.live_pod(&self.settings.name, self.incarnation);
        if own.is_some_and(|own| own.status == PodStatus::Ready) {
            // This also applies if an operator has just undone a drain: the cause of the drain is now the service.
            self.drains_for_service = self.is_sick();
        }
        self.status_change().is_some()
    }

    /// Returns the write that makes the own record state whether the pod is draining, unless it does.
    pub(super) fn status_change(&self) -> Option<Txn> {
        let key = self.keys.pod(&self.settings.name);
        let own = self.view.pods.get(&self.settings.name).filter(|own| own.incarnation() == self.incarnation)?;
        // An operator's drain is not undone.
        let status = match own.value.status {
            PodStatus::Ready if *self.intent.borrow() != Intent::Serve || self.is_sick() => PodStatus::Draining,
            PodStatus::Draining
                if self.drains_for_service && *self.intent.borrow() == Intent::Serve && !self.is_sick() =>
            {
                PodStatus::Ready
            }
            // Its service is healthy again, so others may give way to it.
            status if own.value.gives_way && !self.gives_way => status,
            _ => return None,
        };
        let gives_way = self.gives_way;
        let value = PodRecord { status, gives_way, last_heartbeat: unix_millis(), ..own.value.clone() };
        Some(Txn {
            // The guard implies that the record is this life's, and that no operator's change is undone.
            when: vec![Compare::unchanged_since(key.clone(), own.mod_revision)],
            then: vec![Op::Put { key, value: encode(&value), lease: self.lease }],
            otherwise: None,
        })
    }
}

fn timed(record: PodRecord) -> PodRecord {
    let now = unix_millis();
    PodRecord { registered_at: now, last_heartbeat: now, ..record }
}

/// Returns the record without the fields that its writer does not compare.
fn untimed(record: &PodRecord) -> PodRecord {
    PodRecord { registered_at: 0, last_heartbeat: 0, load: None, gives_way: false, ..record.clone() }
}

/// Returns a bound in milliseconds, rounded up: it must not end early.
fn millis(bound: Duration) -> u64 {
    u64::try_from(bound.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
