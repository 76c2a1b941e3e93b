//! A router of the demo, as `segue run` starts it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::{DrainSettings, RouterSettings};
use segue_protocol::handoff::router::OnStoreLoss;
use segue_proxy::router::{self, BoundKeyspace, BoundRouter, Membership};
use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::StashLimits;
use segue_proxy::settings::{
    ClientLimits, CommonSettings, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE,
    UpstreamSettings,
};
use tokio::time::Instant;

use super::super::history::History;
use super::super::options::Options;
use super::super::timeline::Timeline;
use super::super::writer::names;
use super::super::writer::pod::WriterMembership as PodMembership;
use super::{MAX_WAIT, REQUEST_TIMEOUT, ROUTER_LEASE, observers};

/// A running router.
#[derive(Debug)]
pub(super) struct Router(router::Router);

impl Router {
    pub(super) async fn start(
        number: u32,
        member: &PodMembership,
        history: &History,
        timeline: &Arc<Timeline>,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let name = format!("router-{number}");
        let server = ServerSettings { listen: "127.0.0.1:0".to_owned(), workers: 1, tls: None };
        let router = BoundRouter::bind(server, KeyspaceChoice::Only, &[limits(options)])?;
        let BoundKeyspace { table, metrics, .. } = &router.keyspaces()[0];
        if let Some(instruments) = &options.instruments {
            instruments.add_router(&name, metrics, table);
        }
        let plane = options.wiring.as_ref().map(|wiring| wiring.data_plane(number, table.clone(), history));
        let forward = forward(&name, member);
        let settings = RouterSettings {
            name,
            lease_ttl: ROUTER_LEASE,
            on_store_loss: OnStoreLoss::Auto,
            drain: DrainSettings { timeout: Duration::from_secs(5), ..DrainSettings::default() },
            admin: None,
            partitioner: None,
            request_timeout: REQUEST_TIMEOUT,
            max_wait: MAX_WAIT,
        };
        let observer = observers::router(number, timeline, options);
        let (leases, keys) = (member.processes.leases(&settings.name), member.keys.clone());
        let membership = Membership { observer, plane, ..Membership::new(keys, settings) };
        let joining = router.join(leases, vec![membership]);
        Ok(Router(joining.accept(CommonSettings::from(&forward), vec![forward]).await?))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Waits until the router may route.
    pub(super) async fn ready(&self) {
        self.0.state().ready().await;
    }

    /// Refuses the held requests, finishes those in flight, then deregisters.
    pub(super) async fn stop(self) {
        self.0.state().table().shut_down();
        self.0.stop(Instant::now() + Duration::from_secs(1)).await;
    }
}

fn limits(options: &Options) -> StashLimits {
    StashLimits { max_requests: options.stash_requests, max_wait: MAX_WAIT, ..StashLimits::default() }
}

fn forward(name: &str, member: &PodMembership) -> ForwardSettings {
    ForwardSettings {
        router: name.to_owned(),
        keyspace: member.keyspace.clone(),
        // All clients share one address, and none may be refused.
        limits: ClientLimits { max_in_flight_per_client: 0, min_upload_rate: 0, ..ClientLimits::default() },
        key_limit: None,
        upload_grace: UPLOAD_GRACE,
        tracer: None,
        requests: LoggedRequests::None,
        trust_forwarded: false,
        exceptions: OwnerExceptions::default(),
        partition: PartitionSource::Number { header: names::PARTITION, order_by: Some(names::KEY) },
        upstream: UpstreamSettings { request_timeout: REQUEST_TIMEOUT, ..UpstreamSettings::default() },
    }
}
