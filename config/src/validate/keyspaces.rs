//! The keyspaces of a process: `keyspace`, or the tables of the list `[[keyspaces]]`.
//!
//! For: the keys of a table and the rules between the tables. A file with `keyspace` has one keyspace, so the rest of the
//! program knows only the list. Not for: what the roles have in common for all keyspaces (`router`, `coordinator`).
//!
//! # Invariants
//!
//! * Each keyspace has a name of its own, and each can be reached by some request.
//! * A table has no setting of a role that the file does not have.

use segue_protocol::planning::Policy;
use segue_proxy::routing::key_limit::KeyLimits;
use segue_proxy::routing::keyspace_choice::{HostName, KeyspaceMatch, PathPrefix};
use segue_proxy::routing::partition_key::{PartitionSource, WithoutKey};
use segue_proxy::routing::route_rules::{RouteRule, RouteRules};
use segue_proxy::routing::table::StashLimits;
use segue_proxy::settings::{OwnerExceptions, UpstreamProtocol};

use super::partition::{self, PartitionKeys};
use super::{coordinator, key_limits, placement, router, routes};
use crate::error::{Place, Wrong, quoted};
use crate::keys::{ConfigKeys, KEYSPACES};
use crate::raw::Raw;
use crate::reader::{ConfigReader, text};
use crate::units::show_size;
use crate::validated::{KeyspaceSection, Routing};

/// Whether the process also takes part in the keyspaces that the store lists.
pub(super) const FOLLOW: &str = "follow_keyspaces";
const NAME: &str = "keyspaces.name";
const SERVICE: &str = "keyspaces.service";
const HOST: &str = "keyspaces.match.host";
const PATH_PREFIX: &str = "keyspaces.match.path_prefix";
const MATCH: &str = "keyspaces.match";
const PROTOCOL: &str = "keyspaces.upstream.protocol";
const MAX_BYTES: &str = "keyspaces.stash.max_bytes";
const MAX_TOTAL_BYTES: &str = "router.stash.max_total_bytes";

/// The keys of a table.
pub(crate) static KEYS: ConfigKeys = ConfigKeys {
    sections: &[&[
        NAME,
        SERVICE,
        HOST,
        PATH_PREFIX,
        "keyspaces.partition.header",
        "keyspaces.partition.key.header",
        "keyspaces.partition.key.headers",
        "keyspaces.partition.key.path",
        "keyspaces.partition.key.paths",
        "keyspaces.partition.key.of",
        "keyspaces.partition.key.join",
        "keyspaces.partition.key.query",
        "keyspaces.partition.key.cookie",
        "keyspaces.partition.key.host",
        "keyspaces.partition.key.json",
        "keyspaces.partition.key.grpc",
        "keyspaces.partition.hash",
        "keyspaces.partition.order_by.header",
        "keyspaces.partition.ambiguous_paths",
        "keyspaces.partition.without_key",
        "keyspaces.partition.without_key.partition",
        "keyspaces.stash.max_requests",
        MAX_BYTES,
        "keyspaces.stash.max_wait",
        PROTOCOL,
        "keyspaces.limits.key.requests_per_second",
        "keyspaces.limits.key.burst",
        "keyspaces.limits.key.max_in_flight",
        "keyspaces.limits.key.by.header",
        "keyspaces.partitions",
        "keyspaces.strategy",
        "keyspaces.max_concurrent_handoffs",
        "keyspaces.max_warming_per_pod",
        "keyspaces.cool_down",
        "keyspaces.balance_load",
        "keyspaces.max_keys_per_partition",
    ]],
    tables: &[],
};

/// The keys of a table that belong to a role.
const OF_ROLES: [(&str, &[&str]); 2] = [
    ("router", &[MATCH, "keyspaces.partition", "keyspaces.stash", "keyspaces.upstream", "keyspaces.limits"]),
    (
        "coordinator",
        &[
            "keyspaces.partitions",
            "keyspaces.strategy",
            "keyspaces.max_concurrent_handoffs",
            "keyspaces.max_warming_per_pod",
            "keyspaces.cool_down",
            "keyspaces.balance_load",
            "keyspaces.max_keys_per_partition",
        ],
    ),
];

/// The settings of a keyspace whose table does not have its own.
struct Defaults {
    service: Option<String>,
    stash: Option<StashLimits>,
    key_limits: Option<KeyLimits>,
    policy: Option<Policy>,
    /// The routes and the zone of the router.
    routes: (Vec<RouteRule>, Option<String>),
}

impl Defaults {
    fn exceptions(&self, without_key: WithoutKey) -> OwnerExceptions {
        let (routes, zone) = self.routes.clone();
        OwnerExceptions { without_key, routes: RouteRules::new(routes), zone }
    }
}

/// Returns the settings of a table that belong to roles which a file does not have.
pub(crate) fn settings_of_absent_roles(file: &Raw) -> Vec<&'static str> {
    let absent = OF_ROLES.iter().filter(|(role, _)| !file.sections.contains_key(*role));
    absent.flat_map(|(_, parts)| parts.iter().copied()).collect()
}

/// Returns whether the process follows the keyspaces of the store.
pub(super) fn follow(r: &mut ConfigReader<'_>) -> bool {
    let follows = r.boolean(FOLLOW, false);
    if follows && r.is_given("keyspace") {
        let fact = format!("given beside keyspace ({}), which is the only one", r.origin("keyspace"));
        r.report_key(FOLLOW, Wrong::new(fact, "expected tables [[keyspaces]], or none"));
        return false;
    }
    follows
}

/// Returns the keyspaces; at least one, unless there are problems or the process follows those of the store.
pub(super) fn read(r: &mut ConfigReader<'_>, follows: bool) -> Vec<KeyspaceSection> {
    let defaults = Defaults {
        service: r.name("service"),
        stash: r.has_section("router").then(|| router::stash(r)),
        key_limits: r.has_section("router").then(|| key_limits::read(r, &key_limits::ROUTER, None)).flatten(),
        policy: r.has_section("coordinator").then(|| coordinator::policy(r)),
        routes: routes::read(r),
    };
    let list = r.tables(KEYSPACES).map(|(place, tables)| ("[[keyspaces]]", place, tables));
    let list = list.or_else(|| Some((FOLLOW, r.given_at(FOLLOW).filter(|_| follows)?, Vec::new())));
    let Some((list, place, mut tables)) = list else {
        let name = r.name("keyspace").unwrap_or_else(|| "default".to_owned());
        let number = defaults.policy.as_ref().map(|policy| policy.partitions);
        let routing = defaults.stash.map(|stash| {
            let exceptions = defaults.exceptions(partition::without_key(r, &partition::ROUTER, number));
            let partition = one_partition(r);
            let key_limits = defaults.key_limits.clone();
            key_limits::check_key(r, &key_limits::ROUTER, key_limits.as_ref(), &partition);
            Routing { matching: None, partition, exceptions, stash, protocol: None, key_limits }
        });
        let Defaults { service, policy, .. } = defaults;
        return vec![KeyspaceSection { name, service, routing, policy }];
    };
    nothing_beside_the_list(r, list, &place);
    if tables.is_empty() && !follows {
        r.report(Some(place), KEYSPACES, Wrong::new("empty", "expected at least one table"));
    }
    let keyspaces: Vec<_> = tables.iter_mut().map(|table| keyspace(r, table, &defaults)).collect();
    are_apart(&mut tables, &keyspaces);
    tables.into_iter().for_each(|table| r.include(table));
    keyspaces
}

fn one_partition(r: &mut ConfigReader<'_>) -> PartitionSource {
    partition::read(r, &partition::ROUTER)
}

/// Refuses what stands in the tables if there are any.
fn nothing_beside_the_list(r: &mut ConfigReader<'_>, list: &str, place: &Place) {
    let fact = format!("given beside {list} ({place})");
    // Read in any case, so that its value counts as looked at.
    if r.name("keyspace").is_some() {
        r.report_key("keyspace", Wrong::new(&*fact, "expected one of the two"));
    }
    const PARTITION: &PartitionKeys = &partition::ROUTER;
    if let Some(place) = r.anything_in(PARTITION.section) {
        let remedy = "expected [keyspaces.partition] in each of them instead";
        r.report(Some(place), PARTITION.section, Wrong::new(fact, remedy));
    }
}

fn keyspace(r: &mut ConfigReader<'_>, table: &mut ConfigReader<'_>, defaults: &Defaults) -> KeyspaceSection {
    let name = table.name(NAME);
    if !table.is_given(NAME) {
        table.report(None, NAME, Wrong::new("not given", "expected the keyspace's name"));
    }
    for (role, parts) in OF_ROLES {
        for part in parts.iter().filter(|_| !r.has_section(role)) {
            if let Some(place) = table.given_at(part) {
                let fact = format!("given in a file without [{role}], which alone uses it");
                table.report(Some(place), part, Wrong::new(fact, format!("expected it in the {role}'s file")));
            }
        }
    }
    // Read in any case, so that a mistake in any value is found.
    let matching = matching(table);
    let partition = partition::read(table, &partition::KEYSPACE);
    if r.has_section("router") && table.anything_in(partition::KEYSPACE.section).is_none() {
        let remedy = "expected [keyspaces.partition] with a header or a key";
        table.report(None, partition::KEYSPACE.section, Wrong::new("not given", remedy));
    }
    let stash = stash(r, table, &defaults.stash.unwrap_or_default());
    let protocol = table.choice_if_given(PROTOCOL, UpstreamProtocol::NAMES);
    let key_limits = key_limits(r, table, &partition, defaults.key_limits.as_ref());
    let policy = placement::read(table, &placement::KEYSPACE, &defaults.policy.clone().unwrap_or_default());
    let number = defaults.policy.as_ref().map(|_| policy.partitions);
    let exceptions = defaults.exceptions(partition::without_key(table, &partition::KEYSPACE, number));
    KeyspaceSection {
        name: name.unwrap_or_default(),
        service: table.name(SERVICE).or_else(|| defaults.service.clone()),
        routing: defaults.stash.map(|_| Routing { matching, partition, exceptions, stash, protocol, key_limits }),
        policy: defaults.policy.as_ref().map(|_| policy),
    }
}

fn key_limits(
    r: &mut ConfigReader<'_>,
    table: &mut ConfigReader<'_>,
    partition: &PartitionSource,
    default: Option<&KeyLimits>,
) -> Option<KeyLimits> {
    let limits = key_limits::read(table, &key_limits::KEYSPACE, default);
    // Where the table says nothing of it, the mistake is the router's.
    match table.has_section("keyspaces.limits.key") {
        true => key_limits::check_key(table, &key_limits::KEYSPACE, limits.as_ref(), partition),
        false => key_limits::check_key(r, &key_limits::ROUTER, limits.as_ref(), partition),
    }
    limits
}

fn matching(table: &mut ConfigReader<'_>) -> Option<KeyspaceMatch> {
    let host = table.read(HOST, |value| {
        const EXPECTED: &str = "expected a host without a port, such as \"orders.example\"";
        let text = text(value, EXPECTED)?;
        HostName::new(text).map_err(|why| Wrong::new(format!("{} {why}", quoted(text)), EXPECTED))
    });
    let prefix = table.read(PATH_PREFIX, |value| {
        const EXPECTED: &str = "expected the beginning of a path, such as \"/orders\"";
        let text = text(value, EXPECTED)?;
        PathPrefix::new(text).map_err(|why| {
            let near = text.trim_end_matches('/');
            let near = PathPrefix::new(near).is_ok().then(|| quoted(near));
            Wrong::new(format!("{} {why}", quoted(text)), EXPECTED).did_you_mean(near)
        })
    });
    if table.is_given(HOST) && table.is_given(PATH_PREFIX) {
        let fact = format!("given beside {HOST} ({})", table.origin(HOST));
        table.report_key(PATH_PREFIX, Wrong::new(fact, "expected exactly one"));
    }
    if let Some(place) = table.empty_section(MATCH) {
        table.report(Some(place), MATCH, Wrong::new("empty", "expected one of host, path_prefix"));
    }
    host.map(KeyspaceMatch::Host).or(prefix.map(KeyspaceMatch::PathPrefix))
}

fn stash(r: &ConfigReader<'_>, table: &mut ConfigReader<'_>, default: &StashLimits) -> StashLimits {
    let stash = StashLimits {
        max_requests: table.integer("keyspaces.stash.max_requests", 1..=i64::MAX, default.max_requests),
        max_bytes: table.size(MAX_BYTES, default.max_bytes),
        max_wait: table.duration("keyspaces.stash.max_wait", default.max_wait),
        ..*default
    };
    if table.is_given(MAX_BYTES) && stash.max_bytes > stash.max_total_bytes && !r.is_refused(MAX_TOTAL_BYTES) {
        let (each, total) = (show_size(stash.max_bytes), show_size(stash.max_total_bytes));
        let fact = format!("{each} is above {MAX_TOTAL_BYTES}, which is {total} ({})", r.origin(MAX_TOTAL_BYTES));
        table.report_value(MAX_BYTES, Wrong::new(fact, format!("expected at most {total}")));
    }
    stash
}

/// Refuses keyspaces of one name, and those that no request could reach because of an earlier one.
fn are_apart(tables: &mut [ConfigReader<'_>], keyspaces: &[KeyspaceSection]) {
    for later in 1..tables.len() {
        let Some((earlier_tables, [table, ..])) = tables.split_at_mut_checked(later) else { return };
        for (earlier, first) in keyspaces.iter().zip(&*earlier_tables) {
            let keyspace = &keyspaces[later];
            if earlier.name == keyspace.name && !keyspace.name.is_empty() {
                let fact =
                    format!("{} is the name of another keyspace, too ({})", quoted(&keyspace.name), first.origin(NAME));
                table.report_value(NAME, Wrong::new(fact, "expected a name of its own"));
            }
            let (Some(earlier), Some(routing)) = (&earlier.routing, &keyspace.routing) else { continue };
            let refused = [HOST, PATH_PREFIX].iter().any(|key| table.is_refused(key) || first.is_refused(key));
            if earlier.matching != routing.matching || refused {
                continue;
            }
            match &routing.matching {
                None => {
                    let place = first.anything_in(KEYSPACES).map_or_else(String::new, |place| place.to_string());
                    let fact = format!("not given, as in another keyspace ({place})");
                    let remedy = "expected one of host, path_prefix: only one keyspace can have the requests that no other \
                                  one matches";
                    table.report(None, MATCH, Wrong::new(fact, remedy));
                }
                Some(matching) => {
                    let key = if matches!(matching, KeyspaceMatch::Host(_)) { HOST } else { PATH_PREFIX };
                    let fact = format!("matches the same requests as another keyspace ({})", first.origin(key));
                    table.report_value(key, Wrong::new(fact, "expected a match of its own"));
                }
            }
        }
    }
}
