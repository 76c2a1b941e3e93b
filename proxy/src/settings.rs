//! What the data path is told, in the units it uses. `segue-config` builds these from the file, whose defaults are those
//! of `Default` here; nothing here is read from a file.

use std::time::Duration;

use crate::routing::partition_key::PartitionSource;
use crate::tls::{ClientTls, ServerTls};

/// Everything that the path of a request needs to know (`[router]`).
#[derive(Debug, Clone)]
pub struct ForwardSettings {
    /// This router's name, stamped on requests.
    pub router: String,
    /// The keyspace, stamped on requests.
    pub keyspace: String,
    /// Where requests name their partition.
    pub partition: PartitionSource,
    /// Whether `x-forwarded-*` and `forwarded` of clients are believed.
    pub trust_forwarded: bool,
    /// What clients may use up.
    pub limits: ClientLimits,
    /// How long a pod waits for an upload in all before the client has to have sent anything.
    pub upload_grace: Duration,
    /// Towards the pods.
    pub upstream: UpstreamSettings,
}

/// The first seconds of an upload, in which it may be as slow as it likes.
pub const UPLOAD_GRACE: Duration = Duration::from_secs(30);

/// How pods are spoken to (`[router.upstream]`). `Tls` is what makes a pod known: the files that the configuration names, or
/// what was loaded from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings<Tls = ClientTls> {
    /// Which version of HTTP.
    pub protocol: UpstreamProtocol,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a pod may take to begin its answer once it has the request, and how long an exchange may go on
    /// whose client is gone.
    pub request_timeout: Duration,
    /// How long nothing may flow in a stream.
    pub idle_timeout: Duration,
    /// How many idle connections a worker keeps for each pod.
    pub max_idle_per_pod: usize,
    /// How many requests a router may have with each pod, of which each worker has its share; what was held before may come
    /// on top.
    pub max_in_flight_per_pod: usize,
    /// Most bytes of a request's head by HTTP/2, with what the router adds, and of its trailers, as HTTP/2 counts them.
    pub max_header_bytes_http2: usize,
    /// How pods are known; none: they are spoken to in clear text.
    pub tls: Option<Tls>,
}

/// The defaults of the file.
impl<Tls> Default for UpstreamSettings<Tls> {
    fn default() -> Self {
        UpstreamSettings {
            protocol: UpstreamProtocol::default(),
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            max_idle_per_pod: 256,
            max_in_flight_per_pod: 10_000,
            max_header_bytes_http2: 16 << 10,
            tls: None,
        }
    }
}

impl<Files> UpstreamSettings<Files> {
    /// Returns the same settings with what was loaded from the files that they name.
    pub fn with_tls<Tls>(self, tls: Option<Tls>) -> UpstreamSettings<Tls> {
        UpstreamSettings {
            protocol: self.protocol,
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
            idle_timeout: self.idle_timeout,
            max_idle_per_pod: self.max_idle_per_pod,
            max_in_flight_per_pod: self.max_in_flight_per_pod,
            max_header_bytes_http2: self.max_header_bytes_http2,
            tls,
        }
    }
}

/// Which version of HTTP the pods speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpstreamProtocol {
    /// The one that the client came with.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    Http2,
}

impl UpstreamProtocol {
    /// All choices, by their names in the file.
    pub const NAMES: &[(&str, Self)] =
        &[("auto", UpstreamProtocol::Auto), ("http1", UpstreamProtocol::Http1), ("http2", UpstreamProtocol::Http2)];
}

/// What clients may use up (`[router.limits]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLimits {
    /// Most connections at once, over all workers.
    pub max_connections: usize,
    /// Most streams of a client's connection by HTTP/2.
    pub max_streams_per_connection: u32,
    /// Most requests of one client address that wait or are in flight, over all workers; 0: no limit.
    pub max_in_flight_per_client: usize,
    /// Least bytes a second, on average, of an upload that a pod waits for; 0: as slow as may be.
    pub min_upload_rate: usize,
    /// How long a request's head may take to arrive, and so a handshake.
    pub header_read_timeout: Duration,
    /// Most bytes of a request's head.
    pub max_header_bytes: usize,
    /// Most bytes of a request's body; none: no bound, as the router keeps no body.
    pub max_body_bytes: Option<usize>,
}

/// The defaults of the file.
impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits {
            max_connections: 10_000,
            max_streams_per_connection: 128,
            max_in_flight_per_client: 1_000,
            min_upload_rate: 100,
            header_read_timeout: Duration::from_secs(10),
            max_header_bytes: 64 << 10,
            max_body_bytes: None,
        }
    }
}

/// Where clients are listened for (`listen`, `workers`, `tls`).
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// What clients are shown; none: they are served in clear text.
    pub tls: Option<ServerTls>,
}
