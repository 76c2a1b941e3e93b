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
use segue_coordination::pod::{HandoffContext, PodAddress};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::RemoteTask;
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Done;
use crate::status::StreamStatus;

#[derive(Debug, Default)]
pub(super) struct State {
    /// How many streams there were.
    streams: u64,
    open: Option<Open>,
    told: Told,
    life: Option<Life>,
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
    calls: BTreeMap<PartitionId, Call>,
    /// The number of the last call.
    number: u64,
    /// The task of each partition that was done last.
    done: BTreeMap<PartitionId, RemoteTask>,
    pub(super) status: Option<StreamStatus>,
}

/// A stream that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    stream: u64,
    /// The service has no registration yet.
    is_newcomer: bool,
    /// Until when a service that polls counts as connected between two Polls.
    until: Option<Instant>,
}

/// The news at the last Poll, and their number.
#[derive(Debug, Default)]
struct Told {
    revision: u64,
    owned: BTreeMap<PartitionId, Epoch>,
    due: BTreeMap<PartitionId, DueCall>,
}

/// A life of the service, which has been told of its registration.
#[derive(Debug)]
struct Life {
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

/// A callback that the service has to run.
#[derive(Debug)]
struct Call {
    number: u64,
    task: RemoteTask,
    context: HandoffContext,
    done: Option<oneshot::Sender<Done>>,
}

/// A callback as the service is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DueCall {
    /// The number of the call.
    pub(super) number: u64,
    pub(super) task: RemoteTask,
    /// The checkpoint from which a `Warm` starts.
    pub(super) checkpoint: Option<String>,
    pub(super) from: Option<PodAddress>,
    pub(super) to: Option<PodAddress>,
}

/// The effect of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledged {
    Accepted,
    Stale,
}

impl State {
    // The stream.

    /// Opens a stream and returns its number, and whether it resumes the life that this token belongs to. `None` if
    /// another process has a stream, or polls.
    pub(super) fn open(&mut self, token: &[u8], now: Instant) -> Option<(u64, bool)> {
        let resumes = self.is_living(token);
        let lasts = |open: Open| open.until.is_none_or(|until| now < until && self.takes_part());
        if !resumes && self.open.is_some_and(lasts) {
            return None;
        }
        if let Some(life) = self.life.as_mut().filter(|_| !resumes) {
            // The process of that life is gone: it keeps its token.
            life.is_over = true;
        }
        self.streams += 1;
        self.open = Some(Open { stream: self.streams, is_newcomer: !resumes, until: None });
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
        if self.told.revision == 0 || (&self.told.owned, &self.told.due) != (&owned, &due) {
            self.told = Told { revision: self.told.revision + 1, owned, due };
        }
        self.told.revision
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
        self.life = Some(Life { token: hash(token), abilities, heard: now, is_over: false });
        for call in self.calls.values_mut().filter(|call| !abilities.include(call.task.callback)) {
            call.finish(Ok(None));
        }
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
        let due = self.calls.iter().filter(|(_, call)| call.done.is_some());
        due.map(|(partition, Call { number, task, context, .. })| {
            let HandoffContext { checkpoint, from, to, .. } = context.clone();
            (*partition, DueCall { number: *number, task: *task, checkpoint, from, to })
        })
        .collect()
    }

    pub(super) fn show(&mut self, stream: u64, status: StreamStatus) {
        if self.is_open(stream) {
            self.status = Some(status);
        }
    }

    pub(super) fn is_done(&self, task: &RemoteTask) -> bool {
        self.done.get(&task.partition) == Some(task)
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

    /// Takes the result of the task that `is_it` describes. `None`: it failed, and stays due.
    pub(super) fn acknowledge(
        &mut self,
        partition: PartitionId,
        is_it: impl Fn(&RemoteTask) -> bool,
        result: Option<Done>,
    ) -> Acknowledged {
        let Some(call) = self.calls.get_mut(&partition).filter(|call| call.done.is_some() && is_it(&call.task)) else {
            let was_done = self.done.get(&partition).is_some_and(is_it);
            return if was_done { Acknowledged::Accepted } else { Acknowledged::Stale };
        };
        let callback = call.task.callback;
        let Some(result) = result else { return Acknowledged::Accepted };
        let has_ended = result.is_ok() && matches!(callback, Callback::Drain | Callback::Release);
        call.finish(result);
        self.done.insert(partition, call.task);
        if has_ended {
            self.written.remove(&partition);
        }
        if callback == Callback::Release {
            self.held.remove(&partition);
        }
        Acknowledged::Accepted
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
        self.done.clear();
    }

    /// Returns from when on the service counts as silent. `None`: it is. `Some(None)`: not before something changes.
    pub(super) fn silent_from(&self, term: Duration) -> Option<Option<Instant>> {
        match &self.life {
            Some(life) if life.is_over => None,
            Some(life) => Some(Some(life.heard + term)),
            None if self.open.is_some() => Some(None),
            None => Some(self.awaited_since.map(|since| since + term)),
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
        for call in self.calls.values_mut().filter(|call| call.task.callback == Callback::Release) {
            call.finish(Ok(None));
        }
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
        done: oneshot::Sender<Done>,
    ) -> Option<u64> {
        let HandoffContext { partition, epoch, handoff, .. } = *context;
        let mut cancelled = false;
        match callback {
            Callback::Warm => _ = self.held.insert(partition, false),
            _ if self.life.as_ref().is_some_and(|life| !life.abilities.include(callback)) => return None,
            Callback::Release if !self.takes_part() => return None,
            Callback::Release => cancelled = !*self.held.get(&partition)?,
            _ => {}
        }
        // The protocol names a checkpoint by its epoch.
        let handoff = if callback == Callback::Checkpoint { HandoffId::NONE } else { handoff };
        self.number += 1;
        let task = RemoteTask { partition, callback, handoff, epoch: Epoch::new(epoch.get()), cancelled };
        self.done.remove(&partition);
        self.calls.insert(partition, Call { number: self.number, task, context: context.clone(), done: Some(done) });
        Some(self.number)
    }

    pub(super) fn drop_call(&mut self, partition: PartitionId, number: u64) {
        if self.calls.get(&partition).is_some_and(|call| call.number == number) {
            self.calls.remove(&partition);
        }
    }

    pub(super) fn load_of(&self, partition: PartitionId) -> Option<f64> {
        let load = self.status.as_ref()?.load.as_ref()?;
        Some(load.by_partition.get(&partition).copied().unwrap_or_default())
    }
}

impl Call {
    fn finish(&mut self, result: Done) {
        if let Some(done) = self.done.take() {
            // The pod may have dropped the call.
            let _ = done.send(result);
        }
    }
}

fn hash(token: &[u8]) -> [u8; 32] {
    // SHA-256 has 32 bytes.
    digest(&SHA256, token).as_ref().try_into().expect("a digest of 32 bytes")
}

#[cfg(test)]
mod tests {
    use segue_coordination::pod::PermanentFailure;
    use segue_coordination::session::lease_now;
    use segue_protocol::ids::Revision;

    use super::*;

    const TERM: Duration = Duration::from_secs(5);
    const ABLE: Abilities = Abilities { syncs: true, makes_checkpoints: true, fences: true };
    const P: PartitionId = PartitionId::new(7);

    struct World {
        state: State,
        now: Instant,
    }

    /// Returns a service that takes part and has a heartbeat confirmed.
    fn taking_part() -> World {
        let (mut state, now) = (State::default(), lease_now());
        let (stream, resumes) = state.open(b"", now).unwrap();
        assert!(!resumes && state.is_newcomer_there());
        state.admit(now);
        assert!(state.adopt(stream, b"token", ABLE, now));
        state.lend(now + TERM * 2);
        assert!(state.confirm(stream, now, TERM));
        World { state, now }
    }

    fn context(handoff: u64) -> HandoffContext {
        let handoff = HandoffId::created_at(Revision::new(handoff));
        HandoffContext {
            keyspace: "k".to_owned(),
            partition: P,
            epoch: Epoch::new(3),
            handoff,
            checkpoint: None,
            partitions: 4,
            from: None,
            to: None,
        }
    }

    impl World {
        fn call(&mut self, callback: Callback, handoff: u64) -> oneshot::Receiver<Done> {
            let (done, result) = oneshot::channel();
            assert!(self.state.begin(callback, &context(handoff), done).is_some());
            result
        }

        fn ack(&mut self, callback: Callback, handoff: u64) -> Acknowledged {
            let is_it = |task: &RemoteTask| (task.callback, task.handoff) == (callback, context(handoff).handoff);
            self.state.acknowledge(P, is_it, Some(Ok(None)))
        }
    }

    #[test]
    fn nothing_is_confirmed_beyond_what_the_pod_lends() {
        let World { mut state, now } = taking_part();
        assert!(!state.confirm(1, now + TERM + Duration::from_millis(1), TERM));
        assert!(state.confirm(1, now + TERM, TERM));
        state.close();
        assert!(!state.confirm(1, now, TERM));
        state.lend(now + TERM * 9);
        assert!(!state.confirm(1, now, TERM), "nothing is lent to a life that is over");
    }

    #[test]
    fn a_life_is_over_only_when_what_it_was_confirmed_has_run_out_or_it_may_write_nothing() {
        let World { mut state, now } = taking_part();
        assert_eq!(state.may_write_until(), None);
        state.accepts(P);
        assert_eq!(state.may_write_until(), Some(now + TERM));
        state.close();
        assert_eq!(state.may_write_until(), Some(now + TERM));
        assert!(state.leave(b"token"), "it says that it has stopped");
        assert_eq!(state.may_write_until(), None);
    }

    #[test]
    fn a_service_has_stopped_when_it_says_so_or_fences_and_has_nothing_confirmed() {
        let World { mut state, now } = taking_part();
        state.accepts(P);
        assert!(!state.has_stopped(now + TERM - Duration::from_millis(1)));
        assert!(state.has_stopped(now + TERM));
        state.life.as_mut().unwrap().abilities.fences = false;
        assert!(!state.has_stopped(now + TERM * 9), "it may go on without confirmation");
        assert!(state.leave(b"token"));
        assert!(state.has_stopped(now));
        state.accepts(P);
        assert!(!state.has_stopped(now), "requests reach it again");
    }

    #[test]
    fn a_life_does_not_end_for_a_heartbeat_that_came_before_it_began() {
        let (mut state, now) = (State::default(), lease_now());
        let (stream, _) = state.open(b"", now).unwrap();
        state.admit(now);
        assert!(state.adopt(stream, b"token", ABLE, now + TERM));
        state.heard(stream, now);
        assert_eq!(state.silent_from(TERM), Some(Some(now + TERM * 2)));
    }

    #[test]
    fn a_partition_may_be_written_until_the_service_has_drained_it() {
        let mut world = taking_part();
        world.state.accepts(P);
        let _drained = world.call(Callback::Drain, 20);
        assert_eq!(world.ack(Callback::Drain, 19), Acknowledged::Stale);
        assert!(world.state.may_write_until().is_some());
        assert_eq!(world.ack(Callback::Drain, 20), Acknowledged::Accepted);
        assert_eq!(world.state.may_write_until(), None);
        assert_eq!(world.ack(Callback::Drain, 20), Acknowledged::Accepted, "it is repeated");
        world.state.accepts(P);
        assert!(world.state.may_write_until().is_some(), "the handoff was cancelled");
    }

    #[test]
    fn a_partition_whose_drain_has_failed_may_still_be_written() {
        let mut world = taking_part();
        world.state.accepts(P);
        let mut drained = world.call(Callback::Drain, 20);
        let failed = Some(Err(PermanentFailure::new("no disk")));
        assert_eq!(world.state.acknowledge(P, |_| true, failed), Acknowledged::Accepted);
        assert!(matches!(drained.try_recv(), Ok(Err(_))));
        assert_eq!(world.state.may_write_until(), Some(world.now + TERM));
    }

    #[test]
    fn an_acknowledgement_counts_for_its_own_task_alone() {
        let mut world = taking_part();
        let mut warm = world.call(Callback::Warm, 20);
        assert_eq!(world.ack(Callback::Sync, 20), Acknowledged::Stale);
        assert_eq!(world.ack(Callback::Warm, 10), Acknowledged::Stale);
        assert!(warm.try_recv().is_err());
        assert_eq!(world.ack(Callback::Warm, 20), Acknowledged::Accepted);
        assert_eq!(warm.try_recv(), Ok(Ok(None)));
    }

    #[test]
    fn a_process_without_the_token_ends_the_life_of_a_process_that_is_gone_and_of_no_other() {
        let World { mut state, now } = taking_part();
        assert_eq!(state.open(b"other", now), None, "the stream is open");
        assert_eq!(state.open(b"token", now), Some((2, true)));
        assert!(!state.is_open(1) && state.is_open(2));
        state.closed(1, now);
        assert!(state.is_open(2), "the end of a stream that was replaced ends no other");
        state.closed(2, now);
        assert!(state.silent_from(TERM).is_some(), "a short disconnect costs nothing");
        assert_eq!(state.open(b"other", now), Some((3, false)));
        assert_eq!(state.silent_from(TERM), None);
        assert_eq!(state.open(b"token", now), None, "its life is over");
        assert!(!state.adopt(3, b"next", ABLE, now), "the pod has not registered anew");
        state.close();
        state.admit(now);
        assert!(state.adopt(3, b"next", ABLE, now));
        assert!(!state.is_living(b"token") && state.is_living(b"next"));
    }

    #[test]
    fn the_state_of_an_earlier_life_needs_no_release() {
        let mut world = taking_part();
        let _warm = world.call(Callback::Warm, 20);
        let mut release = world.call(Callback::Release, 20);
        world.state.close();
        assert_eq!(release.try_recv(), Ok(Ok(None)));
        let (done, _result) = oneshot::channel();
        assert_eq!(world.state.begin(Callback::Release, &context(20), done), None);
    }

    #[test]
    fn a_service_is_told_only_tasks_that_it_can_do_and_the_others_are_done() {
        let (mut state, now) = (State::default(), lease_now());
        let (stream, _) = state.open(b"", now).unwrap();
        state.admit(now);
        // Before the service has said what it can do.
        let (done, mut early) = oneshot::channel();
        assert!(state.begin(Callback::Checkpoint, &context(0), done).is_some());
        assert!(state.adopt(stream, b"token", Abilities::default(), now));
        assert_eq!(early.try_recv(), Ok(Ok(None)));
        for callback in [Callback::Sync, Callback::Checkpoint] {
            let (done, _result) = oneshot::channel();
            assert_eq!(state.begin(callback, &context(20), done), None);
        }
    }

    #[test]
    fn a_service_that_polls_counts_as_connected_until_it_has_been_silent_for_a_term() {
        let World { mut state, now } = taking_part();
        state.polled(1, TERM, now);
        assert_eq!(state.open(b"other", now + TERM - Duration::from_millis(1)), None);
        assert_eq!(state.open(b"token", now + TERM), Some((2, true)));
        state.heard(2, now + TERM);
        state.polled(2, TERM, now + TERM);
        assert_eq!(state.open(b"other", now + TERM), None);
        assert_eq!(state.open(b"other", now + TERM * 2), Some((3, false)));

        let World { mut state, now } = taking_part();
        state.polled(1, TERM, now);
        assert!(state.leave(b"token"));
        assert_eq!(state.open(b"other", now), Some((2, false)), "it says that it has stopped");
        // A newcomer that polls and has not been told that it takes part.
        state.polled(2, TERM, now);
        assert_eq!(state.open(b"next", now), Some((3, false)));
    }

    #[test]
    fn what_there_is_to_tell_has_another_number_whenever_it_has_changed() {
        let mut world = taking_part();
        let owned = BTreeMap::from([(P, Epoch::new(3))]);
        let first = world.state.revision(BTreeMap::new());
        assert_eq!(world.state.revision(BTreeMap::new()), first);
        let second = world.state.revision(owned.clone());
        let _drain = world.call(Callback::Drain, 20);
        let third = world.state.revision(owned.clone());
        world.ack(Callback::Drain, 20);
        let fourth = world.state.revision(owned);
        assert!(0 < first && first < second && second < third && third < fourth);
    }
}
