//! The simulated network between routers and pods: cut links and delays.
//!
//! It takes the place of sockets. Each message has a delay of its own, so messages of different connections overtake
//! each other.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which links are cut.
#[derive(Debug, Default)]
pub(crate) struct Network {
    cut: Mutex<BTreeSet<(String, String)>>,
}

impl Network {
    pub(crate) fn cut(&self, router: &str, pod: &str) {
        self.links().insert((router.to_owned(), pod.to_owned()));
    }

    pub(crate) fn heal(&self, router: &str, pod: &str) {
        self.links().remove(&(router.to_owned(), pod.to_owned()));
    }

    pub(crate) fn heal_all(&self) {
        self.links().clear();
    }

    pub(crate) fn is_cut(&self, router: &str, pod: &str) -> bool {
        let links = self.links();
        !links.is_empty() && links.contains(&(router.to_owned(), pod.to_owned()))
    }

    fn links(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
