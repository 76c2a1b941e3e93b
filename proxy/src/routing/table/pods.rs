//! The pods that partitions lead to, by a dense number each.
//!
//! A request finds its pod by that number without a lock.
//!
//! # Invariants
//!
//! * A number is never reused, so a thread that has read one may look it up at any time.

use std::sync::Arc;
// Not loom's: it orders nothing.
use std::sync::atomic::AtomicBool;

use dashmap::DashMap;
use segue_protocol::ids::Incarnation;

use super::pod_health::PodHealth;
use super::pod_traffic::PodTraffic;

/// One incarnation of a pod at one address.
#[derive(Debug)]
pub struct Pod {
    /// A dense number, never reused for another pod.
    pub slot: u32,
    /// The pod's name.
    pub name: String,
    /// The incarnation.
    pub incarnation: Incarnation,
    /// `host:port`.
    pub address: String,
    /// Whether the pod accepts its requests.
    pub health: PodHealth,
    /// What the pod has answered.
    pub(crate) traffic: PodTraffic,
    /// Whether it has got a request without a key.
    pub(crate) is_asked: AtomicBool,
    /// Whether sending to it is safe even if this router's lease may have ended.
    pub(crate) serves_without_lease: bool,
}

/// All pods that partitions have ever led to.
pub(super) struct Pods {
    workers: usize,
    pods: boxcar::Vec<Arc<Pod>>,
    slots: DashMap<(String, Incarnation, String, bool), u32>,
}

impl Pods {
    /// Returns no pods yet, for so many workers.
    pub(super) fn new(workers: usize) -> Self {
        Pods { workers, pods: boxcar::Vec::new(), slots: DashMap::new() }
    }

    /// Returns the number of this incarnation of a pod at this address, the same one each time.
    pub(super) fn intern(
        &self,
        name: &str,
        incarnation: Incarnation,
        address: &str,
        serves_without_lease: bool,
    ) -> u32 {
        let key = (name.to_owned(), incarnation, address.to_owned(), serves_without_lease);
        *self.slots.entry(key).or_insert_with(|| {
            self.pods.push_with(|slot| {
                Arc::new(Pod {
                    slot: slot as u32,
                    name: name.to_owned(),
                    incarnation,
                    address: address.to_owned(),
                    health: PodHealth::default(),
                    traffic: PodTraffic::new(self.workers),
                    is_asked: AtomicBool::new(false),
                    serves_without_lease,
                })
            }) as u32
        })
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Arc<Pod> {
        &self.pods[slot as usize]
    }
}
