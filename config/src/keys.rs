//! The names that a file may use.
//!
//! For: telling a known key from an unknown one, and what an unknown one was probably meant to be. Not for: types and
//! defaults, which `validate` gives where it reads a key.
//!
//! What must stay true: every key here is read by `validate` and explained in `segue.example.toml` (tests check both).
//! No key contains a double underscore, so a variable names one key only.

use crate::error::nearest;

/// Every key, by its path.
pub(crate) const KEYS: &[&str] = &[
    "keyspace",
    "store.kind",
    "store.endpoints",
    "store.prefix",
    "store.username",
    "store.password_file",
    "store.tls.ca",
    "store.tls.cert",
    "store.tls.key",
    "router.name",
    "router.listen",
    "router.lease_ttl",
    "router.on_store_loss",
    "router.workers",
    "router.hot_restart_socket",
    "router.trust_forwarded",
    "router.tls.cert",
    "router.tls.key",
    "router.tls.client_ca",
    "router.partition.header",
    "router.partition.key.header",
    "router.partition.key.path",
    "router.partition.key.query",
    "router.partition.key.cookie",
    "router.partition.hash",
    "router.partition.order_by.header",
    "router.partition.ambiguous_paths",
    "router.stash.max_requests",
    "router.stash.max_bytes",
    "router.stash.max_total_bytes",
    "router.stash.max_wait",
    "router.stash.flush_concurrency",
    "router.drain.timeout",
    "router.drain.on_timeout",
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
    "router.limits.max_body_bytes",
    "coordinator.name",
    "coordinator.partitions",
    "coordinator.strategy",
    "coordinator.lease_ttl",
    "coordinator.settle",
    "coordinator.settle_max",
    "coordinator.min_interval",
    "coordinator.heartbeat",
    "coordinator.max_concurrent_handoffs",
    "coordinator.mode",
    "coordinator.warm_timeout",
    "coordinator.phase_timeout",
    "coordinator.listen",
    "pod.name",
    "pod.listen",
    "pod.tls.cert",
    "pod.tls.key",
    "pod.tls.client_ca",
    "pod.advertise",
    "pod.upstream",
    "pod.lease_ttl",
    "pod.weight",
    "pod.zone",
    "pod.version",
    "pod.warm_url",
    "pod.sync_url",
    "pod.release_url",
    "pod.exec",
    "pod.work_ends_within",
    "pod.health.path",
    "pod.health.every",
    "pod.health.unhealthy_after",
    "pod.hooks.lease.url",
    "pod.shutdown_timeout",
    "admin.listen",
    "admin.advertise",
    "log.level",
    "log.format",
];

/// Keys of earlier versions, each with its name today. They are errors like unknown keys.
const RENAMED: &[(&str, &str)] = &[("router.handover", "router.hot_restart_socket")];

/// The sections that make a process do something; only the file can ask for one.
pub(crate) const ROLES: [&str; 3] = ["router", "coordinator", "pod"];

/// What the name of a variable of ours begins with.
pub(crate) const VARIABLE_PREFIX: &str = "SEGUE__";

/// The key as this table writes it.
pub(crate) fn known(path: &str) -> Option<&'static str> {
    KEYS.iter().copied().find(|key| *key == path)
}

/// Returns the name today of a key that had another one.
pub(crate) fn renamed(path: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == path).map(|(_, new)| *new)
}

/// Whether keys or sections lie under `path`.
pub(crate) fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| within(key, path).is_some_and(|rest| !rest.is_empty()))
}

/// The names directly under a section; the empty path is the file itself.
pub(crate) fn children(section: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in KEYS.iter().filter_map(|key| within(key, section)?.split('.').next()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What an unknown `name` in `section` was probably meant to be: a name of that section, or else the same name where it
/// does belong.
pub(crate) fn nearest_key(section: &str, name: &str) -> Option<String> {
    let here = || nearest(name, children(section)).map(str::to_owned);
    let elsewhere = || {
        let mut candidates = KEYS.iter().flat_map(|key| key.match_indices('.').map(|(i, _)| &key[..i]).chain([*key]));
        candidates.find(|path| path.rsplit('.').next() == Some(name)).map(str::to_owned)
    };
    here().or_else(elsewhere)
}

/// The name of the variable that overrides `key`, behind the prefix.
pub(crate) fn variable(key: &str) -> String {
    key.replace('.', "__").to_uppercase()
}

/// What is left of `path` below `section`.
pub(crate) fn within<'a>(path: &'a str, section: &str) -> Option<&'a str> {
    if section.is_empty() {
        return Some(path);
    }
    path.strip_prefix(section)?.strip_prefix('.')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The keys that the example shows, commented out or not, by their paths.
    fn shown() -> BTreeSet<String> {
        let mut section = "";
        let mut shown = BTreeSet::new();
        for line in include_str!("../segue.example.toml").lines().filter(|line| !line.contains('`')) {
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_end_matches(']');
            } else if let Some((name, value)) = line.trim_start_matches("# ").split_once(" = ") {
                let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
                match value.strip_prefix("{ ") {
                    Some(inner) => {
                        let names = inner.split(", ").filter_map(|pair| Some(pair.split_once(" = ")?.0));
                        shown.extend(names.map(|inner| format!("{path}.{inner}")));
                    }
                    None => drop(shown.insert(path)),
                }
            }
        }
        shown
    }

    #[test]
    fn the_example_shows_every_key() {
        assert_eq!(shown(), KEYS.iter().map(|key| (*key).to_owned()).collect());
    }

    #[test]
    fn each_key_has_a_variable_of_its_own() {
        let variables: BTreeSet<_> = KEYS.iter().map(|key| variable(key)).collect();
        assert_eq!(variables.len(), KEYS.len());
        assert!(KEYS.iter().all(|key| !key.contains("__")));
    }
}
