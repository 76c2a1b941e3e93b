//! A request without a key on its way to a pod, or to a service that is none. It passes no gate, and no drain waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio_util::sync::CancellationToken;

use super::TableHandle;
use crate::routing::client_share::ShareGuard;
use crate::routing::table::{Pod, ReadyPod, WorkerTraffic};

/// A request without a key in flight.
#[derive(Debug)]
pub(crate) struct KeylessPermit {
    worker: TableHandle,
    pod: Arc<Pod>,
    /// The request's count against its client's limit.
    share: ShareGuard,
}

impl TableHandle {
    /// Returns the pods that a request without a key may go to.
    pub(crate) fn ready_pods(&self) -> Arc<[ReadyPod]> {
        self.inner.table.ready_pods()
    }

    /// Returns the service at this address, which is no pod.
    pub(crate) fn upstream(&self, address: &str) -> Arc<Pod> {
        self.inner.table.upstream(address).clone()
    }

    /// Lets a request without a key go to this pod.
    pub(crate) fn permit_keyless(&self, pod: &Arc<Pod>, share: ShareGuard) -> KeylessPermit {
        pod.is_asked.store(true, Relaxed);
        KeylessPermit { worker: self.clone(), pod: pod.clone(), share }
    }
}

impl KeylessPermit {
    pub(crate) fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    pub(crate) fn traffic(&self) -> &WorkerTraffic {
        self.pod.traffic.of(self.worker.inner.index)
    }

    /// Returns the token that is cancelled when the router gives the keyspace up: the exchange belongs to no partition, so no
    /// cutover severs it.
    pub(crate) fn sever_token(&self) -> CancellationToken {
        self.worker.inner.table.keyless.child_token()
    }

    /// Ends the attempt.
    pub(crate) fn into_share(self) -> ShareGuard {
        self.share
    }
}
