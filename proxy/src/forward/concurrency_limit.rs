//! Counts a worker's requests to each pod, and limits their number.
//!
//! Requests for a pod that is slower than its clients queue inside it or in its listen backlog, where they can be
//! neither bounded nor reported. Beyond the limit the router rejects them at once, and the pod can respond in time to
//! those that it has.
//!
//! # Invariants
//!
//! * Each request that was begun is ended exactly once, whatever its outcome.

use std::cell::RefCell;

/// One worker's requests in flight, by the dense numbers of pods.
pub(crate) struct ConcurrencyLimit {
    most: usize,
    pods: RefCell<Vec<usize>>,
}

impl ConcurrencyLimit {
    pub(crate) fn new(most: usize) -> Self {
        ConcurrencyLimit { most, pods: RefCell::default() }
    }

    /// Returns whether the pod may be given one more request.
    #[inline]
    pub(crate) fn has_room(&self, slot: u32) -> bool {
        self.pods.borrow().get(slot as usize).is_none_or(|with| *with < self.most)
    }

    #[inline]
    pub(crate) fn begin(&self, slot: u32) {
        let mut pods = self.pods.borrow_mut();
        let slot = slot as usize;
        if pods.len() <= slot {
            pods.resize(slot + 1, 0);
        }
        pods[slot] += 1;
    }

    #[inline]
    pub(crate) fn end(&self, slot: u32) {
        if let Some(with) = self.pods.borrow_mut().get_mut(slot as usize) {
            *with -= 1;
        }
    }

    /// Returns the number of requests in flight to the pod.
    pub(crate) fn in_flight(&self, slot: u32) -> usize {
        self.pods.borrow().get(slot as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pods_load_leaves_room_with_others() {
        let load = ConcurrencyLimit::new(2);
        load.begin(3);
        assert!(load.has_room(3));
        load.begin(3);
        assert!(!load.has_room(3) && load.has_room(0) && load.has_room(4));
        load.end(3);
        assert!(load.has_room(3));
    }
}
