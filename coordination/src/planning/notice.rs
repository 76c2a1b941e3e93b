//! What an operator should know about the keyspace, in words. Says only; decides nothing.

use std::fmt;

use super::Policy;
use super::actions::all;
use crate::protocol::advance::Waiting;
use crate::protocol::records::{Mode, Phase, PodStatus};
use crate::protocol::view::View;
use crate::store::keys::Partition;

/// How far the promise reaches with the pods that are registered; the weakest pod decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Assurance {
    /// A pod cannot say that it has ended what it works on.
    WhileRoutersLive,
    /// Every pod has `drained`, not every one `fence`.
    UnlessLeaseAndRouterAreLost,
    /// Every pod has `drained` and `fence`.
    Full,
}

impl Assurance {
    /// The row of the protocol's table that the registered pods are in; `None` without pods.
    pub fn of(view: &View) -> Option<Self> {
        let row = |have: crate::protocol::records::Capabilities| match (have.drained, have.fence) {
            (true, true) => Assurance::Full,
            (true, false) => Assurance::UnlessLeaseAndRouterAreLost,
            (false, _) => Assurance::WhileRoutersLive,
        };
        view.pods.values().map(|pod| row(pod.value.capabilities)).min()
    }
}

impl fmt::Display for Assurance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Assurance::Full => "all pods have drained and fence: a single writer and no lost request under all faults",
            Assurance::UnlessLeaseAndRouterAreLost => {
                "not all pods have fence: a single writer and no lost request, unless a pod goes on working without its \
                 lease and a router dies at the same time"
            }
            Assurance::WhileRoutersLive => {
                "not all pods have drained: a single writer and no lost request as long as no router dies or loses its \
                 lease, and no exchange breaks, with work still in a pod"
            }
        })
    }
}

/// Something that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The file wants fewer partitions than there are.
    ShrinkRefused {
        /// What the file says.
        wanted: u32,
        /// What stays in force.
        kept: u32,
    },
    /// The settings are gone, and the file's would be too small for what is assigned.
    ConfigMissing {
        /// What the file says.
        wanted: u32,
        /// A partition beyond it that is assigned.
        assigned: Partition,
    },
    /// `independent` needs a single router; `barrier` is used.
    IndependentImpossible {
        /// How many are registered.
        routers: usize,
    },
    /// `independent` needs a new owner that reads the tail itself before its first request; `barrier` is used.
    IndependentNotTo {
        /// The pods that read it when they are told to.
        pods: Vec<String>,
    },
    /// A value cannot be read; what it is about is left alone.
    Malformed {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No pod takes partitions.
    NoPod,
    /// A handoff waits for too long in a phase from which there is no way back.
    Overdue {
        /// Whose handoff.
        partition: Partition,
        /// The phase.
        phase: Phase,
        /// Who is waited for.
        waiting: Vec<Waiting>,
    },
    /// A pod gets no more partitions for now, since it did not get ready in time.
    Shunned {
        /// The pod.
        pod: String,
        /// How often in a row.
        failures: u32,
    },
    /// How far the promise reaches.
    Assurance(Assurance),
}

impl fmt::Display for Notice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::ShrinkRefused { wanted, kept } => write!(
                out,
                "the file has {wanted} partitions, the keyspace {kept}: partitions can grow but never shrink, {kept} stay"
            ),
            Notice::ConfigMissing { wanted, assigned } => write!(
                out,
                "the keyspace's settings are gone; they are not written anew with {wanted} partitions, since partition \
                 {assigned} is assigned: set partitions to what it was"
            ),
            Notice::IndependentImpossible { routers } => write!(
                out,
                "{routers} routers are registered: barrier is used, since independent is only safe with a single router"
            ),
            Notice::IndependentNotTo { pods } => write!(
                out,
                "barrier is used for moves to {}: a pod with the capability sync reads the tail once the log is at rest, \
                 which it never is for certain in independent mode",
                pods.join(", ")
            ),
            Notice::Malformed { key, reason } => write!(out, "{key} cannot be read and is left alone: {reason}"),
            Notice::NoPod => out.write_str("no pod takes partitions"),
            Notice::Overdue { partition, phase, waiting } => write!(
                out,
                "partition {partition} has been in {} for too long, waiting for {}",
                phase.as_str(),
                all(waiting)
            ),
            Notice::Shunned { pod, failures } => write!(
                out,
                "pod {pod} gets no more partitions for now: it did not get ready in time, {failures} times in a row"
            ),
            Notice::Assurance(assurance) => assurance.fmt(out),
        }
    }
}

/// What there is to say about the view as such.
pub(super) fn about(view: &View, policy: &Policy) -> Vec<Notice> {
    let mut notices: Vec<Notice> = view
        .malformed
        .iter()
        .map(|(key, reason)| Notice::Malformed { key: key.clone(), reason: reason.clone() })
        .collect();
    let wanted = policy.partitions;
    notices.extend(match &view.config {
        Some(config) if config.value.partitions > wanted => {
            Some(Notice::ShrinkRefused { wanted, kept: config.value.partitions })
        }
        Some(_) => None,
        None => assigned_beyond(view, wanted).map(|assigned| Notice::ConfigMissing { wanted, assigned }),
    });
    let routers = view.routers.len();
    if policy.mode == Mode::Independent && routers > 1 {
        notices.push(Notice::IndependentImpossible { routers });
    }
    let syncs = view.pods.iter().filter(|(_, pod)| pod.value.capabilities.sync);
    let pods: Vec<String> = syncs.map(|(name, _)| name.clone()).collect();
    if policy.mode == Mode::Independent && !pods.is_empty() {
        notices.push(Notice::IndependentNotTo { pods });
    }
    if !view.pods.values().any(|pod| pod.value.status == PodStatus::Ready) {
        notices.push(Notice::NoPod);
    }
    notices.extend(Assurance::of(view).map(Notice::Assurance));
    notices
}

/// A partition that is not among the first `partitions` and has an owner or is about to get one.
pub(super) fn assigned_beyond(view: &View, partitions: u32) -> Option<Partition> {
    let assigned = view.assignments.last_key_value().map(|(partition, _)| *partition);
    let moving = view.handoffs.last_key_value().map(|(partition, _)| *partition);
    assigned.max(moving).filter(|partition| *partition >= partitions)
}
