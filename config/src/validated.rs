//! The validated configuration.
//!
//! For: the sections. A setting that is only passed on has the type and the default of the crate that obeys it. A value
//! from [`crate::parse`] has been checked, alone and against the others. Not for: names of keys, which are in
//! `validate` and `segue.example.toml`.
//!
//! # Invariants
//!
//! * Nothing here needs to be parsed again, except host names, which are resolved when connecting.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use segue_coordination::pod::HookSettings;
use segue_coordination::router::{DrainSettings, RouterSettings};
use segue_protocol::handoff::router::OnStoreLoss;
use segue_protocol::planning::Policy;
use segue_proxy::routing::key_limit::KeyLimits;
use segue_proxy::routing::keyspace_choice::KeyspaceMatch;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::StashLimits;
use segue_proxy::settings::{
    ClientLimits, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE, UpstreamProtocol,
    UpstreamSettings,
};
use segue_proxy::sidecar::{Checks, ServiceAddress};
use segue_proxy::spans::Sampler;
use segue_proxy::tls::{ClientFiles, ClientTls, ServerFiles, ServerTls};

/// All settings of a file, with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The keyspaces that all roles of this process serve, each with a name of its own; at least one, unless it follows those
    /// of the store. A file with `keyspace` in place of the list has one, without a match.
    pub keyspaces: Vec<KeyspaceSection>,
    /// Whether the file has a list of keyspaces, or the store. Metrics then name the keyspace.
    pub lists_keyspaces: bool,
    /// Whether the process also serves the keyspaces that the store lists, while it runs.
    pub follow_keyspaces: bool,
    /// The store of the cluster's state.
    pub store: Store,
    /// This process routes requests.
    pub router: Option<Router>,
    /// This process takes part in the election of a coordinator.
    pub coordinator: Option<Coordinator>,
    /// This process is the sidecar of a writer pod.
    pub pod: Option<Pod>,
    /// This process serves health, metrics and status.
    pub admin: Option<Admin>,
    /// The log settings.
    pub log: Log,
    /// This process exports traces.
    pub tracing: Option<Tracing>,
}

impl Config {
    /// Returns the keyspace, unless there are several.
    pub fn only_keyspace(&self) -> Option<&KeyspaceSection> {
        match &*self.keyspaces {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// A named set of partitions, and what the roles of this process do with it.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyspaceSection {
    /// The name; part of the keys in the store.
    pub name: String,
    /// The service that it belongs to, if the file says so. Participants of another one do not register.
    pub service: Option<String>,
    /// Which requests are for it and how they are routed. `Some` if the file has a router.
    pub routing: Option<Routing>,
    /// The placement policy: 1 to 65536 partitions, `settle` at most `settle_max`, at least one handoff at a time. `Some`
    /// if the file has a coordinator.
    pub policy: Option<Policy>,
}

/// How a router treats the requests of a keyspace.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// The requests that are for the keyspace; `None`: those that match no other. No two keyspaces have the same.
    pub matching: Option<KeyspaceMatch>,
    /// The source of a request's partition.
    pub partition: PartitionSource,
    /// The requests that do not go to the owner of their key's partition.
    pub exceptions: OwnerExceptions,
    /// Limits of what is held during a cutover: at least one request, one byte and one of a flush; `max_bytes` at most
    /// `max_total_bytes`, which counts all keyspaces.
    pub stash: StashLimits,
    /// The version of HTTP towards the keyspace's pods; `None`: that of the router's `upstream`.
    pub protocol: Option<UpstreamProtocol>,
    /// Limits of each key, of which at least one is set; `None` without any. What is limited is a header if requests of the
    /// keyspace have no key.
    pub key_limits: Option<KeyLimits>,
}

/// The store of the cluster's state.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// The kind of store.
    pub kind: StoreKind,
    /// etcd's client URLs; at least one. Each is `https://host:port` if there is `tls`, otherwise `http://host:port`.
    pub endpoints: Vec<String>,
    /// The files for TLS towards etcd; `None` for clear text.
    pub tls: Option<ClientFiles>,
    /// The prefix of all keys; begins and ends with `/`.
    pub prefix: String,
    /// The credentials for etcd; `None` for an etcd without authentication.
    pub credentials: Option<Credentials>,
}

/// The kinds of stores.
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
    /// The router's name, unique in the keyspace.
    pub name: String,
    /// The address that clients connect to.
    pub listen: SocketAddr,
    /// The TLS files of the listener; `None` for clear text.
    pub tls: Option<ServerFiles>,
    /// The TTL of the registration; whole seconds, at least two.
    pub lease_ttl: Duration,
    /// The policy when the router can no longer renew its registration.
    pub on_store_loss: OnStoreLoss,
    /// Number of threads that serve requests; `None` for one per core.
    pub workers: Option<NonZeroUsize>,
    /// The Unix socket of a hot restart, where a new process asks for the listening sockets; `None` for no hot restart.
    /// Never in a file with a pod.
    pub hot_restart_socket: Option<PathBuf>,
    /// Whether `x-forwarded-*` and `forwarded` of clients are trusted.
    pub trust_forwarded: bool,
    /// How long requests in flight may delay a cutover; less than `stash.max_wait` of every keyspace.
    pub drain: DrainSettings,
    /// The connections to pods; `connect_timeout` at most `request_timeout`, at least one request in flight.
    pub upstream: UpstreamSettings<ClientFiles>,
    /// Limits for clients; at least one connection with one stream.
    pub limits: ClientLimits,
}

impl Router {
    /// Returns the settings of the client side. `tls` was loaded from the files of the listener.
    pub fn server_settings(&self, tls: Option<ServerTls>) -> ServerSettings {
        ServerSettings { listen: self.listen.to_string(), workers: self.workers.map_or(0, usize::from), tls }
    }

    /// Returns the settings of the path of a request in a keyspace. `pods` was loaded from the files of the connections
    /// to pods.
    pub fn forward_settings(&self, keyspace: &str, routing: &Routing, pods: Option<ClientTls>) -> ForwardSettings {
        ForwardSettings {
            router: self.name.clone(),
            keyspace: keyspace.to_owned(),
            partition: routing.partition.clone(),
            exceptions: routing.exceptions.clone(),
            trust_forwarded: self.trust_forwarded,
            limits: self.limits.clone(),
            key_limit: None,
            upload_grace: UPLOAD_GRACE,
            tracer: None,
            requests: LoggedRequests::default(),
            upstream: UpstreamSettings {
                protocol: routing.protocol.unwrap_or(self.upstream.protocol),
                ..self.upstream.clone().with_tls(pods)
            },
        }
    }

    /// Returns the settings of the control side of a keyspace. `admin` is the address that others use for this process's
    /// admin endpoint.
    pub fn control_settings(&self, routing: &Routing, admin: Option<String>) -> RouterSettings {
        RouterSettings {
            name: self.name.clone(),
            lease_ttl: self.lease_ttl,
            on_store_loss: self.on_store_loss,
            drain: self.drain.clone(),
            admin,
            partitioner: Some(routing.partition.partitioner()),
            request_timeout: self.upstream.request_timeout,
            max_wait: routing.stash.max_wait,
        }
    }
}

/// The role that decides which pod owns which partition.
#[derive(Debug, Clone, PartialEq)]
pub struct Coordinator {
    /// The coordinator's name among the candidates.
    pub name: String,
    /// The TTL of the leadership; whole seconds, at least two.
    pub lease_ttl: Duration,
    /// The address of the gRPC service for pods, or `None` without the service.
    pub listen: Option<SocketAddr>,
    /// The file of the token that pods present there; `None` for none.
    pub token_file: Option<PathBuf>,
    /// The TLS files of that listener; `None` for clear text.
    pub tls: Option<ServerFiles>,
}

/// The address at which a sidecar's service opens its stream. Only this host can connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamListen {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A Unix socket, which only the user of the process can use.
    Unix(PathBuf),
}

impl StreamListen {
    /// Returns the address if it is one of TCP.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            StreamListen::Tcp(address) => Some(*address),
            StreamListen::Unix(_) => None,
        }
    }

    /// Returns the path if it is a Unix socket.
    pub fn unix(&self) -> Option<&Path> {
        match self {
            StreamListen::Tcp(_) => None,
            StreamListen::Unix(path) => Some(path),
        }
    }
}

/// The role of a sidecar in front of a writer pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// The pod's name, unique in the keyspace.
    pub name: String,
    /// The address that routers connect to.
    pub listen: SocketAddr,
    /// The TLS files of the listener; `None` for clear text.
    pub tls: Option<ServerFiles>,
    /// The address that routers are told to connect to, `host:port`; never an unspecified address or port 0.
    pub advertise: String,
    /// The service's address; never `listen`.
    pub upstream: ServiceAddress,
    /// The TLS files towards the service; `None` for clear text.
    pub upstream_tls: Option<ClientFiles>,
    /// The version of HTTP towards the service.
    pub protocol: UpstreamProtocol,
    /// The TTL of the registration; whole seconds, at least two.
    pub lease_ttl: Duration,
    /// The pod's share of the partitions relative to the other pods' weights; above zero.
    pub weight: f64,
    /// Time between two heartbeats; zero for none. `None`: heartbeats only while planning has a use for them.
    pub load_interval: Option<Duration>,
    /// The failure domain that the pod runs in.
    pub zone: Option<String>,
    /// The version of the pod's rollout. Informational.
    pub version: Option<String>,
    /// Where the service opens its stream; `None` if it has none. With it no hook is set but that of the lease.
    pub stream: Option<StreamListen>,
    /// The hooks of the service.
    pub hooks: HookSettings,
    /// How the sidecar starts and supervises the service; `None` if it does not.
    pub exec: Option<Exec>,
    /// The bound on a request's work in the service, counted from the request's last byte.
    pub work_ends_within: Option<Duration>,
    /// The health checks of the service; at least one failure makes it unhealthy.
    pub health: Checks,
    /// How long the pod waits to be emptied when it is told to stop.
    pub shutdown_timeout: Duration,
}

/// A service that its sidecar starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// The command line. The first word is the program.
    pub command: Vec<String>,
    /// The folder that the service runs in; `None`: that of the sidecar.
    pub cwd: Option<PathBuf>,
    /// Variables beside those of the sidecar, or in place of them.
    pub env: Vec<(String, String)>,
    /// The user that the service runs as; `None`: that of the sidecar.
    pub user: Option<ExecUser>,
}

/// A user of the machine, who is not looked up yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecUser {
    /// By name.
    Name(String),
    /// By number. Without a group, the user's own.
    Id {
        /// The number of the user.
        uid: u32,
        /// The number of the group.
        gid: Option<u32>,
    },
}

impl FromStr for ExecUser {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // To the kernel, the largest number means nobody.
        let number = |text: &str| text.parse().ok().filter(|number| *number != u32::MAX).ok_or(());
        if text.is_empty() || text.contains(['\0', '/', ' ']) {
            return Err(());
        }
        match text.split_once(':') {
            Some((uid, gid)) => Ok(ExecUser::Id { uid: number(uid)?, gid: Some(number(gid)?) }),
            None if text.starts_with(|c: char| c.is_ascii_digit()) => {
                Ok(ExecUser::Id { uid: number(text)?, gid: None })
            }
            None if text.starts_with('-') => Err(()),
            None => Ok(ExecUser::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for ExecUser {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecUser::Name(name) => out.write_str(name),
            ExecUser::Id { uid, gid: None } => write!(out, "{uid}"),
            ExecUser::Id { uid, gid: Some(gid) } => write!(out, "{uid}:{gid}"),
        }
    }
}

/// Health, metrics and status over HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    /// The address of the endpoint.
    pub listen: SocketAddr,
    /// The address that others use for the endpoint: a host and a port; `None` if it is not announced.
    pub advertise: Option<String>,
    /// The names that the endpoint answers to, beside addresses and `localhost`: those of the file, the host of `advertise`,
    /// and the name of the machine.
    pub hosts: Vec<String>,
    /// The Unix socket of the endpoint, which only the user of the process can use; `None` for none.
    pub socket: Option<PathBuf>,
    /// Who may change something by `listen`. By `socket` its user always may.
    pub write: AdminWrite,
    /// The TLS files of `listen`; `None` for clear text. A client needs a certificate only to change something.
    pub tls: Option<ServerFiles>,
    /// The authorities to trust at the admin endpoints of other processes; `None` to ask them without TLS.
    pub peers_tls: Option<ClientFiles>,
}

/// Who may change something by the admin endpoint's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminWrite {
    /// Nobody.
    None,
    /// Those who present the token in this file, which is not read yet.
    Token(PathBuf),
    /// Those with a certificate of the authorities in `tls.client_ca`, which is given.
    ClientCert,
}

/// The export of traces.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracing {
    /// The URL of the collector's OTLP receiver, without the path of the traces.
    pub endpoint: Uri,
    /// Which requests without a trace context are recorded.
    pub sampling: Sampler,
}

/// The log settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// The least important level that is still logged.
    pub level: LogLevel,
    /// The format of a line.
    pub format: LogFormat,
    /// Which requests of a router get a line.
    pub requests: LoggedRequests,
}

/// The importance of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something may fail.
    Warn,
    /// For operators.
    Info,
    /// For developers.
    Debug,
    /// Everything.
    Trace,
}

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}
