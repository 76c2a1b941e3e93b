//! The limits of each key: the section `limits.key` of the router, or of a keyspace.
//!
//! # Invariants
//!
//! * A section that is given limits something, unless a keyspace turns the router's limits off for itself.

use segue_proxy::routing::key_limit::{KeyLimits, LimitedBy};
use segue_proxy::routing::partition_key::PartitionSource;

use crate::error::Wrong;
use crate::reader::ConfigReader;

/// The keys of such a section.
pub(super) struct KeyLimitKeys {
    section: &'static str,
    requests_per_second: &'static str,
    burst: &'static str,
    max_in_flight: &'static str,
    by_section: &'static str,
    by: &'static str,
    partition: &'static str,
}

macro_rules! keys_of {
    ($role:literal) => {
        KeyLimitKeys {
            section: concat!($role, ".limits.key"),
            requests_per_second: concat!($role, ".limits.key.requests_per_second"),
            burst: concat!($role, ".limits.key.burst"),
            max_in_flight: concat!($role, ".limits.key.max_in_flight"),
            by_section: concat!($role, ".limits.key.by"),
            by: concat!($role, ".limits.key.by.header"),
            partition: concat!($role, ".partition"),
        }
    };
}

/// The section of the router, which applies to every keyspace.
pub(super) const ROUTER: KeyLimitKeys = keys_of!("router");
/// The section of one keyspace of several.
pub(super) const KEYSPACE: KeyLimitKeys = keys_of!("keyspaces");

/// The highest rate. Above it a request would use up less than a microsecond.
const MAX_RATE: i64 = 1_000_000;

/// Returns `default` with what is given. `None` if nothing is limited.
pub(super) fn read(r: &mut ConfigReader<'_>, keys: &KeyLimitKeys, default: Option<&KeyLimits>) -> Option<KeyLimits> {
    let base = default.cloned().unwrap_or_default();
    let limits = KeyLimits {
        by: r.header(keys.by).map_or(base.by, LimitedBy::Header),
        requests_per_second: r.integer(keys.requests_per_second, 0..=MAX_RATE, base.requests_per_second),
        burst: r.integer(keys.burst, 1..=MAX_RATE, base.burst),
        max_in_flight: r.integer(keys.max_in_flight, 0..=MAX_RATE, base.max_in_flight),
    };
    if let Some(place) = r.empty_section(keys.by_section) {
        r.report(Some(place), keys.by_section, Wrong::new("empty", "expected header"));
    }
    let Some(place) = r.anything_in(keys.section) else { return default.cloned() };
    let is_refused = [keys.requests_per_second, keys.max_in_flight].iter().any(|key| r.is_refused(key));
    if limits.requests_per_second == 0 && r.is_given(keys.burst) && !is_refused {
        let fact = format!("given without {}", keys.requests_per_second);
        r.report_key(keys.burst, Wrong::new(fact, "expected both, or no burst"));
    }
    if limits.requests_per_second > 0 || limits.max_in_flight > 0 {
        return Some(limits);
    }
    if default.is_none() && !is_refused {
        r.report(
            Some(place),
            keys.section,
            Wrong::new("limits nothing", "expected requests_per_second or max_in_flight"),
        );
    }
    None
}

/// Refuses limits of keys where requests have none. `r` has the section.
pub(super) fn check_key(
    r: &mut ConfigReader<'_>,
    keys: &KeyLimitKeys,
    limits: Option<&KeyLimits>,
    partition: &PartitionSource,
) {
    let by_key = limits.is_some_and(|limits| limits.by == LimitedBy::Key) && !r.is_refused(keys.by);
    if by_key && matches!(partition, PartitionSource::Number { order_by: None, .. }) {
        let fact = format!("given without a key: {} has a number alone", keys.partition);
        let remedy = "expected by = { header = … }, or a partition with a key or order_by";
        let place = r.anything_in(keys.section);
        r.report(place, keys.section, Wrong::new(fact, remedy));
    }
}
