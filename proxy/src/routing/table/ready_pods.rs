//! The pods that requests without a key may go to.
//!
//! Only such requests read the list, under a lock. Not here: which pods these are
//! ([`pods_without_key`](segue_protocol::handoff::router::pods_without_key)), and the choice of one of them (`forward`).

use std::sync::atomic::Ordering::Relaxed;
// Not loom's: nothing is ordered by the list.
use std::sync::{Arc, PoisonError, RwLock};

use super::pods::Pod;

/// The list.
#[derive(Debug, Default)]
pub(super) struct ReadyPods(RwLock<Arc<[ReadyPod]>>);

/// A pod that requests without a key may go to.
#[derive(Debug, Clone)]
pub(crate) struct ReadyPod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) zone: Option<String>,
}

impl ReadyPods {
    /// Sets the pods and their zones.
    pub(super) fn set<'a>(&self, pods: impl Iterator<Item = (&'a Arc<Pod>, Option<&'a str>)> + Clone) {
        let mut ready = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let new = pods.clone().map(|(pod, zone)| (pod.slot, zone));
        if !ready.iter().map(|ready| (ready.pod.slot, ready.zone.as_deref())).eq(new) {
            *ready = pods.map(|(pod, zone)| ReadyPod { pod: pod.clone(), zone: zone.map(str::to_owned) }).collect();
        }
    }

    pub(super) fn get(&self) -> Arc<[ReadyPod]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the numbers of those that got such a request.
    pub(super) fn asked(&self) -> Vec<u32> {
        let ready = self.get();
        let asked = ready.iter().map(|ready| &ready.pod).filter(|pod| pod.is_asked.load(Relaxed));
        asked.map(|pod| pod.slot).collect()
    }
}
