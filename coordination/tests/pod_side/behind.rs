//! A pod that vouches for a service in another process: when it registers, what it does while the service is down, and how
//! long a lent lease counts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use segue_coordination::pod::{LentLease, PodHandle, PodSettings, Service};
use segue_protocol::ids::{Incarnation, PartitionId};
use segue_protocol::records::{Capabilities, Phase, PodAckKind, PodRecord, PodStatus, encode};
use segue_protocol::txn::{Keys, Op};
use segue_protocol::view::View;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use super::fixture::{Conduct, Fixture, Pod, TTL};
use super::sidecar::{answer, service, url};

/// A service whose fate the test decides.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) up: watch::Sender<bool>,
    /// Whether the service says that it is unhealthy.
    pub(crate) unhealthy: watch::Sender<bool>,
    /// Whether the service was told to end its work.
    pub(crate) told_to_settle: watch::Sender<bool>,
    pub(crate) settled: watch::Sender<bool>,
    lent: Mutex<Option<Instant>>,
    /// The partitions of which it was told that requests are admitted.
    accepted: Mutex<Vec<PartitionId>>,
}

impl Scripted {
    /// Returns a service that is down.
    pub(crate) fn new() -> Arc<Self> {
        let channel = || watch::channel(false).0;
        let (up, unhealthy, told_to_settle, settled) = (channel(), channel(), channel(), channel());
        Arc::new(Scripted {
            up,
            unhealthy,
            told_to_settle,
            settled,
            lent: Mutex::default(),
            accepted: Mutex::default(),
        })
    }
}

#[async_trait]
impl Service for Scripted {
    async fn up(&self) {
        self.up.subscribe().wait_for(|up| *up).await.unwrap();
        self.unhealthy.subscribe().wait_for(|unhealthy| !*unhealthy).await.unwrap();
    }
    async fn unhealthy(&self) {
        self.unhealthy.subscribe().wait_for(|unhealthy| *unhealthy).await.unwrap();
    }
    fn is_unhealthy(&self) -> bool {
        *self.unhealthy.borrow()
    }
    async fn down(&self) {
        self.up.subscribe().wait_for(|up| !*up).await.unwrap();
    }
    fn lend(&self, until: Instant) {
        *self.lent.lock().unwrap() = Some(until);
    }
    fn accepts(&self, partition: PartitionId) {
        self.accepted.lock().unwrap().push(partition);
    }
    async fn settle(&self, _: Instant) {
        self.told_to_settle.send_replace(true);
        self.settled.subscribe().wait_for(|settled| *settled).await.unwrap();
    }
}

fn pod(fixture: &Fixture, fence: bool) -> (PodHandle, Arc<Scripted>) {
    pod_named(fixture, "w", fence)
}

/// Starts a pod whose service is down.
pub(crate) fn pod_named(fixture: &Fixture, name: &str, fence: bool) -> (PodHandle, Arc<Scripted>) {
    let service = Scripted::new();
    let capabilities = Capabilities { fence, ..Capabilities::ALL };
    let settings = PodSettings { capabilities, ..PodSettings::new(name, "127.0.0.1:1") };
    let (store, keys) = (fixture.pods_store.clone(), fixture.keys.clone());
    (PodHandle::start_before(store, "default", keys, settings, Arc::new(()), service.clone()), service)
}

async fn is_registered(fixture: &Fixture) -> bool {
    !fixture.store.snapshot(&Keys::One(fixture.keys.pod("w"))).await.unwrap().entries.is_empty()
}

async fn is(what: &watch::Sender<bool>) {
    what.subscribe().wait_for(|is| *is).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_registers_when_its_service_is_up_and_lends_it_less_than_its_lease() {
    let (fixture, _) = Fixture::new();
    let (handle, service) = pod(&fixture, true);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!is_registered(&fixture).await);
    service.up.send_replace(true);
    let state = handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap().clone();
    let lent = service.lent.lock().unwrap().unwrap();
    assert!(lent > Instant::now() && lent < state.stands_until.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_registration_is_given_up_once_the_work_of_a_service_that_is_down_has_ended() {
    let (fixture, _) = Fixture::new();
    let (handle, service) = pod(&fixture, true);
    service.up.send_replace(true);
    let first = handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap().incarnation;
    service.up.send_replace(false);
    is(&service.told_to_settle).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(is_registered(&fixture).await, "its work may go on");
    service.settled.send_replace(true);
    handle.status().wait_for(|state| state.incarnation == Incarnation::NONE).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!is_registered(&fixture).await);
    service.up.send_replace(true);
    let state = handle.status();
    assert!(state.clone().wait_for(|state| state.not_ready.is_none()).await.unwrap().incarnation > first);
}

#[tokio::test(start_paused = true)]
async fn a_service_is_told_of_each_partition_whose_requests_are_admitted() {
    const P0: PartitionId = PartitionId::new(0);
    let (fixture, _) = Fixture::new();
    let service = Scripted::new();
    service.up.send_replace(true);
    let settings = PodSettings { lease_ttl: TTL, ..PodSettings::new("w", "127.0.0.1:1") };
    let pod = Pod::start_behind(&fixture, settings, service.clone()).await;
    let next = Pod::start(&fixture, "next").await;
    let accepted = || service.accepted.lock().unwrap().clone();
    assert_eq!(accepted(), []);
    fixture.place(P0, &pod, 1).await;
    assert_eq!(accepted(), [P0]);
    // The new owner cannot read the tail, so that the phase stays.
    next.service.let_it("sync", Conduct::Last);
    let handoff = fixture.begin(P0, Some(&pod), &next, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    fixture.until("drained", |view| view.pod_ack(P0, "w", PodAckKind::Drained, handoff).is_some()).await;
    assert_eq!(accepted(), [P0], "once for as long as it is served");
    fixture.delete(P0).await;
    pod.until("the move is cancelled", |state| state.owned.contains_key(&P0)).await;
    assert_eq!(accepted(), [P0, P0]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_fence_stays_and_hands_over_while_its_service_is_down() {
    let (fixture, _) = Fixture::new();
    let (handle, service) = pod(&fixture, false);
    service.up.send_replace(true);
    let first = handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap().incarnation;
    service.up.send_replace(false);
    handle.status().wait_for(|state| state.draining).await.unwrap();
    service.up.send_replace(true);
    let state = handle.status().wait_for(|state| !state.draining).await.unwrap().clone();
    assert_eq!(state.incarnation, first);
    assert!(!*service.told_to_settle.borrow());
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_an_operator_undid_while_the_service_was_down_ends_with_that() {
    let (fixture, _) = Fixture::new();
    let (handle, service) = pod(&fixture, false);
    service.up.send_replace(true);
    handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap();
    let own = fixture.until("it is there", |view| view.pods.contains_key("w")).await.pods["w"].clone();
    let says = async |status| {
        let value = encode(&PodRecord { status, ..own.value.clone() });
        fixture.commit(vec![], vec![Op::Put { key: fixture.keys.pod("w"), value, lease: own.lease }]).await
    };
    says(PodStatus::Draining).await;
    handle.status().wait_for(|state| state.draining).await.unwrap();
    service.up.send_replace(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let undone = says(PodStatus::Ready).await;
    let drains = |view: &View| {
        view.pods.get("w").is_some_and(|it| it.mod_revision > undone && it.value.status == PodStatus::Draining)
    };
    fixture.until("it hands over, since its service is down", drains).await;
    service.up.send_replace(true);
    handle.status().wait_for(|state| !state.draining).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_deregisters_after_its_services_work_has_ended() {
    let (fixture, _) = Fixture::new();
    let (handle, service) = pod(&fixture, true);
    service.up.send_replace(true);
    handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap();
    let ending = tokio::spawn({
        let handle = handle.clone();
        async move { handle.shutdown(Duration::from_secs(1)).await }
    });
    is(&service.told_to_settle).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(is_registered(&fixture).await, "its work may go on");
    service.settled.send_replace(true);
    ending.await.unwrap();
    assert!(!is_registered(&fixture).await);
}

const LENT_TTL: Duration = Duration::from_millis(500);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_a_service_was_told_counts_until_it_has_run_out() {
    let (port, task) = service(vec![200, 200, 500]).await;
    let lent = LentLease::new(url(port, "/lease"), None);
    timeout(TEST_TIMEOUT, lent.ready()).await.unwrap();
    let until = Instant::now() + LENT_TTL;
    lent.lend(until);
    confirmed(&lent, until).await;
    timeout(TEST_TIMEOUT, lent.end()).await.unwrap();
    assert!(Instant::now() >= until, "the service has not confirmed its end");
    let seen = task.await.unwrap();
    assert!(seen[0].contains("\"until_boottime_ms\":0") && seen[0].contains("\"ttl_ms\":0"), "{}", seen[0]);
    assert!(!seen[1].contains("\"until_boottime_ms\":0"), "{}", seen[1]);
    assert!(seen[2].contains("\"until_boottime_ms\":0"), "{}", seen[2]);
}

#[tokio::test]
async fn a_service_that_confirms_its_end_is_not_waited_for() {
    let (port, _task) = service(vec![200, 200, 200]).await;
    let lent = LentLease::new(url(port, "/lease"), None);
    timeout(TEST_TIMEOUT, lent.ready()).await.unwrap();
    let until = Instant::now() + 6 * TEST_TIMEOUT;
    lent.lend(until);
    confirmed(&lent, until).await;
    timeout(TEST_TIMEOUT, lent.end()).await.unwrap();
}

#[tokio::test]
async fn a_service_that_does_not_confirm_what_it_is_lent_has_run_out() {
    let (port, _task) = service(vec![200, 500, 500]).await;
    let lent = LentLease::new(url(port, "/lease"), None);
    timeout(TEST_TIMEOUT, lent.ready()).await.unwrap();
    let until = Instant::now() + LENT_TTL;
    lent.lend(until);
    timeout(TEST_TIMEOUT, lent.ran_out()).await.unwrap();
    assert!(Instant::now() >= until);
}

#[tokio::test]
async fn a_service_that_never_confirms_has_run_out_although_it_is_lent_more_and_more() {
    // No more answers come: what is told after these fails as well.
    let (port, _task) = service(vec![200, 500]).await;
    let lent = LentLease::new(url(port, "/lease"), None);
    timeout(TEST_TIMEOUT, lent.ready()).await.unwrap();
    let ran_out = timeout(TEST_TIMEOUT, lent.ran_out());
    tokio::pin!(ran_out);
    loop {
        lent.lend(Instant::now() + LENT_TTL);
        if let Ok(ran_out) = timeout(LENT_TTL / 10, &mut ran_out).await {
            return ran_out.unwrap();
        }
    }
}

#[tokio::test]
async fn what_a_service_has_not_answered_counts_although_it_has_confirmed_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, comes) = oneshot::channel();
    let service = tokio::spawn(async move {
        answer(&listener, 200).await;
        let unread = listener.accept().await.unwrap();
        sender.send(()).unwrap();
        (answer(&listener, 200).await, unread)
    });
    let lent = LentLease::new(url(port, "/lease"), None);
    timeout(TEST_TIMEOUT, lent.ready()).await.unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    lent.lend(until);
    timeout(TEST_TIMEOUT, comes).await.unwrap().unwrap();
    timeout(TEST_TIMEOUT, lent.end()).await.unwrap();
    assert!(Instant::now() >= until, "it may read yet that it may write until then");
    let (end, _) = service.await.unwrap();
    assert!(end.contains("\"ttl_ms\":0"), "{end}");
}

/// Waits until the service has confirmed its lease.
async fn confirmed(lent: &LentLease, until: Instant) {
    while lent.confirmed() != Some(until) {
        tokio::task::yield_now().await;
    }
}
