//! The pods that partitions lead to, by a dense number each.
//!
//! A request finds its pod by that number without a lock. What must stay true: a number is never used again, so whoever
//! has read one may look it up at any time.

use std::sync::Arc;

use dashmap::DashMap;
use segue_protocol::ids::Incarnation;

use super::pod_health::Health;

/// One life of a pod at one address.
#[derive(Debug)]
pub struct Pod {
    /// A dense number of its own, never used again for another.
    pub slot: u32,
    /// The pod's name.
    pub name: String,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// `host:port`.
    pub address: String,
    /// Whether it takes what it is sent.
    pub health: Health,
    /// It is safe to send to it although this router's lease may have ended.
    pub(crate) serves_without_lease: bool,
}

/// All pods that were ever led to.
#[derive(Default)]
pub(super) struct Pods {
    pods: boxcar::Vec<Arc<Pod>>,
    slots: DashMap<(String, Incarnation, String, bool), u32>,
}

impl Pods {
    /// The pod of this life at this address; the same one each time.
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
                    health: Health::default(),
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
