//! The words of notices about the number of partitions in the keyspace's settings. Nothing is decided here.

use std::fmt::{Formatter, Result};

use crate::records::{KeyspaceConfig, Partitioner, encode};

pub(super) fn shrink_refused(
    out: &mut Formatter<'_>,
    wanted: u32,
    kept: u32,
    partitioner: Option<&Partitioner>,
) -> Result {
    write!(out, "coordinator.partitions is {wanted}, below the keyspace's {kept}, which stays: ")?;
    match partitioner {
        Some(mapping) if mapping.fixes_number() => {
            write!(out, "requests map to partitions by {mapping}, so the number is fixed")
        }
        _ => out.write_str("the number cannot shrink"),
    }
}

pub(super) fn growth_refused(
    out: &mut Formatter<'_>,
    wanted: u32,
    kept: u32,
    partitioner: Option<&Partitioner>,
) -> Result {
    write!(out, "coordinator.partitions is {wanted}, above the keyspace's {kept}, which stays: ")?;
    match partitioner {
        Some(mapping) => write!(out, "requests map to partitions by {mapping}, so existing keys would move"),
        None => out.write_str("no router has stored yet how requests map to partitions"),
    }
}

pub(super) fn number_changed(
    out: &mut Formatter<'_>,
    shown: u32,
    number: u32,
    mapping: &Partitioner,
    restore: &str,
) -> Result {
    write!(
        out,
        "the keyspace's settings have {shown} partitions instead of {number}: requests map to partitions by {mapping}, so \
         existing keys would move. Routers fence, and planning goes on with {number}. Restore the settings: {restore}"
    )
}

pub(super) fn config_missing(
    out: &mut Formatter<'_>,
    wanted: u32,
    shown: u32,
    key: &str,
    settings: &KeyspaceConfig,
) -> Result {
    write!(
        out,
        "the keyspace's settings are missing and are not created with {wanted} partitions, because {shown} are assigned. Set \
         coordinator.partitions to the former number; if some of those had no owner yet, restore the settings with the \
         former number and, in place of null, the former partitioner, such as {{\"key\":\"header:x-key\",\"hash\":\"murmur2\"}} \
         or {{\"number\":true}}: {}",
        put_by_hand(key, &encode(settings))
    )
}

/// Returns the command that puts a value, for a shell.
pub(super) fn put_by_hand(key: &str, value: &[u8]) -> String {
    let value = String::from_utf8_lossy(value).replace('\'', r"'\''");
    format!("etcdctl put {key} '{value}'")
}
