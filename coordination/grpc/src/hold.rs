//! The end of a registration, and what ends when an instance is done with one: the store's stream of renewals, and the
//! registration itself if its pod cannot know of it.
//!
//! # Invariants
//!
//! * A hold outlives the renewals that were sent under it, so nothing is kept for a lease after its last hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use segue_protocol::registration::withdraw;
use tokio::runtime::Handle;
use tonic::Status;
use tracing::{Instrument as _, debug, info, warn};

use crate::shared::{KeyspaceService, unavailable};
use crate::token::Token;

/// A registration that this instance renews.
#[derive(Debug)]
pub(crate) struct RegistrationHold {
    shared: Arc<KeyspaceService>,
    token: Token,
    /// Whether the pod may have its token.
    told: AtomicBool,
}

impl RegistrationHold {
    /// Returns a hold of a registration whose token its pod has presented.
    pub(crate) fn known(shared: &Arc<KeyspaceService>, token: &Token) -> Arc<Self> {
        Arc::new(RegistrationHold { shared: shared.clone(), token: token.clone(), told: true.into() })
    }

    /// Returns a hold of a new registration. It ends with the hold unless its pod is told of it: without the token
    /// nobody can go on with it, and it would block its name for its TTL.
    pub(crate) fn new(shared: &Arc<KeyspaceService>, token: &Token) -> Arc<Self> {
        Arc::new(RegistrationHold { shared: shared.clone(), token: token.clone(), told: false.into() })
    }

    /// Notes that the token is on its way to the pod.
    pub(crate) fn told(&self) {
        self.told.store(true, Relaxed);
    }
}

impl Drop for RegistrationHold {
    fn drop(&mut self) {
        self.shared.store.forget_lease(self.token.lease());
        if self.told.load(Relaxed) {
            return;
        }
        // Without a runtime the process ends, and the lease expires.
        let Ok(runtime) = Handle::try_current() else { return };
        let (shared, token) = (self.shared.clone(), self.token.clone());
        let ending = async move {
            debug!(pod = token.pod, "pod is gone before it was told its token");
            if let Err(error) = end(&shared, &token).await {
                debug!(pod = token.pod, %error, "cannot end a registration that nobody knows of; it expires");
            }
        };
        runtime.spawn(self.shared.streams.tasks.track_future(ending.instrument(self.shared.span.clone())));
    }
}

/// Ends a registration. The pod must have stopped serving.
pub(crate) async fn end(shared: &KeyspaceService, token: &Token) -> Result<(), Status> {
    let key = shared.keys.pod(&token.pod);
    shared.store.commit(withdraw(&key, token.incarnation())).await.map_err(unavailable)?;
    info!(pod = token.pod, incarnation = token.incarnation().get(), "pod deregistered");
    if let Err(error) = shared.store.revoke(token.lease()).await {
        warn!(pod = token.pod, %error, "cannot revoke the lease of a pod; it expires");
    }
    Ok(())
}
