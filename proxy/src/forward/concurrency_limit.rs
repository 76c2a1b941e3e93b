//! How many requests a worker has with each pod, and the bound of that.
//!
//! What waits for a pod that is slower than its clients waits inside it, or in its listener's queue, where nobody can bound
//! it or tell the client. So beyond the bound the router says so at once, and what it has sent can be answered in time.
//! What must stay true: what was begun is ended once, whatever becomes of it.

use std::cell::RefCell;

/// One worker's requests by the dense numbers of pods.
pub(crate) struct ConcurrencyLimit {
    most: usize,
    pods: RefCell<Vec<usize>>,
}

impl ConcurrencyLimit {
    pub(crate) fn new(most: usize) -> Self {
        ConcurrencyLimit { most, pods: RefCell::default() }
    }

    /// Whether the pod may be given one more.
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
