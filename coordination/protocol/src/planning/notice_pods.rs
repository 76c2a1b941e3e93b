//! Notices about pods, and about partitions for the sake of their owners, in words.

use std::collections::BTreeSet;
use std::fmt;

use super::patience::{MISSED_BEFORE_SUSPECTED, SLOW_WARM};
use super::rolls::ROLL_PATIENCE;
use crate::ids::PartitionId;

pub(super) fn shunned(out: &mut fmt::Formatter<'_>, pod: &str, failures: u32) -> fmt::Result {
    write!(out, "pod {pod} gets no more partitions for now: it was not ready in time, {failures} times in a row")
}

pub(super) fn warms_slowly(out: &mut fmt::Formatter<'_>, pod: &str) -> fmt::Result {
    write!(
        out,
        "pod {pod} has warmed partitions for {} s without completing one, and gets no more while another pod can take \
         them: segue explain {pod}",
        SLOW_WARM.as_secs()
    )
}

pub(super) fn dies_early(out: &mut fmt::Formatter<'_>, pod: &str, failures: u32) -> fmt::Result {
    write!(
        out,
        "pod {pod} gets no more partitions for now: it died while it warmed or soon after it had taken partitions over, \
         {failures} times in a row"
    )
}

pub(super) fn owners_die(out: &mut fmt::Formatter<'_>, partition: PartitionId, deaths: u32, last: &str) -> fmt::Result {
    write!(
        out,
        "partition {partition} rests: {deaths} owners in a row, {last} the last, died soon after they had taken it over; \
         segue move {partition} --to POD tries one at once"
    )
}

pub(super) fn cut_off(out: &mut fmt::Formatter<'_>, pods: &BTreeSet<String>) -> fmt::Result {
    let named: Vec<&str> = pods.iter().map(String::as_str).collect();
    let named = named.join(", ");
    write!(
        out,
        "the partitions of {named} wait a moment for their pods, which were cut off with the store or died together"
    )
}

pub(super) fn suspected(out: &mut fmt::Formatter<'_>, pod: &str) -> fmt::Result {
    let missed = MISSED_BEFORE_SUSPECTED;
    write!(out, "pod {pod} is suspected: it has missed {missed} heartbeats; it keeps its partitions and gets no more")
}

pub(super) fn roll(out: &mut fmt::Formatter<'_>, newest: Option<&str>) -> fmt::Result {
    write!(
        out,
        "pods restart one by one with version {}: moves for balance wait, at most {} s for each pod",
        newest.unwrap_or("(none)"),
        ROLL_PATIENCE.as_secs()
    )
}

pub(super) fn shared_address(out: &mut fmt::Formatter<'_>, address: &str, pods: &[String]) -> fmt::Result {
    write!(
        out,
        "pods {} advertise one address, {address}: requests reach one of them, and the partitions of the others are not \
         served; correct pod.advertise",
        pods.join(" and ")
    )
}
