//! Tests of a membership without a coordinator.

use super::*;
use crate::proto::{Checkpoint, Drain, Release, Warm};

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

fn membership() -> (Arc<Membership<Service>>, Arc<Service>) {
    let identity = Identity {
        keyspace: "default".to_owned(),
        name: "a".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        lease_ttl: Duration::from_secs(10),
        token: Token(None),
    };
    let service = Arc::new(Service::default());
    (Membership::new(identity, service.clone()), service)
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
}

#[tokio::test]
async fn the_state_of_a_finished_warm_is_kept_whatever_the_next_stream_lists() {
    let (membership, service) = membership();
    service.goes_on.notify_one();
    apply(&membership, welcomed(true, vec![warm(0, 3)])).await;
    // Once the pod is ready, nothing is listed until the old owner has drained.
    apply(&membership, welcomed(true, vec![])).await;
    assert_eq!((service.take(), membership.state().held.get(&0)), (vec![("warm", 0)], Some(&3)));
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
