//! What happens next in the search of heartbeats.

use std::fmt;

use super::PODS;

/// The partitions with four times the load of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Hot {
    None,
    /// Those of even numbers, which one pod has at the beginning.
    Even,
    /// The two that one pod has after an exchange.
    Middle,
}

/// One step. Numbers are those of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// All pods send a heartbeat, but for one that is silent, and one may report far too much.
    Tick { hot: Hot, silent: Option<u8>, boasts: Option<u8> },
    /// A heartbeat of a pod's earlier life arrives.
    Ghost { pod: u8 },
    /// The lease of the second pod ends.
    EndLease,
    /// Another coordinator leads.
    Elect,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |pod: &u8| PODS[usize::from(*pod)];
        match self {
            Step::Tick { hot, silent, boasts } => {
                write!(out, "the pods send heartbeats, hot: {hot:?}")?;
                silent.iter().try_for_each(|pod| write!(out, ", without {}", name(pod)))?;
                boasts.iter().try_for_each(|pod| write!(out, ", and {} reports far too much", name(pod)))
            }
            Step::Ghost { pod } => write!(out, "a heartbeat of an earlier life of {} arrives", name(pod)),
            Step::EndLease => write!(out, "the lease of {} ends", PODS[1]),
            Step::Elect => out.write_str("another coordinator leads"),
        }
    }
}
