//! Calls that are refused, and pods without a stream.

use std::net::SocketAddr;
use std::time::Duration;

use segue_coordination::store::{MemoryStore, StoreCall};
use segue_grpc::proto::{
    Ack, AckKind, AckOutcome, Event, Heartbeat, Hello, Holding, LeaveRequest, PollRequest, TaskId,
};
use segue_protocol::ids::Epoch;
use segue_protocol::records::{Assignment, PodRecord, encode};
use segue_protocol::txn::Keys;
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::client::{Pod, ack, connect, hello, name, register};
use super::polling::Polling;
use super::service_stream::Sidecar;
use super::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_cannot_be_is_refused_in_words() {
    let site = Site::start().await;
    let good = || hello(&site.name, "a");
    let ttl = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    let holds = |partition, count| vec![Holding { partition, epoch: 1 }; count];
    for (bad, code, expected) in [
        (Hello { protocol_min: 2, protocol_max: 3, ..good() }, Code::FailedPrecondition, "speaks version 1"),
        (Hello { keyspace: "other".to_owned(), ..good() }, Code::FailedPrecondition, "the pod of \"other\""),
        (Hello { pod: "a/b".to_owned(), ..good() }, Code::InvalidArgument, "`pod`: \"a/b\" cannot be a name"),
        (Hello { address: "here".to_owned(), ..good() }, Code::InvalidArgument, "expected host:port"),
        (Hello { lease_ttl: ttl(1, 0), ..good() }, Code::InvalidArgument, "from 2 to 3600"),
        (Hello { lease_ttl: ttl(2, 500), ..good() }, Code::InvalidArgument, "whole seconds"),
        (Hello { address: format!("{}:1", "a".repeat(252)), ..good() }, Code::InvalidArgument, "`address`: 254 bytes"),
        (Hello { zone: "z".repeat(254), ..good() }, Code::InvalidArgument, "`zone`: 254 bytes"),
        (Hello { version: "v".repeat(254), ..good() }, Code::InvalidArgument, "`version`: 254 bytes"),
        (Hello { holdings: holds(65_536, 1), ..good() }, Code::InvalidArgument, "partition 65536; no keyspace"),
        (Hello { holdings: holds(0, 65_537), ..good() }, Code::InvalidArgument, "65537 partitions; expected 65536"),
        (Hello { weight: f64::NAN, ..good() }, Code::InvalidArgument, "`weight`"),
        (Hello { resume: b"x".to_vec(), ..good() }, Code::InvalidArgument, "`resume` is not a token"),
    ] {
        let status = register(site.address(0), bad).await.unwrap_err();
        assert!(status.code() == code && status.message().contains(expected), "{expected}: {status:?}");
    }
    assert!(site.view().await.pods.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_another_secret_is_refused_and_a_stale_ack_is_named_so() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let known = a.owns(4).await;
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    let id = |handoff| Some(TaskId { partition: 0, handoff });
    let released = |handoff| Ack { id: id(handoff), kind: AckKind::Drained.into(), ..Ack::default() };
    let outcomes = ack(site.address(1), known.token(), vec![released(3), Ack::default()]).await.unwrap();
    assert_eq!(outcomes, [AckOutcome::Stale; 2]);

    let mut text = String::from_utf8(known.token()).unwrap();
    let secret = text.find("secret").unwrap() + 9;
    let other = if &text[secret..=secret] == "0" { "1" } else { "0" };
    text.replace_range(secret..=secret, other);
    let refused = ack(site.address(1), text.clone().into_bytes(), vec![released(3)]).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let forged = Hello { resume: text.into_bytes(), ..hello(&site.name, "a") };
    assert_eq!(register(site.address(1), forged).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_another_lease_ttl_or_floor_is_refused_and_ends_no_lease() {
    let site = Site::start().await;
    let long = |pod| {
        let lease_ttl = Duration::from_secs(60).try_into().ok();
        Hello { lease_ttl, ..hello(&site.name, pod) }
    };
    let (_a, mut of_a) = register(site.address(0), long("a")).await.unwrap();
    let (_b, mut of_b) = register(site.address(0), long("b")).await.unwrap();
    let token = |event: Event| String::from_utf8(event.welcome.unwrap().resume).unwrap();
    let a = token(of_a.message().await.unwrap().unwrap());
    let b = token(of_b.message().await.unwrap().unwrap());
    let lease = |token: &str| {
        let (_, rest) = token.split_once("\"lease\":").unwrap();
        rest.split_once(',').unwrap().0.to_owned()
    };
    let with_lease = a.replace(&lease(&a), &lease(&b));
    let with_ttl = a.replace("\"ttl_s\":60", "\"ttl_s\":3600");
    let with_floor = a.replace("\"floor\":0", "\"floor\":1000");
    let forged = [with_lease, with_ttl, with_floor];
    assert!(forged.iter().all(|forged| *forged != a), "{a}");
    for forged in forged {
        for instance in 0..2 {
            let resume = forged.clone().into_bytes();
            let leave = LeaveRequest { resume: resume.clone(), now: true };
            let refused = connect(site.address(instance)).await.leave(leave).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{forged}");
            let refused = ack(site.address(instance), resume.clone(), Vec::new()).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{forged}");
            let refused = register(site.address(instance), Hello { resume, ..long("a") }).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{forged}");
        }
    }
    let endless = a.replace("\"ttl_s\":60", &format!("\"ttl_s\":{}", u64::MAX));
    let refused = register(site.address(0), Hello { resume: endless.into_bytes(), ..long("a") }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(site.view().await.pods.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_carries_4096_acks_at_most() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let token = a.owns(4).await.token();
    let sidecar = Sidecar::start(&site, "b").await;
    let service = Pod::start(sidecar.address, hello(&site.name, "b")).await.known().token();
    for (address, token) in [(site.address(0), token), (sidecar.address, service)] {
        let status = ack(address, token.clone(), vec![Ack::default(); 4097]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "`acks`: 4097; expected 4096 at most, so send the others in another call");
        assert_eq!(ack(address, token, vec![Ack::default(); 4096]).await.unwrap(), [AckOutcome::Stale; 4096]);
    }
}

/// Returns a pod that polls the instances by turns.
fn polling(site: &Site) -> Polling {
    Polling::new([site.address(0), site.address(1)], hello(&site.name, "a"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_streams_takes_part_by_polling_any_instance() {
    let site = Site::start().await;
    let mut pod = polling(&site);
    for resumed in [false, true] {
        assert_eq!(pod.round().await.welcome.unwrap().resumed, resumed);
    }
    pod.owns(4).await;
    assert_eq!(site.owners().await.len(), 4);
    // It has lost the state of a partition, which no handoff brings back.
    pod.known.held.remove(&2);
    pod.known.tasks.clear();
    pod.until("it is told to warm it", |known| !known.tasks.is_empty()).await;
    pod.owns(4).await;
    let told = pod.known.tasks.iter().map(|task| (name(task), task.id.unwrap()));
    assert!(told.into_iter().all(|it| it == ("warm", TaskId { partition: 2, handoff: 0 })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_another_writer_detaches_is_restored_by_the_next_poll() {
    let site = Site::start().await;
    let mut pod = polling(&site);
    pod.owns(4).await;
    let owners = site.owners().await;
    for _ in 0..2 {
        let record = PodRecord { version: Some("by hand".to_owned()), ..PodRecord::new("a", "127.0.0.1:9") };
        site.put(site.keys.pod("a"), encode(&record)).await;
        pod.round().await;
        let own = site.view().await.pods["a"].clone();
        assert!(own.lease.is_some() && own.value.address == "127.0.0.1:1", "{own:?}");
    }
    pod.owns(4).await;
    assert_eq!(site.owners().await, owners);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_waits_until_something_changes() {
    let site = Site::start().await;
    let lease_ttl = Duration::from_secs(120).try_into().ok();
    let mut hello = Hello { lease_ttl, ..hello(&site.name, "a") };
    let mut client = connect(site.address(0)).await;
    let (mut seq, mut revision) = (0, 0);
    let mut poll = async |wait: Duration| {
        seq += 1;
        let heartbeat = Some(Heartbeat { seq, hello: Some(hello.clone()), ..Heartbeat::default() });
        let begun = Instant::now();
        let request = PollRequest { heartbeat, after_revision: revision, wait: wait.try_into().ok() };
        let event = client.poll(request).await.unwrap().into_inner();
        (hello.resume, revision) = (event.welcome.unwrap().resume, event.revision);
        begun.elapsed()
    };
    poll(Duration::ZERO).await;
    // Its partitions are planned for it; then nothing happens.
    let wait = Duration::from_secs(2);
    let mut polls = 0;
    while poll(wait).await < wait {
        polls += 1;
        assert!(polls < 30, "no poll waits");
    }
    // A sixth of the TTL is the longest.
    let (took, ()) = tokio::join!(poll(Duration::from_secs(20)), async {
        // Whether the poll has begun or not: this comes after the revision that it names.
        site.put(site.keys.pod("a"), encode(&PodRecord::new("a", "127.0.0.1:9"))).await;
    });
    assert!(took < Duration::from_secs(15), "it has waited for {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_of_other_pods_partitions_end_no_poll() {
    let site = Site::start().await;
    moves_of_others_end_no_poll_at(&site, &[site.address(0)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_of_other_pods_partitions_end_no_poll_at_another_instance() {
    let site = Site::start().await;
    moves_of_others_end_no_poll_at(&site, &[site.address(0), site.address(1)]).await;
}

async fn moves_of_others_end_no_poll_at(site: &Site, addresses: &[SocketAddr]) {
    let lease_ttl = Duration::from_secs(3600).try_into().ok();
    let mut a = Polling::new(addresses.to_vec(), Hello { lease_ttl, ..hello(&site.name, "a") });
    let b = Pod::start(site.address(0), hello(&site.name, "b")).await;
    tokio::join!(a.owns(2), b.owns(2));
    while !site.view().await.handoffs.is_empty() {
        a.round().await;
    }
    a.poll(Duration::ZERO).await.unwrap();
    let poll = tokio::spawn(async move { a.poll(Duration::from_secs(600)).await.unwrap().revision });
    for _ in 0..5 {
        let told = b.known().tasks.len();
        give_anew(site, "b").await;
        b.until("it is told", |known| known.tasks.len() > told).await;
    }
    // The instance has seen all of these.
    let seen = site.view().await.revision.get();
    give_anew(site, "a").await;
    let ended_at = timeout(Duration::from_secs(60), poll).await.unwrap().unwrap();
    assert!(ended_at > seen, "it ended at revision {ended_at}, before its own partition changed, after {seen}");
}

/// Writes an assignment of this pod again, at a later epoch.
async fn give_anew(site: &Site, pod: &str) {
    let view = site.view().await;
    let assigned = view.assignments.into_values().find(|assigned| assigned.value.owner == pod).unwrap().value;
    let epoch = Epoch::new(assigned.epoch.get() + 1);
    site.put(site.keys.assignment(assigned.partition), encode(&Assignment { epoch, ..assigned })).await;
}

/// Returns whether this call is a write, or reads the registration of a pod.
fn costs(call: &StoreCall) -> bool {
    matches!(call, StoreCall::Commit(_) | StoreCall::Snapshot(Keys::One(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_polls_one_instance_costs_the_store_its_renewals_alone() {
    let mut site = Site::start().await;
    let (address, store) = site.instance_on_faulty_store().await;
    let mut pod = Polling::new([address], hello(&site.name, "a"));
    pod.owns(4).await;
    pod.poll(Duration::ZERO).await.unwrap();
    let count = || (store.count(costs), store.count(|call| matches!(call, StoreCall::KeepAlive)));
    let before = count();
    for _ in 0..10 {
        assert!(pod.poll(Duration::ZERO).await.unwrap().welcome.unwrap().resumed);
    }
    assert_eq!(count(), (before.0, before.1 + 10));
    // Another instance may have told it more than this one knows.
    pod.move_to([site.address(0)]);
    pod.poll(Duration::ZERO).await.unwrap();
    give_anew(&site, "a").await;
    pod.until("it is told", |known| !known.tasks.is_empty()).await;
    pod.move_to([address]);
    pod.poll(Duration::ZERO).await.unwrap();
    assert!(store.count(costs) > before.0, "the present was not marked");
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_by_turns_write_nothing_while_nothing_changes() {
    let memory = MemoryStore::new();
    let site = Site::start_in(&memory).await;
    let mut pod = polling(&site);
    pod.owns(4).await;
    let mut revision = site.view().await.revision;
    for _ in 0..100 {
        for _ in 0..6 {
            assert!(pod.poll(Duration::ZERO).await.unwrap().welcome.unwrap().resumed);
        }
        let before = std::mem::replace(&mut revision, site.view().await.revision);
        if before == revision {
            // What happens meanwhile is told by either instance.
            for _ in 0..2 {
                pod.known.tasks.clear();
                give_anew(&site, "a").await;
                pod.until("it is told", |known| !known.tasks.is_empty()).await;
            }
            return;
        }
    }
    panic!("each time that it polled six times, something was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_only_for_a_pod_that_can_be_told_what_it_has_to_do() {
    let memory = MemoryStore::new();
    let mut site = Site::start_in(&memory).await;
    let (address, store) = site.instance_on_faulty_store().await;
    let mut pod = Polling::new([site.address(0)], hello(&site.name, "a"));
    pod.owns(4).await;
    // A write elsewhere in the store: no view of the keyspace shows that it is as new as the pod's.
    site.put("/elsewhere".to_owned(), Vec::new()).await;
    store.refuse_puts();
    pod.move_to([address]);
    for _ in 0..3 {
        assert_eq!(pod.poll(Duration::ZERO).await.unwrap_err().code(), Code::Unavailable);
    }
    assert_eq!(register(address, pod.resuming()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(store.count(|call| matches!(call, StoreCall::KeepAlive)), 0, "it is told nothing");
    store.pass();
    pod.poll(Duration::ZERO).await.unwrap();
    // The instance knows what the pod was told, so the store need accept nothing.
    store.refuse_puts();
    assert!(pod.poll(Duration::ZERO).await.unwrap().welcome.unwrap().resumed);
}
