//! Checkpoints of pods that take part by gRPC.

use std::time::Duration;

use segue_grpc::StreamStatus;
use segue_grpc::proto::task::Kind;
use segue_grpc::proto::{Ack, AckKind, AckOutcome, Event, Heartbeat, Hello, Load, Progress, Task, TaskId};
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::Policy;
use tokio::time::{Instant, timeout};

use super::client::{Known, Pod, ack, hello, register_with};
use super::polling::Polling;
use super::site::Site;

const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) async fn site(interval: Duration) -> Site {
    site_that_waits(interval, TIMEOUT).await
}

/// Returns a site whose new owners wait so long for a checkpoint.
pub(crate) async fn site_that_waits(checkpoint_interval: Duration, checkpoint_timeout: Duration) -> Site {
    Site::start_with(Policy { checkpoint_interval, checkpoint_timeout, ..Policy::default() }).await
}

pub(crate) fn able(site: &Site, pod: &str) -> Hello {
    let mut hello = hello(&site.name, pod);
    hello.capabilities.push("checkpoint".to_owned());
    hello
}

/// Returns what each `Warm` of a pod said about checkpoints, by partition.
pub(crate) fn warmed_from(known: &Known) -> Vec<(u32, String)> {
    let mut from = Vec::new();
    for task in &known.tasks {
        if let Some(Kind::Warm(warm)) = &task.kind {
            from.push((task.id.unwrap().partition, String::from_utf8(warm.checkpoint.clone()).unwrap()));
        }
    }
    from.sort();
    from
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_are_asked_every_interval_and_a_new_owner_warms_from_what_the_old_one_made_for_it() {
    let site = site(Duration::from_millis(400)).await;
    let a = Pod::start(site.address(0), able(&site, "a")).await;
    a.owns(4).await;
    let asked = |count| move |known: &Known| known.counts().get("checkpoint").is_some_and(|asked| *asked >= count);
    a.until("each partition is asked several times", asked(12)).await;
    site.until("all are recorded", |view| view.checkpoints.len() == 4).await;

    let epochs = a.known().owned;
    let b = Pod::start(site.address(1), able(&site, "b")).await;
    for (partition, from) in warmed_from(&b.owns(2).await) {
        assert_eq!(from, format!("{partition}@{}", epochs[&partition]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_move_one_checkpoint_per_partition_is_asked_for_and_a_stuck_owner_delays_it_by_the_timeout() {
    let site = site(Duration::from_secs(3600)).await;
    let stuck = Known { makes_no_checkpoint: true, ..Known::default() };
    let a = Pod::resume(site.address(0), able(&site, "a"), stuck).await;
    a.owns(4).await;
    assert_eq!(a.known().counts().get("checkpoint"), None, "an hour has not passed");
    let begun = Instant::now();
    let b = Pod::start(site.address(1), able(&site, "b")).await;
    let known = b.owns(2).await;
    assert!(begun.elapsed() >= TIMEOUT, "{:?}", begun.elapsed());
    assert_eq!(warmed_from(&known).iter().filter(|(_, from)| from.is_empty()).count(), 2);
    assert_eq!(a.known().counts().get("checkpoint"), Some(&2));

    // The other way round there is nothing to wait for.
    drop(a);
    b.owns(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_polls_warms_from_what_the_old_owner_made_for_it() {
    // Longer than a busy machine takes.
    let site = site_that_waits(Duration::from_secs(3600), Duration::from_secs(60)).await;
    let a = Pod::start(site.address(0), able(&site, "a")).await;
    let epochs = a.owns(4).await.owned;
    let mut b = Polling::new([site.address(0), site.address(1)], able(&site, "b"));
    b.owns(2).await;
    for (partition, from) in warmed_from(&b.known) {
        assert_eq!(from, format!("{partition}@{}", epochs[&partition]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_ends_when_a_stuck_owner_need_not_be_waited_for_any_more() {
    let site = site(Duration::from_secs(3600)).await;
    let stuck = Known { makes_no_checkpoint: true, ..Known::default() };
    let a = Pod::resume(site.address(0), able(&site, "a"), stuck).await;
    a.owns(4).await;
    let lease_ttl = Duration::from_secs(3600).try_into().ok();
    let mut b = Polling::new([site.address(1)], Hello { lease_ttl, ..able(&site, "b") });
    let begun = Instant::now();
    let told = timeout(Duration::from_secs(60), async {
        while b.known.tasks.is_empty() {
            // A sixth of the lease's TTL: nothing else would end it in time.
            b.poll(Duration::from_secs(600)).await.unwrap();
        }
    });
    told.await.expect("the wait is over");
    assert!(begun.elapsed() >= TIMEOUT, "{:?}", begun.elapsed());
    assert!(warmed_from(&b.known).iter().all(|(_, from)| from.is_empty()), "there is none");
}

/// Returns the tasks that are `Warm`s, in the order of their partitions.
fn warms(tasks: &[Task]) -> Vec<TaskId> {
    let warms = tasks.iter().filter(|task| matches!(task.kind, Some(Kind::Warm(_))));
    let mut warms: Vec<_> = warms.filter_map(|task| task.id).collect();
    warms.sort_by_key(|id| id.partition);
    warms
}

/// Returns the `Warm`s that an instance shows of the pod `b`, with the progress of each.
fn shown(streams: &[StreamStatus]) -> Vec<(u32, Option<f32>)> {
    let tasks = streams.iter().filter(|stream| stream.pod == "b").flat_map(|stream| &stream.tasks);
    tasks.map(|task| (task.partition.get(), task.progress.as_ref().map(|it| it.fraction))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_that_one_instance_told_stays_due_at_the_others_if_the_pod_reports_its_progress() {
    let mut site = site(Duration::from_secs(3600)).await;
    let third = site.instance(None).await;
    let stuck = Known { makes_no_checkpoint: true, ..Known::default() };
    let a = Pod::resume(site.address(0), able(&site, "a"), stuck).await;
    a.owns(4).await;
    let lease_ttl = Duration::from_secs(3600).try_into().ok();
    let mut b = Polling::new([site.address(0)], Hello { lease_ttl, ..able(&site, "b") });
    let told = timeout(Duration::from_secs(60), async {
        loop {
            let Event { tasks, .. } = b.poll(Duration::from_secs(600)).await.unwrap();
            if warms(&tasks).len() == 2 {
                return warms(&tasks);
            }
        }
    });
    let told = told.await.expect("the first instance has waited for the owner");

    let progress = |id: &TaskId| Progress { id: Some(*id), fraction: 0.5, ..Progress::default() };
    b.progress = told.iter().map(progress).collect();
    b.move_to([site.address(1)]);
    let event = b.poll(Duration::ZERO).await.unwrap();
    assert_eq!(warms(&event.tasks), told, "a second instance does not wait anew");
    let both = [(told[0].partition, Some(0.5)), (told[1].partition, Some(0.5))];
    assert_eq!(shown(&site.instances[1].status.streams()), both, "a pod that polls is shown as well");
    assert_eq!(b.poll(Duration::ZERO).await.map(|event| warms(&event.tasks)).unwrap(), told, "nor later");

    // Nor does a third one, at which the pod opens a stream. A task that the pod does not report is waited for.
    let load = Some(Load { total: 2.0, ..Load::default() });
    let first = Heartbeat { seq: 1, hello: Some(b.resuming()), progress: vec![progress(&told[1])], load, seen: 0 };
    let (_beats, mut events) = register_with(third, first).await.unwrap();
    let event = events.message().await.unwrap().unwrap();
    assert!(event.welcome.is_some_and(|welcome| welcome.resumed));
    assert_eq!(warms(&event.tasks), told[1..], "{:?}", event.tasks);
    let streams = site.instances[2].status.streams();
    assert_eq!(shown(&streams), both[1..]);
    let load = |stream: &StreamStatus| stream.load.as_ref().map(|load| load.total);
    assert_eq!(streams.iter().map(load).collect::<Vec<_>>(), [Some(2.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_refused_unless_the_pod_owns_its_epoch_and_its_name_is_a_short_text() {
    let site = site(Duration::from_secs(3600)).await;
    let a = Pod::start(site.address(0), able(&site, "a")).await;
    let known = a.owns(4).await;
    let epoch = known.owned[&0];
    let said = |name: &[u8], epoch| Ack {
        id: Some(TaskId { partition: 0, handoff: 0 }),
        kind: AckKind::Checkpointed.into(),
        checkpoint: name.to_vec(),
        epoch,
        ..Ack::default()
    };
    let acks = vec![
        said(b"good", epoch),
        said(b"earlier", epoch - 1),
        said(&[0xff], epoch),
        said(&[b'x'; 1025], epoch),
        said(b"two\nlines", epoch),
    ];
    let outcomes = ack(site.address(1), known.token(), acks).await.unwrap();
    use AckOutcome::{Accepted, Again, Stale};
    assert_eq!(outcomes, [Accepted, Stale, Stale, Stale, Stale]);
    let name = |view: &segue_protocol::view::View| {
        let record = view.checkpoints.get(&PartitionId::new(0))?;
        record.value.checkpoint.as_ref().map(|name| name.as_str().to_owned())
    };
    assert_eq!(name(&site.view().await).as_deref(), Some("good"));
    // A pod with nothing new keeps what is recorded. Where its stream is, nothing is written.
    let recorded = site.view().await.checkpoints.clone();
    assert_eq!(ack(site.address(0), known.token(), vec![said(b"", epoch)]).await.unwrap(), [Accepted]);
    assert_eq!(site.view().await.checkpoints, recorded);
    assert_eq!(ack(site.address(0), known.token(), vec![said(b"", epoch - 1)]).await.unwrap(), [Stale]);
    // Another instance cannot tell the stream, and writes nothing either.
    assert_eq!(ack(site.address(1), known.token(), vec![said(b"", epoch)]).await.unwrap(), [Again]);
    assert_eq!(site.view().await.checkpoints, recorded);
}
