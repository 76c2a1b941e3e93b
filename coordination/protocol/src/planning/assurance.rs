//! The guarantee that the registered pods allow, in words. Nothing is decided here.

use std::fmt;

use crate::keys::KeyName;
use crate::records::Capabilities;
use crate::view::View;

/// The guarantee that the registered pods allow; the weakest pod decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Assurance {
    /// A pod cannot confirm that its work has ended.
    WhileRoutersLive,
    /// A pod's record cannot be read, and no other pod decides the row.
    Unknown,
    /// Every pod has `drained`, but not every pod has `fence`.
    UnlessLeaseAndRouterAreLost,
    /// Every pod has `drained` and `fence`.
    Full,
}

impl Assurance {
    /// Returns the row of the protocol's table that the registered pods are in. `None` without pods.
    pub fn of(view: &View) -> Option<Self> {
        let is_pod = |key: &String| matches!(view.keys().parse(key), Some(KeyName::Pod(_)));
        let unreadable = view.malformed.keys().any(is_pod).then_some(Assurance::Unknown);
        Self::with(view.pods.values().map(|pod| pod.value.capabilities)).into_iter().chain(unreadable).min()
    }

    /// Returns the row that pods with these capabilities are in. `None` without pods.
    pub fn with(pods: impl IntoIterator<Item = Capabilities>) -> Option<Self> {
        let row = |have: Capabilities| match (have.drained, have.fence) {
            (true, true) => Assurance::Full,
            (true, false) => Assurance::UnlessLeaseAndRouterAreLost,
            (false, _) => Assurance::WhileRoutersLive,
        };
        pods.into_iter().map(row).min()
    }
}

impl fmt::Display for Assurance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Assurance::Full => "all pods have drained and fence: a single writer and no lost request under all faults",
            Assurance::UnlessLeaseAndRouterAreLost => {
                "not all pods have fence: a single writer and no lost request, unless a pod that lost its lease, or a \
                 service whose sidecar died, goes on working and a router dies, or its exchange breaks or times out \
                 (pod.exec, pod.hooks.lease, pod.stream or pod.work_ends_within gives a sidecar \
                 fence)"
            }
            Assurance::Unknown => {
                "unknown: the record of a pod cannot be read, so what the pod is able to do is not known"
            }
            Assurance::WhileRoutersLive => {
                "not all pods have drained: a single writer and no lost request as long as no router dies or loses its \
                 lease, and no exchange breaks or times out, with work still in a pod"
            }
        })
    }
}
