//! Writes the load that pods report as their heartbeats, which planning reads.
//!
//! # Invariants
//!
//! * Nothing is written unless planning has a use for it, and at most one heartbeat per pod and
//!   [`HEARTBEAT_INTERVAL`], however often the pod reports.
//! * A pod's last heartbeat is deleted when planning has no use for it any more: the pod would be suspected.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use segue_coordination::pod::LoadReport;
use segue_coordination::session::unix_millis;
use segue_coordination::store::Store;
use segue_protocol::ids::Incarnation;
use segue_protocol::lease::keepalive_interval;
use segue_protocol::planning::{HEARTBEAT_INTERVAL, uses_load};
use segue_protocol::records::{PartitionLoad, PodLoad, Thousandths};
use segue_protocol::registration::{end_heartbeats, heartbeat};
use segue_protocol::txn::Txn;
use segue_protocol::view::View;
use tokio::time::Instant;
use tracing::{Instrument as _, debug};

use crate::status::ReportedLoad;
use crate::token::Token;

/// How long a pod that has stopped to report is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

/// When the load of each registration was last written.
#[derive(Debug, Default)]
pub(crate) struct LoadReports(Mutex<HashMap<Incarnation, Instant>>);

impl LoadReports {
    /// Takes the load that a pod has reported, if it has reported any. Called upon each of its heartbeats.
    pub(crate) fn take(&self, store: &Arc<dyn Store>, view: &View, token: &Token, load: Option<&ReportedLoad>) {
        let Some(txn) = self.due(view, token, load, Instant::now()) else { return };
        let (store, pod) = (store.clone(), token.pod.clone());
        let writing = async move {
            if let Err(error) = store.commit(txn).await {
                debug!(pod, %error, "the pod's load is not written; its next report follows soon");
            }
        };
        tokio::spawn(writing.in_current_span());
    }

    fn due(&self, view: &View, token: &Token, load: Option<&ReportedLoad>, now: Instant) -> Option<Txn> {
        let life = token.incarnation();
        if !uses_load(view) {
            let stands = view.load(&token.pod).is_some_and(|load| load.incarnation == life);
            return stands.then(|| end_heartbeats(view.keys(), &token.pod, life));
        }
        let load = load?;
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match written.entry(life) {
            Entry::Occupied(at) if now < *at.get() + HEARTBEAT_INTERVAL => return None,
            Entry::Occupied(mut at) => drop(at.insert(now)),
            Entry::Vacant(free) => drop(free.insert(now)),
        }
        written.retain(|_, at| now < *at + REMEMBERED);
        let ttl = u64::try_from(token.ttl().as_millis()).unwrap_or(u64::MAX);
        // The pod's next report may come just too early for its turn.
        let interval = HEARTBEAT_INTERVAL + Duration::from_millis(keepalive_interval(ttl));
        Some(heartbeat(view.keys(), &token.pod, token.lease(), &record(life, interval, load)))
    }
}

fn record(life: Incarnation, interval: Duration, load: &ReportedLoad) -> PodLoad {
    let listed = load.partitions().map(|partition| {
        let LoadReport { load, keys } = load.of(partition);
        (partition, PartitionLoad { load: load.unwrap_or_default().into(), keys })
    });
    let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    let listed = PodLoad::new(life, interval, listed.collect());
    // The pod's total may include what it does not attribute to a partition.
    PodLoad { at: unix_millis(), total: Thousandths::from(load.total), ..listed }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::{Epoch, LeaseId, Revision};
    use segue_protocol::keys::Keyspace;
    use segue_protocol::planning::{Policy, stored};
    use segue_protocol::records::{KeyspaceConfig, encode};
    use segue_protocol::txn::{KeyValue, Snapshot};

    use super::*;
    use crate::token::Secret;

    fn view(balance_load: bool) -> View {
        let keys = Keyspace::new("/segue/", "default");
        let planning = Some(stored(&Policy { balance_load, ..Policy::default() }));
        let value = encode(&KeyspaceConfig { planning, ..KeyspaceConfig::new(4) });
        let revision = Revision::new(5);
        let entry =
            KeyValue { key: keys.config(), value, create_revision: revision, mod_revision: revision, lease: None };
        View::from_snapshot(keys, Snapshot { revision, entries: vec![entry] })
    }

    #[test]
    fn a_pod_that_reports_often_is_written_once_per_interval_and_only_if_planning_uses_it() {
        let (reports, now, load) = (LoadReports::default(), Instant::now(), ReportedLoad::default());
        let life = Incarnation::registered_at(Revision::new(3));
        let token =
            Secret::new(LeaseId::new(7), Duration::from_secs(15), Epoch::default()).token(("default", "w"), life);
        let is_due = |view: &View, after: Duration| reports.due(view, &token, Some(&load), now + after).is_some();
        assert!(!is_due(&view(false), Duration::ZERO));
        let view = view(true);
        let millis = [0, 1, 4_999, 5_000, 5_001, 9_999, 10_000];
        let due = millis.map(|millis| is_due(&view, Duration::from_millis(millis)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
        assert!(reports.due(&view, &token, None, now + REMEMBERED).is_none(), "it has reported nothing");
    }
}
