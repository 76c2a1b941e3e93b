//! The router's section.
//!
//! For: its keys and the rules within it. Not for: the source of a request's partition (`validate/partition.rs`), and rules
//! between it and other sections.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use segue_coordination::router::DrainSettings;
use segue_protocol::handoff::router::{OnDrainTimeout, OnStoreLoss};
use segue_proxy::routing::table::StashLimits;
use segue_proxy::settings::{ClientLimits, UpstreamProtocol, UpstreamSettings};
use segue_proxy::tls::ClientFiles;

use super::{local, seconds, tls};
use crate::error::{Wrong, quoted};
use crate::keys::KEYSPACES;
use crate::reader::{ConfigReader, text};
use crate::units::{show_duration, show_size};
use crate::validated::{KeyspaceSection, Router};

pub(super) const KEYS: &[&str] = &[
    "router.name",
    "router.listen",
    "router.lease_ttl",
    "router.on_store_loss",
    "router.workers",
    "router.hot_restart_socket",
    "router.zone",
    "router.trust_forwarded",
    "router.tls.cert",
    "router.tls.key",
    "router.tls.client_ca",
    "router.tls.certificates",
    "router.partition.header",
    "router.partition.key.header",
    "router.partition.key.headers",
    "router.partition.key.path",
    "router.partition.key.paths",
    "router.partition.key.of",
    "router.partition.key.join",
    "router.partition.key.query",
    "router.partition.key.cookie",
    "router.partition.key.host",
    "router.partition.key.json",
    "router.partition.key.grpc",
    "router.partition.hash",
    "router.partition.order_by.header",
    "router.partition.ambiguous_paths",
    "router.partition.without_key",
    "router.partition.without_key.partition",
    "router.stash.max_requests",
    "router.stash.max_bytes",
    "router.stash.max_total_bytes",
    "router.stash.max_wait",
    "router.stash.flush_concurrency",
    "router.drain.timeout",
    "router.drain.on_timeout",
    "router.drain.streams",
    "router.drain.patience",
    "router.upstream.protocol",
    "router.upstream.connect_timeout",
    "router.upstream.request_timeout",
    "router.upstream.idle_timeout",
    "router.upstream.max_idle_per_pod",
    "router.upstream.max_in_flight_per_pod",
    "router.upstream.max_header_bytes_http2",
    "router.upstream.tls.ca",
    "router.upstream.tls.cert",
    "router.upstream.tls.key",
    "router.upstream.tls.server_name",
    "router.limits.max_connections",
    "router.limits.max_streams_per_connection",
    "router.limits.max_in_flight_per_client",
    "router.limits.min_upload_rate",
    "router.limits.header_read_timeout",
    "router.limits.max_header_bytes",
    "router.limits.max_connection_age",
    "router.limits.proxy_protocol",
    "router.limits.max_body_bytes",
    "router.limits.key.requests_per_second",
    "router.limits.key.burst",
    "router.limits.key.max_in_flight",
    "router.limits.key.by.header",
];

/// Reads the section. The keyspaces have been read before.
pub(super) fn router(r: &mut ConfigReader<'_>, keyspaces: &[KeyspaceSection]) -> Router {
    let lease_ttl = r.lease("router.lease_ttl", seconds(15));
    Router {
        name: r.role_name("router.name"),
        listen: r.listen("router.listen", local(8080)),
        lease_ttl,
        on_store_loss: r.choice("router.on_store_loss", OnStoreLoss::NAMES, OnStoreLoss::default()),
        tls: tls::server(r, &TLS),
        workers: NonZeroUsize::new(r.integer("router.workers", 0..=1024, 0)),
        trust_forwarded: r.boolean("router.trust_forwarded", false),
        hot_restart_socket: socket_path(r, HOT_RESTART_SOCKET),
        drain: drain(r, keyspaces),
        upstream: upstream(r, lease_ttl),
        limits: limits(r),
    }
}

const TLS: tls::ServerKeys = tls::ServerKeys {
    section: "router.tls",
    cert: "router.tls.cert",
    key: "router.tls.key",
    client_ca: "router.tls.client_ca",
    certificates: Some("router.tls.certificates"),
};
const UPSTREAM_TLS: tls::ClientKeys = tls::ClientKeys {
    section: "router.upstream.tls",
    ca: "router.upstream.tls.ca",
    cert: "router.upstream.tls.cert",
    key: "router.upstream.tls.key",
    server_name: Some("router.upstream.tls.server_name"),
};

pub(super) const HOT_RESTART_SOCKET: &str = "router.hot_restart_socket";
const EXPECTED_SOCKET: &str = "expected the path of a Unix socket, such as \"/run/segue/router-0.sock\"";
/// Longest path of the socket, in bytes. The system accepts 107, and the socket has a longer name until it is in place.
pub(super) const MAX_SOCKET_PATH_BYTES: usize = 90;

/// Reads the path of a Unix socket that one process takes over from another.
pub(super) fn socket_path(r: &mut ConfigReader<'_>, key: &'static str) -> Option<PathBuf> {
    r.read(key, |value| checked_socket_path(text(value, EXPECTED_SOCKET)?))
}

fn checked_socket_path(text: &str) -> Result<PathBuf, Wrong> {
    let wrong = |why: &str| Err(Wrong::new(format!("{} {why}", quoted(text)), EXPECTED_SOCKET));
    let path = Path::new(text);
    // Both processes must find the same file, from any working directory.
    if !path.is_absolute() {
        return wrong("does not begin with '/'");
    }
    if text.len() > MAX_SOCKET_PATH_BYTES {
        return wrong(&format!("is longer than {MAX_SOCKET_PATH_BYTES} bytes"));
    }
    if text.ends_with('/') || path.file_name().is_none() || text.contains('\0') {
        return wrong("names no file");
    }
    Ok(path.to_owned())
}

/// Reads the limits of a stash, which are the defaults of every keyspace.
pub(super) fn stash(r: &mut ConfigReader<'_>) -> StashLimits {
    let default = StashLimits::default();
    let stash = StashLimits {
        max_requests: r.integer("router.stash.max_requests", 1..=i64::MAX, default.max_requests),
        max_bytes: r.size("router.stash.max_bytes", default.max_bytes),
        max_total_bytes: r.size("router.stash.max_total_bytes", default.max_total_bytes),
        max_wait: r.duration("router.stash.max_wait", default.max_wait),
        flush_concurrency: r.integer("router.stash.flush_concurrency", 1..=i64::MAX, default.flush_concurrency),
    };
    let each = ("router.stash.max_bytes", stash.max_bytes);
    r.ordered(each, ("router.stash.max_total_bytes", stash.max_total_bytes), false, show_size);
    stash
}

/// Reads the drain's settings. The oldest held requests must outlast a severed drain: otherwise they would be refused
/// just before they could be sent.
fn drain(r: &mut ConfigReader<'_>, keyspaces: &[KeyspaceSection]) -> DrainSettings {
    const TIMEOUT: &str = "router.drain.timeout";
    const STREAMS: &str = "router.drain.streams";
    const PATIENCE: &str = "router.drain.patience";
    const MAX_WAIT: &str = "router.stash.max_wait";
    let default = DrainSettings::default();
    let max_waits =
        keyspaces.iter().filter_map(|keyspace| Some((keyspace.routing.as_ref()?.stash.max_wait, &keyspace.name)));
    let (max_wait, keyspace) = max_waits.min().unzip();
    let max_wait = max_wait.unwrap_or(StashLimits::default().max_wait);
    let timeout = r.duration(TIMEOUT, default.timeout.min(max_wait * 2 / 3));
    if r.is_given(TIMEOUT) && r.tables(KEYSPACES).is_none() {
        r.ordered((TIMEOUT, timeout), (MAX_WAIT, max_wait), true, show_duration);
    } else if r.is_given(TIMEOUT) && timeout >= max_wait && !r.is_refused(TIMEOUT) && !r.is_refused(MAX_WAIT) {
        let (timeout, bound) = (show_duration(timeout), show_duration(max_wait));
        let name = keyspace.map(|name| quoted(name)).unwrap_or_default();
        let fact = format!("{timeout} is not below stash.max_wait of keyspace {name}, which is {bound}");
        r.report_value(TIMEOUT, Wrong::new(fact, format!("expected less than {bound}")));
    }
    let on_timeout = r.choice("router.drain.on_timeout", OnDrainTimeout::NAMES, default.on_timeout);
    let streams = r.duration_or_zero(STREAMS, default.streams.min(timeout));
    if r.is_given(STREAMS) {
        r.ordered((STREAMS, streams), (TIMEOUT, timeout), false, show_duration);
    }
    let most = max_wait.saturating_sub(timeout);
    let patience = r.duration_or_zero(PATIENCE, default.patience.min(most));
    // Other routers hold the partition's requests for the whole time.
    if r.is_given(PATIENCE) && patience > most && ![PATIENCE, TIMEOUT, MAX_WAIT].iter().any(|key| r.is_refused(key)) {
        let [patience, timeout, bound] = [patience, timeout, max_wait].map(show_duration);
        let origin = r.origin(TIMEOUT);
        let fact = format!(
            "{patience} and {TIMEOUT}, which is {timeout} ({origin}), are together above stash.max_wait, which is {bound}"
        );
        r.report_value(PATIENCE, Wrong::new(fact, format!("expected at most {}", show_duration(most))));
    }
    DrainSettings { timeout, on_timeout, streams, patience }
}

const CONNECT_TIMEOUT: &str = "router.upstream.connect_timeout";

/// Refuses a timeout that is not below a third of the lease's TTL. A connection that a request waits for must not be
/// established after the router's lease may have ended, and trust in the lease ends a third of its TTL earlier.
fn connects_within_a_third_of_the_lease(r: &mut ConfigReader<'_>, timeout: Duration, lease_ttl: Duration) {
    const LEASE_TTL: &str = "router.lease_ttl";
    if !r.is_given(CONNECT_TIMEOUT) || r.is_refused(LEASE_TTL) || timeout * 3 < lease_ttl {
        return;
    }
    let (timeout, bound) = (show_duration(timeout), show_duration(lease_ttl / 3));
    let ttl = show_duration(lease_ttl);
    let fact = format!("{timeout} is not below a third of {LEASE_TTL}, which is {ttl} ({})", r.origin(LEASE_TTL));
    r.report_value(CONNECT_TIMEOUT, Wrong::new(fact, format!("expected less than {bound}")));
}

fn upstream(r: &mut ConfigReader<'_>, lease_ttl: Duration) -> UpstreamSettings<ClientFiles> {
    const MAX_IN_FLIGHT: &str = "router.upstream.max_in_flight_per_pod";
    const MAX_HEADER_BYTES_HTTP2: &str = "router.upstream.max_header_bytes_http2";
    let default = UpstreamSettings::<ClientFiles>::default();
    let upstream = UpstreamSettings {
        protocol: r.choice("router.upstream.protocol", UpstreamProtocol::NAMES, default.protocol),
        connect_timeout: r.duration(CONNECT_TIMEOUT, default.connect_timeout.min(lease_ttl / 4)),
        request_timeout: r.duration("router.upstream.request_timeout", default.request_timeout),
        idle_timeout: r.duration("router.upstream.idle_timeout", default.idle_timeout),
        max_idle_per_pod: r.integer("router.upstream.max_idle_per_pod", 0..=i64::MAX, default.max_idle_per_pod),
        max_in_flight_per_pod: r.integer(MAX_IN_FLIGHT, 1..=i64::MAX, default.max_in_flight_per_pod),
        max_header_bytes_http2: r.size(MAX_HEADER_BYTES_HTTP2, default.max_header_bytes_http2),
        tls: tls::client(r, &UPSTREAM_TLS),
    };
    let connect = (CONNECT_TIMEOUT, upstream.connect_timeout);
    r.ordered(connect, ("router.upstream.request_timeout", upstream.request_timeout), false, show_duration);
    connects_within_a_third_of_the_lease(r, upstream.connect_timeout, lease_ttl);
    upstream
}

fn limits(r: &mut ConfigReader<'_>) -> ClientLimits {
    const MAX_CONNECTIONS: &str = "router.limits.max_connections";
    const MAX_STREAMS: &str = "router.limits.max_streams_per_connection";
    const MAX_IN_FLIGHT: &str = "router.limits.max_in_flight_per_client";
    const MAX_HEADER_BYTES: &str = "router.limits.max_header_bytes";
    // A header map has at most 32,768 entries, and by HTTP/2 one takes 33 bytes or more of the bound.
    const MOST_HEADER_BYTES: usize = 512 << 10;
    let default = ClientLimits::default();
    ClientLimits {
        max_connections: r.integer(MAX_CONNECTIONS, 1..=i64::MAX, default.max_connections),
        max_streams_per_connection: r.integer(MAX_STREAMS, 1..=10_000, default.max_streams_per_connection),
        max_in_flight_per_client: r.integer(MAX_IN_FLIGHT, 0..=i64::MAX, default.max_in_flight_per_client),
        min_upload_rate: r.size_or_zero("router.limits.min_upload_rate", default.min_upload_rate),
        header_read_timeout: r.duration("router.limits.header_read_timeout", default.header_read_timeout),
        max_header_bytes: r.size_up_to(MAX_HEADER_BYTES, MOST_HEADER_BYTES, default.max_header_bytes),
        max_connection_age: r.duration_if_given("router.limits.max_connection_age"),
        proxy_protocol: r.boolean("router.limits.proxy_protocol", default.proxy_protocol),
        max_body_bytes: r.size_if_given("router.limits.max_body_bytes"),
    }
}
