//! Partitions are placed and move.

use std::collections::BTreeMap;
use std::time::Duration;

use segue_grpc::StreamStatus;
use segue_grpc::proto::task::Kind;
use segue_grpc::proto::{Ack, AckKind, AckOutcome, Heartbeat, LeaveRequest, Load, Progress, TaskId};

use tokio::time::timeout;

use super::client::{Pod, ack, connect, hello, name, other_side, register};
use super::site::{Site, WARM_TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_placed_and_move_between_two_pods_through_every_task() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let first = a.known().first.unwrap();
    let assignment = first.assignment.unwrap();
    assert!(assignment.full && assignment.owned.is_empty(), "an empty assignment is told too");
    assert_eq!((first.seq, first.confirmed), (1, 1));
    let known = a.owns(4).await;
    assert_eq!(known.counts(), BTreeMap::from([("warm", 4)]), "a first placement has no tail");

    let b = Pod::start(site.address(1), hello(&site.name, "b")).await;
    let known = b.owns(2).await;
    assert_eq!(known.counts(), BTreeMap::from([("warm", 2), ("sync", 2)]));
    for task in &known.tasks {
        assert!(!task.why.is_empty() && task.within.is_some(), "{task:?}");
        assert_eq!(other_side(task), ("a", "127.0.0.1:1"), "{task:?}");
    }
    let known = a.until("two are released", |known| known.counts().get("release") == Some(&2)).await;
    assert_eq!(known.counts(), BTreeMap::from([("warm", 4), ("drain", 2), ("release", 2)]));
    for task in &known.tasks {
        let other = if name(task) == "warm" { ("", "") } else { ("b", "127.0.0.1:1") };
        assert_eq!(other_side(task), other, "{task:?}");
    }
    assert_eq!((known.owned.len(), known.held.len()), (2, 2));
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    let owners = site.owners().await;
    for (pod, owned) in [("a", a.known().owned), ("b", b.known().owned)] {
        let in_store = owners.iter().filter(|(_, (owner, _))| owner == pod);
        assert_eq!(owned, in_store.map(|(partition, (_, epoch))| (*partition, *epoch)).collect());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_told_the_timeouts_of_the_keyspace_not_those_of_the_file_of_its_instance() {
    let site = Site::start().await;
    let pod = Pod::start(site.address(0), hello(&site.name, "a")).await;
    for task in &pod.owns(4).await.tasks {
        assert_eq!(task.within, WARM_TIMEOUT.try_into().ok(), "{task:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_leaves_hands_over_and_is_gone_without_waiting_for_its_lease() {
    let site = Site::start().await;
    let slow = |pod| {
        let ttl = Some(prost_types::Duration { seconds: 120, nanos: 0 });
        segue_grpc::proto::Hello { lease_ttl: ttl, ..hello(&site.name, pod) }
    };
    let a = Pod::start(site.address(0), slow("a")).await;
    a.owns(4).await;
    let b = Pod::start(site.address(0), slow("b")).await;
    b.owns(2).await;
    // By another instance than that of the stream.
    let request = LeaveRequest { resume: a.known().token(), now: false };
    let left = connect(site.address(1)).await.leave(request).await.unwrap().into_inner();
    assert!(left.empty && left.left.is_empty());
    assert!(!site.view().await.pods.contains_key("a"));
    assert_eq!(b.owns(4).await.counts().get("sync"), Some(&4));
    assert_eq!(a.until("its stream ends", |known| known.ended.is_some()).await.owned, BTreeMap::new());

    let request = LeaveRequest { resume: b.known().token(), now: true };
    let left = connect(site.address(1)).await.leave(request).await.unwrap().into_inner();
    assert_eq!((left.empty, left.left.len()), (false, 4));
    assert!(site.view().await.pods.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn due_tasks_are_told_again_after_a_reconnect_and_any_instance_takes_the_acks() {
    let site = Site::start().await;
    let hello = hello(&site.name, "a");
    let (_beats, mut events) = register(site.address(0), hello.clone()).await.unwrap();
    let (mut tasks, mut token) = (Vec::new(), Vec::new());
    while tasks.len() < 4 {
        let event = events.message().await.unwrap().unwrap();
        token = event.welcome.map_or(token, |welcome| welcome.resume);
        tasks.extend(event.tasks);
    }
    drop(events);
    let resumed = segue_grpc::proto::Hello { resume: token.clone(), ..hello };
    let (_beats, mut events) = register(site.address(1), resumed).await.unwrap();
    let first = events.message().await.unwrap().unwrap();
    assert!(first.welcome.unwrap().resumed);
    let by_id = |tasks: &[segue_grpc::proto::Task]| {
        let mut ids: Vec<_> = tasks.iter().map(|task| (task.id.unwrap().partition, task.id.unwrap().handoff)).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(by_id(&first.tasks), by_id(&tasks), "all of them, in the first event");

    let acks: Vec<Ack> =
        tasks.iter().map(|task| Ack { id: task.id, kind: AckKind::Ready.into(), ..Ack::default() }).collect();
    // The stream is at the other instance.
    for _ in 0..2 {
        let outcomes = ack(site.address(0), token.clone(), acks.clone()).await.unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome != AckOutcome::Again), "{outcomes:?}");
    }
    let mut owned = 0;
    while owned < 4 {
        let event = events.message().await.unwrap().unwrap();
        assert!(event.tasks.is_empty(), "{:?}", event.tasks.iter().map(name).collect::<Vec<_>>());
        owned += event.assignment.map_or(0, |assignment| assignment.owned.len());
    }
    let outcomes = ack(site.address(1), token, acks).await.unwrap();
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, AckOutcome::Accepted | AckOutcome::Stale)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fails_for_good_leads_to_another_plan_at_once() {
    let site = Site::start().await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    a.owns(4).await;
    let (beats, mut events) = register(site.address(0), hello(&site.name, "b")).await.unwrap();
    let (mut failed, mut token, mut released) = (None, Vec::new(), false);
    while !released {
        let event = timeout(Duration::from_secs(60), events.message()).await;
        let event = event.expect("another plan").unwrap().unwrap();
        beats.send(Heartbeat { seq: event.seq + 1, seen: event.seq, ..Heartbeat::default() }).await.unwrap();
        token = event.welcome.map_or(token, |welcome| welcome.resume);
        for task in event.tasks {
            let id = task.id.unwrap();
            if name(&task) == "warm" && failed.is_none() {
                failed = task.id;
                let no = Ack { id: task.id, kind: AckKind::Ready.into(), ..Ack::default() };
                let retried = Ack { failure: "busy".to_owned(), ..no.clone() };
                let outcomes = ack(site.address(1), token.clone(), vec![retried]).await.unwrap();
                assert_eq!(outcomes, [AckOutcome::Accepted]);
                assert!(site.view().await.handoffs.values().any(|it| it.id().get() == id.handoff), "it stays due");
                let for_good = Ack { failure: "no\ndisk".to_owned(), permanent: true, ..no };
                let outcomes = ack(site.address(1), token.clone(), vec![for_good]).await.unwrap();
                assert_eq!(outcomes, [AckOutcome::Accepted]);
            } else if Some(id) == failed {
                let Some(Kind::Release(release)) = task.kind else { panic!("{task:?}") };
                released = release.cancelled;
            }
        }
    }
    let partition = failed.unwrap().partition;
    assert_eq!(site.owners().await[&partition].0, "a");
    let view = site.view().await;
    assert!(view.handoffs.iter().all(|(at, it)| at.get() != partition || it.value.new_owner != "b"), "{view:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_progress_and_the_load_that_a_pod_reports() {
    let site = Site::start().await;
    let (beats, mut events) = register(site.address(0), hello(&site.name, "a")).await.unwrap();
    let mut tasks = Vec::new();
    let mut seen = 0;
    while tasks.is_empty() {
        let event = events.message().await.unwrap().unwrap();
        (tasks, seen) = (event.tasks, event.seq);
    }
    let id = tasks[0].id.unwrap();
    let unknown = Some(TaskId { partition: 1000, handoff: 1 });
    let progress = |id, fraction| Progress { id, fraction, detail: "3 of 4\nfiles".to_owned() };
    let heartbeat = Heartbeat {
        seq: 2,
        seen,
        progress: vec![progress(Some(id), 0.75), progress(unknown, 0.5), progress(None, 0.5)],
        load: Some(Load { total: 7.5, by_partition: [(id.partition, 7.0)].into(), ..Load::default() }),
        ..Heartbeat::default()
    };
    beats.send(heartbeat).await.unwrap();
    let mut streams = Vec::new();
    while streams.first().is_none_or(|stream: &StreamStatus| stream.load.is_none()) {
        events.message().await.unwrap().unwrap();
        streams = site.instances[0].status.streams();
    }
    let stream = &streams[0];
    assert_eq!((streams.len(), &*stream.pod, stream.load.as_ref().unwrap().total), (1, "a", 7.5));
    let with_progress: Vec<_> = stream.tasks.iter().filter(|task| task.progress.is_some()).collect();
    assert_eq!(with_progress.len(), 1);
    let reported = with_progress[0].progress.as_ref().unwrap();
    assert_eq!((with_progress[0].partition.get(), with_progress[0].task), (id.partition, "warm"));
    assert_eq!((reported.fraction, &*reported.detail), (0.75, "3 of 4 files"));

    let heartbeat =
        Heartbeat { seq: 3, load: Some(Load { total: f64::NAN, ..Load::default() }), ..Heartbeat::default() };
    beats.send(heartbeat).await.unwrap();
    let ended = loop {
        match events.message().await {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    assert_eq!(ended.unwrap_err().code(), tonic::Code::InvalidArgument);
}
