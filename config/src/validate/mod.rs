//! Turns values into a [`Config`]: every key, and every rule within a section or between sections.
//!
//! For: the rules of a whole configuration. Not for: the rules of the sections that have a file here, the reading of single
//! values (`reader`), and the defaults of settings that another crate owns, which are those of its `Default`.
//!
//! # Invariants
//!
//! * A combination that cannot work is refused here, before any address is bound.
//! * A setting that can be parsed but is not implemented yet is refused as well, with that reason.

mod admin;
mod body_key;
mod coordinator;
mod hooks;
mod key_limits;
mod keyspaces;
mod partition;
mod placement;
mod pods_service;
mod router;
mod routes;
mod service;
mod stream;
mod tls;
mod tracing;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::Uri;
use segue_coordination::pod::PodSettings;
use segue_proxy::settings::{LoggedRequests, UpstreamProtocol};
use segue_proxy::sidecar::Checks;

use crate::drain_time::drain_fits_into_a_phase;
use crate::error::{Problem, Wrong, quoted};
use crate::keys::{self, ConfigKeys};
use crate::raw::{Raw, RawValue};
use crate::reader::{self, ConfigReader, text};
use crate::validated::{Config, Credentials, Log, LogFormat, LogLevel, Pod, Store, StoreKind, StreamListen};

/// Every key that a file may have. Each section's keys are listed where they are read.
pub(crate) static KEYS: ConfigKeys = ConfigKeys {
    sections: &[
        &["keyspace", keyspaces::FOLLOW, "service"],
        STORE_KEYS,
        router::KEYS,
        coordinator::KEYS,
        POD_KEYS,
        admin::KEYS,
        LOG_KEYS,
        tracing::KEYS,
    ],
    tables: &[(keys::KEYSPACES, &keyspaces::KEYS), (routes::LIST, &routes::KEYS)],
};

/// Returns the configuration, which is valid only if there are no problems.
pub(crate) fn config(raw: &Raw, hostname: &str) -> (Config, Vec<Problem>) {
    let mut reader = ConfigReader::new(raw, hostname);
    let r = &mut reader;
    let follow_keyspaces = keyspaces::follow(r);
    let keyspaces = keyspaces::read(r, follow_keyspaces);
    let config = Config {
        lists_keyspaces: follow_keyspaces || r.tables(keys::KEYSPACES).is_some(),
        follow_keyspaces,
        store: store(r),
        router: r.has_section("router").then(|| router::router(r, &keyspaces)),
        coordinator: r.has_section("coordinator").then(|| coordinator::coordinator(r)),
        keyspaces,
        pod: r.has_section("pod").then(|| pod(r)),
        admin: r.anything_in("admin").map(|_| admin::read(r)),
        log: log(r),
        tracing: tracing::read(r),
    };
    a_role_is_there(r);
    drain_fits_into_a_phase(r, &config);
    listeners_are_apart(r, &config);
    routes::lead_elsewhere(r, &config);
    socket_paths_are_apart(r, &config);
    hot_restart_is_possible(r, &config);
    (config, reader.into_problems())
}

pub(crate) use self::keyspaces::settings_of_absent_roles;

fn a_role_is_there(r: &mut ConfigReader<'_>) {
    if !keys::ROLES.iter().any(|role| r.has_section(role)) {
        let remedy = "expected at least one of the sections [router], [coordinator], [pod]";
        r.report(None, "router, coordinator, pod", Wrong::new("there is no role to run", remedy));
    }
}

/// Refuses a hot restart of a process with more than its clients' sockets: nothing else can be passed on.
fn hot_restart_is_possible(r: &mut ConfigReader<'_>, config: &Config) {
    if !r.is_given(router::HOT_RESTART_SOCKET) {
        return;
    }
    if r.has_section("pod") {
        let fact = "given in a file with [pod], whose partitions have to move to other pods before it ends";
        r.report_key(
            router::HOT_RESTART_SOCKET,
            Wrong::new(fact, "expected the router and the pod in files of their own"),
        );
    }
    if config.coordinator.as_ref().is_some_and(|coordinator| coordinator.listen.is_some()) {
        let fact = "given with coordinator.listen, which two processes cannot listen at";
        r.report_key(
            router::HOT_RESTART_SOCKET,
            Wrong::new(fact, "expected the router and the coordinator in files of their own"),
        );
    }
    if config.store.kind == StoreKind::Memory {
        let fact = "given with store.kind = \"memory\", which another process cannot see";
        r.report_key(router::HOT_RESTART_SOCKET, Wrong::new(fact, "expected it only with etcd"));
    }
}

fn listeners_are_apart(r: &mut ConfigReader<'_>, config: &Config) {
    let listeners = [
        ("router.listen", config.router.as_ref().map(|router| router.listen)),
        ("coordinator.listen", config.coordinator.as_ref().and_then(|coordinator| coordinator.listen)),
        ("pod.listen", config.pod.as_ref().map(|pod| pod.listen)),
        ("admin.listen", config.admin.as_ref().map(|admin| admin.listen)),
        (stream::KEY, config.pod.as_ref().and_then(|pod| pod.stream.as_ref()).and_then(StreamListen::tcp)),
    ];
    for (i, &(a_key, a)) in listeners.iter().enumerate() {
        for &(b_key, b) in &listeners[i + 1..] {
            let collide = a.zip(b).is_some_and(|(a, b)| overlap(a, b));
            if !collide || r.is_refused(a_key) || r.is_refused(b_key) {
                continue;
            }
            // Points at the key that was given or, if both were, at the later section.
            let (key, other) = if r.is_given(b_key) { (b_key, a_key) } else { (a_key, b_key) };
            let fact = format!("the same address as {other} ({})", r.origin(other));
            r.report_value(key, Wrong::new(fact, "expected an address of its own"));
        }
    }
}

fn socket_paths_are_apart(r: &mut ConfigReader<'_>, config: &Config) {
    let sockets = [
        ("admin.socket", config.admin.as_ref().and_then(|admin| admin.socket.as_deref())),
        (router::HOT_RESTART_SOCKET, config.router.as_ref().and_then(|router| router.hot_restart_socket.as_deref())),
        (stream::KEY, config.pod.as_ref().and_then(|pod| pod.stream.as_ref()).and_then(StreamListen::unix)),
    ];
    for (i, &(other, a)) in sockets.iter().enumerate() {
        for (key, _) in sockets[i + 1..].iter().filter(|(_, b)| a.is_some() && a == *b) {
            r.report_value(key, Wrong::new(format!("the same path as {other}"), "expected a path of its own"));
        }
    }
}

/// Returns whether two listeners cannot both be bound. Port 0 is another free port each time.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |a: IpAddr, b: IpAddr| a == b || (a.is_unspecified() && (a.is_ipv6() || b.is_ipv4()));
    a.port() == b.port() && a.port() != 0 && (covers(a.ip(), b.ip()) || covers(b.ip(), a.ip()))
}

const STORE_KEYS: &[&str] = &[
    "store.kind",
    "store.endpoints",
    "store.prefix",
    "store.username",
    "store.password_file",
    "store.tls.ca",
    "store.tls.cert",
    "store.tls.key",
];

fn store(r: &mut ConfigReader<'_>) -> Store {
    let kind = r.choice("store.kind", &[("etcd", StoreKind::Etcd), ("memory", StoreKind::Memory)], StoreKind::Etcd);
    let endpoints = r.read("store.endpoints", |value| {
        const EXPECTED: &str = "expected a list of URLs, such as [\"http://127.0.0.1:2379\"]";
        let endpoints = reader::list(value, EXPECTED)?;
        if endpoints.is_empty() {
            return Err(Wrong::new("names no endpoint", EXPECTED));
        }
        let expected = "expected a URL that begins with http:// or https://";
        let remedy = "expected a URL without them, and store.username and store.password_file";
        endpoints.iter().try_for_each(|endpoint| without_user(endpoint, remedy))?;
        endpoints.iter().try_for_each(|endpoint| uri(endpoint, &["http", "https"], expected).map(drop))?;
        Ok(endpoints)
    });
    let prefix = r.read("store.prefix", |value| {
        const EXPECTED: &str = "expected a prefix that begins and ends with '/'";
        let prefix = text(value, EXPECTED)?;
        if prefix.starts_with('/') && prefix.ends_with('/') {
            return Ok(prefix.to_owned());
        }
        let near = format!("/{}/", prefix.trim_matches('/')).replace("//", "/");
        let fact = format!("{} does not begin and end with '/'", quoted(prefix));
        Err(Wrong::new(fact, EXPECTED).did_you_mean(Some(quoted(&near))))
    });
    let username = r.text(USERNAME);
    let password_file = r.text(PASSWORD_FILE);
    for (given, missing) in [(USERNAME, PASSWORD_FILE), (PASSWORD_FILE, USERNAME)] {
        if r.is_given(given) && !r.is_given(missing) {
            r.report_key(given, Wrong::new(format!("given without {missing}"), "expected both or neither"));
        }
    }
    let tls = tls::client(r, &tls::STORE);
    let endpoints = endpoints.unwrap_or_else(|| vec!["http://127.0.0.1:2379".to_owned()]);
    if kind == StoreKind::Etcd && !r.is_refused("store.endpoints") {
        tls::endpoints_agree(r, &endpoints);
    }
    Store {
        kind,
        endpoints,
        tls,
        prefix: prefix.unwrap_or_else(|| "/segue/".to_owned()),
        credentials: username
            .zip(password_file)
            .map(|(username, file)| Credentials { username, password_file: file.into() }),
    }
}

const USERNAME: &str = "store.username";
const PASSWORD_FILE: &str = "store.password_file";

const POD_KEYS: &[&str] = &[
    "pod.name",
    "pod.listen",
    "pod.tls.cert",
    "pod.tls.key",
    "pod.tls.client_ca",
    "pod.advertise",
    service::UPSTREAM,
    "pod.upstream_tls.ca",
    "pod.upstream_tls.cert",
    "pod.upstream_tls.key",
    "pod.upstream_tls.server_name",
    "pod.protocol",
    "pod.lease_ttl",
    "pod.weight",
    "pod.load_interval",
    "pod.zone",
    "pod.version",
    "pod.warm_url",
    "pod.sync_url",
    "pod.release_url",
    service::EXEC,
    service::EXEC_CWD,
    service::EXEC_ENV,
    service::EXEC_USER,
    "pod.work_ends_within",
    stream::KEY,
    "pod.health.path",
    "pod.health.every",
    "pod.health.unhealthy_after",
    "pod.hooks.warm.url",
    "pod.hooks.warm.timeout",
    "pod.hooks.sync.url",
    "pod.hooks.sync.timeout",
    "pod.hooks.leaving.url",
    "pod.hooks.leaving.timeout",
    "pod.hooks.drain.url",
    "pod.hooks.drain.timeout",
    "pod.hooks.release.url",
    "pod.hooks.release.timeout",
    "pod.hooks.checkpoint.url",
    "pod.hooks.checkpoint.timeout",
    "pod.hooks.load.url",
    "pod.hooks.lease.url",
    "pod.hooks.secret_file",
    "pod.shutdown_timeout",
];

fn pod(r: &mut ConfigReader<'_>) -> Pod {
    let default = PodSettings::new("", "");
    let listen = r.listen("pod.listen", local(8181));
    let advertise = r.read("pod.advertise", |value| reachable(value, "a router"));
    if !r.is_given("pod.advertise") && (listen.ip().is_unspecified() || listen.port() == 0) {
        let fact = format!("not given, and no router could connect to pod.listen, {listen}");
        r.report(None, "pod.advertise", Wrong::new(fact, EXPECTED_ADDRESS));
    }
    let (upstream, upstream_tls) = service::upstream(r, &local(8182).to_string());
    if upstream.to_string().parse() == Ok(listen) {
        let fact = format!("the same as pod.listen ({})", r.origin("pod.listen"));
        r.report_value(service::UPSTREAM, Wrong::new(fact, "expected the address of the service itself"));
    }
    Pod {
        name: r.role_name("pod.name"),
        listen,
        stream: stream::read(r),
        tls: tls::server(r, &TLS),
        advertise: advertise.unwrap_or_else(|| listen.to_string()),
        upstream,
        upstream_tls,
        protocol: r.choice("pod.protocol", UpstreamProtocol::NAMES, UpstreamProtocol::default()),
        lease_ttl: r.lease("pod.lease_ttl", default.lease_ttl),
        weight: r.weight("pod.weight", default.weight),
        load_interval: r
            .is_given("pod.load_interval")
            .then(|| r.write_interval_or_zero("pod.load_interval", Duration::ZERO)),
        zone: r.text("pod.zone"),
        version: r.text("pod.version"),
        hooks: hooks::read(r),
        exec: service::exec(r),
        work_ends_within: r.is_given("pod.work_ends_within").then(|| r.duration("pod.work_ends_within", seconds(10))),
        health: health(r),
        shutdown_timeout: r.duration("pod.shutdown_timeout", seconds(60)),
    }
}

fn health(r: &mut ConfigReader<'_>) -> Checks {
    Checks {
        path: r.read("pod.health.path", |value| {
            const EXPECTED: &str = "expected a path, such as \"/healthz\"";
            let text = text(value, EXPECTED)?;
            let wrong = || Wrong::new(format!("{} is not a path", quoted(text)), EXPECTED);
            text.parse().ok().filter(|_| text.starts_with('/')).ok_or_else(wrong)
        }),
        every: r.duration("pod.health.every", seconds(1)),
        unhealthy_after: r.integer("pod.health.unhealthy_after", 1..=1000, 3),
    }
}

const TLS: tls::ServerKeys = tls::ServerKeys {
    section: "pod.tls",
    cert: "pod.tls.cert",
    key: "pod.tls.key",
    client_ca: "pod.tls.client_ca",
    certificates: None,
};

const EXPECTED_ADDRESS: &str = "expected a host and a port, such as \"10.0.0.7:8181\" or \"writer-0:8181\"";

/// Reads an address to connect to: a name or an IP address, and a port above zero. An IPv6 address gets the brackets that
/// it lacks: manifests put an address before a port without knowing its kind.
fn host_and_port(value: &RawValue) -> Result<String, Wrong> {
    let text = text(value, EXPECTED_ADDRESS)?;
    let is_address = match text.parse::<SocketAddr>() {
        Ok(address) => address.port() > 0,
        Err(_) => text
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_host_name(host) && port.parse::<u16>().is_ok_and(|port| port > 0)),
    };
    if is_address {
        return Ok(text.to_owned());
    }
    let without_brackets = text.rsplit_once(':').and_then(|(ip, port)| {
        let address = SocketAddr::new(ip.parse::<Ipv6Addr>().ok()?.into(), port.parse().ok()?);
        (address.port() > 0).then(|| address.to_string())
    });
    without_brackets.ok_or_else(|| Wrong::new(format!("{} is not a host and a port", quoted(text)), EXPECTED_ADDRESS))
}

/// Reads an address that `who` can connect to.
fn reachable(value: &RawValue, who: &str) -> Result<String, Wrong> {
    let address = host_and_port(value)?;
    match address.parse() {
        Ok(ip) if IpAddr::is_unspecified(&SocketAddr::ip(&ip)) => {
            let fact = format!("{} is no address that {who} could connect to", quoted(&address));
            Err(Wrong::new(fact, EXPECTED_ADDRESS))
        }
        _ => Ok(address),
    }
}

fn is_host_name(host: &str) -> bool {
    !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

/// Refuses a URL that names a user. It is not repeated in the message, because it may contain a password.
fn without_user(text: &str, remedy: &str) -> Result<(), Wrong> {
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest).split(['/', '?', '#']).next();
    let has_user = authority.is_some_and(|authority| authority.contains('@'));
    if has_user { Err(Wrong::new("a URL contains a user or a password", remedy)) } else { Ok(()) }
}

fn uri(text: &str, schemes: &[&str], expected: &str) -> Result<Uri, Wrong> {
    let is_usable = |uri: &Uri| {
        uri.scheme_str().is_some_and(|scheme| schemes.contains(&scheme))
            && uri.host().is_some_and(|host| !host.is_empty())
    };
    text.parse::<Uri>().ok().filter(is_usable).ok_or_else(|| {
        let near = (!text.contains("://") && text.contains(':')).then(|| quoted(&format!("http://{text}")));
        Wrong::new(format!("{} is not a URL of this kind", quoted(text)), expected).did_you_mean(near)
    })
}

const LOG_KEYS: &[&str] = &["log.level", "log.format", "log.requests"];

fn log(r: &mut ConfigReader<'_>) -> Log {
    let levels = [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    Log {
        level: r.choice("log.level", &levels, LogLevel::Info),
        format: r.choice("log.format", &[("text", LogFormat::Text), ("json", LogFormat::Json)], LogFormat::Text),
        requests: r.choice("log.requests", LoggedRequests::NAMES, LoggedRequests::default()),
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A date suits no key, so a key without a problem is never read.
    #[test]
    fn every_known_key_is_read() {
        let is_read = |key: &str, text: &str| {
            let errors = crate::parse("f", text, [], "host-1").unwrap_err();
            let expected = format!(" {key}: 1979-05-27 is not a ");
            assert!(errors.to_string().contains(&expected), "{key}: {errors}");
        };
        for key in KEYS.all() {
            let role = if keys::ROLES.iter().any(|role| keys::within(key, role).is_some()) { "" } else { "[pod]\n" };
            is_read(key, &format!("{key} = 1979-05-27\n{role}"));
        }
        for key in keyspaces::KEYS.all() {
            let name = keys::within(key, keys::KEYSPACES).unwrap();
            is_read(key, &format!("[[keyspaces]]\n{name} = 1979-05-27\n[router]\n[coordinator]\n"));
        }
    }
}
