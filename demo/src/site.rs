//! The processes of a demo with their parts in all keyspaces: what befalls one of them befalls it in each.

use std::time::Duration;

use futures_util::future::join_all;

use super::cluster::Cluster;
use super::options::Options;

/// The clusters of all keyspaces. There is at least one.
pub(super) struct Site {
    pub(super) clusters: Vec<Cluster>,
}

impl Site {
    /// Starts all processes. Returns before they are ready.
    pub(super) async fn start(options: &Options) -> anyhow::Result<Self> {
        Ok(Site { clusters: Cluster::start_all(options).await? })
    }

    /// Returns the cluster of the keyspace that is shown.
    pub(super) fn shown(&self) -> &Cluster {
        &self.clusters[0]
    }

    /// Returns the names of the running pods.
    pub(super) fn pods(&self) -> Vec<String> {
        self.shown().pods()
    }

    /// Returns the first name that no running pod has.
    pub(super) fn next_pod(&self) -> String {
        self.shown().next_pod()
    }

    /// Starts a pod.
    pub(super) async fn add_pod(&mut self, name: &str) -> anyhow::Result<()> {
        for cluster in &mut self.clusters {
            cluster.add_pod(name).await?;
        }
        Ok(())
    }

    /// Ends a pod after it has handed its partitions over.
    pub(super) async fn remove_pod(&mut self, name: &str) {
        join_all(self.clusters.iter_mut().map(|cluster| cluster.remove_pod(name))).await;
    }

    /// Crashes a pod.
    pub(super) async fn crash_pod(&mut self, name: &str) {
        join_all(self.clusters.iter_mut().map(|cluster| cluster.crash_pod(name))).await;
    }

    /// Makes the leading coordinator of each keyspace resign and starts it again as a standby.
    pub(super) async fn resign_leader(&mut self) {
        join_all(self.clusters.iter_mut().map(Cluster::resign_leader)).await;
    }

    /// Records the beginning of a step.
    pub(super) fn begin(&self, scenario: &'static str, what: &str) {
        for cluster in &self.clusters {
            cluster.timeline().begin(scenario, what.to_owned());
        }
    }

    /// Records the end of the last step.
    pub(super) fn end(&self, settled: bool) {
        for cluster in &self.clusters {
            cluster.timeline().end(settled, &cluster.history().seen());
        }
    }

    /// Waits until all keyspaces have settled. Returns whether that was so within `patience`.
    pub(super) async fn settled(&self, patience: Duration) -> bool {
        let settled = join_all(self.clusters.iter().map(|cluster| cluster.settled(patience))).await;
        settled.into_iter().all(|settled| settled)
    }

    /// Ends all processes.
    pub(super) async fn stop(self) {
        join_all(self.clusters.into_iter().map(Cluster::stop)).await;
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::planning::{Coordination, Strategy};

    use super::super::run;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn processes_that_take_part_in_two_keyspaces_without_a_leader_harm_neither() {
        let options = Options {
            duration: Duration::from_secs(2),
            keyspaces: 2,
            coordination: Coordination::Rounds,
            strategy: Strategy::Ring,
            partitions: 16,
            clients: 8,
            // In debug builds, too, there is time for the protocol.
            rate: 200,
            ..Options::default()
        };
        let report = run(options).await.unwrap();
        assert!(report.sound, "{report}");
        assert!(report.ok > 0 && report.cutovers > 0 && report.failover_pause_us.count > 0, "{report}");
        assert_eq!(report.cluster.keyspaces, 2);
    }
}
