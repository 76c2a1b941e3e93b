//! The kinds of faults, and what the protocol promises under each.

use crate::setting::Row;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    CrashPod,
    CrashRouter,
    CrashCoordinator,
    ShutDownPod,
    ShutDownRouter,
    ShutDownCoordinator,
    PausePod,
    PauseRouter,
    PauseCoordinator,
    CutPod,
    CutRouter,
    CutCoordinator,
    CutLink,
    BreakExchanges,
    SlowDisk,
    StoreOutage,
    BreakWatch,
    StallWatch,
    Compact,
    DeleteHandoff,
    OperatorDrains,
    DrainPod,
    /// A router and a pod lose the store together, but not each other.
    CutTogether,
    /// Another router joins, and leaves properly.
    RouterJoins,
    /// A pod sees nothing new although its calls go through.
    StallPod,
    /// Another hand puts the registration of a pod or router again, without its lease, and perhaps unreadable.
    DetachKey,
    /// The part of a process in one keyspace stands still, while its other parts and its requests go on. Only where a
    /// process has several parts, so it is not among [`ALL`](Self::ALL).
    PausePart,
    /// The store answers and refuses writes. Only in some seeds, so it is not among [`ALL`](Self::ALL).
    RefuseWrites,
    /// The store is away for longer than a lease, and comes back as it was before. Only in some seeds, so it is not among
    /// [`ALL`](Self::ALL).
    StoreGoesBack,
    /// A pod's heartbeats do not arrive, although its lease is renewed. This and the next two only where pods send
    /// heartbeats.
    SilenceHeartbeats,
    /// A pod's heartbeats arrive late.
    DelayHeartbeats,
    /// Another hand writes a pod's heartbeat, absurd or unreadable.
    ForgeHeartbeat,
}

impl Fault {
    pub(crate) const ALL: [Fault; 26] = [
        Fault::CrashPod,
        Fault::CrashRouter,
        Fault::CrashCoordinator,
        Fault::ShutDownPod,
        Fault::ShutDownRouter,
        Fault::ShutDownCoordinator,
        Fault::PausePod,
        Fault::PauseRouter,
        Fault::PauseCoordinator,
        Fault::CutPod,
        Fault::CutRouter,
        Fault::CutCoordinator,
        Fault::CutLink,
        Fault::BreakExchanges,
        Fault::SlowDisk,
        Fault::StoreOutage,
        Fault::BreakWatch,
        Fault::StallWatch,
        Fault::Compact,
        Fault::DeleteHandoff,
        Fault::OperatorDrains,
        Fault::DrainPod,
        Fault::CutTogether,
        Fault::RouterJoins,
        Fault::StallPod,
        Fault::DetachKey,
    ];

    /// Those of heartbeats.
    pub(crate) const OF_HEARTBEATS: [Fault; 3] =
        [Fault::SilenceHeartbeats, Fault::DelayHeartbeats, Fault::ForgeHeartbeat];

    /// Whether the protocol promises anything to pods of this row under the fault.
    pub(crate) fn is_allowed(self, row: Row) -> bool {
        match self {
            // Only a log that refuses older epochs knows what no living process may remember.
            Fault::StoreGoesBack => row == Row::Full,
            // No router may die or lose its lease, and no exchange break with work in a pod.
            Fault::CrashRouter
            | Fault::ShutDownRouter
            | Fault::PauseRouter
            | Fault::CutRouter
            | Fault::CutLink
            | Fault::BreakExchanges
            | Fault::StoreOutage
            | Fault::StallWatch
            | Fault::CutTogether
            | Fault::RefuseWrites
            | Fault::SlowDisk => row != Row::Plain,
            _ => true,
        }
    }

    /// Whether nothing is planned by a coordinator that does not know how far the store was. One that is new, or reaches the
    /// store late, may be elected before the floor of epochs is raised.
    pub(crate) fn spares_coordinators(self) -> bool {
        !matches!(
            self,
            Fault::CrashCoordinator
                | Fault::ShutDownCoordinator
                | Fault::PauseCoordinator
                | Fault::CutCoordinator
                | Fault::StoreOutage
                | Fault::PausePart
                | Fault::RefuseWrites
        )
    }

    /// Whether `independent` mode keeps its promises under it.
    pub(crate) fn spares_single_router(self) -> bool {
        matches!(
            self,
            Fault::CrashPod
                | Fault::ShutDownPod
                | Fault::CrashCoordinator
                | Fault::ShutDownCoordinator
                | Fault::PauseCoordinator
                | Fault::CutCoordinator
                | Fault::DrainPod
                | Fault::OperatorDrains
                | Fault::Compact
        )
    }
}
