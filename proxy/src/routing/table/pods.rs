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
use segue_protocol::ids::{Incarnation, Revision};

use super::pod_health::PodHealth;
use super::pod_traffic::PodTraffic;

/// One incarnation of a pod at one address, or a service that is no pod and that routes lead to.
#[derive(Debug)]
pub struct Pod {
    /// A dense number, never reused for another pod.
    pub slot: u32,
    /// The pod's name. That of a service is `upstream:host:port`, which no pod can have.
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
    /// Whether it is a service that knows nothing of the keyspace.
    pub(crate) is_upstream: bool,
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
        self.slot(name, incarnation, address, serves_without_lease, false)
    }

    /// Returns the number of the service at this address, the same one each time.
    pub(super) fn intern_upstream(&self, address: &str) -> u32 {
        let never = Incarnation::registered_at(Revision::new(0));
        self.slot(&format!("upstream:{address}"), never, address, true, true)
    }

    fn slot(
        &self,
        name: &str,
        incarnation: Incarnation,
        address: &str,
        serves_without_lease: bool,
        is_upstream: bool,
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
                    is_upstream,
                })
            }) as u32
        })
    }

    /// Returns the services that are no pods.
    pub(super) fn upstreams(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.iter().map(|(_, pod)| pod).filter(|pod| pod.is_upstream)
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Arc<Pod> {
        &self.pods[slot as usize]
    }
}
