//! Lives of a service, from its first stream to its end.
use segue_coordination::pod::PermanentFailure;
use segue_coordination::session::lease_now;
use segue_protocol::ids::{HandoffId, Revision};

use super::*;

const TERM: Duration = Duration::from_secs(5);
const ABLE: Abilities = Abilities { syncs: true, makes_checkpoints: true, fences: true };
const P: PartitionId = PartitionId::new(7);

struct World {
    state: StreamRecord,
    now: Instant,
}

/// Returns a service that takes part and has a heartbeat confirmed.
fn taking_part() -> World {
    let (mut state, now) = (StreamRecord::default(), lease_now());
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

fn succeeded(callback: Callback) -> AckEffect {
    AckEffect::Ended { callback, succeeded: true }
}

impl World {
    fn call(&mut self, callback: Callback, handoff: u64) -> oneshot::Receiver<TaskResult> {
        let (done, result) = oneshot::channel();
        assert!(self.state.begin(callback, &context(handoff), done).is_some());
        result
    }

    fn ack(&mut self, callback: Callback, handoff: u64) -> AckEffect {
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
    let (mut state, now) = (StreamRecord::default(), lease_now());
    let (stream, _) = state.open(b"", now).unwrap();
    state.admit(now);
    assert!(state.adopt(stream, b"token", ABLE, now + TERM));
    state.heard(stream, now);
    assert_eq!(state.silent_from(TERM), Moment::At(now + TERM * 2));
}

#[test]
fn a_partition_may_be_written_until_the_service_has_drained_it() {
    let mut world = taking_part();
    world.state.accepts(P);
    let _drained = world.call(Callback::Drain, 20);
    assert_eq!(world.ack(Callback::Drain, 19), AckEffect::Stale);
    assert!(world.state.may_write_until().is_some());
    assert_eq!(world.ack(Callback::Drain, 20), succeeded(Callback::Drain));
    assert_eq!(world.state.may_write_until(), None);
    assert_eq!(world.ack(Callback::Drain, 20), AckEffect::Known, "it is repeated");
    world.state.accepts(P);
    assert!(world.state.may_write_until().is_some(), "the handoff was cancelled");
}

#[test]
fn a_partition_whose_drain_has_failed_may_still_be_written() {
    let mut world = taking_part();
    world.state.accepts(P);
    let mut drained = world.call(Callback::Drain, 20);
    let failed = Some(Err(PermanentFailure::new("no disk")));
    let ended = AckEffect::Ended { callback: Callback::Drain, succeeded: false };
    assert_eq!(world.state.acknowledge(P, |_| true, failed), ended);
    assert!(matches!(drained.try_recv(), Ok(Err(_))));
    assert_eq!(world.state.may_write_until(), Some(world.now + TERM));
}

#[test]
fn an_acknowledgement_counts_for_its_own_task_alone() {
    let mut world = taking_part();
    let mut warm = world.call(Callback::Warm, 20);
    assert_eq!(world.ack(Callback::Sync, 20), AckEffect::Stale);
    assert_eq!(world.ack(Callback::Warm, 10), AckEffect::Stale);
    assert!(warm.try_recv().is_err());
    assert_eq!(world.ack(Callback::Warm, 20), succeeded(Callback::Warm));
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
    assert_ne!(state.silent_from(TERM), Moment::Passed, "a short disconnect costs nothing");
    assert_eq!(state.open(b"other", now), Some((3, false)));
    assert_eq!(state.silent_from(TERM), Moment::Passed);
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
    let (mut state, now) = (StreamRecord::default(), lease_now());
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
