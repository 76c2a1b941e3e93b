//! Reports what a router's clients suffer: to the log, to the observer, and to operators by a leased key in the store.
//!
//! Not here: what is a trouble, and when the report is due ([`troubles`](segue_protocol::troubles)).
//!
//! # Invariants
//!
//! * It runs beside the router's control side, and nothing waits for it.
//! * The report ends with the life that wrote it: it is put under the registration's lease, if that life is registered,
//!   and is deleted with the registration.

use std::collections::BTreeSet;
use std::sync::Arc;

use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{PodTrouble, RouterTroubles, TroubleKind, encode};
use segue_protocol::troubles::{Assessor, ReportSchedule, ReportStep, WRITE_INTERVAL};
use segue_protocol::txn::{Compare, Op, Txn};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::{DataPlane, RouterObserver};
use crate::session::unix_millis;
use crate::store::Store;

/// A trouble that the log has told of.
type LoggedTrouble = (String, Incarnation, TroubleKind);

/// The reports of one life of a router.
pub(super) struct TroubleReporter {
    pub(super) store: Arc<dyn Store>,
    pub(super) keys: Keyspace,
    pub(super) router: String,
    pub(super) life: (Incarnation, LeaseId),
    pub(super) plane: Arc<dyn DataPlane>,
    pub(super) observer: Arc<dyn RouterObserver>,
}

impl TroubleReporter {
    /// Takes a sample of the traffic every second, and reports what it shows. Never returns.
    pub(super) async fn run(self) {
        let began = Instant::now();
        let (mut assessor, mut schedule) = (Assessor::default(), ReportSchedule::default());
        let (mut log, mut written) = (TroubleLog::default(), BTreeSet::new());
        let mut ticks = interval(WRITE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await - began;
            let mut troubles = assessor.assess(now, self.plane.sample());
            (troubles.router_name, troubles.incarnation) = (self.router.clone(), self.life.0);
            log.follow(&troubles, &written);
            self.observer.troubles(&troubles);
            let Some(step) = schedule.due(now, &troubles) else { continue };
            troubles.at = unix_millis();
            let committed = self.store.commit(self.txn(step, &troubles)).await;
            if let Err(error) = &committed {
                debug!(%error, "report of troubles not written");
            }
            // The life whose key is gone has ended, so there is nothing more to write.
            schedule.written(began.elapsed(), &troubles, committed.is_ok());
            if committed.is_ok() {
                written = troubles.pods.iter().map(trouble).collect();
                log.follow(&troubles, &written);
            }
        }
    }

    fn txn(&self, step: ReportStep, troubles: &RouterTroubles) -> Txn {
        let (incarnation, lease) = self.life;
        let key = self.keys.trouble(&self.router);
        let write = match step {
            ReportStep::Put => Op::put_leased(key, encode(troubles), lease),
            ReportStep::Delete => Op::delete(key),
        };
        Txn::guarded([Compare::created_at(self.keys.router(&self.router), incarnation.revision())], [write])
    }
}

/// Tells the log when a trouble begins and when it is over.
#[derive(Debug, Default)]
struct TroubleLog {
    pods: BTreeSet<LoggedTrouble>,
    is_held: bool,
}

impl TroubleLog {
    /// Tells what has changed. `written`: the troubles that the store has. A pod refuses too when it cannot reach the store,
    /// and is not blamed by a router that cannot reach it either.
    fn follow(&mut self, troubles: &RouterTroubles, written: &BTreeSet<LoggedTrouble>) {
        let is_certain = |one: &LoggedTrouble| one.2 != TroubleKind::Refuses || written.contains(one);
        let present: BTreeSet<_> = troubles.pods.iter().map(trouble).filter(is_certain).collect();
        let is_new = |one: &LoggedTrouble| present.contains(one) && !self.pods.contains(one);
        for pod in troubles.pods.iter().filter(|pod| is_new(&trouble(pod))) {
            let PodTrouble { pod_name, kind, figures, held_requests, .. } = pod;
            warn!(pod = pod_name, trouble = kind.as_str(), figures, held = held_requests, "clients of a pod suffer");
        }
        for (pod, _, kind) in self.pods.difference(&present) {
            info!(pod, trouble = kind.as_str(), "a pod's trouble is over");
        }
        self.pods = present;
        let is_held = !troubles.held.is_empty();
        if is_held != std::mem::replace(&mut self.is_held, is_held) {
            match troubles.held.first() {
                Some(oldest) => warn!(
                    requests = troubles.held_requests,
                    partition = oldest.partition.get(),
                    oldest_ms = oldest.oldest_ms,
                    "requests are held for long"
                ),
                None => info!("no request is held for long any more"),
            }
        }
    }
}

fn trouble(pod: &PodTrouble) -> LoggedTrouble {
    (pod.pod_name.clone(), pod.incarnation, pod.kind)
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::Revision;

    use super::*;

    #[test]
    fn a_pod_that_refuses_is_blamed_only_by_a_router_that_reaches_the_store() {
        let pod = |name: &str, kind| PodTrouble {
            pod_name: name.to_owned(),
            incarnation: Incarnation::registered_at(Revision::new(3)),
            kind,
            for_ms: 2_000,
            figures: String::new(),
            held_requests: 0,
            oldest_held_ms: 0,
        };
        let pods = vec![pod("refuses", TroubleKind::Refuses), pod("gone", TroubleKind::Unreachable)];
        let troubles = RouterTroubles { pods, ..RouterTroubles::default() };
        let (mut log, mut written) = (TroubleLog::default(), BTreeSet::new());
        log.follow(&troubles, &written);
        assert_eq!(log.pods, BTreeSet::from([trouble(&troubles.pods[1])]));
        written.extend(troubles.pods.iter().map(trouble));
        log.follow(&troubles, &written);
        assert_eq!(log.pods, written);
    }
}
