//! How long a server has a keyspace: what ends its last connections, and when no worker has anything left of it.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The time of a keyspace in a server: from when the first worker has it until no worker has anything left of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyspaceLife {
    ending: CancellationToken,
    contexts: TaskTracker,
}

impl KeyspaceLife {
    /// Returns what a worker's state of the keyspace holds.
    pub(super) fn begin(&self) -> LifeShare {
        LifeShare { ending: self.ending.child_token(), _counted: self.contexts.token() }
    }

    /// Closes connections that would stay open for ever.
    pub(crate) fn end_websockets(&self) {
        self.ending.cancel();
    }

    /// Waits until no worker has anything left of the keyspace. All of them must have been told to remove it.
    pub(crate) async fn over(&self) {
        self.contexts.close();
        self.contexts.wait().await;
    }
}

/// A worker's share in the life of a keyspace.
#[derive(Debug)]
pub(crate) struct LifeShare {
    /// Cancelled when the router shuts down or leaves the keyspace, to close connections that would stay open for ever.
    pub(crate) ending: CancellationToken,
    _counted: TaskTrackerToken,
}
