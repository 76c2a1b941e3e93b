//! The rules that make a handoff safe, one by one: each decision, and the store's refusal of its transaction once the view
//! is outdated. Over the embedded store, without tasks or clocks.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use segue_coordination::store::{MemoryStore, Store};
use segue_protocol::handoff::advance::{
    Ack, PendingOn, acknowledge, advance, advance_past_bound, pending_bound, waiting_for,
};
use segue_protocol::handoff::pod::{Duty, duty, warmed};
use segue_protocol::handoff::router::{
    DrainTimeout, HoldCause, OnDrainTimeout, OnStoreLoss, Route, Stage, Step, Target, Trust, drain_timed_out,
    may_stop_later, next_step, route,
};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::mapping::{Agreement, agree, is_shown};
use segue_protocol::records::{
    Assignment, Capabilities, Handoff, HandoffEnd, HistoryEntry, KeyspaceConfig, Mode, Partitioner, Phase, PodAck,
    PodAckKind, PodRecord, RouterCutoverAck, RouterDrainedAck, RouterPart, RouterRecord, encode,
};
use segue_protocol::txn::{Keys, Op, Txn};
use segue_protocol::view::View;

const I1: Incarnation = Incarnation::registered_at(Revision::new(1));
const E1: Epoch = Epoch::new(1);
const E4: Epoch = Epoch::new(4);
const E5: Epoch = Epoch::new(5);
const P0: PartitionId = PartitionId::new(0);

const NO_SYNC: Capabilities = Capabilities { sync: false, ..Capabilities::ALL };
const NONE: Capabilities = Capabilities { sync: false, drained: false, released: false, fence: false };

/// A keyspace with one partition, whose records the test writes.
struct Fixture {
    store: MemoryStore,
    keys: Keyspace,
    /// The lease of every registration.
    lease: LeaseId,
}

impl Fixture {
    /// Returns a keyspace in which pod `a` owns partition 0 at epoch 4, with pod `b` and these routers registered.
    async fn new(old: Capabilities, new: Capabilities, routers: &[&str]) -> Self {
        let store = MemoryStore::new();
        let lease = store.grant(Duration::from_secs(3600)).await.unwrap();
        let fixture = Fixture { store, keys: Keyspace::new("/segue/", "test"), lease };
        fixture.put(fixture.keys.config(), encode(&KeyspaceConfig::new(1))).await;
        let a = fixture.pod("a", old).await;
        fixture.pod("b", new).await;
        for router in routers {
            fixture.router(router).await;
        }
        let owned = Assignment::new(P0, "a", a, E4);
        fixture.put(fixture.keys.assignment(P0), encode(&owned)).await;
        fixture
    }

    async fn put(&self, key: String, value: Vec<u8>) -> Revision {
        self.commit(Txn { then: vec![Op::Put { key, value, lease: None }], ..Txn::default() }).await.unwrap()
    }

    /// Writes a record under the lease, as its owner does.
    async fn register(&self, key: String, value: Vec<u8>) -> Incarnation {
        let put = Op::Put { key, value, lease: Some(self.lease) };
        let created = self.commit(Txn { then: vec![put], ..Txn::default() }).await.unwrap();
        Incarnation::registered_at(created)
    }

    async fn delete(&self, key: String) {
        self.commit(Txn { then: vec![Op::Delete(Keys::One(key))], ..Txn::default() }).await.unwrap();
    }

    /// Returns the revision of a transaction, or `None` if the store refused it.
    async fn commit(&self, txn: Txn) -> Option<Revision> {
        let outcome = self.store.commit(txn).await.unwrap();
        outcome.committed().then_some(outcome.revision)
    }

    async fn pod(&self, name: &str, capabilities: Capabilities) -> Incarnation {
        self.bounded_pod(name, capabilities, None).await
    }

    async fn bounded_pod(
        &self,
        name: &str,
        capabilities: Capabilities,
        work_ends_within_ms: Option<u64>,
    ) -> Incarnation {
        let record = PodRecord { capabilities, work_ends_within_ms, ..PodRecord::new(name, "127.0.0.1:1") };
        self.register(self.keys.pod(name), encode(&record)).await
    }

    async fn router(&self, name: &str) -> Incarnation {
        let record = RouterRecord::new(name);
        self.register(self.keys.router(name), encode(&record)).await
    }

    async fn view(&self) -> View {
        let snapshot = self.store.snapshot(&Keys::Prefix(self.keys.root().into())).await.unwrap();
        View::from_snapshot(self.keys.clone(), snapshot)
    }

    /// Begins the handoff from `a` to `b` at this phase. Returns its identity.
    async fn handoff(&self, phase: Phase, mode: Mode) -> HandoffId {
        let view = self.view().await;
        let record = Handoff {
            phase,
            mode,
            reason: "test".into(),
            ..Handoff::new(P0, "b", view.incarnation_of("b"), E5).taken_from("a", view.incarnation_of("a"))
        };
        HandoffId::created_at(self.put(self.keys.handoff(P0), encode(&record)).await)
    }

    async fn history(&self) -> Vec<HistoryEntry> {
        let entries = self.store.snapshot(&self.keys.history()).await.unwrap().entries;
        entries.iter().map(|entry| serde_json::from_slice(&entry.value).unwrap()).collect()
    }

    async fn phase(&self) -> Option<Phase> {
        self.view().await.handoffs.get(&P0).map(|handoff| handoff.value.phase)
    }

    /// Has a router or pod acknowledge by its current view. Returns whether the store accepted that.
    async fn ack(&self, ack: &Ack) -> bool {
        let view = self.view().await;
        self.ack_seen(&view, ack).await
    }

    /// The same, by an earlier view.
    async fn ack_seen(&self, view: &View, ack: &Ack) -> bool {
        let (key, incarnation) = match ack {
            Ack::RouterDrained(RouterDrainedAck { router_name, .. })
            | Ack::RouterCutover(RouterCutoverAck { router_name, .. }) => {
                (self.keys.router(router_name), view.routers[router_name].incarnation())
            }
            Ack::Pod(PodAck { pod_name, .. }) => (self.keys.pod(pod_name), view.incarnation_of(pod_name)),
        };
        self.commit(acknowledge(view, ack, key, incarnation, 0)).await.is_some()
    }

    /// Moves the handoff on by this view. Returns whether there was a move to make and the store accepted it.
    async fn advance_seen(&self, view: &View) -> bool {
        match advance(view, P0, 0) {
            Some(step) => self.commit(step.txn).await.is_some(),
            None => false,
        }
    }
}

fn drained(router: &str, handoff: HandoffId) -> Ack {
    let router_name = router.to_owned();
    Ack::RouterDrained(RouterDrainedAck::new(router_name, P0, handoff))
}

fn cut_over(router: &str, handoff: HandoffId) -> Ack {
    Ack::RouterCutover(RouterCutoverAck::new(router, P0, handoff))
}

fn says(pod: &str, ack: PodAckKind, handoff: HandoffId) -> Ack {
    Ack::Pod(PodAck::new(pod, P0, handoff, ack))
}

fn at(pod: &str, incarnation: Incarnation, epoch: u64) -> Target {
    Target { pod: pod.into(), incarnation, epoch: epoch.into() }
}

fn is_held(view: &View) -> bool {
    matches!(route(view, P0, Trust::Held), Route::Hold(HoldCause::Handoff))
}

#[tokio::test]
async fn a_handoff_goes_through_its_phases_and_each_last_ack_carries_the_move() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Warming, Mode::Barrier).await;
    let view = fixture.view().await;
    let (a, b) = (view.incarnation_of("a"), view.incarnation_of("b"));
    assert_eq!(route(&view, P0, Trust::Held), Route::To(at("a", a, 4)), "the old owner serves while the new one warms");
    assert_eq!(duty(&view, "b", b, P0), Duty::Warm { handoff: id, epoch: E5 });
    fixture.commit(warmed(&view, "b", b, id, P0, 0).unwrap()).await.unwrap();

    assert!(is_held(&fixture.view().await));
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready), "s has not drained");
    assert!(fixture.ack(&drained("s", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Syncing));

    let view = fixture.view().await;
    assert!(is_held(&view));
    assert_eq!(duty(&view, "a", a, P0), Duty::Drain { handoff: id, epoch: E4 });
    assert_eq!(duty(&view, "b", b, P0), Duty::Stand { handoff: id, epoch: E5 }, "the log is not at rest yet");
    assert!(fixture.ack(&says("a", PodAckKind::Drained, id)).await);
    assert_eq!(duty(&fixture.view().await, "b", b, P0), Duty::Sync { handoff: id, epoch: E5 });
    assert!(fixture.ack(&says("b", PodAckKind::Synced, id)).await);

    let view = fixture.view().await;
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
    assert_eq!(route(&view, P0, Trust::Held), Route::To(at("b", b, 5)));
    assert_eq!(duty(&view, "b", b, P0), Duty::Serve { epoch: E5 });
    assert!(fixture.ack(&cut_over("r", id)).await);
    assert!(fixture.ack(&cut_over("s", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Complete));

    assert_eq!(duty(&fixture.view().await, "a", a, P0), Duty::Release { handoff: id });
    assert!(fixture.ack(&says("a", PodAckKind::Released, id)).await);
    let view = fixture.view().await;
    assert!(view.handoffs.is_empty() && view.acks.is_empty(), "the record and all acks go together");
}

#[tokio::test]
async fn a_release_that_its_pod_reports_by_an_outdated_view_is_kept_for_the_coordinator() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    let id = fixture.handoff(Phase::Complete, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.router("late").await;
    assert!(fixture.ack_seen(&before, &says("a", PodAckKind::Released, id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Complete));
    assert_eq!(waiting_for(&fixture.view().await, P0), []);
    assert!(fixture.history().await.is_empty());
    assert!(fixture.advance_seen(&fixture.view().await).await);
    assert_eq!((fixture.phase().await, fixture.history().await.len()), (None, 1));
    assert!(!fixture.ack_seen(&before, &says("a", PodAckKind::Released, id)).await, "the handoff is over");
}

#[tokio::test]
async fn a_handoff_leaves_its_phases_and_what_its_routers_did() {
    let fixture = Fixture::new(NO_SYNC, NO_SYNC, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Warming, Mode::Barrier).await;
    let (b, mut now) = (fixture.view().await.incarnation_of("b"), 100);
    let warm = warmed(&fixture.view().await, "b", b, id, P0, now).unwrap();
    fixture.commit(warm).await.unwrap();
    let severed = |router: &str, severed| {
        Ack::RouterDrained(RouterDrainedAck { severed, ..RouterDrainedAck::new(router, P0, id) })
    };
    let paused = |router: &str, stashed, pause_us| {
        let (drain_us, flush_us) = (pause_us / 2, 7);
        Ack::RouterCutover(RouterCutoverAck {
            stashed,
            pause_us,
            drain_us,
            flush_us,
            ..RouterCutoverAck::new(router, P0, id)
        })
    };
    for ack in [
        severed("r", 0),
        severed("s", 2),
        says("a", PodAckKind::Drained, id),
        paused("r", 3, 900),
        paused("s", 4, 1200),
        says("a", PodAckKind::Released, id),
    ] {
        now += 10;
        let view = fixture.view().await;
        let (key, incarnation) = match &ack {
            Ack::RouterDrained(RouterDrainedAck { router_name, .. })
            | Ack::RouterCutover(RouterCutoverAck { router_name, .. }) => {
                (fixture.keys.router(router_name), view.routers[router_name].incarnation())
            }
            Ack::Pod(PodAck { pod_name, .. }) => (fixture.keys.pod(pod_name), view.incarnation_of(pod_name)),
        };
        fixture.commit(acknowledge(&view, &ack, key, incarnation, now)).await.unwrap();
    }
    let [entry] = &fixture.history().await[..] else { panic!("one handoff has ended") };
    assert_eq!((entry.handoff, entry.partition, entry.epoch), (id, P0, E5));
    assert_eq!((entry.from.as_deref(), entry.to.as_str(), entry.result), (Some("a"), "b", HandoffEnd::Completed));
    assert_eq!((entry.begun_at, entry.ended_at, entry.reason.as_str()), (0, 160, "test"));
    let phases: Vec<_> = entry.phases.iter().map(|past| (past.phase, past.ms)).collect();
    let expected = [
        (Phase::Warming, 100),
        (Phase::Ready, 20),
        (Phase::Syncing, 10),
        (Phase::Switching, 20),
        (Phase::Complete, 10),
    ];
    assert_eq!(phases, expected);
    let part = |router: &str, held, pause_us, severed| RouterPart {
        router: router.into(),
        held,
        pause_us: Some(pause_us),
        drain_us: pause_us / 2,
        flush_us: 7,
        severed,
    };
    assert_eq!(entry.routers, [part("s", 4, 1200, 2), part("r", 3, 900, 0)]);
    assert_eq!((entry.held, entry.severed, entry.more_routers), (7, 2, 0));
}

#[tokio::test]
async fn of_acks_that_cross_the_last_one_carries_the_move() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s", "t"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await);
    assert!(fixture.ack_seen(&before, &drained("s", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready), "t has not drained");
    assert!(fixture.ack_seen(&before, &drained("t", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));

    let before = fixture.view().await;
    for router in ["s", "t"] {
        assert!(fixture.ack_seen(&before, &cut_over(router, id)).await);
        assert_eq!(fixture.phase().await, Some(Phase::Switching), "r has not cut over");
    }
    assert!(fixture.ack_seen(&before, &cut_over("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Complete));
}

#[tokio::test]
async fn a_router_that_gives_up_is_not_taken_for_one_that_has_drained() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    let Ack::RouterDrained(said) = drained("s", id) else { unreachable!() };
    assert!(fixture.ack_seen(&before, &Ack::RouterDrained(RouterDrainedAck { gave_up: true, ..said })).await);
    assert!(fixture.ack_seen(&before, &drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::RouterGaveUp("s".into())]);
}

#[tokio::test]
async fn what_a_router_said_of_an_earlier_handoff_does_not_carry_the_next_one_on() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    for phase in [Phase::Ready, Phase::Switching] {
        let first = fixture.handoff(phase, Mode::Barrier).await;
        let (one, other) = match phase {
            Phase::Ready => (drained("r", first), drained("s", first)),
            _ => (cut_over("r", first), cut_over("s", first)),
        };
        assert!(fixture.ack(&other).await);
        // By hand: the acks stay behind.
        fixture.delete(fixture.keys.handoff(P0)).await;
        let second = fixture.handoff(phase, Mode::Barrier).await;
        let again = match one {
            Ack::RouterDrained(said) => Ack::RouterDrained(RouterDrainedAck { handoff: second, ..said }),
            Ack::RouterCutover(said) => Ack::RouterCutover(RouterCutoverAck { handoff: second, ..said }),
            other => other,
        };
        assert!(fixture.ack(&again).await);
        assert_eq!(fixture.phase().await, Some(phase));
        fixture.delete(fixture.keys.handoff(P0)).await;
    }
}

#[tokio::test]
async fn a_stop_may_wait_only_while_a_living_old_owner_serves_what_this_router_has_to_drain() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let view = fixture.view().await;
    let (a, b) = (view.incarnation_of("a"), view.incarnation_of("b"));
    let open = Stage::Open(at("a", a, 4));
    let since = view.handoffs[&P0].mod_revision;
    assert_eq!(may_stop_later(&view, P0, Trust::Held, &open), Some(since));
    let elsewhere =
        [Stage::Closed, Stage::Flushing(at("a", a, 4)), Stage::Open(at("a", a, 3)), Stage::Open(at("b", b, 5))];
    for stage in elsewhere {
        assert_eq!(may_stop_later(&view, P0, Trust::Held, &stage), None, "{stage:?}");
    }
    for trust in [Trust::RunOut(OnStoreLoss::Serve), Trust::Gone] {
        assert_eq!(may_stop_later(&view, P0, trust, &open), None, "{trust:?}");
    }
    fixture.handoff(Phase::Ready, Mode::Independent).await;
    assert_eq!(may_stop_later(&fixture.view().await, P0, Trust::Held, &open), None);
    for phase in [Phase::Warming, Phase::Syncing, Phase::Switching] {
        fixture.handoff(phase, Mode::Barrier).await;
        assert_eq!(may_stop_later(&fixture.view().await, P0, Trust::Held, &open), None, "{phase:?}");
    }
    fixture.handoff(Phase::Ready, Mode::Barrier).await;
    fixture.delete(fixture.keys.pod("a")).await;
    assert_eq!(may_stop_later(&fixture.view().await, P0, Trust::Held, &open), None, "the owner is dead");
}

#[tokio::test]
async fn syncing_is_skipped_when_neither_pod_has_anything_to_say() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn a_router_that_registers_late_makes_the_move_fail() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.router("late").await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await, "the ack itself stands");
    assert_eq!(fixture.phase().await, Some(Phase::Ready), "but not the move that it would have carried");
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::RouterDrained("late".into())]);
    assert!(is_held(&fixture.view().await), "and the late one never routes to the old owner");
}

#[tokio::test]
async fn a_router_that_dies_drops_out_of_the_quorum() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert!(fixture.ack(&drained("r", id)).await);
    fixture.delete(fixture.keys.router("s")).await;
    assert!(fixture.advance_seen(&fixture.view().await).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn an_ack_for_an_earlier_handoff_is_impossible() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let first = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.delete(fixture.keys.handoff(P0)).await;
    let second = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert_ne!(first, second);
    assert!(!fixture.ack_seen(&before, &drained("r", first)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
}

#[tokio::test]
async fn a_participant_whose_registration_is_gone_cannot_acknowledge() {
    let fixture = Fixture::new(Capabilities::ALL, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Syncing, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.delete(fixture.keys.pod("a")).await;
    fixture.pod("a", Capabilities::ALL).await;
    assert!(!fixture.ack_seen(&before, &says("a", PodAckKind::Drained, id)).await);
}

#[tokio::test]
async fn an_old_owner_that_comes_back_between_the_view_and_the_move_makes_it_fail() {
    let fixture = Fixture::new(Capabilities::ALL, NO_SYNC, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    fixture.delete(fixture.keys.pod("a")).await;
    let without_a = fixture.view().await;
    fixture.pod("a", Capabilities::ALL).await;
    assert!(fixture.ack_seen(&without_a, &drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
}

#[tokio::test]
async fn nothing_flips_to_a_new_owner_that_is_dead() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.delete(fixture.keys.pod("b")).await;
    fixture.ack_seen(&before, &drained("r", id)).await;
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::NewOwner("b".into())]);
}

#[tokio::test]
async fn a_move_is_made_once_however_many_try() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    assert!(fixture.ack(&drained("r", id)).await);
    let moved = fixture.view().await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await, "a repeated ack is harmless");
    assert_eq!(fixture.view().await.handoffs[&P0].mod_revision, moved.handoffs[&P0].mod_revision);
}

#[tokio::test]
async fn a_router_that_gave_up_is_no_router_that_has_drained() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let Ack::RouterDrained(mut ack) = drained("r", id) else { unreachable!() };
    ack.gave_up = true;
    assert!(fixture.ack(&Ack::RouterDrained(ack)).await);
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::RouterGaveUp("r".into())]);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    assert!(fixture.ack(&drained("r", id)).await, "unless the drain ends after all");
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn the_very_first_placement_needs_no_acks_and_routers_hold_meanwhile() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    fixture.delete(fixture.keys.assignment(P0)).await;
    let b = fixture.view().await.incarnation_of("b");
    let record = Handoff { phase: Phase::Ready, reason: "first placement".into(), ..Handoff::new(P0, "b", b, E1) };
    fixture.put(fixture.keys.handoff(P0), encode(&record)).await;
    let view = fixture.view().await;
    assert!(is_held(&view));
    assert_eq!(next_step(&view, "r", P0, Trust::Held, &Stage::Closed, false), None);
    assert!(fixture.advance_seen(&view).await);
    assert_eq!(route(&fixture.view().await, P0, Trust::Held), Route::To(at("b", b, 1)));
}

#[tokio::test]
async fn independent_mode_lets_a_router_switch_by_itself_and_flips_with_its_ack() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Independent).await;
    let view = fixture.view().await;
    let b = view.incarnation_of("b");
    assert_eq!(duty(&view, "b", b, P0), Duty::Serve { epoch: E5 });
    let to = at("b", b, 5);
    assert_eq!(next_step(&view, "r", P0, Trust::Held, &Stage::Closed, false), Some(Step::Switch(to.clone())));
    assert_eq!(next_step(&view, "r", P0, Trust::Held, &Stage::Open(to), false), Some(Step::AckCutover(id)));
    assert!(fixture.ack(&cut_over("r", id)).await);
    let view = fixture.view().await;
    assert_eq!((fixture.phase().await, view.assignments[&P0].value.epoch), (Some(Phase::Complete), E5));
}

#[tokio::test]
async fn a_router_stops_drains_acknowledges_and_reopens_when_the_handoff_is_cancelled() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let old = at("a", fixture.view().await.incarnation_of("a"), 4);
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let view = fixture.view().await;
    let step = |view: &View, stage: &Stage| next_step(view, "r", P0, Trust::Held, stage, false);
    assert_eq!(step(&view, &Stage::Open(old.clone())), Some(Step::Stop));
    assert_eq!(step(&view, &Stage::Draining(old.clone())), None, "not before the last exchange has ended");
    assert_eq!(step(&view, &Stage::Closed), Some(Step::AckDrained(id)));
    fixture.delete(fixture.keys.handoff(P0)).await;
    let view = fixture.view().await;
    assert_eq!(step(&view, &Stage::Draining(old.clone())), Some(Step::Switch(old.clone())), "a stuck drain is no bar");
    assert_eq!(step(&view, &Stage::Closed), Some(Step::Switch(old)));
}

#[tokio::test]
async fn a_change_of_owner_learnt_from_a_snapshot_is_a_cutover_too() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let view = fixture.view().await;
    let earlier = at("z", I1, 3);
    let step = |stage: &Stage| next_step(&view, "r", P0, Trust::Held, stage, false);
    assert_eq!(step(&Stage::Open(earlier.clone())), Some(Step::Stop));
    assert_eq!(step(&Stage::Draining(earlier.clone())), None);
    assert_eq!(step(&Stage::Flushing(earlier)), Some(Step::Stop));
}

#[tokio::test]
async fn a_refusing_pod_is_left_alone_until_the_back_off_is_over() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let view = fixture.view().await;
    let to = at("a", view.incarnation_of("a"), 4);
    assert_eq!(next_step(&view, "r", P0, Trust::Held, &Stage::Closed, true), None);
    assert_eq!(next_step(&view, "r", P0, Trust::Held, &Stage::Closed, false), Some(Step::Switch(to)));
}

#[tokio::test]
async fn past_the_lease_clock_only_pods_that_fence_and_drain_are_served() {
    for (capabilities, policy, serves) in [
        (Capabilities::ALL, OnStoreLoss::Auto, true),
        (Capabilities { fence: true, ..NONE }, OnStoreLoss::Auto, false),
        (Capabilities { drained: true, ..NONE }, OnStoreLoss::Auto, false),
        (Capabilities::ALL, OnStoreLoss::Fence, false),
        (NONE, OnStoreLoss::Serve, true),
    ] {
        let fixture = Fixture::new(capabilities, NONE, &["r"]).await;
        let route = route(&fixture.view().await, P0, Trust::RunOut(policy));
        assert_eq!(matches!(route, Route::To(_)), serves, "{capabilities:?} {policy:?}");
    }
    let fixture = Fixture::new(Capabilities::ALL, NONE, &["r"]).await;
    let gone = route(&fixture.view().await, P0, Trust::Gone);
    assert_eq!(gone, Route::Hold(HoldCause::Fenced), "a registration that is seen gone fences at once");
}

#[tokio::test]
async fn a_partition_is_held_from_the_moment_its_pod_is_gone() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let old = at("a", fixture.view().await.incarnation_of("a"), 4);
    fixture.delete(fixture.keys.pod("a")).await;
    fixture.pod("a", NONE).await;
    let view = fixture.view().await;
    assert_eq!(route(&view, P0, Trust::Held), Route::Hold(HoldCause::NoOwner), "its namesake owns nothing");
    assert_eq!(next_step(&view, "r", P0, Trust::Held, &Stage::Open(old), false), Some(Step::Stop));
    assert_eq!(duty(&view, "a", view.incarnation_of("a"), P0), Duty::Idle);
}

#[tokio::test]
async fn severing_is_left_to_where_it_is_safe() {
    let auto = OnDrainTimeout::Auto;
    for (capabilities, expected) in [(Capabilities::ALL, DrainTimeout::Sever), (NONE, DrainTimeout::GiveUp)] {
        let fixture = Fixture::new(capabilities, NONE, &["r"]).await;
        fixture.handoff(Phase::Ready, Mode::Barrier).await;
        assert_eq!(drain_timed_out(&fixture.view().await, P0, auto, false), expected);
        fixture.delete(fixture.keys.pod("a")).await;
        let view = fixture.view().await;
        assert_eq!(drain_timed_out(&view, P0, auto, true), DrainTimeout::Sever, "it had fenced itself");
        assert_eq!(drain_timed_out(&view, P0, auto, false), DrainTimeout::Wait);
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_stops_everything_about_its_partition() {
    let fixture = Fixture::new(Capabilities::ALL, NONE, &["r"]).await;
    fixture.put(fixture.keys.handoff(P0), b"{".to_vec()).await;
    let view = fixture.view().await;
    assert_eq!(route(&view, P0, Trust::Held), Route::Hold(HoldCause::NoOwner));
    assert_eq!(duty(&view, "a", view.incarnation_of("a"), P0), Duty::Idle);
    assert!(advance(&view, P0, 0).is_none());
}

#[tokio::test]
async fn no_phase_moves_on_while_a_party_cannot_be_read_or_lacks_its_lease() {
    for (party, by_hand) in [("a", "{"), ("b", "{"), ("a", ""), ("b", "")] {
        let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
        let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
        let key = fixture.keys.pod(party);
        let own = fixture.store.snapshot(&Keys::One(key.clone())).await.unwrap().entries.remove(0).value;
        let value = if by_hand.is_empty() { own.clone() } else { by_hand.into() };
        fixture.put(key.clone(), value).await;
        assert!(fixture.ack(&drained("r", id)).await, "the ack itself stands");
        let view = fixture.view().await;
        assert!(advance(&view, P0, 0).is_none());
        assert_eq!(
            (fixture.phase().await, waiting_for(&view, P0)),
            (Some(Phase::Ready), vec![PendingOn::Repair(key.clone())])
        );
        fixture.register(key, own).await;
        assert!(fixture.advance_seen(&fixture.view().await).await);
        assert_eq!(fixture.phase().await, Some(Phase::Syncing), "its old owner is asked");
    }
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    let id = fixture.handoff(Phase::Warming, Mode::Barrier).await;
    let own = fixture.store.snapshot(&Keys::One(fixture.keys.pod("a"))).await.unwrap().entries.remove(0).value;
    fixture.put(fixture.keys.pod("a"), own).await;
    let view = fixture.view().await;
    let (a, b) = (view.incarnation_of("a"), view.incarnation_of("b"));
    assert_eq!(warmed(&view, "b", b, id, P0, 0), None);
    assert_eq!(route(&view, P0, Trust::Held), Route::To(at("a", a, 4)), "routing goes on without the lease");
    fixture.put(fixture.keys.assignment(P0), b"{".to_vec()).await;
    assert_eq!(warmed(&fixture.view().await, "b", b, id, P0, 0), None);
}

#[tokio::test]
async fn an_old_owner_that_becomes_unreadable_between_the_view_and_the_move_makes_it_fail() {
    let fixture = Fixture::new(Capabilities::ALL, NO_SYNC, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.put(fixture.keys.pod("a"), b"{".to_vec()).await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await, "the ack itself stands");
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    // Another life's registration is no word of this one.
    fixture.delete(fixture.keys.pod("a")).await;
    fixture.put(fixture.keys.pod("a"), b"{".to_vec()).await;
    assert!(fixture.advance_seen(&fixture.view().await).await);
}

#[tokio::test]
async fn an_ack_that_cannot_be_read_was_not_given_and_is_written_again() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    fixture.put(fixture.keys.router_drained(P0, "r"), b"{".to_vec()).await;
    let view = fixture.view().await;
    assert_eq!(waiting_for(&view, P0), [PendingOn::RouterDrained("r".into())]);
    assert_eq!(next_step(&view, "r", P0, Trust::Held, &Stage::Closed, false), Some(Step::AckDrained(id)));
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn a_first_placement_flips_over_nothing() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let owned = fixture.view().await.assignments[&P0].value.clone();
    fixture.delete(fixture.keys.assignment(P0)).await;
    let b = fixture.view().await.incarnation_of("b");
    fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let record = fixture.view().await.handoffs[&P0].value.clone();
    let first = Handoff { old_owner: None, old_incarnation: Incarnation::NONE, new_incarnation: b, ..record };
    fixture.put(fixture.keys.handoff(P0), encode(&first)).await;
    fixture.put(fixture.keys.assignment(P0), encode(&owned)).await;
    assert!(!fixture.advance_seen(&fixture.view().await).await, "an operator has assigned it meanwhile");
    fixture.delete(fixture.keys.assignment(P0)).await;
    assert!(fixture.advance_seen(&fixture.view().await).await);
}

#[tokio::test]
async fn an_independent_move_gets_ready_only_if_no_router_registered_since_it_was_created() {
    for mode in [Mode::Barrier, Mode::Independent] {
        let fixture = Fixture::new(NONE, NONE, &["r"]).await;
        let id = fixture.handoff(Phase::Warming, mode).await;
        let before = fixture.view().await;
        let b = before.incarnation_of("b");
        fixture.router("late").await;
        for view in [before, fixture.view().await] {
            let committed = fixture.commit(warmed(&view, "b", b, id, P0, 0).unwrap()).await.is_some();
            assert_eq!(committed, mode == Mode::Barrier);
            if committed {
                break;
            }
        }
    }
}

#[tokio::test]
async fn the_flip_copies_the_bound_of_the_new_owner_into_the_assignment() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    fixture.delete(fixture.keys.pod("b")).await;
    fixture.bounded_pod("b", NONE, Some(10_000)).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.view().await.assignments[&P0].value.work_ends_within_ms, Some(10_000));
}

/// Returns a keyspace whose partition 0 belongs to a dead pod with a bound on its work, and whose handoff is in this
/// phase.
async fn bounded(phase: Phase, new: Capabilities) -> (Fixture, HandoffId) {
    let fixture = Fixture::new(Capabilities::ALL, new, &["r"]).await;
    let owned = fixture.view().await.assignments[&P0].value.clone();
    let bounded = Assignment { work_ends_within_ms: Some(10_000), ..owned };
    fixture.put(fixture.keys.assignment(P0), encode(&bounded)).await;
    let id = fixture.handoff(phase, Mode::Barrier).await;
    assert_eq!(pending_bound(&fixture.view().await, P0), None, "it lives");
    fixture.delete(fixture.keys.pod("a")).await;
    assert_eq!(pending_bound(&fixture.view().await, P0), Some(Duration::from_secs(10)));
    (fixture, id)
}

#[tokio::test]
async fn a_dead_owners_bound_is_waited_out_by_somebody_who_has_seen_it_gone_for_that_long() {
    for (new, next) in [(Capabilities::ALL, Phase::Syncing), (NO_SYNC, Phase::Switching)] {
        let (fixture, id) = bounded(Phase::Ready, new).await;
        assert!(advance_past_bound(&fixture.view().await, P0, 0).is_none(), "r has not drained");
        assert!(fixture.ack(&drained("r", id)).await);
        let view = fixture.view().await;
        assert_eq!(fixture.phase().await, Some(Phase::Ready), "the last ack carries no move");
        assert!(advance(&view, P0, 0).is_none());
        assert_eq!(waiting_for(&view, P0), [PendingOn::WorkEnds("a".into())]);
        let step = advance_past_bound(&view, P0, 0).unwrap();
        fixture.commit(step.txn).await.unwrap();
        assert_eq!(fixture.phase().await, Some(next));
    }
    let (fixture, id) = bounded(Phase::Ready, Capabilities::ALL).await;
    fixture.ack(&drained("r", id)).await;
    fixture.commit(advance_past_bound(&fixture.view().await, P0, 0).unwrap().txn).await.unwrap();
    let view = fixture.view().await;
    let b = view.incarnation_of("b");
    assert_eq!(duty(&view, "b", b, P0), Duty::Sync { handoff: id, epoch: E5 });
    assert!(fixture.ack(&says("b", PodAckKind::Synced, id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching), "what was waited out once is waited out");
}

#[tokio::test]
async fn an_owner_that_dies_in_syncing_with_a_bound_lets_the_new_one_begin_only_after_it() {
    let (fixture, id) = bounded(Phase::Syncing, Capabilities::ALL).await;
    let view = fixture.view().await;
    let b = view.incarnation_of("b");
    assert_eq!(duty(&view, "b", b, P0), Duty::Stand { handoff: id, epoch: E5 });
    let marked = advance_past_bound(&view, P0, 0).unwrap();
    assert_eq!((marked.from, marked.to), (Phase::Syncing, Some(Phase::Syncing)));
    fixture.commit(marked.txn).await.unwrap();
    let view = fixture.view().await;
    assert_eq!(duty(&view, "b", b, P0), Duty::Sync { handoff: id, epoch: E5 });
    assert!(advance(&view, P0, 0).is_none() && advance_past_bound(&view, P0, 0).is_none(), "the tail is not read");
    assert!(fixture.ack(&says("b", PodAckKind::Synced, id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn the_word_of_an_owner_that_dies_after_it_is_worth_more_than_its_bound() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    let owned = fixture.view().await.assignments[&P0].value.clone();
    fixture.put(fixture.keys.assignment(P0), encode(&Assignment { work_ends_within_ms: Some(10_000), ..owned })).await;
    let id = fixture.handoff(Phase::Syncing, Mode::Barrier).await;
    assert!(fixture.ack(&says("a", PodAckKind::Drained, id)).await);
    fixture.delete(fixture.keys.pod("a")).await;
    let view = fixture.view().await;
    assert_eq!(pending_bound(&view, P0), None);
    assert_eq!(duty(&view, "b", view.incarnation_of("b"), P0), Duty::Sync { handoff: id, epoch: E5 });
}

#[tokio::test]
async fn a_router_maps_as_the_keyspace_does_or_keeps_its_routes_shut() {
    let own = Partitioner::Key { key: "header:x-key".into(), hash: "murmur2".into() };
    let fixture = Fixture::new(NONE, NONE, &[]).await;
    let Agreement::Write(first) = agree(&fixture.view().await, &Partitioner::NUMBER) else { panic!("nobody has said") };
    let Agreement::Write(second) = agree(&fixture.view().await, &own) else { panic!("nobody has said") };
    fixture.commit(first).await.unwrap();
    assert_eq!(fixture.commit(second).await, None, "the first one has said it");

    fixture.router("r").await;
    let view = fixture.view().await;
    assert!(is_shown(&view, &Partitioner::NUMBER) && !is_shown(&view, &own));
    assert_eq!(agree(&view, &Partitioner::NUMBER), Agreement::Same);
    let Agreement::Replace { standing, txn } = agree(&view, &own) else { panic!("another mapping stands") };
    assert_eq!((standing, fixture.commit(txn.clone()).await), (Partitioner::NUMBER, None), "a router is registered");
    fixture.delete(fixture.keys.router("r")).await;
    fixture.commit(txn).await.unwrap();
    let mut view = fixture.view().await;
    assert!(is_shown(&view, &own) && view.partitions() == 1);

    fixture.put(fixture.keys.config(), b"{".to_vec()).await;
    assert!(matches!(agree(&fixture.view().await, &own), Agreement::Wait(_)), "one that has never read it waits");
    view.resync(fixture.view().await);
    assert_eq!(agree(&view, &own), Agreement::Same, "one that has read it goes on");
}
