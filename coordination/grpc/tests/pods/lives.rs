//! Registrations, leases and reconnects.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use segue_grpc::proto::{Heartbeat, Hello, LeaveRequest, PollRequest, Task};
use segue_protocol::records::{Phase, PodRecord, encode};
use segue_protocol::txn::Keys;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::client::{BEATS_OF_A_LEASE, Known, Pod, connect, hello, register};
use super::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_goes_on_at_another_instance_costs_no_move() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let b = Pod::start(site.address(0), hello(&site.name, "b")).await;
    a.owns(2).await;
    b.owns(2).await;
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    let (owners, mut known) = (site.owners().await, a.known());
    drop(a);
    for round in 0..4 {
        known.tasks.clear();
        let a = Pod::resume(site.address(round % 2), hello(&site.name, "a"), known.clone()).await;
        let first = a.known().first.unwrap();
        let welcome = first.welcome.unwrap();
        assert!(welcome.resumed && welcome.incarnation == known.incarnation());
        let assignment = first.assignment.unwrap();
        let told: BTreeMap<_, _> = assignment.owned.iter().map(|owned| (owned.partition, owned.epoch)).collect();
        assert!(assignment.full && told == known.owned && first.tasks.is_empty(), "{told:?} {:?}", first.tasks);
        // Beyond the lease that it had when its stream broke.
        let confirmed = a.known().confirmed;
        a.until("its lease is renewed", |known| known.confirmed > confirmed.max(BEATS_OF_A_LEASE)).await;
        known = Known { confirmed: 0, ..a.known() };
    }
    assert_eq!(site.owners().await, owners);
    assert_eq!(b.known().incarnation(), site.view().await.incarnation_of("b").get());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_nothing_to_warm_gets_a_new_keyspace_at_once() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), Hello { nothing_to_warm: true, ..hello(&site.name, "a") }).await;
    let known = a.owns(4).await;
    let is_of_a_handoff = |task: &Task| task.id.unwrap().handoff > 0;
    assert!(!known.tasks.is_empty() && !known.tasks.iter().any(is_of_a_handoff), "{:?}", known.tasks);
    // Another one gets its share by handoffs.
    let b = Pod::start(site.address(0), Hello { nothing_to_warm: true, ..hello(&site.name, "b") }).await;
    assert!(b.owns(2).await.tasks.iter().any(is_of_a_handoff));
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_a_pod_has_and_that_is_not_needed_is_released_after_a_reconnect() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let mut known = a.owns(4).await;
    drop(a);
    let owned = known.owned.clone();
    // Of an earlier epoch, and of a partition that the keyspace does not have.
    let stale = known.held.insert(0, 1).unwrap();
    known.held.insert(77, 5);
    known.tasks.clear();
    let a = Pod::resume(site.address(1), hello(&site.name, "a"), known).await;
    let known = a.owns(4).await;
    let counts = known.counts();
    assert_eq!(counts, BTreeMap::from([("release", 2), ("warm", 1)]), "what is missing is warmed again");
    assert_eq!((&known.owned, known.held[&0]), (&owned, stale));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_process_waits_for_the_old_lease_and_is_a_new_incarnation() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let before = a.owns(4).await;
    drop(a);
    let status = register(site.address(1), hello(&site.name, "a")).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");
    let a = Pod::start(site.address(1), hello(&site.name, "a")).await;
    let known = a.owns(4).await;
    assert!(known.incarnation() > before.incarnation() && !known.welcome.unwrap().resumed);
    assert!(known.owned.iter().all(|(partition, epoch)| *epoch > before.owned[partition]));
    assert_eq!(known.tasks.iter().filter(|task| super::client::name(task) == "warm").count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_lease_that_has_ended_leads_to_a_new_incarnation() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let before = a.owns(4).await;
    drop(a);
    site.until("the lease has ended", |view| view.pods.is_empty()).await;
    let a = Pod::resume(site.address(0), hello(&site.name, "a"), before.clone()).await;
    let known = a.owns(4).await;
    assert!(!known.welcome.as_ref().unwrap().resumed && known.incarnation() > before.incarnation());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_pod_loses_its_lease_and_nobody_else_does() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let b = Pod::start(site.address(0), hello(&site.name, "b")).await;
    a.owns(2).await;
    b.owns(2).await;
    b.fall_silent();
    let known = b.until("its stream ends", |known| known.ended.is_some()).await;
    assert_eq!(known.ended, Some(Code::NotFound), "register anew");
    let known = a.owns(4).await;
    assert_eq!(known.incarnation(), site.view().await.incarnation_of("a").get());
    assert!(known.ended.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_sees_nothing_sends_its_pods_elsewhere_although_it_could_renew_their_leases() {
    let mut site = Site::start().await;
    let (address, store) = site.instance_on_faulty_store().await;
    let a = Pod::start(address, hello(&site.name, "a")).await;
    let before = a.owns(4).await;
    store.blind();
    let known = a.until("its stream ends", |known| known.ended.is_some()).await;
    assert_eq!(known.ended, Some(Code::Unavailable));
    let a = Pod::resume(site.address(0), hello(&site.name, "a"), known).await;
    let known = a.owns(4).await;
    assert_eq!(known.incarnation(), before.incarnation(), "its lease has not ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_reads_nothing_delays_only_its_own_partitions() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    a.owns(4).await;
    let slow = Hello { lease_ttl: Duration::from_secs(120).try_into().ok(), ..hello(&site.name, "b") };
    let (_beats, _unread) = register(site.address(0), slow).await.unwrap();
    site.until("moves to b have begun", |view| view.handoffs.values().any(|it| it.value.new_owner == "b")).await;
    // So heavy that what b does not get either goes to it.
    let c = Pod::start(site.address(0), Hello { weight: 20.0, ..hello(&site.name, "c") }).await;
    c.until("it owns some", |known| !known.owned.is_empty()).await;
    let view = site.view().await;
    assert!(view.handoffs.values().any(|it| it.value.new_owner == "b" && it.value.phase == Phase::Warming));
    assert!(view.pods.contains_key("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_applies_no_events_loses_its_lease_although_it_sends_heartbeats() {
    let site = Site::start().await;
    let (beats, mut events) = register(site.address(0), hello(&site.name, "a")).await.unwrap();
    let beating = tokio::spawn(async move {
        for seq in 2.. {
            tokio::time::sleep(Duration::from_millis(200)).await;
            if beats.send(Heartbeat { seq, ..Heartbeat::default() }).await.is_err() {
                return;
            }
        }
    });
    // It reads and never says that it has applied anything.
    let mut stuck = false;
    let begun = Instant::now();
    let ended = loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "its lease is renewed");
        match events.message().await {
            Ok(Some(_)) => stuck |= site.instances[0].status.streams().iter().any(|stream| stream.behind > 0),
            ended => break ended,
        }
    };
    assert_eq!(ended.unwrap_err().code(), Code::NotFound);
    assert!(stuck && site.counts.was_stuck.load(Relaxed) == 1 && site.counts.stuck.load(Relaxed) == 0);
    beating.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_stream_with_the_same_token_ends_the_first() {
    let site = Site::start().await;
    let first = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let known = first.owns(4).await;
    let second = Pod::resume(site.address(0), hello(&site.name, "a"), known).await;
    let ended = first.until("it ends", |known| known.ended.is_some()).await;
    assert_eq!(ended.ended, Some(Code::Aborted));
    let confirmed = second.known().confirmed;
    second.until("the second goes on", |known| known.confirmed > confirmed + 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_ends_sends_its_pods_to_another_one() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    a.owns(4).await;
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    let owners = site.owners().await;
    site.instances[0].end();
    let known = a.until("its stream ends", |known| known.ended.is_some()).await;
    assert!(known.gone_away && known.ended == Some(Code::Ok), "{known:?}");
    let a = Pod::resume(site.address(1), hello(&site.name, "a"), known).await;
    assert_eq!(a.owns(4).await.incarnation(), site.view().await.incarnation_of("a").get());
    assert_eq!(site.owners().await, owners);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_another_writer_detaches_from_its_lease_is_restored() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let known = a.owns(4).await;
    let record = PodRecord { version: Some("by hand".to_owned()), ..PodRecord::new("a", "127.0.0.1:9") };
    site.put(site.keys.pod("a"), encode(&record)).await;
    site.until("it is back", |view| {
        view.pods.get("a").is_some_and(|own| own.lease.is_some() && own.value.address == "127.0.0.1:1")
    })
    .await;
    // The token still proves what it proved.
    let request = LeaveRequest { resume: known.token(), now: true };
    connect(site.address(1)).await.leave(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_hang_up_during_a_renewal_cut_nobody_off_from_the_store() {
    let site = Site::start().await;
    let store = site.instances[0].store.clone();
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let from = store.snapshot(&Keys::Prefix(site.keys.root().into())).await.unwrap().revision.next();
    let mut watch = store.watch(&Keys::Prefix(site.keys.root().into()), from).await.unwrap();
    let lease = store.grant(Duration::from_secs(30)).await.unwrap();
    let mut b = Hello { lease_ttl: Some(prost_types::Duration { seconds: 60, nanos: 0 }), ..hello(&site.name, "b") };
    for _ in 0..30 {
        // A heartbeat, and the end of the stream at once.
        let (beats, received) = mpsc::channel(16);
        beats.send(Heartbeat { seq: 1, hello: Some(b.clone()), ..Heartbeat::default() }).await.unwrap();
        beats.send(Heartbeat { seq: 2, ..Heartbeat::default() }).await.unwrap();
        let mut client = connect(site.address(0)).await;
        let mut events = client.register(ReceiverStream::new(received)).await.unwrap().into_inner();
        if b.resume.is_empty() {
            b.resume = events.message().await.unwrap().unwrap().welcome.unwrap().resume;
        }
        beats.send(Heartbeat { seq: 3, ..Heartbeat::default() }).await.unwrap();
        drop(beats);
        while let Ok(Some(_)) = events.message().await {}
        store.keep_alive(lease).await.unwrap();
        while let Some(batch) = watch.try_next() {
            batch.unwrap();
        }
    }
    let beat = a.known().confirmed;
    let known = a.until("its lease is renewed", |known| known.confirmed > beat + 5 || known.ended.is_some()).await;
    assert_eq!(known.ended, None);
    while let Some(batch) = watch.try_next() {
        batch.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_whose_token_nobody_got_frees_its_name_at_once() {
    let site = Site::start().await;
    let ttl = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let hello = Hello { lease_ttl: ttl, ..hello(&site.name, "a") };
    // The answer comes late, because this Poll asks for changes after a revision that is far away.
    let heartbeat = Some(Heartbeat { seq: 1, hello: Some(hello.clone()), ..Heartbeat::default() });
    let request = PollRequest { heartbeat, after_revision: u64::MAX, wait: Duration::from_secs(600).try_into().ok() };
    let mut client = connect(site.address(0)).await;
    let poll = tokio::spawn(async move { client.poll(request).await });
    site.until("it is registered", |view| view.pods.contains_key("a")).await;
    poll.abort();
    site.until("its registration has ended", |view| view.pods.is_empty()).await;
    register(site.address(0), hello).await.unwrap();
}
