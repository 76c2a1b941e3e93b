//! The router that is measured: one worker over a table whose partitions lead to three pods.
//!
//! It has no store and no control side, so after the start only requests take instructions.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::Target;
use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::{Capabilities, PodRecord};
use segue_proxy::router::{BoundKeyspace, BoundRouter};
use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::StashLimits;
use segue_proxy::server::{ServedKeyspace, ServedKeyspaces};
use segue_proxy::settings::{
    ClientLimits, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE, UpstreamProtocol,
    UpstreamSettings,
};
use segue_proxy::spans::{Sampler, Tracer};
use tokio::time::Instant;

use crate::say;

/// Number of partitions of the table.
const PARTITIONS: u32 = 64;

/// Serves clients until standard input ends. Writes the address for clients to standard output.
pub(crate) fn serve(protocol: UpstreamProtocol, tracing: bool, pods: &[SocketAddr]) -> anyhow::Result<()> {
    let server = ServerSettings { listen: "127.0.0.1:0".to_owned(), workers: 1, tls: None };
    let (server, mut keyspaces) =
        BoundRouter::bind(server, KeyspaceChoice::Only, &[StashLimits::default()])?.into_parts();
    let BoundKeyspace { table, metrics, .. } = keyspaces.remove(0);
    table.set_partitions(PARTITIONS);
    table.trust_until(Instant::now() + Duration::from_secs(86_400));
    for (partition, pod) in PartitionId::all(PARTITIONS).zip(pods.iter().cycle()) {
        let name = format!("pod-{pod}");
        let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(&name, pod.to_string()) };
        let incarnation = Incarnation::registered_at(Revision::new(1));
        table.switch(partition, &Target { pod: name, incarnation, epoch: 1.into() }, &record, true);
    }
    let forward = ForwardSettings {
        router: "router-0".to_owned(),
        keyspace: "default".to_owned(),
        partition: PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None },
        trust_forwarded: false,
        exceptions: OwnerExceptions::default(),
        limits: ClientLimits::default(),
        key_limit: None,
        upload_grace: UPLOAD_GRACE,
        tracer: tracing.then(|| Tracer::new(Sampler::default(), 1, Counter::default()).0),
        requests: LoggedRequests::default(),
        upstream: UpstreamSettings { protocol, ..UpstreamSettings::default() },
    };
    // Closes its connections when it is dropped.
    let server = server.start(ServedKeyspaces::only(ServedKeyspace { forward, table, metrics }))?;
    say(&server.local_addr().to_string());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
