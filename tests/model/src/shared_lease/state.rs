//! The state of a search: the store, one process with its parts, and what is under way between them.

use std::collections::BTreeSet;

use segue_protocol::holders::{HolderId, HolderShare, Holders, LeftOver};
use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::txn::Txn;

use super::KEYS;
use super::store::{Response, Store};

/// What may still happen, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) sticks: u8,
    pub(super) drops: u8,
    pub(super) leaves: u8,
    pub(super) starts: u8,
    pub(super) crashes: u8,
    pub(super) outages: u8,
    /// Renewals that do not reach the store.
    pub(super) lost: u8,
    /// Responses that do not reach the process in time.
    pub(super) unheard: u8,
    /// Deletions, and ends of leases, that take effect later.
    pub(super) late: u8,
    /// Attempts without a response to their put.
    pub(super) give_ups: u8,
    /// Ticks for which a put may take.
    pub(super) slow: u8,
}

pub(super) const NO_FAULT: Faults = Faults {
    sticks: 0,
    drops: 0,
    leaves: 0,
    starts: 0,
    crashes: 0,
    outages: 0,
    lost: 0,
    unheard: 0,
    late: 0,
    give_ups: 0,
    slow: 0,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) now: u64,
    pub(super) store: Store,
    pub(super) is_up: bool,
    /// The leases that parts of the process hold.
    pub(super) leases: Vec<Kept>,
    pub(super) newest: LeaseId,
    pub(super) parts: [Part; 2],
    /// Parts that were dropped and have not fenced.
    pub(super) ghosts: BTreeSet<Ghost>,
    pub(super) under_way: Vec<Request>,
    pub(super) owners: [Owner; 2],
    /// Ticks for which a life's key has stood without anybody who acts by it.
    pub(super) blocked: [(Incarnation, u64); 2],
    /// Ticks by which what happened may have delayed a deletion.
    pub(super) slips: u64,
    /// When the last outage began or ended.
    pub(super) turned_at: u64,
    pub(super) faults: Faults,
    /// The rule that is broken.
    pub(super) violated: Option<&'static str>,
}

/// A request of which nobody awaits the response.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Commit(Txn),
    Revoke(LeaseId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// A registration of the process.
    Life(Incarnation),
    /// Another pod, which stays.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ghost {
    pub(super) part: usize,
    /// When its work has ended.
    pub(super) until: u64,
}

/// A lease with its holders, and the task that renews it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    pub(super) id: LeaseId,
    pub(super) base: u64,
    pub(super) holders: Holders,
    /// When the lease was last renewed, or not for want of progress.
    pub(super) turn: u64,
    /// When the last confirmed renewal was sent.
    pub(super) confirmed: u64,
    pub(super) renewal: Option<Renewal>,
    pub(super) looks: Vec<Look>,
    /// The store has said that the lease is gone.
    pub(super) is_gone: bool,
}

/// A renewal whose response is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Renewal {
    pub(super) sent: u64,
    pub(super) renewed: Vec<HolderId>,
    /// The parts that had made progress.
    pub(super) healthy: [bool; 2],
    pub(super) is_confirmed: bool,
}

/// A key that an attempt may have put, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Look {
    pub(super) left: LeftOver,
    /// The life that was seen under the lease, once the store was asked.
    pub(super) seen: Option<Option<Incarnation>>,
}

/// The process's part in a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub(super) stage: Stage,
    /// The last life, which has fenced.
    pub(super) ended: Incarnation,
    pub(super) is_stuck: bool,
    /// The loop was stuck in this life.
    pub(super) was_stuck: bool,
    /// The loop does not follow the store, and so makes no progress.
    pub(super) is_blind: bool,
    /// When the last renewal was sent that counts for this part.
    pub(super) heard: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Off,
    Starting,
    Putting { lease: LeaseId, holder: HolderId, response: Option<Response> },
    On { lease: LeaseId, holder: HolderId, life: Incarnation, owns: bool },
}

impl Part {
    pub(super) const STARTING: Part = Part {
        stage: Stage::Starting,
        ended: Incarnation::NONE,
        is_stuck: false,
        was_stuck: false,
        is_blind: false,
        heard: 0,
    };

    pub(super) fn lease(&self) -> Option<(LeaseId, HolderId)> {
        match self.stage {
            Stage::Putting { lease, holder, .. } | Stage::On { lease, holder, .. } => Some((lease, holder)),
            Stage::Off | Stage::Starting => None,
        }
    }

    /// Returns whether the loop makes progress.
    pub(super) fn moves(&self) -> bool {
        matches!(self.stage, Stage::On { .. }) && !self.is_stuck && !self.is_blind
    }
}

impl State {
    pub(super) fn kept(&self, lease: LeaseId) -> Option<&Kept> {
        self.leases.iter().find(|kept| kept.id == lease)
    }

    pub(super) fn kept_mut(&mut self, lease: LeaseId) -> Option<&mut Kept> {
        self.leases.iter_mut().find(|kept| kept.id == lease)
    }

    /// Returns the share of a part that is registered, with the moment that its times are counted from.
    pub(super) fn share(&self, part: usize) -> Option<(u64, HolderShare)> {
        let (lease, holder) = self.parts[part].lease()?;
        let kept = self.kept(lease)?;
        Some((kept.base, kept.holders.share(holder)?))
    }

    /// Returns when the part's work has ended: half-way through the last third of its share.
    pub(super) fn works_until(&self, part: usize) -> u64 {
        self.share(part).map_or(0, |(base, HolderShare { times, .. })| {
            base + times.trusted_until + (times.stands_until - times.trusted_until) / 2
        })
    }

    /// Returns whether a loop knows of a reason to fence.
    pub(super) fn must_fence(&self, part: usize) -> bool {
        let Stage::On { life, .. } = self.parts[part].stage else { return false };
        let is_lost = self.share(part).is_none_or(|(_, share)| share.lost);
        self.parts[part].moves() && (is_lost || self.store.life(KEYS[part]) != life)
    }

    /// Returns whether somebody acts by the key of this keyspace.
    pub(super) fn is_attended(&self, part: usize) -> bool {
        let life = match self.parts[part].stage {
            Stage::On { life, .. } if !self.parts[part].is_stuck => life,
            Stage::Putting { response: Some(Response::Committed(life)), .. } => life,
            _ => return false,
        };
        self.store.life(KEYS[part]) == life
    }
}
