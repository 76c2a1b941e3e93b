//! The faults of a service by HTTP/2. All its partitions share what is known of them.
//!
//! Not here: what one partition's connection was ended for ([`http2`](super::http2)).
//!
//! # Invariants
//!
//! * A service without faults costs an exchange no lock.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::service_address::ServiceAddress;
use crate::upstream::{SharingPolicy, h2_cause, is_odd_response};

/// The faults that a service has shown so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<ServiceFaults>);

#[derive(Debug, Default)]
struct ServiceFaults {
    /// Whether it has been logged that the service speaks another protocol.
    foreign: AtomicBool,
    /// Whether the service has ever sent an odd response.
    is_odd: AtomicBool,
    sharing: Mutex<SharingPolicy>,
}

impl Faults {
    /// Notes an answer in another protocol than HTTP/2.
    pub(super) fn note_foreign(&self, upstream: &ServiceAddress) {
        if !self.0.foreign.swap(true, Relaxed) {
            tracing::warn!(%upstream, "service answers HTTP/2 in another protocol; giving its requests back");
        }
    }

    /// Notes a response by HTTP/2.
    pub(super) fn note_response(&self) {
        if self.0.foreign.load(Relaxed) {
            self.0.foreign.store(false, Relaxed);
        }
    }

    /// Returns whether exchanges share connections, as far as odd responses go.
    pub(super) fn may_share(&self, now: Instant) -> bool {
        !self.0.is_odd.load(Relaxed) || self.0.sharing.lock().unwrap_or_else(PoisonError::into_inner).is_allowed(now)
    }

    /// Notes why an exchange or a connection has ended.
    pub(super) fn note_end(&self, upstream: &ServiceAddress, error: &hyper::Error) {
        if !h2_cause(error).is_some_and(is_odd_response) {
            return;
        }
        let (was_shared, pause) = {
            let mut sharing = self.0.sharing.lock().unwrap_or_else(PoisonError::into_inner);
            (sharing.note_harm(Instant::now()), sharing.pause())
        };
        self.0.is_odd.store(true, Relaxed);
        if was_shared {
            tracing::warn!(
                %upstream,
                pause_s = pause.as_secs(),
                "a response of the service broke the rules of HTTP/2 and ended its connection, with all exchanges on it; \
                 for a while each exchange gets a connection of its own"
            );
        }
    }
}
