//! Checkpoints: when a pod makes them, where they are recorded, and what a new owner waits for and starts from.

use std::time::Duration;

use segue_coordination::pod::PodSettings;
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use segue_protocol::records::{Capabilities, Checkpoint, Phase, PodAckKind};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::behind::Scripted;
use super::fixture::{Call, Conduct, Fixture, Pod, TTL};

const E1: Epoch = Epoch::new(1);
const E2: Epoch = Epoch::new(2);
const P0: PartitionId = PartitionId::new(0);
const INTERVAL: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(5);

impl Fixture {
    async fn turn_checkpoints_on(&self) {
        let planning = json!({ "checkpoint_interval_ms": 60_000, "checkpoint_timeout_ms": 5_000 });
        let config = json!({ "partitions": 4, "planning": planning });
        self.put(self.keys.config(), config.to_string().into_bytes()).await;
    }

    async fn checkpoint(&self) -> Option<Checkpoint> {
        self.view().await.checkpoints.get(&P0).map(|it| it.value.clone())
    }

    async fn until_recorded(&self, what: &str, is_it: impl Fn(&Checkpoint) -> bool) -> Checkpoint {
        let recorded = |view: &segue_protocol::view::View| {
            view.checkpoints.get(&P0).map(|it| it.value.clone()).filter(|checkpoint| is_it(checkpoint))
        };
        recorded(&self.until(what, |view| recorded(view).is_some()).await).unwrap()
    }
}

async fn able(fixture: &Fixture, name: &str) -> Pod {
    let capabilities = Capabilities { checkpoint: true, ..Capabilities::ALL };
    let settings = PodSettings { lease_ttl: TTL, capabilities, ..PodSettings::new(name, "127.0.0.1:1") };
    Pod::start_with(fixture, settings).await
}

/// Returns a keyspace with checkpoints, whose partition the first pod owns and the second one does not.
async fn old_and_new() -> (Fixture, Pod, Pod) {
    let (fixture, _) = Fixture::new();
    fixture.turn_checkpoints_on().await;
    let (old, new) = (able(&fixture, "old").await, able(&fixture, "new").await);
    fixture.place(P0, &old, 1).await;
    (fixture, old, new)
}

/// Begins a move and waits until the new owner warms. Returns the handoff, what the new owner starts from, and after how
/// many seconds.
async fn warms(fixture: &Fixture, old: &Pod, new: &mut Pod) -> (HandoffId, Option<String>, u64) {
    let began = Instant::now();
    let handoff = fixture.begin(P0, Some(old), new, 2).await;
    let Call::Began("warm", part) = new.call().await else { panic!() };
    (handoff, part.checkpoint, began.elapsed().as_secs())
}

fn name(checkpoint: &Checkpoint) -> Option<&str> {
    checkpoint.checkpoint.as_ref().map(|name| name.as_str())
}

/// Returns the calls that have been made, without their subjects.
fn calls(pod: &mut Pod) -> Vec<(&'static str, &'static str)> {
    let named = |call| match call {
        Call::Began(name, _) => ("began", name),
        Call::Ended(name, _) => ("ended", name),
        Call::Dropped(name, _) => ("dropped", name),
    };
    std::iter::from_fn(|| pod.calls.try_recv().ok()).map(named).collect()
}

#[tokio::test(start_paused = true)]
async fn an_owner_makes_a_checkpoint_every_interval_and_each_replaces_the_one_before() {
    let (fixture, _) = Fixture::new();
    let mut pod = able(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    sleep(INTERVAL * 3).await;
    assert_eq!(fixture.checkpoint().await, None, "they are off by default");

    fixture.turn_checkpoints_on().await;
    let first = fixture.until_recorded("the first", |_| true).await;
    assert_eq!((name(&first), first.epoch, first.handoff), (Some("w/0#1"), E1, HandoffId::NONE));
    let since = Instant::now();
    for next in ["w/0#2", "w/0#3", "w/0#4"] {
        fixture.until_recorded(next, |it| name(it) == Some(next)).await;
    }
    assert!((INTERVAL * 2..INTERVAL * 4).contains(&since.elapsed()), "{:?}", since.elapsed());
    assert_eq!(fixture.view().await.checkpoints.len(), 1);
    let made = calls(&mut pod);
    assert_eq!(made.iter().filter(|call| **call == ("began", "checkpoint")).count(), 4);
    assert_eq!(pod.status_of(P0, 1).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_new_owner_warms_from_a_checkpoint_that_the_old_owner_made_for_it() {
    let (fixture, old, mut new) = old_and_new().await;
    old.service.let_it("checkpoint", Conduct::Last);
    let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
    sleep(TIMEOUT / 2).await;
    assert_eq!(calls(&mut new), [], "it waits");
    assert_eq!(fixture.handoff(P0).await.unwrap().phase, Phase::Warming);
    old.service.let_it("checkpoint", Conduct::Succeed);
    let Call::Began("warm", part) = new.call().await else { panic!() };
    assert_eq!((part.checkpoint.as_deref(), part.handoff), (Some("old/0#1"), handoff));
    assert_eq!(fixture.checkpoint().await.unwrap().handoff, handoff);
    fixture.in_phase(P0, Phase::Ready).await;
    // Nothing is asked of the old owner while requests are held.
    sleep(INTERVAL * 3).await;
    assert_eq!(name(&fixture.checkpoint().await.unwrap()), Some("old/0#1"));
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_hangs_delays_a_move_by_its_timeout_and_no_longer() {
    let (fixture, mut old, mut new) = old_and_new().await;
    fixture.until_recorded("one from before", |it| name(it) == Some("old/0#1")).await;
    old.service.let_it("checkpoint", Conduct::Last);
    let (handoff, start, waited) = warms(&fixture, &old, &mut new).await;
    assert_eq!((start.as_deref(), waited), (Some("old/0#1"), TIMEOUT.as_secs()), "the last one that is known");
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    fixture.until("drained", |view| view.pod_ack(P0, "old", PodAckKind::Drained, handoff).is_some()).await;
    assert!(calls(&mut old).contains(&("dropped", "checkpoint")), "it gives way");
    assert_eq!(fixture.checkpoint().await.unwrap().handoff, HandoffId::NONE, "and was never recorded");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_refuses_requests_says_at_once_that_it_has_no_checkpoint_to_make() {
    let (fixture, _) = Fixture::new();
    fixture.turn_checkpoints_on().await;
    let capabilities = Capabilities { checkpoint: true, fence: false, ..Capabilities::ALL };
    let settings = PodSettings { lease_ttl: TTL, capabilities, ..PodSettings::new("old", "127.0.0.1:1") };
    let service = Scripted::new();
    service.up.send_replace(true);
    let old = Pod::start_behind(&fixture, settings, service.clone()).await;
    let mut new = able(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    let before = fixture.until_recorded("one from before", |it| name(it) == Some("old/0#1")).await;
    service.up.send_replace(false);
    old.until("it refuses", |state| state.owned.is_empty()).await;
    let (handoff, start, waited) = warms(&fixture, &old, &mut new).await;
    assert_eq!((start.as_deref(), waited), (Some("old/0#1"), 0));
    assert_eq!(fixture.checkpoint().await.unwrap(), Checkpoint { handoff, ..before });
}

#[tokio::test(start_paused = true)]
async fn a_new_owner_waits_for_nobody_who_cannot_make_a_checkpoint() {
    let (fixture, _) = Fixture::new();
    fixture.turn_checkpoints_on().await;
    let mut old = Pod::start(&fixture, "old").await;
    let mut new = able(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    let (_, start, waited) = warms(&fixture, &old, &mut new).await;
    assert_eq!((start, waited), (None, 0));
    sleep(INTERVAL * 3).await;
    assert!(calls(&mut old).iter().all(|(_, name)| *name != "checkpoint"), "nor is it asked");
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_outlives_its_pod_and_the_next_owner_starts_from_it_at_once() {
    let (fixture, _) = Fixture::new();
    fixture.turn_checkpoints_on().await;
    let old = able(&fixture, "old").await;
    fixture.place(P0, &old, 1).await;
    fixture.until_recorded("one", |it| name(it) == Some("old/0#1")).await;
    old.handle.crash();
    fixture.until("it is dead", |view| view.pods.is_empty()).await;
    let mut new = able(&fixture, "new").await;
    let (_, start, waited) = warms(&fixture, &old, &mut new).await;
    assert_eq!((start.as_deref(), waited), (Some("old/0#1"), 0));
    // The new owner's own checkpoint replaces it.
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.flip(P0, Phase::Switching).await;
    fixture.delete(P0).await;
    assert_eq!(fixture.until_recorded("the next", |it| name(it) == Some("new/0#1")).await.epoch, E2);
}

#[tokio::test(start_paused = true)]
async fn an_owner_with_nothing_new_keeps_what_is_recorded_and_lets_the_new_owner_begin() {
    let (fixture, old, mut new) = old_and_new().await;
    let before = fixture.until_recorded("one", |it| name(it) == Some("old/0#1")).await;
    old.service.name_checkpoints(None);
    sleep(INTERVAL * 3).await;
    assert_eq!(fixture.checkpoint().await.unwrap(), before, "nothing is written");
    let (handoff, start, waited) = warms(&fixture, &old, &mut new).await;
    assert_eq!((start.as_deref(), waited), (Some("old/0#1"), 0));
    assert_eq!(fixture.checkpoint().await.unwrap(), Checkpoint { handoff, ..before });
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_fails_is_tried_again_and_a_bad_name_is_a_failure() {
    let (fixture, _) = Fixture::new();
    fixture.turn_checkpoints_on().await;
    let mut pod = able(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    pod.service.let_it("checkpoint", Conduct::Fail);
    sleep(INTERVAL * 2).await;
    pod.service.name_checkpoints(Some("two\nlines"));
    pod.service.let_it("checkpoint", Conduct::Succeed);
    sleep(INTERVAL * 2).await;
    assert!(calls(&mut pod).iter().filter(|call| **call == ("began", "checkpoint")).count() > 100);
    assert_eq!(fixture.checkpoint().await, None);
    pod.service.name_checkpoints(Some("good"));
    assert_eq!(name(&fixture.until_recorded("a good one", |_| true).await), Some("good"));
    assert_eq!(pod.status_of(P0, 1).await, 200, "it served all the while");
}
