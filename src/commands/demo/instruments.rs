//! The metrics and the admin endpoint of a demo, for all routers and coordinators of the process together.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::registry::Registry;
use segue_coordination::coordinator::CoordinatorObserver;
use segue_coordination::router::RouterObserver;
use segue_coordination::session::Watcher;
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use segue_proxy::metrics::{Metrics, PodSeries};
use segue_proxy::routing::table::Table;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::admin::api::WritePermission;
use crate::admin::keyspace::KeyspaceStatusSource;
use crate::admin::{Admin, AdminKeyspace, StatusSource};
use crate::operator::Link;
use crate::operator::top::OwnRouter;
use crate::roles::router::table_summary;
use crate::telemetry::metrics::{CoordinatorMetrics, ParticipantMetrics, RouterMetrics};
use segue_demo::instruments::{Instruments, Status};

/// The same metrics as those of `segue run`, served at an address.
#[derive(Debug)]
pub(super) struct AdminInstruments {
    address: SocketAddr,
    registry: Mutex<Registry>,
    routers: Arc<RouterMetrics>,
    coordinators: Arc<CoordinatorMetrics>,
    tables: Mutex<Vec<(String, Arc<Table>)>>,
}

impl AdminInstruments {
    pub(super) fn new(address: SocketAddr) -> Self {
        let mut registry = Registry::with_prefix("segue");
        let participants = ParticipantMetrics::new(&mut registry);
        let routers = Arc::new(RouterMetrics::new(&mut registry, participants.clone()));
        let coordinators = Arc::new(CoordinatorMetrics::new(&mut registry, participants));
        AdminInstruments { address, registry: Mutex::new(registry), routers, coordinators, tables: Mutex::default() }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Instruments for AdminInstruments {
    fn add_router(&self, name: &str, metrics: &Metrics, table: &Arc<Table>) {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), table.clone()));
        let label = ("router".into(), name.to_owned().into());
        let mut registry = self.registry();
        let registry = registry.sub_registry_with_label(label);
        metrics.register(registry);
        PodSeries::register(table.clone(), registry);
    }

    fn router(&self) -> Arc<dyn RouterObserver> {
        self.routers.clone()
    }

    fn coordinator(&self) -> Arc<dyn CoordinatorObserver> {
        self.coordinators.clone()
    }

    fn serve(&self, store: Arc<dyn Store>, keys: Keyspace, status: Status) -> anyhow::Result<AbortOnDropHandle<()>> {
        let admin = Admin::bind(self.address, None)?;
        let tables = std::mem::take(&mut *self.tables.lock().unwrap_or_else(PoisonError::into_inner));
        let link = Link::new(store.clone(), keys.clone(), None);
        let watcher = Watcher::start_planning(store, keys.clone());
        let followed = KeyspaceStatusSource::start(link.store().clone(), keys, (watcher, true), Arc::default());
        let (board, on_demand) = (followed.board(), followed.on_demand());
        let sources: Vec<Arc<dyn StatusSource>> =
            vec![Arc::new(followed), Arc::new(DemoStatusSource { status, tables })];
        let registry = std::mem::take(&mut *self.registry());
        let serving = async move {
            let keyspace = AdminKeyspace { sources, board, on_demand, link, registry: None };
            let serving =
                admin.serve(vec![keyspace], registry, (WritePermission::Nobody, None), CancellationToken::new());
            if let Err(error) = serving.await {
                tracing::warn!(%error, "admin endpoint stopped");
            }
        };
        Ok(AbortOnDropHandle::new(tokio::spawn(serving)))
    }
}

struct DemoStatusSource {
    status: Status,
    tables: Vec<(String, Arc<Table>)>,
}

impl StatusSource for DemoStatusSource {
    fn name(&self) -> &'static str {
        "demo"
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn status(&self) -> Value {
        (self.status)()
    }

    fn routers(&self) -> Vec<OwnRouter> {
        self.tables.clone()
    }

    fn summary(&self) -> Option<Value> {
        let routers: Vec<Value> = self.tables.iter().map(|(name, table)| table_summary(name, table)).collect();
        Some(json!({ "routers": routers }))
    }
}
