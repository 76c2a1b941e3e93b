//! Services beside their sidecars that make checkpoints, and services that poll.

use std::time::Duration;

use segue_grpc::proto::{Ack, AckKind, AckOutcome, Hello, LeaveRequest, TaskId};
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::Policy;
use tokio::time::Instant;
use tonic::Code;

use super::checkpoints::{able, site, site_that_waits, warmed_from};
use super::client::{Known, Pod, ack, connect, hello, register};
use super::polling::Polling;
use super::service_stream::{Sidecar, TTL};
use super::site::Site;

fn polling(a: &Sidecar, hello: Hello) -> Polling {
    Polling::new([a.address], hello)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_asked_for_checkpoints_and_the_next_owner_warms_from_what_it_made() {
    let site = site(Duration::from_millis(400)).await;
    let a = Sidecar::start(&site, "a").await;
    let service = Pod::start(a.address, able(&site, "a")).await;
    let epochs = service.owns(4).await.owned;
    let asked = |count| move |known: &Known| known.counts().get("checkpoint").is_some_and(|asked| *asked >= count);
    service.until("each partition is asked several times", asked(12)).await;
    site.until("all are recorded", |view| view.checkpoints.len() == 4).await;

    // A name that is not a short text is no checkpoint, nor is one of an earlier epoch.
    let said = |name: &[u8], epoch| Ack {
        id: Some(TaskId { partition: 0, handoff: 0 }),
        kind: AckKind::Checkpointed.into(),
        checkpoint: name.to_vec(),
        epoch,
        ..Ack::default()
    };
    let wrong = vec![said(b"two\nlines", epochs[&0]), said(b"earlier", epochs[&0] - 1)];
    assert_eq!(ack(a.address, service.known().token(), wrong).await.unwrap(), [AckOutcome::Stale; 2]);

    let b = Pod::start(site.address(0), able(&site, "b")).await;
    for (partition, from) in warmed_from(&b.owns(2).await) {
        assert_eq!(from, format!("{partition}@{}", epochs[&partition]));
    }
    drop(b);
    let returned = warmed_from(&service.owns(4).await);
    assert_eq!(returned.iter().filter(|(_, from)| !from.is_empty()).count(), 2, "{returned:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_makes_no_checkpoints_is_not_asked_and_nobody_waits_for_one() {
    // A new owner waits longer for a checkpoint than the test lasts.
    let hour = Duration::from_secs(3600);
    let policy = Policy { checkpoint_interval: hour, checkpoint_timeout: hour, ..Policy::default() };
    let site = Site::start_with(policy).await;
    let a = Sidecar::start(&site, "a").await;
    let service = Pod::start(a.address, hello(&site.name, "a")).await;
    service.owns(4).await;
    let b = Pod::start(site.address(0), able(&site, "b")).await;
    b.owns(2).await;
    assert_eq!(service.known().counts().get("checkpoint"), None);
    let record = |partition: u32| site_record(&site, partition);
    for &partition in b.known().owned.keys() {
        assert_eq!(record(partition).await, Some(None));
    }
}

/// Returns the checkpoint that is recorded, if there is a record.
async fn site_record(site: &Site, partition: u32) -> Option<Option<String>> {
    let view = site.view().await;
    let record = view.checkpoints.get(&PartitionId::new(partition))?;
    Some(record.value.checkpoint.as_ref().map(|name| name.as_str().to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_takes_part_by_polling() {
    // Longer than a busy machine takes.
    let site = site_that_waits(Duration::from_secs(3600), Duration::from_secs(60)).await;
    let a = Sidecar::start(&site, "a").await;
    let mut service = polling(&a, able(&site, "a"));
    for resumed in [false, true] {
        assert_eq!(service.round().await.welcome.unwrap().resumed, resumed);
    }
    service.owns(4).await;
    let owned = service.known.owned.clone();
    let mut b = Polling::new([site.address(0)], able(&site, "b"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while service.known.held.len() != 2 || b.known.owned.len() != 2 {
        assert!(Instant::now() < deadline, "{:#?}", service.known);
        tokio::join!(service.round(), b.round());
    }
    let counts = service.known.counts();
    assert_eq!(counts.into_keys().collect::<Vec<_>>(), ["checkpoint", "drain", "release", "warm"]);
    for (partition, from) in warmed_from(&b.known) {
        assert_eq!(from, format!("{partition}@{}", owned[&partition]));
    }
}

/// Starts a sidecar with a service that polls, and has a second process try while the first one counts as connected.
async fn polled_and_tried(site: &Site) -> (Sidecar, Polling) {
    let mut ended = None;
    for attempt in 0..20 {
        let name = format!("a-{attempt}");
        let a = Sidecar::start(site, &name).await;
        let mut first = polling(&a, hello(&site.name, &name));
        let polled = match first.try_owns(4).await {
            Ok(()) => first.poll(Duration::ZERO).await.map(drop),
            Err(status) => Err(status),
        };
        if let Err(status) = polled {
            // A machine that stalls between two Polls ends its life.
            ended = Some(status);
            continue;
        }
        // Each of its kinds is another process without the token.
        let by_poll = polling(&a, hello(&site.name, &name)).poll(Duration::ZERO).await.map(drop);
        let by_stream = register(a.address, hello(&site.name, &name)).await.map(drop);
        // On a machine that took longer the first one's time had run out, and the answers tell nothing.
        if first.polled.unwrap().elapsed() < TTL / 2 {
            assert_eq!(by_poll.unwrap_err().code(), Code::AlreadyExists);
            assert_eq!(by_stream.unwrap_err().code(), Code::AlreadyExists);
            return (a, first);
        }
    }
    panic!("this machine takes longer than {:?} for three calls; the last life that it ended: {ended:?}", TTL / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_polls_is_replaced_once_its_time_has_run_out_or_it_has_left() {
    let site = Site::start().await;
    let (a, mut first) = polled_and_tried(&site).await;
    let own = hello(&site.name, &a.name);
    // When exactly it may begin is the business of `state`, whose tests have a clock of their own.
    let third = Pod::start(a.address, own.clone()).await;
    let known = third.owns(4).await;
    assert_ne!(known.incarnation(), first.known.incarnation());
    assert!(first.poll(Duration::ZERO).await.is_err(), "its life is over");

    drop(third);
    let mut fourth = polling(&a, own.clone());
    fourth.owns(4).await;
    let request = LeaveRequest { resume: fourth.known.token(), now: true };
    connect(a.address).await.leave(request).await.unwrap();
    let fifth = polling(&a, own).poll(Duration::ZERO).await;
    assert!(fifth.is_ok_and(|event| !event.welcome.unwrap().resumed), "nobody is waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_of_a_service_waits_until_there_is_news() {
    let site = Site::start().await;
    let a = Sidecar::start(&site, "a").await;
    let mut service = polling(&a, hello(&site.name, "a"));
    service.owns(4).await;
    site.until("no partition moves", |view| view.handoffs.is_empty()).await;
    let mut polls = 0;
    // A sixth of its time is the longest.
    let longest = TTL / 2 / 6;
    loop {
        let begun = Instant::now();
        service.poll(Duration::from_secs(60)).await.unwrap();
        if begun.elapsed() >= longest {
            break;
        }
        polls += 1;
        assert!(polls < 30, "no poll waits");
    }
    let before = service.known.tasks.len();
    let _b = Pod::start(site.address(0), hello(&site.name, "b")).await;
    service.until("it is told to drain", |known| known.tasks.len() > before).await;
}
