//! The current placement of the partitions, as the store has it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::IndexedRandom;
use segue_coordination::session::{Update, Watcher};
use segue_coordination::store::Store;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::Strategy;
use segue_protocol::records::{Phase, PodStatus};
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Time for which changes are collected before the placement is computed again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The placement of all partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterSnapshot {
    /// Number of partitions that each registered pod owns.
    pub owned: BTreeMap<String, u32>,
    /// Number of partitions without a living owner.
    pub unowned: u32,
    /// Number of handoffs in flight.
    pub in_flight: usize,
    /// The leading coordinator.
    pub leader: Option<String>,
    /// Partitions with a handoff that has not reached `Switching`.
    pub moving: Vec<PartitionId>,
    partitions: u32,
    draining: bool,
}

impl ClusterSnapshot {
    fn of(view: &View) -> Self {
        let mut owned: BTreeMap<String, u32> = view.pods.keys().map(|pod| (pod.clone(), 0)).collect();
        let (partitions, mut unowned) = (view.partitions(), 0);
        for partition in PartitionId::all(partitions) {
            match view.live_owner(partition) {
                Some((assignment, _)) => *owned.entry(assignment.owner.clone()).or_default() += 1,
                None => unowned += 1,
            }
        }
        ClusterSnapshot {
            owned,
            unowned,
            in_flight: view.handoffs.len(),
            leader: view.coordinator().map(str::to_owned),
            moving: view
                .handoffs
                .values()
                .filter(|it| it.value.phase < Phase::Switching)
                .map(|it| it.value.partition)
                .collect(),
            partitions,
            draining: view.pods.values().any(|pod| pod.value.status == PodStatus::Draining),
        }
    }

    /// Returns one of the partitions that are [`moving`](Self::moving).
    pub(crate) fn any_moving(&self, random: &mut impl rand::Rng) -> Option<PartitionId> {
        self.moving.choose(random).copied()
    }

    /// Returns whether these pods own all partitions and nothing moves. With `sticky` their shares are equal. With `jump`
    /// and `ring` each has a share; if there are few partitions, also the moment before the first handoff counts.
    pub(super) fn are_settled(&self, partitions: u32, pods: &[String], strategy: Strategy) -> bool {
        let there = self.owned.keys().eq(pods);
        let (least, most) = (self.owned.values().min(), self.owned.values().max());
        let even = least.zip(most).is_some_and(|(least, most)| match strategy {
            // Hashing gives each pod some partitions, as long as there are many more of them than of pods.
            Strategy::Jump | Strategy::Ring => *least > 0 || partitions < 8 * pods.len() as u32,
            _ => most - least <= 1,
        });
        there && even && !self.draining && self.partitions >= partitions && self.unowned == 0 && self.in_flight == 0
    }
}

/// Follows the store. Returns a receiver of the placement, and a handle that ends the task when it is dropped.
pub(super) fn follow(
    store: Arc<dyn Store>,
    keys: Keyspace,
) -> (watch::Receiver<ClusterSnapshot>, AbortOnDropHandle<()>) {
    let (sender, snapshot) = watch::channel(ClusterSnapshot::default());
    let task = tokio::spawn(async move {
        let mut view = View::empty(keys.clone());
        let mut watcher = Watcher::start(store, keys);
        loop {
            match watcher.next().await {
                Update::Snapshot(snapshot) => view = *snapshot,
                Update::Batch(batch) => drop(view.apply(batch)),
                Update::Lost(_) => {}
            }
            while let Some(batch) = watcher.try_next_batch() {
                view.apply(batch);
            }
            let snapshot = ClusterSnapshot::of(&view);
            sender.send_if_modified(|known| std::mem::replace(known, snapshot.clone()) != snapshot);
            // Computing the placement after every change would slow the cluster down.
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    });
    (snapshot, AbortOnDropHandle::new(task))
}
