//! What happens next in the searches of a shared lease.

use std::fmt;

use segue_protocol::ids::LeaseId;

use super::KEYSPACES;

/// What becomes of the end of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    Done,
    /// The store responds with an error. The deletion may take effect later.
    KeyLater,
    /// The store does not respond in time. The deletion may take effect later.
    Unanswered,
    /// The key is deleted. The lease's end, if it is due, may take effect later.
    LeaseLater,
}

/// One step. Numbers are those of keyspaces, or of what is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Time passes.
    Tick,
    /// The lease is renewed and left-over keys are deleted, by requests that reach the store or do not.
    Renew {
        lease: LeaseId,
        is_lost: bool,
        deletes_later: bool,
    },
    /// The response to the renewal arrives.
    Hear {
        lease: LeaseId,
    },
    /// The key of an attempt is looked for.
    Read {
        lease: LeaseId,
        part: usize,
    },
    /// What was found at the key of an attempt is deleted.
    Look {
        lease: LeaseId,
        deletes_later: bool,
    },
    /// The store ends the lease.
    Expire {
        lease: LeaseId,
    },
    Attempt {
        part: usize,
    },
    /// The put takes effect.
    Arrive {
        part: usize,
    },
    /// The response to the put arrives.
    Answer {
        part: usize,
    },
    /// The attempt is over without a response to its put.
    GiveUp {
        part: usize,
    },
    /// A request of which nobody awaits the response takes effect.
    Late {
        request: usize,
    },
    /// A part fences, because its lease is lost or its key is gone, and registers again.
    Fence {
        part: usize,
        ending: Ending,
    },
    /// The keyspace gets another owner.
    TakeOver {
        part: usize,
        by_other: bool,
    },
    Leave {
        part: usize,
        ending: Ending,
    },
    /// A part is dropped. It has not fenced.
    Drop {
        part: usize,
    },
    Start {
        part: usize,
    },
    /// The loop makes no progress.
    Stick {
        part: usize,
    },
    Resume {
        part: usize,
    },
    Crash,
    Restart,
    /// The store does not respond any more.
    Vanish,
    Return,
    /// A part follows the store again.
    See {
        part: usize,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |part: &usize| KEYSPACES[*part];
        let later = |is: &bool| if *is { "; a left-over key's deletion has no response" } else { "" };
        let ended = |ending: &Ending| match ending {
            Ending::Done => "its key is deleted",
            Ending::KeyLater => "its key cannot be deleted",
            Ending::Unanswered => "its key's deletion has no response",
            Ending::LeaseLater => "its key is deleted, and the lease not yet",
        };
        match self {
            Step::Tick => out.write_str("time passes"),
            Step::Renew { is_lost: true, .. } => out.write_str("a renewal does not reach the store"),
            Step::Renew { deletes_later, .. } => {
                write!(out, "the lease is renewed for those that make progress{}", later(deletes_later))
            }
            Step::Hear { .. } => out.write_str("the renewal is confirmed"),
            Step::Read { part, .. } => write!(out, "{}: an attempt's key is looked for", of(part)),
            Step::Look { deletes_later, .. } => {
                write!(out, "what stood at an attempt's key is deleted{}", later(deletes_later))
            }
            Step::Expire { .. } => out.write_str("the store ends a lease"),
            Step::Attempt { part } => write!(out, "{}: looks, then clears its key or puts it", of(part)),
            Step::Arrive { part } => write!(out, "{}: the put takes effect", of(part)),
            Step::Answer { part } => write!(out, "{}: the put's response arrives", of(part)),
            Step::GiveUp { part } => write!(out, "{}: the put has no response", of(part)),
            Step::Late { .. } => out.write_str("a request of earlier takes effect"),
            Step::Fence { part, ending } => write!(out, "{}: fences; {}", of(part), ended(ending)),
            Step::TakeOver { part, by_other: true } => write!(out, "{}: another pod takes over", of(part)),
            Step::TakeOver { part, .. } => write!(out, "{}: the present registration takes over", of(part)),
            Step::Leave { part, ending } => write!(out, "{}: leaves; {}", of(part), ended(ending)),
            Step::Drop { part } => write!(out, "{}: is dropped", of(part)),
            Step::Start { part } => write!(out, "{}: starts again", of(part)),
            Step::Stick { part } => write!(out, "{}: the loop is stuck", of(part)),
            Step::Resume { part } => write!(out, "{}: the loop goes on", of(part)),
            Step::Crash => out.write_str("the process dies"),
            Step::Restart => out.write_str("the process starts again"),
            Step::Vanish => out.write_str("the store is away"),
            Step::Return => out.write_str("the store is back"),
            Step::See { part } => write!(out, "{}: follows the store again", of(part)),
        }
    }
}
