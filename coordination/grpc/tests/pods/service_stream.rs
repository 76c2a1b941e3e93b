//! The stream of a service beside its sidecar.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::unfold;
use segue_coordination::pod::{PodHandle, PodSettings};
use segue_grpc::proto::{Ack, AckKind, AckOutcome, AckRequest, Heartbeat, Hello, LeaveRequest, PollRequest, TaskId};
use segue_grpc::{ServiceStream, ServiceStreamSettings, ServiceStreams};
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Capabilities;
use segue_protocol::view::View;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::client::{Pod, ack, beat, connect, hello, name, other_side, register};
use super::site::Site;

pub(crate) const TTL: Duration = Duration::from_secs(8);

/// A sidecar without its proxy.
pub(crate) struct Sidecar {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    stream: ServiceStream,
    handle: PodHandle,
    _guard: DropGuard,
}

impl Sidecar {
    pub(crate) async fn start(site: &Site, name: &str) -> Self {
        Self::start_in(&[site], name).await
    }

    /// Starts a sidecar in the keyspaces of these sites. Its fields are of the first.
    async fn start_in(sites: &[&Site], name: &str) -> Self {
        let streams: Vec<_> = sites.iter().map(|site| Self::pod(site, name)).collect();
        let (stream, handle) = streams[0].clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let connections = unfold(listener, async |listener| {
            let accepted = listener.accept().await.map(|(connection, _)| connection);
            Some((accepted, listener))
        });
        tokio::spawn(ServiceStreams::new(streams).serve(Box::pin(connections), shutdown.clone()));
        Sidecar { name: name.to_owned(), address, stream, handle, _guard: shutdown.drop_guard() }
    }

    fn pod(site: &Site, name: &str) -> (ServiceStream, PodHandle) {
        let settings = ServiceStreamSettings {
            keyspace: site.name.clone(),
            pod: name.to_owned(),
            lease_ttl: TTL,
            needs_fence: true,
        };
        let stream = ServiceStream::new(settings);
        let settings = PodSettings::new(name, "127.0.0.1:1");
        let capabilities = Capabilities { checkpoint: true, ..settings.capabilities };
        let settings = PodSettings { lease_ttl: TTL, capabilities, ..settings };
        let (store, keys) = (site.store.clone(), site.keys.clone());
        let (handler, service) = (Arc::new(stream.clone()), Arc::new(stream.clone()));
        let handle = PodHandle::start_before(store, &site.name, keys, settings, handler, service);
        (stream, handle)
    }
}

fn incarnation(view: &View, pod: &str) -> u64 {
    view.incarnation_of(pod).get()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_gets_every_task_by_its_stream_and_partitions_come_and_go() {
    let site = Site::start().await;
    let a = Sidecar::start(&site, "a").await;
    let service = Pod::start(a.address, Hello { address: String::new(), ..hello(&site.name, "a") }).await;
    let known = service.owns(4).await;
    assert_eq!(known.counts().into_iter().collect::<Vec<_>>(), [("warm", 4)]);
    let b = Pod::start(site.address(0), hello(&site.name, "b")).await;
    b.owns(2).await;
    let known = service.until("two are released", |known| known.counts().get("release") == Some(&2)).await;
    assert_eq!(known.counts().into_iter().collect::<Vec<_>>(), [("drain", 2), ("release", 2), ("warm", 4)]);
    assert_eq!((known.owned.len(), known.held.len()), (2, 2));
    let request = LeaveRequest { resume: b.known().token(), now: false };
    assert!(connect(site.address(0)).await.leave(request).await.unwrap().into_inner().empty);
    let known = service.owns(4).await;
    assert_eq!((known.counts()["warm"], known.counts()["sync"]), (6, 2));
    let others: Vec<_> = known.tasks.iter().map(|task| (name(task), other_side(task).0)).collect();
    let alone = others.iter().filter(|other| **other == ("warm", "")).count();
    let with_b = others.iter().filter(|(_, other)| *other == "b").count();
    assert_eq!((alone, with_b), (4, others.len() - 4), "{others:?}");
    let owners = site.owners().await;
    assert_eq!(known.owned, owners.into_iter().map(|(partition, (_, epoch))| (partition, epoch)).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_registered_for_one_life_of_its_service() {
    let site = Site::start().await;
    let a = Sidecar::start(&site, "a").await;
    assert!(a.stream.not_ready().is_some() && site.view().await.pods.is_empty());
    let first = Pod::start(a.address, hello(&site.name, "a")).await;
    first.owns(4).await;
    let known = first.known();
    assert_eq!(incarnation(&site.view().await, "a"), known.incarnation());

    drop(first);
    let second = Pod::resume(a.address, hello(&site.name, "a"), known.clone()).await;
    let resumed = second.known();
    assert!(resumed.welcome.as_ref().unwrap().resumed, "a short disconnect costs nothing");
    assert_eq!(resumed.incarnation(), known.incarnation());
    let first_event = resumed.first.clone().unwrap();
    assert_eq!((first_event.assignment.unwrap().owned.len(), first_event.tasks.len()), (4, 0));

    drop(second);
    let third = Pod::start(a.address, hello(&site.name, "a")).await;
    let next = third.owns(4).await;
    assert!(!next.welcome.as_ref().unwrap().resumed);
    assert!(next.incarnation() > known.incarnation(), "it has not got the state of the earlier process");
    assert_eq!(next.counts()["warm"], 4);
    // An acknowledgement of the earlier process is not about this life.
    let late = Ack { id: Some(TaskId { partition: 0, handoff: 1 }), kind: AckKind::Drained.into(), ..Ack::default() };
    let refused = ack(a.address, known.token(), vec![late.clone()]).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(ack(a.address, next.token(), vec![late]).await.unwrap(), [AckOutcome::Stale]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_falls_silent_costs_its_pod_the_registration() {
    let site = Site::start().await;
    let a = Sidecar::start(&site, "a").await;
    let service = Pod::start(a.address, hello(&site.name, "a")).await;
    service.owns(4).await;
    service.fall_silent();
    site.until("the pod is gone", |view| view.pods.is_empty()).await;
    let known = service.until("the stream has ended", |known| known.ended.is_some()).await;
    assert_eq!(known.ended, Some(Code::NotFound));
    assert!(a.stream.not_ready().is_some() && a.handle.status().borrow().owned.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_leaves_hands_over_and_its_pod_is_gone_at_once() {
    let site = Site::start().await;
    let a = Sidecar::start(&site, "a").await;
    let service = Pod::start(a.address, hello(&site.name, "a")).await;
    service.owns(4).await;
    let b = Pod::start(site.address(0), hello(&site.name, "b")).await;
    b.owns(2).await;
    let request = LeaveRequest { resume: service.known().token(), now: false };
    let left = connect(a.address).await.leave(request).await.unwrap().into_inner();
    assert!(left.empty && left.left.is_empty());
    assert_eq!(b.owns(4).await.counts()["sync"], 4);
    site.until("the pod is gone", |view| view.pods.keys().eq(["b"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fails_for_good_in_the_service_leads_to_another_plan() {
    let site = Site::start().await;
    let a = Sidecar::start(&site, "a").await;
    // Runs no task.
    let (beats, mut events) = register(a.address, hello(&site.name, "a")).await.unwrap();
    let _beating = AbortOnDropHandle::new(tokio::spawn(beat(beats)));
    let first = events.message().await.unwrap().unwrap();
    let token = first.welcome.unwrap().resume;
    let mut tasks = first.tasks;
    while tasks.is_empty() {
        tasks = events.message().await.unwrap().unwrap().tasks;
    }
    let failure = Ack {
        id: tasks[0].id,
        kind: AckKind::Ready.into(),
        failure: "no disk".to_owned(),
        permanent: true,
        ..Ack::default()
    };
    assert_eq!(ack(a.address, token, vec![failure.clone(), failure]).await.unwrap(), [AckOutcome::Accepted; 2]);
    let failed = tasks[0].id.unwrap();
    // Handoffs that were planned together have one number.
    site.until("the handoff is cancelled", |view| {
        let now = view.handoffs.get(&PartitionId::new(failed.partition));
        now.is_none_or(|record| record.id().get() != failed.handoff)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_the_wrong_service_is_refused() {
    let site = Site::start().await;
    let a = Sidecar::start(&site, "a").await;
    let own = hello(&site.name, "a");
    for (wrong, text) in [
        (Hello { pod: "b".to_owned(), ..own.clone() }, "is of pod \"a\""),
        (Hello { keyspace: "other".to_owned(), ..own.clone() }, "keyspace"),
        (Hello { capabilities: vec!["sync".to_owned()], ..own.clone() }, "`fence`"),
        (Hello { protocol_min: 2, protocol_max: 3, ..own.clone() }, "version 1"),
    ] {
        let refused = register(a.address, wrong).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(text), "{refused:?}");
    }
    let _service = Pod::start(a.address, own.clone()).await;
    assert_eq!(register(a.address, own).await.unwrap_err().code(), Code::AlreadyExists);
    let polled = connect(a.address).await.poll(PollRequest::default()).await.unwrap_err();
    assert_eq!(polled.code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_for_one_keyspace_take_no_place_from_those_of_another() {
    let (one, two) = (Site::start().await, Site::start().await);
    let a = Sidecar::start_in(&[&one, &two], "a").await;
    let client = connect(a.address).await;
    // As many as one keyspace may have open, and none of them ends soon: their first heartbeats do not come.
    let mut waiting: Vec<_> = (0..16)
        .map(|_| {
            let mut client = client.clone();
            Box::pin(async move { client.register(tokio_stream::pending::<Heartbeat>()).await.map(drop) })
        })
        .collect();
    for call in &mut waiting {
        assert!(futures_util::poll!(call).is_pending());
    }
    let request = AckRequest { resume: b"unknown".to_vec(), acks: Vec::new() };
    let mut last = client.clone();
    assert_eq!(last.ack(request).await.unwrap_err().code(), Code::NotFound);
    for call in &mut waiting {
        assert!(futures_util::poll!(call).is_pending(), "the call had to wait for the end of another one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_two_keyspaces_opens_a_stream_for_each_and_may_leave_one() {
    let (one, two) = (Site::start().await, Site::start().await);
    let sidecar = Sidecar::start_in(&[&one, &two], "w").await;
    let hello = |keyspace: &str| Hello { address: String::new(), ..hello(keyspace, "w") };
    assert_eq!(register(sidecar.address, hello("")).await.unwrap_err().code(), Code::InvalidArgument);
    let refused = register(sidecar.address, hello("other")).await.unwrap_err();
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains(&two.name), "{refused}");
    let (first, second) =
        (Pod::start(sidecar.address, hello(&one.name)).await, Pod::start(sidecar.address, hello(&two.name)).await);
    let (known, other) = (first.owns(4).await, second.owns(4).await);
    drop(first);
    let request = LeaveRequest { resume: known.token(), now: true };
    connect(sidecar.address).await.leave(request).await.unwrap();
    one.until("the pod is gone", |view| view.pods.is_empty()).await;
    assert_eq!(incarnation(&two.view().await, "w"), other.incarnation());
    let late = Ack { id: Some(TaskId { partition: 0, handoff: 1 }), kind: AckKind::Ready.into(), ..Ack::default() };
    assert_eq!(ack(sidecar.address, known.token(), vec![late.clone()]).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(ack(sidecar.address, other.token(), vec![late]).await.unwrap(), [AckOutcome::Stale]);
}
