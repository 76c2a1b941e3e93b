//! Why a request came back although no pod acted on it, and what follows.
//!
//! Made where the attempt ends (`forward`). The metrics, the pod's health and the stash take what concerns them from one
//! table.
//!
//! Plain data.

use super::pod_health::Refusal;

/// Why a request came back although no pod acted on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bounce {
    /// The pod responded that the partition is not its own.
    Misdirected,
    /// The pod read no request from the connection, or reported that it processed none.
    Unprocessed,
    /// No connection could be made.
    Unreachable,
    /// No connection was tried, because the pod is backed off from.
    BackedOff,
    /// The request was not sent again, because the retry budget of its pod is spent.
    OverBudget,
    /// The request's partition was severed before there was a connection.
    Severed,
}

/// What follows from a bounce.
pub(crate) struct Consequences {
    /// The value of the metrics' label `cause`.
    pub(crate) cause: &'static str,
    /// What the pod's health records. `None`: no attempt was made, which says nothing about the pod.
    pub(crate) refusal: Option<Refusal>,
    /// Whether the pod may have refused the request itself. A request that it refuses again and again is given up.
    pub(crate) is_of_request: bool,
}

impl Bounce {
    /// All bounces, in the order of their numbers. Those with the same `cause` stand side by side.
    pub const ALL: [Bounce; 6] = [
        Bounce::Misdirected,
        Bounce::Unprocessed,
        Bounce::Unreachable,
        Bounce::BackedOff,
        Bounce::OverBudget,
        Bounce::Severed,
    ];

    /// Returns what follows.
    pub(crate) fn consequences(self) -> Consequences {
        let (cause, refusal, is_of_request) = match self {
            Bounce::Misdirected => ("misdirected", Some(Refusal::Misdirected), true),
            Bounce::Unprocessed => ("refused", Some(Refusal::Unreachable), true),
            Bounce::Unreachable => ("refused", Some(Refusal::Unreachable), false),
            Bounce::BackedOff | Bounce::OverBudget | Bounce::Severed => ("spared", None, false),
        };
        Consequences { cause, refusal, is_of_request }
    }
}
