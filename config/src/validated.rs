//! The configuration as the program sees it.
//!
//! For: the sections. What is only handed on has the type of whoever it is handed to, and the default of that type. A value
//! from [`crate::parse`] has been checked, alone and against the others. Not for: names of keys, which are in `validate`
//! and `segue.example.toml`.
//!
//! What must stay true: nothing here needs to be parsed again, except host names, which are resolved when connecting.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use segue_coordination::router::DrainSettings;
use segue_protocol::handoff::router::OnStoreLoss;
use segue_protocol::planning::Policy;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::StashLimits;
use segue_proxy::settings::{ClientLimits, UpstreamSettings};
use segue_proxy::sidecar::Checks;
use segue_proxy::tls::{ClientFiles, ServerFiles};

/// Everything that a file says, defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The named set of partitions that all roles here take part in; part of the keys in the store.
    pub keyspace: String,
    /// Where the cluster's state is kept.
    pub store: Store,
    /// This process routes requests.
    pub router: Option<Router>,
    /// This process takes part in the election of a coordinator.
    pub coordinator: Option<Coordinator>,
    /// This process is the sidecar of a writer pod.
    pub pod: Option<Pod>,
    /// This process serves health, metrics and status.
    pub admin: Option<Admin>,
    /// What is logged and how.
    pub log: Log,
}

/// Where the cluster's state is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// What keeps it.
    pub kind: StoreKind,
    /// etcd's client URLs; at least one. Each `https://host:port` if there is `tls`, else `http://host:port`.
    pub endpoints: Vec<String>,
    /// How etcd is known; none: it is spoken to in clear text.
    pub tls: Option<ClientFiles>,
    /// What all keys begin with; begins and ends with `/`.
    pub prefix: String,
    /// How to log in to etcd; none for an etcd without authentication.
    pub credentials: Option<Credentials>,
}

/// What keeps the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// An etcd cluster.
    Etcd,
    /// This process itself, for as long as it runs.
    Memory,
}

/// A user of etcd.
#[derive(Debug, Clone, PartialEq)]
pub struct Credentials {
    /// The user's name.
    pub username: String,
    /// The file that holds the password; not read yet.
    pub password_file: PathBuf,
}

/// The role that routes requests to pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// Its name among the routers of the keyspace.
    pub name: String,
    /// Where clients reach it.
    pub listen: SocketAddr,
    /// What it shows to clients; none: they are served in clear text.
    pub tls: Option<ServerFiles>,
    /// The life of its registration without renewal; whole seconds, at least two.
    pub lease_ttl: Duration,
    /// What it does when it can no longer renew its registration.
    pub on_store_loss: OnStoreLoss,
    /// Threads that serve requests; none: one per core.
    pub workers: Option<NonZeroUsize>,
    /// The Unix socket of a hot restart, where a new process asks for the listening sockets; none: no hot restart. Never in
    /// a file with a pod.
    pub hot_restart_socket: Option<PathBuf>,
    /// Whether `x-forwarded-*` and `forwarded` of clients are believed.
    pub trust_forwarded: bool,
    /// What tells the partition of a request.
    pub partition: PartitionSource,
    /// Bounds of what is held during a cutover: at least one request, one byte and one of a flush; `max_bytes` at most
    /// `max_total_bytes`.
    pub stash: StashLimits,
    /// How long requests in flight may delay a cutover; less than `stash.max_wait`.
    pub drain: DrainSettings,
    /// The connections to pods; `connect_timeout` at most `request_timeout`, at least one request in flight.
    pub upstream: UpstreamSettings<ClientFiles>,
    /// Bounds of what clients may do; at least one connection with one stream.
    pub limits: ClientLimits,
}

/// The role that decides which pod owns which partition.
#[derive(Debug, Clone, PartialEq)]
pub struct Coordinator {
    /// Its name among the candidates.
    pub name: String,
    /// The life of its leadership without renewal; whole seconds, at least two.
    pub lease_ttl: Duration,
    /// What it brings about: 1 to 65536 partitions, `settle` at most `settle_max`, at least one handoff at a time.
    pub policy: Policy,
    /// Where pods reach its gRPC service.
    pub listen: SocketAddr,
}

/// The role of a sidecar in front of a writer pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Its name among the pods of the keyspace.
    pub name: String,
    /// Where routers reach it.
    pub listen: SocketAddr,
    /// What it shows to routers; none: they are served in clear text.
    pub tls: Option<ServerFiles>,
    /// What it tells routers to connect to, `host:port`; never an unspecified address or port 0.
    pub advertise: String,
    /// The service itself, `host:port`; never `listen`.
    pub upstream: String,
    /// The life of its registration without renewal; whole seconds, at least two.
    pub lease_ttl: Duration,
    /// Its share of the partitions in proportion to the other pods' weights; above zero.
    pub weight: f64,
    /// The failure domain that it runs in.
    pub zone: Option<String>,
    /// The version of its rollout, for people.
    pub version: Option<String>,
    /// What it calls in the service.
    pub hooks: Hooks,
    /// The service's command line: it is started and supervised. The first word is the program.
    pub exec: Option<Vec<String>>,
    /// No request's work in the service lasts longer than this after the request's last byte.
    pub work_ends_within: Option<Duration>,
    /// How the service is checked; at least one failure makes it unhealthy.
    pub health: Checks,
    /// How long it waits to be emptied when it is told to stop.
    pub shutdown_timeout: Duration,
}

/// URLs of the service that a sidecar posts to, each plain `http://`; none: there is nothing to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Hooks {
    /// Get ready to own a partition.
    pub warm: Option<Uri>,
    /// Catch up with what the old owner wrote; one that is given makes the pod capable of `sync`.
    pub sync: Option<Uri>,
    /// A partition is gone.
    pub release: Option<Uri>,
    /// Until when the service may write; called every few seconds.
    pub lease: Option<Uri>,
}

/// Health, metrics and status over HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    /// Where it is served.
    pub listen: SocketAddr,
    /// Where others reach it: a host and a port; none: nobody knows.
    pub advertise: Option<String>,
}

/// What is logged and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// The least important level that is still logged.
    pub level: LogLevel,
    /// The form of a line.
    pub format: LogFormat,
}

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something may fail.
    Warn,
    /// What an operator follows.
    Info,
    /// What a developer follows.
    Debug,
    /// Everything.
    Trace,
}

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// An object per line.
    Json,
}
