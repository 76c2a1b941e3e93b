//! The part that a service takes, as a state that its stream, its acknowledgements and its pod change.
//!
//! Moments are those of the lease's clock, and arguments.
//!
//! # Invariants
//!
//! * A partition counts as written by the service from before the pod admits its requests until the service has drained
//!   or released it. Whether the service was told of the partition does not matter: requests reach it all the same.
//! * After [`State::close`] nothing is lent before [`State::admit`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use segue_coordination::pod::{HandoffContext, LoadReport};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::RemoteTask;
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pending_calls::{AckEffect, DueCall, PendingCalls, TaskResult};
use crate::status::StreamStatus;

#[derive(Debug, Default)]
pub(super) struct StreamRecord {
    /// How many streams there were.
    streams: u64,
    open: Option<OpenStream>,
    news: PollNews,
    life: Option<ServiceLife>,
    /// The registration that the service had is given up, and no other one is for it yet.
    is_closed: bool,
    /// Since when nobody has opened a stream, while the pod is registered for a service that has not been told so.
    awaited_since: Option<Instant>,
    /// Until when the pod lets the service's work take effect.
    lent: Option<Instant>,
    /// Until when the service may believe that its work takes effect.
    confirmed: Option<Instant>,
    /// The partitions whose state the service has, and whether their requests were admitted.
    held: BTreeMap<PartitionId, bool>,
    /// The partitions that the service may write to.
    written: BTreeSet<PartitionId>,
    calls: PendingCalls,
    pub(super) status: Option<StreamStatus>,
}

/// A stream that is open.
#[derive(Debug, Clone, Copy)]
struct OpenStream {
    stream: u64,
    /// The service has no registration yet.
    is_newcomer: bool,
    /// Until when a service that polls counts as connected between two Polls.
    until: Option<Instant>,
}

/// The news at the last Poll, and their number.
#[derive(Debug, Default)]
struct PollNews {
    revision: u64,
    owned: BTreeMap<PartitionId, Epoch>,
    due: BTreeMap<PartitionId, DueCall>,
}

/// A life of the service, which has been told of its registration.
#[derive(Debug)]
struct ServiceLife {
    token: [u8; 32],
    abilities: Abilities,
    /// When the service showed last that it acts.
    heard: Instant,
    is_over: bool,
}

/// The abilities that not every service has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Abilities {
    syncs: bool,
    makes_checkpoints: bool,
    /// The service stops by itself when its heartbeats are not confirmed.
    fences: bool,
}

impl Abilities {
    /// Returns those among the capabilities of a hello.
    pub(super) fn of(capabilities: &[String]) -> Self {
        let has = |name: &str| capabilities.iter().any(|capability| capability == name);
        Abilities { syncs: has("sync"), makes_checkpoints: has("checkpoint"), fences: has("fence") }
    }

    /// Returns whether the service is told tasks of this kind. It has nothing to do for the others.
    fn include(self, callback: Callback) -> bool {
        match callback {
            Callback::Sync => self.syncs,
            Callback::Checkpoint => self.makes_checkpoints,
            Callback::Warm | Callback::Leaving | Callback::Drain | Callback::Release => true,
        }
    }
}

/// When a condition comes true, unless the state changes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// The condition is true.
    Passed,
    At(Instant),
    /// Only a change of the state makes it true.
    Never,
}

impl StreamRecord {
    // The stream.

    /// Opens a stream and returns its number, and whether it resumes the life that this token belongs to. `None` if
    /// another process has a stream, or polls.
    pub(super) fn open(&mut self, token: &[u8], now: Instant) -> Option<(u64, bool)> {
        let resumes = self.is_living(token);
        let lasts = |open: OpenStream| open.until.is_none_or(|until| now < until && self.takes_part());
        if !resumes && self.open.is_some_and(lasts) {
            return None;
        }
        if let Some(life) = self.life.as_mut().filter(|_| !resumes) {
            // The process of that life is gone: it keeps its token.
            life.is_over = true;
        }
        self.streams += 1;
        self.open = Some(OpenStream { stream: self.streams, is_newcomer: !resumes, until: None });
        Some((self.streams, resumes))
    }

    pub(super) fn closed(&mut self, stream: u64, now: Instant) {
        if self.is_open(stream) {
            (self.open, self.status, self.awaited_since) = (None, None, Some(now));
        }
    }

    /// Ends the stream that a Poll was. The service counts as connected until it has been silent for a term.
    pub(super) fn polled(&mut self, stream: u64, term: Duration, now: Instant) {
        let heard = self.life.as_ref().filter(|life| !life.is_over).map(|life| life.heard);
        match (self.open.as_mut().filter(|open| open.stream == stream && !open.is_newcomer), heard) {
            (Some(open), Some(heard)) => open.until = Some(heard + term),
            _ => self.closed(stream, now),
        }
    }

    /// Returns the number of what there is to tell, which is another one whenever that has changed.
    pub(super) fn revision(&mut self, owned: BTreeMap<PartitionId, Epoch>) -> u64 {
        let due = self.due();
        if self.news.revision == 0 || (&self.news.owned, &self.news.due) != (&owned, &due) {
            self.news = PollNews { revision: self.news.revision + 1, owned, due };
        }
        self.news.revision
    }

    pub(super) fn is_open(&self, stream: u64) -> bool {
        self.open.is_some_and(|open| open.stream == stream)
    }

    /// Returns whether this is the stream of a life that is over.
    pub(super) fn is_over(&self, stream: u64) -> bool {
        let is_life = self.open.is_some_and(|open| open.stream == stream && !open.is_newcomer);
        is_life && self.life.as_ref().is_none_or(|life| life.is_over)
    }

    /// Begins the life of the newcomer, if the pod has registered for it.
    pub(super) fn adopt(&mut self, stream: u64, token: &[u8], abilities: Abilities, now: Instant) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.stream == stream && open.is_newcomer) else {
            return false;
        };
        if self.is_closed || self.life.is_some() {
            return false;
        }
        open.is_newcomer = false;
        self.life = Some(ServiceLife { token: hash(token), abilities, heard: now, is_over: false });
        self.calls.complete(|callback| !abilities.include(callback));
        true
    }

    /// Records that the service acts.
    pub(super) fn heard(&mut self, stream: u64, now: Instant) {
        let is_open = self.is_open(stream);
        if let Some(life) = self.life.as_mut().filter(|life| is_open && !life.is_over) {
            // The first heartbeat came before the life began.
            life.heard = life.heard.max(now);
        }
    }

    /// Confirms a heartbeat that came at `heard`: the service may work for a term. `false` if the pod lends less.
    pub(super) fn confirm(&mut self, stream: u64, heard: Instant, term: Duration) -> bool {
        let until = heard + term;
        let lives = self.life.as_ref().is_some_and(|life| !life.is_over) && self.is_open(stream);
        let may = lives && !self.is_closed && self.lent.is_some_and(|lent| until <= lent);
        if may {
            self.confirmed = self.confirmed.max(Some(until));
        }
        may
    }

    /// Returns the calls that are due.
    pub(super) fn due(&self) -> BTreeMap<PartitionId, DueCall> {
        self.calls.due()
    }

    pub(super) fn show(&mut self, stream: u64, status: StreamStatus) {
        if self.is_open(stream) {
            self.status = Some(status);
        }
    }

    pub(super) fn is_done(&self, task: &RemoteTask) -> bool {
        self.calls.is_done(task)
    }

    // Acknowledgements.

    /// Returns whether the token is that of the life that takes part.
    pub(super) fn is_living(&self, token: &[u8]) -> bool {
        self.life.as_ref().is_some_and(|life| !life.is_over && life.token == hash(token))
    }

    /// Returns whether the token is of the present life or, until the next one begins, of the last.
    pub(super) fn knows(&self, token: &[u8]) -> bool {
        self.life.as_ref().is_some_and(|life| life.token == hash(token))
    }

    /// Records that the service has stopped and that nothing of it takes effect any more. `false` if the token is of no
    /// life that is known.
    pub(super) fn leave(&mut self, token: &[u8]) -> bool {
        if !self.knows(token) {
            return false;
        }
        self.life.iter_mut().for_each(|life| life.is_over = true);
        self.written.clear();
        true
    }

    /// Takes the result of the task that `is_it` describes. Without a result the task has failed, and stays due.
    pub(super) fn acknowledge(
        &mut self,
        partition: PartitionId,
        is_it: impl Fn(&RemoteTask) -> bool,
        result: Option<TaskResult>,
    ) -> AckEffect {
        let acknowledged = self.calls.acknowledge(partition, is_it, result);
        if let AckEffect::Ended { callback, succeeded } = acknowledged {
            if succeeded && matches!(callback, Callback::Drain | Callback::Release) {
                self.written.remove(&partition);
            }
            if callback == Callback::Release {
                self.held.remove(&partition);
            }
        }
        acknowledged
    }

    // The pod.

    pub(super) fn is_newcomer_there(&self) -> bool {
        self.open.is_some_and(|open| open.is_newcomer)
    }

    pub(super) fn takes_part(&self) -> bool {
        self.life.as_ref().is_some_and(|life| !life.is_over)
    }

    /// Lets the newcomer begin a life with the next registration.
    pub(super) fn admit(&mut self, now: Instant) {
        (self.is_closed, self.life, self.lent, self.confirmed) = (false, None, None, None);
        self.awaited_since = Some(now);
        self.held.clear();
        self.written.clear();
        self.calls.forget_done();
    }

    /// Returns when the service counts as silent.
    pub(super) fn silent_from(&self, term: Duration) -> Moment {
        match &self.life {
            Some(life) if life.is_over => Moment::Passed,
            Some(life) => Moment::At(life.heard + term),
            None if self.open.is_some() => Moment::Never,
            None => self.awaited_since.map_or(Moment::Never, |since| Moment::At(since + term)),
        }
    }

    pub(super) fn lend(&mut self, until: Instant) {
        self.lent = self.lent.max(Some(until)).filter(|_| !self.is_closed);
    }

    /// Records that requests of this partition are about to be admitted.
    pub(super) fn accepts(&mut self, partition: PartitionId) {
        self.written.insert(partition);
        self.held.insert(partition, true);
    }

    pub(super) fn close(&mut self) {
        (self.is_closed, self.lent) = (true, None);
        if self.open.take_if(|open| open.until.is_some()).is_some() {
            self.status = None;
        }
        if let Some(life) = &mut self.life {
            life.is_over = true;
        }
        // The state of a life is gone with it.
        self.calls.complete(|callback| callback == Callback::Release);
    }

    /// Returns until when what the service writes may take effect. `None` if it may write nothing.
    pub(super) fn may_write_until(&self) -> Option<Instant> {
        self.confirmed.filter(|_| !self.written.is_empty())
    }

    /// Returns whether what the service was given cannot take effect any more. Whether a service obeys the end of what it
    /// was confirmed is its own statement, which a supervised one need not make.
    pub(super) fn has_stopped(&self, now: Instant) -> bool {
        let fences = self.life.as_ref().is_some_and(|life| life.abilities.fences);
        self.written.is_empty() || fences && self.may_write_until().is_none_or(|until| until <= now)
    }

    /// Makes a callback due and returns its number, or `None` if there is nothing to do.
    pub(super) fn begin(
        &mut self,
        callback: Callback,
        context: &HandoffContext,
        done: oneshot::Sender<TaskResult>,
    ) -> Option<u64> {
        let partition = context.partition;
        let mut cancelled = false;
        match callback {
            Callback::Warm => _ = self.held.insert(partition, false),
            _ if self.life.as_ref().is_some_and(|life| !life.abilities.include(callback)) => return None,
            Callback::Release if !self.takes_part() => return None,
            Callback::Release => cancelled = !*self.held.get(&partition)?,
            _ => {}
        }
        Some(self.calls.begin(callback, context, cancelled, done))
    }

    pub(super) fn drop_call(&mut self, partition: PartitionId, number: u64) {
        self.calls.remove(partition, number);
    }

    pub(super) fn load_of(&self, partition: PartitionId) -> Option<LoadReport> {
        Some(self.status.as_ref()?.load.as_ref()?.of(partition))
    }
}

fn hash(token: &[u8]) -> [u8; 32] {
    // SHA-256 has 32 bytes.
    digest(&SHA256, token).as_ref().try_into().expect("a digest of 32 bytes")
}

#[cfg(test)]
mod tests;
