//! The window: how far the service runs ahead of a pod that applies its events slowly.

use std::time::Duration;

use segue_grpc::proto::{Event, Heartbeat, Hello};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::records::{Assignment, Origin, Pause, encode};
use tokio::time::timeout;
use tonic::Streaming;

use super::client::{Pod, hello, name, register};
use super::site::{PARTITIONS, Site};

/// What the service promises in `Welcome.window`.
const WINDOW: u64 = 256;
/// Shorter than the time after which an instance reads the keyspace anew: that would make up for a change that it has lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long nothing may come from a service that has told every other pod meanwhile.
const SILENCE: Duration = Duration::from_millis(300);

async fn next(events: &mut Streaming<Event>) -> Event {
    timeout(PATIENCE, events.message()).await.expect("an event").unwrap().unwrap()
}

/// Returns the epochs of the partitions that an event has the pod warm.
fn warms(event: &Event) -> Vec<u64> {
    event.tasks.iter().filter(|task| name(task) == "warm").map(|task| task.epoch).collect()
}

/// Assigns a partition by hand.
async fn assign(site: &Site, partition: u32, to: (&str, u64), epoch: u64) {
    let partition = PartitionId::new(partition);
    let life = site.view().await.incarnation_of(to.0);
    assert_eq!(life.get(), to.1);
    let assignment = Assignment::new(partition, to.0, life, Epoch::new(epoch));
    site.put(site.keys.assignment(partition), encode(&assignment)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_applies_nothing_is_told_256_events_and_then_all_the_rest_in_one() {
    let site = Site::start().await;
    let quick = Pod::start(site.address(0), hello(&site.name, "quick")).await;
    let known = quick.owns(PARTITIONS as usize).await;
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    // Nothing moves but by hand.
    let origin = Origin { who: "the test".to_owned(), ..Origin::default() };
    site.put(site.keys.pause(), encode(&Pause { origin, until: None })).await;

    // It is not to lose its lease for being slow.
    let slow = Hello { lease_ttl: Duration::from_secs(3600).try_into().ok(), ..hello(&site.name, "slow") };
    let (beats, mut events) = register(site.address(0), slow.clone()).await.unwrap();
    let first = next(&mut events).await;
    let welcome = first.welcome.clone().unwrap();
    assert_eq!((first.seq, u64::from(welcome.window)), (1, WINDOW));
    let (of_slow, of_quick) = (("slow", welcome.incarnation), ("quick", known.incarnation()));

    let mut epoch = site.view().await.revision.get() + 1_000_000;
    let mut told = first.seq;
    while told < WINDOW {
        epoch += 1;
        assign(&site, 0, of_slow, epoch).await;
        let event = next(&mut events).await;
        assert_eq!((event.seq, warms(&event)), (told + 1, vec![epoch]));
        told = event.seq;
    }
    for _ in 0..20 {
        epoch += 1;
        assign(&site, 0, of_slow, epoch).await;
        assign(&site, 1, of_quick, epoch).await;
        quick.until("the other pod is told at once", |known| known.owned.get(&1) == Some(&epoch)).await;
    }
    let more = timeout(SILENCE, events.message()).await;
    assert!(more.is_err(), "beyond the window: {more:?}");
    let streams = site.instances[0].status.streams();
    assert_eq!(streams.iter().find(|stream| stream.pod == "slow").unwrap().behind, WINDOW);

    // Heartbeats are confirmed all the same, so that a pod does not stop serving for being slow.
    beats.send(Heartbeat { seq: 2, ..Heartbeat::default() }).await.unwrap();
    let confirmation = next(&mut events).await;
    told += 1;
    assert_eq!((confirmation.seq, confirmation.confirmed), (told, 2));
    assert!(confirmation.assignment.is_none() && confirmation.tasks.is_empty(), "{confirmation:?}");

    beats.send(Heartbeat { seq: 3, seen: told, ..Heartbeat::default() }).await.unwrap();
    let caught_up = loop {
        let event = next(&mut events).await;
        told += 1;
        assert_eq!(event.seq, told);
        if !event.tasks.is_empty() {
            break event;
        }
        assert!(event.assignment.is_none() && event.confirmed == 3, "{event:?}");
    };
    assert_eq!(warms(&caught_up), [epoch], "what lies between is skipped");

    // Another instance tells it all, whatever the first one has told.
    drop((beats, events));
    let resuming = Hello { resume: welcome.resume, ..slow };
    let (_beats, mut events) = register(site.address(1), resuming).await.unwrap();
    let replayed = next(&mut events).await;
    assert!(replayed.welcome.as_ref().unwrap().resumed && replayed.assignment.as_ref().unwrap().full);
    assert_eq!((replayed.tasks.len(), warms(&replayed)), (1, vec![epoch]), "{replayed:?}");
}
