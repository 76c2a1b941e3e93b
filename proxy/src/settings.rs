//! The settings of the data path, in the units that it uses. `segue-config` builds them from the file and takes the
//! file's defaults from `Default` here. Nothing here reads a file.

use std::time::Duration;

use crate::routing::key_limit::KeyLimiter;
use crate::routing::partition_key::{PartitionSource, WithoutKey};
use crate::routing::route_rules::RouteRules;
use crate::spans::Tracer;
use crate::tls::{ClientTls, ServerTls};

/// Settings of the path of a keyspace's requests (`[router]`).
#[derive(Debug, Clone)]
pub struct ForwardSettings {
    /// This router's name, stamped on requests.
    pub router: String,
    /// The keyspace, stamped on requests.
    pub keyspace: String,
    /// Where requests name their partition.
    pub partition: PartitionSource,
    /// The requests that do not go to the owner of their key's partition.
    pub exceptions: OwnerExceptions,
    /// Whether the `x-forwarded-*` and `forwarded` headers of clients are trusted.
    pub trust_forwarded: bool,
    /// The limits of clients.
    pub limits: ClientLimits,
    /// The limits of each key. `None`: there are none.
    pub key_limit: Option<KeyLimiter>,
    /// Time that a pod may wait for an upload in all before the minimum rate applies.
    pub upload_grace: Duration,
    /// Settings of the connections to pods.
    pub upstream: UpstreamSettings,
    /// Records sampled requests. `None`: no request is recorded, and trace contexts pass unread.
    pub tracer: Option<Tracer>,
    /// Which requests get a line in the log.
    pub requests: LoggedRequests,
}

/// Settings of a server that hold whichever keyspace a request is for, and for requests that are for none.
#[derive(Debug, Clone)]
pub struct CommonSettings {
    /// The router's name.
    pub router: String,
    /// Whether the `x-forwarded-*` and `forwarded` headers of clients are trusted.
    pub trust_forwarded: bool,
    /// The limits of clients. Those of a keyspace's own settings hold for the bodies of its requests.
    pub limits: ClientLimits,
    /// How long a client may read nothing of what was sent to it.
    pub unread_timeout: Duration,
    /// Records sampled requests, as in [`ForwardSettings`].
    pub tracer: Option<Tracer>,
    /// Which requests get a line in the log.
    pub requests: LoggedRequests,
}

/// The settings of a server with an only keyspace.
impl From<&ForwardSettings> for CommonSettings {
    fn from(only: &ForwardSettings) -> Self {
        CommonSettings {
            router: only.router.clone(),
            trust_forwarded: only.trust_forwarded,
            limits: only.limits.clone(),
            unread_timeout: only.upstream.idle_timeout,
            tracer: only.tracer.clone(),
            requests: only.requests,
        }
    }
}

/// The requests that do not go to the owner of their key's partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerExceptions {
    /// What becomes of requests that have no key.
    pub without_key: WithoutKey,
    /// The routes, which are asked before the key.
    pub routes: RouteRules,
    /// The router's zone.
    pub zone: Option<String>,
}

/// Which requests get a line in the log (`[log] requests`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoggedRequests {
    /// None of them.
    None,
    /// Those that the router answers itself, those with a status of 500 to 599, and those whose response was cut off. Of too many
    /// in a second some have none.
    #[default]
    Failed,
    /// All of them.
    All,
}

impl LoggedRequests {
    /// All choices, by their names in the file.
    pub const NAMES: &[(&str, Self)] =
        &[("none", LoggedRequests::None), ("failed", LoggedRequests::Failed), ("all", LoggedRequests::All)];
}

/// The default time in which an upload may be as slow as it likes.
pub const UPLOAD_GRACE: Duration = Duration::from_secs(30);

/// Settings of the connections to pods (`[router.upstream]`). `Tls` authenticates pods: the files that the
/// configuration names, or what was loaded from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings<Tls = ClientTls> {
    /// The version of HTTP.
    pub protocol: UpstreamProtocol,
    /// Time to connect to a pod.
    pub connect_timeout: Duration,
    /// Time for a pod to begin its response once it has the request, and for an exchange to go on whose client is gone.
    pub request_timeout: Duration,
    /// Time for which a stream may be silent.
    pub idle_timeout: Duration,
    /// Most idle connections that a worker keeps for each pod.
    pub max_idle_per_pod: usize,
    /// Most requests in flight from a router to each pod, shared evenly among its workers. Requests that were held may
    /// come on top.
    pub max_in_flight_per_pod: usize,
    /// Most bytes of a request's head by HTTP/2, including what the router adds, and of its trailers, as HTTP/2 counts
    /// them.
    pub max_header_bytes_http2: usize,
    /// TLS towards pods. `None`: clear text.
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

/// The version of HTTP towards pods, and from a sidecar towards its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpstreamProtocol {
    /// HTTP/2 for gRPC, which has no other, and HTTP/1.1 for all else, which every service speaks.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    Http2,
}

impl UpstreamProtocol {
    /// Returns whether a request goes by HTTP/2.
    #[inline]
    pub(crate) fn is_http2(self, is_grpc: impl FnOnce() -> bool) -> bool {
        match self {
            UpstreamProtocol::Auto => is_grpc(),
            UpstreamProtocol::Http1 => false,
            UpstreamProtocol::Http2 => true,
        }
    }

    /// All choices, by their names in the file.
    pub const NAMES: &[(&str, Self)] =
        &[("auto", UpstreamProtocol::Auto), ("http1", UpstreamProtocol::Http1), ("http2", UpstreamProtocol::Http2)];
}

/// Limits of clients (`[router.limits]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLimits {
    /// Most connections at once, over all workers.
    pub max_connections: usize,
    /// Most streams of a client's HTTP/2 connection.
    pub max_streams_per_connection: u32,
    /// Most requests of one client address that wait or are in flight, over all workers; 0: no limit.
    pub max_in_flight_per_client: usize,
    /// Lowest average rate, in bytes per second, of an upload that a pod waits for; 0: no limit.
    pub min_upload_rate: usize,
    /// Time for a request's head to arrive, and for a TLS handshake.
    pub header_read_timeout: Duration,
    /// Most bytes of a request's head.
    pub max_header_bytes: usize,
    /// Age at which a connection is closed after its next response, give or take a tenth. `None`: never.
    pub max_connection_age: Option<Duration>,
    /// Whether connections begin with a header of the PROXY protocol, version 1 or 2, which names the client.
    pub proxy_protocol: bool,
    /// Most bytes of a request's body. `None`: no limit, as the router does not keep whole bodies.
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
            max_connection_age: None,
            proxy_protocol: false,
            max_body_bytes: None,
        }
    }
}

/// Settings of the client side (`listen`, `workers`, `tls`).
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// TLS towards clients. `None`: clear text.
    pub tls: Option<ServerTls>,
}
