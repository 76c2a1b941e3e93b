//! Chooses the cluster that a process follows by asking all endpoints, before anything is written.
//!
//! # Invariants
//!
//! * Processes with the same endpoints, all of which respond, follow the same cluster or none.
//! * An endpoint that responds late delays nobody. If it then shows that none can be chosen, all calls are refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::super::StoreFailure;
use super::endpoints::Endpoints;
use super::seen::ClusterRecord;
use super::tls::TlsFiles;

/// How long the first connection waits for the other endpoints.
const COMPARISON_TIME: Duration = Duration::from_millis(250);

/// How long endpoints that are slower are asked again. Later ones are asked when they are used.
const LATE_TIME: Duration = Duration::from_secs(60);
const LATE_INTERVAL: Duration = Duration::from_secs(1);

/// The clusters of the endpoints that have responded.
pub(super) struct ClusterComparison {
    endpoints: Endpoints,
    material: Option<TlsFiles>,
    shown: BTreeMap<usize, u64>,
    /// Endpoints that may respond later. One without a listener is none of them.
    slow: Vec<usize>,
}

impl ClusterComparison {
    /// Asks all endpoints but this one, which belongs to `cluster`.
    pub(super) async fn of(endpoints: &Endpoints, endpoint: usize, cluster: u64, material: Option<&TlsFiles>) -> Self {
        let others = (0..endpoints.urls().len()).filter(|other| *other != endpoint);
        let asked = others.map(async |other| {
            let opened = timeout(COMPARISON_TIME, endpoints.open(other, &mut material.cloned())).await;
            (other, opened.map(|opened| opened.ok().and_then(|opened| opened.cluster)))
        });
        let (mut shown, mut slow) = (BTreeMap::from([(endpoint, cluster)]), Vec::new());
        for (other, cluster) in join_all(asked).await {
            match cluster {
                Ok(Some(cluster)) => drop(shown.insert(other, cluster)),
                Ok(None) => {}
                Err(_) => slow.push(other),
            }
        }
        ClusterComparison { endpoints: endpoints.clone(), material: material.cloned(), shown, slow }
    }

    /// Returns the cluster to follow, or why there is none.
    pub(super) fn chosen(&self) -> Result<u64, StoreFailure> {
        let clusters: Vec<u64> = self.shown.values().copied().collect();
        let name = |(endpoint, cluster): (&usize, &u64)| {
            format!("{} to cluster {cluster:x}", self.endpoints.urls()[*endpoint])
        };
        chosen(self.endpoints.urls().len(), &clusters).ok_or_else(|| {
            let all: Vec<String> = self.shown.iter().map(name).collect();
            format!("the endpoints belong to different etcd clusters: {}", all.join(", ")).into()
        })
    }

    /// Asks the slow endpoints in the background, and refuses all of them if the process should not have followed `cluster`.
    pub(super) fn go_on(mut self, cluster: u64, seen: Arc<Mutex<ClusterRecord>>) {
        if self.slow.is_empty() {
            return;
        }
        tokio::spawn(async move {
            let end = Instant::now() + LATE_TIME;
            while !self.slow.is_empty() && Instant::now() < end {
                for endpoint in std::mem::take(&mut self.slow) {
                    let opened = self.endpoints.open(endpoint, &mut self.material).await;
                    match opened.map(|opened| opened.cluster) {
                        Ok(Some(cluster)) => drop(self.shown.insert(endpoint, cluster)),
                        Ok(None) => {}
                        Err(_) => self.slow.push(endpoint),
                    }
                }
                let why: Option<StoreFailure> = match self.chosen() {
                    Ok(chosen) if chosen == cluster => None,
                    Ok(chosen) => {
                        Some(format!("most endpoints belong to etcd cluster {chosen:x}, not to {cluster:x}").into())
                    }
                    Err(why) => Some(why),
                };
                if let Some(why) = why {
                    tracing::error!(error = why.words(), "no etcd cluster can be chosen");
                    seen.lock().unwrap_or_else(PoisonError::into_inner).refuse(why);
                    return self.endpoints.refused.cancel();
                }
                sleep(LATE_INTERVAL).await;
            }
        });
    }
}

/// Returns the cluster that a process follows if its endpoints have shown these ones: the only one, or that of more than half
/// of `endpoints`. Each process with the same endpoints comes to the same result. `None` if there is no such cluster.
fn chosen(endpoints: usize, shown: &[u64]) -> Option<u64> {
    let first = *shown.first()?;
    if shown.iter().all(|cluster| *cluster == first) {
        return Some(first);
    }
    let has_most = |cluster: &&u64| 2 * shown.iter().filter(|other| other == cluster).count() > endpoints;
    shown.iter().find(has_most).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_are_never_chosen_by_processes_with_the_same_endpoints() {
        assert_eq!(chosen(3, &[]), None);
        assert_eq!(chosen(3, &[7]), Some(7), "the others do not respond");
        assert_eq!(chosen(3, &[7, 7, 8]), Some(7));
        assert_eq!(chosen(3, &[8, 7, 7]), Some(7));
        assert_eq!(chosen(2, &[7, 8]), None);
        assert_eq!(chosen(3, &[7, 8]), None, "the third may belong to either");
        assert_eq!(chosen(4, &[7, 7, 8, 8]), None);
    }
}
