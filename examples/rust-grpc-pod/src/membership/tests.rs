//! Tests of a membership without a coordinator.

use super::*;
use crate::proto::{Assignment, Checkpoint, Drain, Owned, Release, Warm};

/// A service whose `warm` ends when it is let go on.
#[derive(Default)]
struct Service {
    calls: Mutex<Vec<(&'static str, u32)>>,
    goes_on: Notify,
}

impl Service {
    fn note(&self, call: &'static str, partition: u32) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push((call, partition));
    }

    /// Returns the calls since the last time.
    fn take(&self) -> Vec<(&'static str, u32)> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl super::Service for Service {
    async fn warm(&self, partition: u32, _: Option<String>) -> io::Result<()> {
        self.note("warm", partition);
        self.goes_on.notified().await;
        Ok(())
    }

    async fn sync(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, partition: u32) {
        self.note("release", partition);
    }

    fn checkpoint(&self, _: u32, _: u64) -> io::Result<String> {
        Err(io::Error::other("the checkpoint is not finished"))
    }
}

pub(crate) fn identity() -> Identity {
    Identity {
        keyspace: "default".to_owned(),
        name: "a".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        lease_ttl: Duration::from_secs(10),
        token: Token(None),
    }
}

fn membership() -> (Arc<Membership<Service>>, Arc<Service>) {
    let service = Arc::new(Service::default());
    (Membership::new(identity(), service.clone()), service)
}

/// Has the pod own a partition at an epoch, with a lease that lasts.
pub(crate) fn give<S>(membership: &Membership<S>, partition: u32, epoch: u64) {
    let (mut state, later) = (membership.state.lock().unwrap_or_else(PoisonError::into_inner), Duration::from_secs(60));
    state.owned.insert(partition, epoch);
    (state.trusted_until, state.stands_until) = (lease_now() + later, lease_now() + later);
}

/// Ends the pod's lease.
pub(crate) fn end_lease<S>(membership: &Membership<S>) {
    membership.state.lock().unwrap_or_else(PoisonError::into_inner).fence();
}

fn task(partition: u32, handoff: u64, kind: Kind) -> Task {
    let id = Some(TaskId { partition, handoff, ..TaskId::default() });
    Task { id, epoch: handoff, kind: Some(kind), ..Task::default() }
}

fn warm(partition: u32, handoff: u64) -> Task {
    task(partition, handoff, Kind::Warm(Warm::default()))
}

fn welcomed(resumed: bool, tasks: Vec<Task>) -> Event {
    Event { welcome: Some(Welcome { resumed, ..Welcome::default() }), tasks, ..Event::default() }
}

/// Applies an event as a stream does, and lets each task go as far as it can.
async fn apply(membership: &Arc<Membership<Service>>, event: Event) {
    event.welcome.iter().for_each(|welcome| membership.welcome(welcome));
    membership.apply(event, &mut HashMap::new());
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn running(membership: &Membership<Service>) -> Vec<u32> {
    let state = membership.state();
    let running = state.running.iter().filter(|(_, running)| !running.task.is_finished());
    let mut partitions: Vec<_> = running.map(|(partition, _)| *partition).collect();
    partitions.sort_unstable();
    partitions
}

#[tokio::test]
async fn a_stream_stops_what_its_first_event_does_not_list_and_frees_what_a_warm_has_copied() {
    let (membership, service) = membership();
    membership.state().in_flight.extend([(3, 1), (5, 1)]);
    let drain = task(3, 13, Kind::Drain(Drain {}));
    let (checkpoint, release) =
        (task(4, 0, Kind::Checkpoint(Checkpoint {})), task(5, 9, Kind::Release(Release::default())));
    apply(&membership, welcomed(true, vec![warm(1, 11), warm(2, 12), drain, checkpoint, release])).await;
    assert_eq!(service.take().len(), 2);
    let mut reported: Vec<_> =
        membership.first_heartbeat().progress.iter().map(|it| it.id.unwrap_or_default()).collect();
    reported.sort_by_key(|id| id.partition);
    assert_eq!(reported.iter().map(|id| (id.partition, id.handoff)).collect::<Vec<_>>(), [(1, 11), (2, 12)]);

    apply(&membership, welcomed(true, vec![warm(1, 11), warm(2, 14)])).await;
    let calls = service.take();
    assert!(calls.contains(&("release", 2)) && calls.contains(&("warm", 2)) && calls.len() == 2, "{calls:?}");
    assert_eq!(running(&membership), [1, 2, 4, 5]);

    apply(&membership, welcomed(true, vec![warm(1, 11)])).await;
    assert_eq!((service.take(), running(&membership)), (vec![("release", 2)], vec![1, 4, 5]));
    apply(&membership, welcomed(false, vec![])).await;
    assert_eq!(service.take(), [("release", 1)], "a new life frees what a warm has copied");
    assert_eq!(running(&membership), [0; 0], "nothing of an earlier life goes on");
}

#[tokio::test]
async fn the_state_of_a_finished_warm_is_kept_until_the_next_life_whatever_a_stream_lists() {
    let (membership, service) = membership();
    service.goes_on.notify_one();
    apply(&membership, welcomed(true, vec![warm(0, 3)])).await;
    assert_eq!(membership.first_heartbeat().progress, [], "it does not run any more");
    // Once the pod is ready, nothing is listed until the old owner has drained.
    apply(&membership, welcomed(true, vec![])).await;
    assert_eq!((service.take(), membership.state().held.get(&0)), (vec![("warm", 0)], Some(&3)));
    apply(&membership, welcomed(false, vec![])).await;
    assert_eq!(
        (service.take(), membership.state().held.len()),
        (vec![("release", 0)], 0),
        "of no use to the next life"
    );
}

#[tokio::test]
async fn a_stopped_warm_that_is_due_again_before_it_has_ended_begins_anew() {
    let dropped = Event { dropped: warm(7, 11).id.into_iter().collect(), ..Event::default() };
    for (stop, calls) in [(dropped, vec![("warm", 7)]), (welcomed(true, vec![]), vec![("release", 7), ("warm", 7)])] {
        let (membership, service) = membership();
        apply(&membership, welcomed(true, vec![warm(7, 11)])).await;
        assert_eq!(service.take(), [("warm", 7)]);
        // The task that was stopped has no turn in between, in which it could end.
        membership.apply(stop, &mut HashMap::new());
        assert_eq!((membership.first_heartbeat().progress, running(&membership)), (vec![], vec![]));
        apply(&membership, welcomed(true, vec![warm(7, 11)])).await;
        assert_eq!((service.take(), running(&membership)), (calls, vec![7]));
    }
}

#[tokio::test]
async fn a_coordinator_that_never_responds_is_left_for_the_next_one() -> io::Result<()> {
    // The kernel takes connections to it, and nobody accepts them.
    let hung = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let (membership, _) = membership();
    let coordinators = vec![hung.local_addr()?.to_string(), other.local_addr()?.to_string()];
    let running = tokio::spawn(membership.run(coordinators));
    timeout(Duration::from_secs(30), other.accept()).await??;
    running.abort();
    Ok(())
}

#[tokio::test]
async fn a_request_is_accepted_at_the_owned_epoch_within_the_lease_and_writes_in_the_life_that_accepted_it() {
    let (membership, _) = membership();
    give(&membership, 0, 7);
    let accepts = async |epoch| membership.accept(0, epoch).await.is_some();
    assert!(accepts(7).await && !accepts(6).await && !accepts(8).await && membership.accept(1, 7).await.is_none());
    membership.state().trusted_until = Duration::ZERO;
    assert!(!accepts(7).await, "the lease is not trusted");
    give(&membership, 0, 7);
    let accepted = membership.accept(0, 7).await.unwrap_or_else(|| unreachable!("the lease is trusted again"));
    assert!(accepted.may_write());
    let next_life = Welcome { incarnation: 8, ..Welcome::default() };
    apply(&membership, Event { welcome: Some(next_life), ..Event::default() }).await;
    assert!(!accepts(7).await && !accepted.may_write(), "the next life owns nothing yet");
    give(&membership, 0, 7);
    assert!(accepts(7).await && !accepted.may_write(), "others may have owned it in between");
}

#[tokio::test]
async fn the_lease_counts_from_when_the_confirmed_heartbeat_was_sent() {
    let (membership, _) = membership();
    let seconds = |seconds| prost_types::Duration { seconds, nanos: 0 };
    membership.welcome(&Welcome { trust: Some(seconds(10)), lease_ttl: Some(seconds(15)), ..Welcome::default() });
    let at = |seconds: f64| Duration::from_secs_f64(seconds);
    let mut sent = HashMap::from([(1, at(100.0)), (2, at(200.0)), (3, at(300.0))]);
    membership.apply(Event { confirmed: 2, ..Event::default() }, &mut sent);
    let state = membership.state();
    assert_eq!((state.trusted_until, state.stands_until), (at(210.0), at(212.5)));
    assert_eq!(sent, HashMap::from([(3, at(300.0))]));
}

#[tokio::test]
async fn a_full_assignment_replaces_what_is_owned_and_another_one_changes_it() {
    let (membership, _) = membership();
    let told = async |full, owned: &[(u32, u64)], gone: &[u32]| {
        let owned = owned.iter().map(|&(partition, epoch)| Owned { partition, epoch }).collect();
        let assignment = Some(Assignment { full, owned, gone: gone.to_vec() });
        apply(&membership, Event { assignment, ..Event::default() }).await;
        membership.state().owned.clone()
    };
    assert_eq!(told(true, &[(1, 5), (2, 5)], &[]).await, HashMap::from([(1, 5), (2, 5)]));
    assert_eq!(told(false, &[(3, 6)], &[1]).await, HashMap::from([(2, 5), (3, 6)]));
    assert_eq!(told(true, &[(4, 7)], &[]).await, HashMap::from([(4, 7)]));
}

#[tokio::test]
async fn a_release_waits_for_requests_is_finished_before_later_tasks_and_spares_a_later_epoch() {
    let (membership, service) = membership();
    let release = || task(5, 9, Kind::Release(Release::default()));
    membership.state().held.insert(5, 9);
    membership.state().in_flight.insert(5, 1);
    let due = |tasks| Event { tasks, ..Event::default() };
    apply(&membership, due(vec![release()])).await;
    let dropped = Event { dropped: release().id.into_iter().collect(), ..Event::default() };
    apply(&membership, dropped).await;
    apply(&membership, due(vec![warm(5, 12)])).await;
    assert_eq!(service.take(), [], "a request is in flight");
    membership.state().in_flight.insert(5, 0);
    service.goes_on.notify_one();
    apply(&membership, Event::default()).await;
    assert_eq!((service.take(), membership.state().held.get(&5)), (vec![("release", 5), ("warm", 5)], Some(&12)));
    apply(&membership, due(vec![release()])).await;
    assert_eq!((service.take(), membership.state().held.get(&5)), (vec![], Some(&12)));
}

#[tokio::test]
async fn a_drain_is_reported_once_no_request_is_in_flight_and_forgotten_by_the_next_life() {
    let (membership, _) = membership();
    membership.state().in_flight.insert(3, 1);
    apply(&membership, welcomed(true, vec![task(3, 13, Kind::Drain(Drain {}))])).await;
    assert!(membership.state().acks.is_empty());
    membership.state().in_flight.insert(3, 0);
    apply(&membership, Event::default()).await;
    let reported: Vec<_> = membership.state().acks.keys().copied().collect();
    assert_eq!(reported, [(3, 13, i32::from(AckKind::Drained))]);
    apply(&membership, welcomed(false, vec![])).await;
    assert!(membership.state().acks.is_empty());
}
