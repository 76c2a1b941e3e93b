//! The outcome of a request's arrival at the gate.
//!
//! For: what holds of a request whether it waits or not. Not for: how it waits and leaves, which is in the parent module.

use super::{Permit, QueuedPermit};
use crate::routing::client_share::ShareGuard;
use crate::routing::key_limit::KeyShare;

/// The outcome of a request's arrival at the gate.
#[derive(Debug)]
pub enum Admission {
    /// The request may go to the pod.
    Admitted(Permit),
    /// The request waits.
    Queued(QueuedPermit),
}

impl Admission {
    /// Keeps the shares of its client's and its key's limit for as long as the request waits or is in flight.
    #[inline]
    pub(crate) fn keep(&mut self, share: ShareGuard, of_key: Option<KeyShare>) {
        let (Admission::Admitted(Permit { request, .. }) | Admission::Queued(QueuedPermit { request, .. })) = self;
        if let Some(request) = request {
            request.share = Some(share);
            if of_key.is_some() {
                request.seldom.get_or_insert_default().of_key = of_key;
            }
        }
    }
}
