//! A pod's own registration: its creation, maintenance and end.
//!
//! # Invariants
//!
//! * A status that was written with the pod's own lease is an operator's request, and kept.
//! * A record that another writer has put is restored under the pod's lease.

use std::pin::pin;

use segue_protocol::ids::Incarnation;
use segue_protocol::records::{PodRecord, PodStatus, encode};
use segue_protocol::view::View;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use std::time::Duration;

use super::PodSettings;
use super::driver::{Driver, Intent};
use crate::session::{Claim, OwnKey, Registration, register, unix_millis};

impl Driver {
    /// Registers, and meanwhile releases what an earlier life has left. `ended` is this process's earlier life. Returns
    /// `None` if the pod ends instead.
    pub(super) async fn registered(&mut self, ended: Incarnation) -> Option<Registration> {
        let (leases, key, ttl) = (self.leases.clone(), self.keys.pod(&self.settings.name), self.settings.lease_ttl);
        let (settings, draining) = (self.settings.clone(), self.is_draining());
        let claim =
            Claim::new(&self.keys, key, ttl).awaiting_settings().with(self.keys.load(&self.settings.name)).after(ended);
        let service = self.service.clone();
        let mut registered = pin!(async {
            service.up().await;
            register(&leases, &claim, |_| encode(&timed(record(&settings, draining)))).await
        });
        loop {
            let until = match *self.intent.borrow_and_update() {
                Intent::End { until, .. } if self.work.is_empty() || until <= Instant::now() => return None,
                Intent::End { until, .. } => until,
                _ => Instant::now() + ttl,
            };
            let wake = self.timers.first().map_or(until, |(at, _)| until.min(*at));
            tokio::select! {
                biased;
                registration = &mut registered => return Some(registration),
                changed = self.intent.changed() => changed.ok()?,
                Some(ended) = self.callbacks.join_next_with_id(), if !self.callbacks.is_empty() => self.ended(ended),
                () = sleep_until(wake) => self.due(),
            }
        }
    }

    pub(super) async fn deregister(&self, registration: Registration) {
        if let Err(error) = registration.withdraw().await {
            warn!(%error, "cannot deregister; the registration ends with its lease");
        }
    }

    /// Keeps this pod's key. Returns `false` if the registration is gone or another life's.
    pub(super) fn keep_key(&self, own_key: &mut OwnKey) -> bool {
        let mut own = record(&self.settings, self.is_draining());
        let key = self.view.pod_key(&self.settings.name);
        let is_attached = key.as_ref().is_some_and(|key| key.lease == self.lease);
        let seen = self.view.live_pod(&self.settings.name, self.incarnation);
        // A status that was written with the lease is an operator's request, and obeyed.
        if let Some(seen) = seen.filter(|_| is_attached) {
            own.status = seen.status;
        }
        let intact = seen.is_some_and(|seen| untimed(seen) == own);
        own_key.keep(&self.view, key.as_ref(), intact, || encode(&timed(own)))
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

    pub(super) fn is_emptied(&self) -> bool {
        let (me, life) = (&self.settings.name, self.incarnation);
        let Some(own) = self.view.live_pod(me, life) else {
            return false;
        };
        let is_told = *self.intent.borrow() == Intent::Serve || own.status == PodStatus::Draining;
        let gives = |view: &View| {
            let from = |old: &str, incarnation| old == me && incarnation == life;
            view.handoffs
                .values()
                .any(|it| it.value.old_owner.as_deref().is_some_and(|old| from(old, it.value.old_incarnation)))
        };
        is_told && self.work.is_empty() && !self.view.owns_any(me, life) && !gives(&self.view)
    }

    /// Returns whether nothing is being handed over by this pod, and no other pod accepts partitions.
    pub(super) fn has_no_successor(&self) -> bool {
        let (view, me) = (&self.view, &self.settings.name);
        let gives = view.handoffs.values().any(|it| it.value.old_owner.as_ref() == Some(me));
        let accepts = |other: &String| other != me && !view.is_draining(other);
        self.synced && !gives && !view.pods.keys().any(accepts)
    }
}

/// Returns a pod's registration with its times unset.
fn record(settings: &PodSettings, draining: bool) -> PodRecord {
    PodRecord {
        pod_name: settings.name.clone(),
        address: settings.address.clone(),
        status: if draining { PodStatus::Draining } else { PodStatus::Ready },
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
