//! A router's part in the protocol: its control side in one keyspace, which drives a table.
//!
//! Not here: the server and the steps in which a router starts ([`router`](super)).
//!
//! # Invariants
//!
//! * A part that is dropped is one that crashed: its registration ends with its lease.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::{DataPlane, RouterObserver, RouterPorts, RouterSettings, RouterStatus, run_router};
use segue_coordination::session::Leases;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span};

use crate::routing::table::Table;

/// The partitions in which a table has seen an event.
pub type Notices = mpsc::UnboundedReceiver<PartitionId>;

/// Time between two checks whether a router could serve.
const READY_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The control side of a router, whose work someone else runs.
#[derive(Debug, Clone)]
pub struct RouterControl {
    status: watch::Receiver<RouterStatus>,
    shutdown: CancellationToken,
}

impl RouterControl {
    /// Returns the control side of `plane` and the future that does its work. For programs that carry requests
    /// themselves, such as a simulation; a router with a server has its own ([`BoundRouter::join`](super::BoundRouter::join)).
    pub fn new(
        plane: Arc<dyn DataPlane>,
        notices: Notices,
        leases: impl Into<Leases> + 'static,
        keys: Keyspace,
        settings: RouterSettings,
        observer: Arc<dyn RouterObserver>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, status) = watch::channel(RouterStatus::default());
        let shutdown = CancellationToken::new();
        let ports = RouterPorts { plane, notices, observer, status: sender };
        let run = run_router(leases.into(), keys, settings, ports, shutdown.clone());
        (RouterControl { status, shutdown }, run)
    }

    /// Lets the work end: the router deregisters. By then it must have stopped forwarding.
    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }
}

/// The state of a router, for those who watch it.
#[derive(Debug, Clone)]
pub struct RouterState {
    table: Arc<Table>,
    status: watch::Receiver<RouterStatus>,
}

impl RouterState {
    /// Returns the routing table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Returns the state of the control side.
    pub fn status(&self) -> watch::Ref<'_, RouterStatus> {
        self.status.borrow()
    }

    /// Returns why the router could not serve now. `None` if it is registered, has seen the keyspace since, may trust its
    /// lease, and knows the partitions.
    pub fn not_ready(&self) -> Option<String> {
        let not_ready = self.status.borrow().not_ready.clone();
        let is_empty = self.table.partitions() == 0;
        not_ready.or_else(|| is_empty.then(|| "the keyspace has no settings yet: no coordinator has led".to_owned()))
    }

    /// Waits until the router could serve.
    pub async fn ready(&self) {
        while self.not_ready().is_some() {
            tokio::time::sleep(READY_CHECK_INTERVAL).await;
        }
    }
}

/// The running control side of a router in one keyspace.
#[derive(Debug)]
pub(super) struct ControlTask {
    state: RouterState,
    control: RouterControl,
    run: AbortOnDropHandle<()>,
}

/// The part in the protocol that a router takes in one keyspace.
pub struct Membership {
    /// The keyspace.
    pub keys: Keyspace,
    /// The settings of the control side.
    pub settings: RouterSettings,
    /// The observer of the control side.
    pub observer: Arc<dyn RouterObserver>,
    /// The data plane between the control side and the table. `None`: the table itself.
    pub plane: Option<Arc<dyn DataPlane>>,
    /// The span of the log lines about it.
    pub span: Span,
}

impl Membership {
    /// Returns the part in a keyspace that nothing watches.
    pub fn new(keys: Keyspace, settings: RouterSettings) -> Self {
        Membership { keys, settings, observer: Arc::new(()), plane: None, span: Span::none() }
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Membership").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl ControlTask {
    /// Begins to take part in the protocol. Requires a runtime.
    pub(super) fn begin(table: Arc<Table>, notices: Notices, leases: Leases, membership: Membership) -> Self {
        let Membership { keys, settings, observer, plane, span } = membership;
        let plane = plane.unwrap_or_else(|| table.clone());
        let (control, run) = RouterControl::new(plane, notices, leases, keys, settings, observer);
        let state = RouterState { table, status: control.status.clone() };
        ControlTask { state, control, run: AbortOnDropHandle::new(tokio::spawn(run.instrument(span))) }
    }

    pub(super) fn state(&self) -> &RouterState {
        &self.state
    }

    /// Deregisters. To be awaited to its end once.
    pub(super) async fn leave(&mut self) {
        self.control.shut_down();
        // The task ends by itself now. The runtime has reported any panic in it.
        let _ = (&mut self.run).await;
    }
}
