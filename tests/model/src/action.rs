//! The actions: everything that can happen next in a state.

use std::fmt;

/// A process that follows the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    Router(u8),
    Pod(u8),
}

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Process::Router(router) => write!(out, "router {router}"),
            Process::Pod(pod) => write!(out, "pod {pod}"),
        }
    }
}

/// Who decides about partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Author {
    Leader,
    /// A participant of an assignment round.
    Participant(u8),
}

impl fmt::Display for Author {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Author::Leader => out.write_str("the leader"),
            Author::Participant(participant) => write!(out, "participant {participant}"),
        }
    }
}

/// A write of a coordinator, or of somebody who breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    /// A coordinator's plan: its action of this number.
    Plan { by: Author, index: u8 },
    /// A coordinator's plan once every time-out has passed.
    Overdue { by: Author, index: u8 },
    /// A coordinator moves a phase on.
    Advance { by: Author, partition: u8 },
    /// The leader ends the rounds.
    EndRounds,
    /// Somebody breaks a rule that is taken out.
    Broken { partition: u8 },
}

/// What happens next, and whether the first write that it leads to is on its way for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Action {
    pub(crate) step: Step,
    pub(crate) is_slow: bool,
}

/// One step of the cluster. A participant that learns something by it writes its response in the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    // Steps of the protocol.
    Deliver { to: Process, ahead: u8 },
    DeliverAssignments { to: u8 },
    Register(Process),
    Elect,
    Write(Write),
    Commit { index: u8 },
    Take { request: u8 },
    Arrive { exchange: u8 },
    CatchUpTimeout { exchange: u8 },
    Finish { exchange: u8 },
    ConnectFails { exchange: u8 },
    EndBackOff { router: u8, partition: u8 },
    AbortWork { pod: u8 },
    Regain(Process),
    EndLease(Process),
    PutBack { pod: u8 },
    Forget { pod: u8 },
    BoundPasses,
    MakeCheckpoint { pod: u8, partition: u8 },
    RecordCheckpoint { pod: u8, partition: u8 },
    StopWaiting { pod: u8, partition: u8 },
    Participate { participant: u8 },
    ActInRound { participant: u8 },
    EndWindow,
    EndHeartbeat,
    // What goes wrong.
    StartParticipant { participant: u8 },
    CrashParticipant { participant: u8 },
    Stick { participant: u8 },
    ForeignLeader,
    Start(Process),
    Crash(Process),
    RunOut(Process),
    EndLeadersLease,
    GiveUpWrite { index: u8 },
    CommitForgotten { index: u8 },
    Break { exchange: u8 },
    HangUp { request: u8 },
    Expire { request: u8 },
    DrainTimeout { router: u8, partition: u8 },
    DeleteHandoff { partition: u8 },
    Detach { pod: u8 },
    IntervalPasses { pod: u8, partition: u8 },
    Hang { pod: u8 },
}

impl fmt::Display for Write {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Write::Plan { by, index } => write!(out, "{by} writes action {index} of its plan"),
            Write::Overdue { by, index } => write!(out, "a time-out has passed: {by} writes action {index}"),
            Write::Advance { by, partition } => write!(out, "{by} moves partition {partition} on"),
            Write::EndRounds => out.write_str("the leader ends the rounds"),
            Write::Broken { partition } => write!(out, "the rule is broken for partition {partition}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Deliver { to, ahead } => write!(out, "{to} sees the store, {ahead} revisions on"),
            Step::DeliverAssignments { to } => write!(out, "router {to} sees the next assignments"),
            Step::Register(who) => write!(out, "{who} registers"),
            Step::Elect => write!(out, "a coordinator is elected"),
            Step::Write(what) => write!(out, "{what}"),
            Step::Commit { index } | Step::CommitForgotten { index } => {
                write!(out, "slow write {index} reaches the store")
            }
            Step::GiveUpWrite { index } => write!(out, "the writer of slow write {index} takes it for failed"),
            Step::Take { request } => write!(out, "request {request} reaches its router"),
            Step::Arrive { exchange } => write!(out, "exchange {exchange} reaches its pod"),
            Step::CatchUpTimeout { exchange } => write!(out, "exchange {exchange} has waited for its pod's view"),
            Step::Finish { exchange } => write!(out, "exchange {exchange} takes effect and is answered"),
            Step::ConnectFails { exchange } => write!(out, "there is no connection for exchange {exchange}"),
            Step::EndBackOff { router, partition } => write!(out, "router {router} tries partition {partition} again"),
            Step::AbortWork { pod } => write!(out, "pod {pod} ends its work before its lease can end"),
            Step::Regain(who) => write!(out, "{who} has its lease confirmed again"),
            Step::EndLease(who) => write!(out, "the lease of {who} ends"),
            Step::PutBack { pod } => write!(out, "pod {pod} puts its registration back"),
            Step::Forget { pod } => write!(out, "an operator forgets pod {pod}, whose life is over"),
            Step::BoundPasses => write!(out, "the leader has seen pod 0 gone for as long as its work may last"),
            Step::MakeCheckpoint { pod, partition } => {
                write!(out, "pod {pod} makes a checkpoint of partition {partition}")
            }
            Step::RecordCheckpoint { pod, partition } => {
                write!(out, "pod {pod} records its checkpoint of partition {partition}")
            }
            Step::StopWaiting { pod, partition } => {
                write!(out, "pod {pod} has waited long enough for a checkpoint of partition {partition}")
            }
            Step::Participate { participant } => write!(out, "participant {participant} registers"),
            Step::ActInRound { participant } => write!(out, "participant {participant} takes a step of the round"),
            Step::EndWindow => write!(out, "the window of the round that gathers ends"),
            Step::EndHeartbeat => write!(out, "the heartbeat of the rounds passes"),
            Step::StartParticipant { participant } => write!(out, "participant {participant} starts"),
            Step::CrashParticipant { participant } => {
                write!(out, "participant {participant} loses its lease and restarts, if at all, later")
            }
            Step::Stick { participant } => write!(out, "participant {participant} lives and acts no more"),
            Step::ForeignLeader => write!(out, "another hand puts a leader's key, without a lease"),
            Step::Start(who) => write!(out, "{who} starts"),
            Step::Crash(who) => write!(out, "{who} crashes"),
            Step::RunOut(who) => write!(out, "the lease clock of {who} runs out"),
            Step::EndLeadersLease => write!(out, "the leader loses its lease"),
            Step::Break { exchange } => write!(out, "the connection of exchange {exchange} breaks"),
            Step::HangUp { request } => write!(out, "the client of request {request} hangs up"),
            Step::Expire { request } => write!(out, "request {request} has waited too long"),
            Step::DrainTimeout { router, partition } => {
                write!(out, "router {router} has drained partition {partition} for too long")
            }
            Step::DeleteHandoff { partition } => {
                write!(out, "an operator deletes the handoff of partition {partition}")
            }
            Step::IntervalPasses { pod, partition } => {
                write!(out, "the interval passes and pod {pod} makes a checkpoint of partition {partition}")
            }
            Step::Hang { pod } => write!(out, "pod {pod} makes no more checkpoints"),
            Step::Detach { pod } => write!(out, "another hand puts garbage over the registration of pod {pod}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slowly = if self.is_slow { " (what is written then is slow)" } else { "" };
        write!(out, "{}{slowly}", self.step)
    }
}
