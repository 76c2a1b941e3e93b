//! The searches of a shared lease, and the rules without which they fail.

use super::state::{Faults, NO_FAULT};
use crate::scenario::Size;

/// A rule of shared leases that can be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A renewal counts only for the parts whose loop makes progress.
    OnlyProgressCounts,
    /// The key of a part whose share is over is deleted while the lease goes on.
    LeftOversAreDeleted,
    /// That is so too if the lease is renewed for nobody else.
    StuckAloneLosesKey,
    /// A part that was dropped keeps its share to the end.
    DroppedKeepsShare,
    /// A part that was dropped keeps its key against the next attempt.
    DroppedKeepsKey,
    /// The key of an attempt without a response is looked for.
    AttemptsAreLookedAfter,
    /// Before what an attempt has left is deleted, it is made sure that it has not become the next one's.
    LooksAgain,
    /// A deletion names the life that it ends.
    DeletesOneLife,
    /// Nobody joins a lease that is being revoked.
    NobodyJoinsTheEnd,
    /// After an outage every part has time to make progress again.
    OutageGivesTime,
}

/// A search, with what may happen in it.
pub(crate) struct Search {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) size: Size,
    pub(super) ticks: u64,
    pub(super) faults: Faults,
}

pub(crate) fn all() -> Vec<Search> {
    let search = |name, about, size, ticks, faults| Search { name, about, size, ticks, faults };
    vec![
        search(
            "shared-stuck",
            "two keyspaces, one lease: a loop is stuck",
            Size::Quick,
            13,
            Faults { sticks: 1, late: 1, ..NO_FAULT },
        ),
        search(
            "shared-unheard",
            "two keyspaces, one lease: a loop is stuck, renewals are lost or unheard",
            Size::Usual,
            14,
            Faults { sticks: 1, lost: 2, unheard: 1, late: 1, ..NO_FAULT },
        ),
        search(
            "shared-drop",
            "two keyspaces, one lease: a part is dropped and starts again",
            Size::Usual,
            14,
            Faults { drops: 1, starts: 1, lost: 1, late: 1, ..NO_FAULT },
        ),
        search(
            "shared-newcomer",
            "two keyspaces, one lease: a part leaves and joins again while renewals are lost",
            Size::Usual,
            9,
            Faults { leaves: 1, starts: 1, lost: 6, ..NO_FAULT },
        ),
        search(
            "shared-attempt",
            "two keyspaces, one lease: a put has no response",
            Size::Usual,
            14,
            Faults { leaves: 1, starts: 1, drops: 1, give_ups: 1, ..NO_FAULT },
        ),
        search(
            "shared-leave",
            "two keyspaces, one lease: parts leave, and what ends them takes effect late",
            Size::Usual,
            10,
            Faults { leaves: 2, starts: 1, late: 1, ..NO_FAULT },
        ),
        search(
            "shared-alone",
            "two keyspaces, one lease: a loop is stuck, and the other part leaves",
            Size::Usual,
            16,
            Faults { leaves: 1, sticks: 1, ..NO_FAULT },
        ),
        search(
            "shared-crash",
            "two keyspaces, one lease: the process dies and comes back",
            Size::Usual,
            12,
            Faults { crashes: 1, leaves: 1, late: 1, ..NO_FAULT },
        ),
        search(
            "shared-outage",
            "two keyspaces, one lease: the store is away for longer than the lease",
            Size::Usual,
            18,
            Faults { outages: 1, ..NO_FAULT },
        ),
    ]
}

/// The rules, each with the search in which its absence shows, and in how many steps.
pub(crate) fn mutants() -> Vec<(Rule, Search, usize)> {
    let places = [
        (Rule::OnlyProgressCounts, "shared-stuck", 38),
        (Rule::LeftOversAreDeleted, "shared-stuck", 37),
        (Rule::StuckAloneLosesKey, "shared-alone", 33),
        (Rule::DroppedKeepsShare, "shared-drop", 9),
        (Rule::DroppedKeepsKey, "shared-drop", 9),
        (Rule::AttemptsAreLookedAfter, "shared-attempt", 41),
        (Rule::LooksAgain, "shared-attempt", 10),
        (Rule::DeletesOneLife, "shared-leave", 7),
        (Rule::NobodyJoinsTheEnd, "shared-leave", 9),
        (Rule::OutageGivesTime, "shared-outage", 24),
    ];
    let of = |name| all().into_iter().find(|search| search.name == name);
    places.into_iter().filter_map(|(rule, name, steps)| Some((rule, of(name)?, steps))).collect()
}
