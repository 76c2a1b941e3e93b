//! A router of the demo: table, control side and server, connected as `segue run` does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::{DataPlane, DrainSettings, RouterPorts, RouterSettings, RouterStatus, run_router};
use segue_protocol::handoff::router::{OnDrainTimeout, OnStoreLoss};
use segue_proxy::metrics::Metrics;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::{StashLimits, Table};
use segue_proxy::server::{Server, ServerHandle};
use segue_proxy::settings::{ClientLimits, ForwardSettings, ServerSettings, UPLOAD_GRACE, UpstreamSettings};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::options::Options;
use super::super::story::Story;
use super::super::witness::Witness;
use super::super::writer::names;
use super::super::writer::pod::Membership;
use super::{MAX_WAIT, REQUEST_TIMEOUT, ROUTER_LEASE, tellers};

/// A running router.
#[derive(Debug)]
pub(super) struct Router {
    table: Arc<Table>,
    server: ServerHandle,
    status: watch::Receiver<RouterStatus>,
    shutdown: CancellationToken,
    control: JoinHandle<()>,
}

impl Router {
    pub(super) fn start(
        number: u32,
        member: &Membership,
        witness: &Witness,
        story: &Arc<Story>,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let name = format!("router-{number}");
        let settings = ServerSettings { listen: "127.0.0.1:0".to_owned(), workers: 1, tls: None };
        let server = Server::bind(settings)?;
        let (table, notices) = Table::new(server.workers(), limits(options));
        let metrics = Metrics::new(server.workers());
        if let Some(instruments) = &options.instruments {
            instruments.add_router(&name, &metrics);
        }
        let server = server.start(&forward(&name, member), &table, &metrics)?;
        let plane: Arc<dyn DataPlane> = match &options.wiring {
            None => table.clone(),
            Some(wiring) => wiring.data_plane(number, table.clone(), witness),
        };
        let settings = RouterSettings {
            name,
            lease_ttl: ROUTER_LEASE,
            on_store_loss: OnStoreLoss::Auto,
            drain: DrainSettings { timeout: Duration::from_secs(5), on_timeout: OnDrainTimeout::Auto },
            admin: None,
            partitioner: None,
            request_timeout: REQUEST_TIMEOUT,
        };
        let (sender, status) = watch::channel(RouterStatus::default());
        let observer = tellers::router(number, story, options);
        let shutdown = CancellationToken::new();
        let (store, keys) = (member.store.clone(), member.keys.clone());
        let ports = RouterPorts { plane, notices, observer, status: sender };
        let control = run_router(store, keys, settings, ports, shutdown.clone());
        Ok(Router { table, server, status, shutdown, control: tokio::spawn(control) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Waits until the router may route.
    pub(super) async fn ready(&self) {
        let _ = self.status.clone().wait_for(|status| status.not_ready.is_none()).await;
    }

    /// Finishes the requests in flight, then deregisters.
    pub(super) async fn stop(self) {
        self.table.shut_down();
        self.server.shutdown(Instant::now() + Duration::from_secs(1)).await;
        self.shutdown.cancel();
        let _ = self.control.await;
    }
}

fn limits(options: &Options) -> StashLimits {
    StashLimits { max_requests: options.stash_requests, max_wait: MAX_WAIT, ..StashLimits::default() }
}

fn forward(name: &str, member: &Membership) -> ForwardSettings {
    ForwardSettings {
        router: name.to_owned(),
        keyspace: member.keyspace.clone(),
        // All clients share one address, and none may be refused.
        limits: ClientLimits { max_in_flight_per_client: 0, min_upload_rate: 0, ..ClientLimits::default() },
        upload_grace: UPLOAD_GRACE,
        trust_forwarded: false,
        partition: PartitionSource::Number { header: names::PARTITION, order_by: Some(names::KEY) },
        upstream: UpstreamSettings { request_timeout: REQUEST_TIMEOUT, ..UpstreamSettings::default() },
    }
}
