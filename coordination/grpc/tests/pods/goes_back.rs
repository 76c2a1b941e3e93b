//! A store that goes back to a backup, and the lives of pods without a sidecar that have seen more of it.
//!
//! Elsewhere: sidecars, routers and coordinators (`coordination/tests/shells/goes_back.rs`).

use std::time::Duration;

use segue_coordination::store::{MemoryStore, StoreCall};
use segue_grpc::proto::Hello;
use segue_protocol::ids::Epoch;
use segue_protocol::records::{Drain, KeyspaceConfig, Origin, encode};
use tonic::Code;

use super::client::{Known, Pod, ack, hello, register};
use super::polling::Polling;
use super::site::{PARTITIONS, Site};

/// Long enough for what a test does while the lease of the life that is over still runs.
fn long(site: &Site, pod: &str) -> Hello {
    let lease_ttl = Duration::from_secs(10).try_into().ok();
    Hello { lease_ttl, ..hello(&site.name, pod) }
}

/// Has pod `b` take over all partitions, once pod `a` has done its part.
async fn replace_a(site: &Site) -> Pod {
    let b = Pod::start(site.address(1), hello(&site.name, "b")).await;
    for _ in 0..500 {
        site.put("/others/key".to_owned(), Vec::new()).await;
    }
    let drain = Drain { origin: Origin { who: "the test".into(), why: String::new(), at: 0 } };
    site.put(site.keys.drain("a"), encode(&drain)).await;
    b
}

/// Returns whether all that the pod owns is of epochs above this one, and something is.
fn owns_above(known: &Known, floor: u64) -> bool {
    !known.owned.is_empty() && known.owned.values().all(|epoch| *epoch > floor)
}

/// Registers anew whenever the pod's life ends, until it owns partitions above this epoch.
async fn lives_on(site: &Site, mut pod: Pod, hello: Hello, floor: u64) -> Pod {
    loop {
        let known = pod.until("a new life", |known| known.ended.is_some() || owns_above(known, floor)).await;
        match known.ended {
            None => return pod,
            Some(ended) => assert_eq!(ended, Code::NotFound, "it cannot know that its life is over"),
        }
        pod = Pod::start(site.address(1), hello.clone()).await;
    }
}

/// Waits until the floor is raised above what was used up. Returns it.
async fn raised(site: &Site, spent: u64) -> u64 {
    site.until("a raised floor", |view| view.epoch_floor() > Epoch::new(spent)).await.epoch_floor().get()
}

async fn raise_by_hand(site: &Site, floor: u64) {
    let settings = KeyspaceConfig { epoch_floor: Epoch::new(floor), ..site.view().await.config.unwrap().value };
    site.put(site.keys.config(), encode(&settings)).await;
}

/// Waits until every partition is owned in one of these lives, above the floor.
async fn nothing_comes_back(site: &Site, floor: u64) {
    let holds = |view: &segue_protocol::view::View| {
        view.assignments.len() == PARTITIONS as usize
            && view.assignments.keys().all(|partition| view.live_owner(*partition).is_some())
            && view.assignments.values().all(|owned| owned.value.epoch > Epoch::new(floor))
    };
    site.until("every epoch is above the floor", holds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_goes_back_ends_the_lives_of_pods_with_a_stream_at_every_instance() {
    let memory = MemoryStore::new();
    let mut site = Site::start_in(&memory).await;
    let a = Pod::start(site.address(0), long(&site, "a")).await;
    let before = a.owns(4).await;
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    let backup = memory.back_up();
    // What the backup does not know.
    let b = replace_a(&site).await;
    let spent = b.owns(4).await.owned.into_values().max().unwrap();

    memory.restore(&backup);
    let ended = a.until("its life ends", |known| known.ended.is_some()).await;
    assert_eq!(ended.ended, Some(Code::NotFound), "register anew");
    let floor = raised(&site, spent).await;
    // One that was started afterwards has seen nothing of it.
    site.instance(None).await;
    for instance in 0..3 {
        let resume = Hello { resume: before.token(), ..long(&site, "a") };
        let refused = register(site.address(instance), resume).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
        let refused = ack(site.address(instance), before.token(), Vec::new()).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
    }
    let view = site.view().await;
    assert_eq!(view.incarnation_of("a").get(), before.incarnation(), "the name is free once its lease has ended");

    let (a, b) =
        tokio::join!(lives_on(&site, a, long(&site, "a"), floor), lives_on(&site, b, hello(&site.name, "b"), floor));
    assert_ne!(a.known().incarnation(), before.incarnation());
    nothing_comes_back(&site, floor).await;
    assert!(
        a.known().ended.is_none() && b.known().ended.is_none(),
        "the raised floor ends no life that began under it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_goes_back_ends_the_lives_of_pods_that_poll() {
    let memory = MemoryStore::new();
    let site = Site::start_in(&memory).await;
    let mut a = Polling::new([site.address(0), site.address(1)], hello(&site.name, "a"));
    a.owns(4).await;
    let before = a.known.incarnation();
    site.until("the moves are over", |view| view.handoffs.is_empty()).await;
    let backup = memory.back_up();
    // What the backup does not know.
    let b = replace_a(&site).await;
    let replaced = tokio::select! {
        replaced = b.owns(4) => replaced,
        () = a.until("the end of the move", |_| false) => unreachable!(),
    };
    let spent = replaced.owned.into_values().max().unwrap();

    memory.restore(&backup);
    let floor = raised(&site, spent).await;
    let polls = async {
        while let Err(status) = a.try_until("it owns some", |known| owns_above(known, floor)).await {
            assert_eq!(status.code(), Code::NotFound, "{status:?}");
            a.forget();
        }
    };
    let ((), b) = tokio::join!(polls, lives_on(&site, b, hello(&site.name, "b"), floor));
    assert_ne!(a.known.incarnation(), before);
    tokio::select! {
        () = nothing_comes_back(&site, floor) => {}
        () = a.until("the end of the moves", |_| false) => {}
    }
    assert!(b.known().ended.is_none(), "the raised floor ends no life that began under it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_floor_that_is_raised_by_hand_costs_each_pod_its_life_and_nothing_else() {
    let memory = MemoryStore::new();
    let site = Site::start_in(&memory).await;
    let a = Pod::start(site.address(0), hello(&site.name, "a")).await;
    let before = a.owns(4).await;
    let floor = 10_000;
    raise_by_hand(&site, floor).await;
    let a = lives_on(&site, a, hello(&site.name, "a"), floor).await;
    assert_ne!(a.known().incarnation(), before.incarnation());
    nothing_comes_back(&site, floor).await;
    let confirmed = a.known().confirmed;
    a.until("its lease is renewed", |known| known.confirmed > confirmed + 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_waits_tells_of_the_end_of_its_life_and_of_nothing_else() {
    let memory = MemoryStore::new();
    let mut site = Site::start_in(&memory).await;
    let (address, store) = site.instance_on_faulty_store().await;
    let lease_ttl = Duration::from_secs(3600).try_into().ok();
    let mut a = Polling::new([address], Hello { lease_ttl, ..hello(&site.name, "a") });
    a.owns(4).await;
    while !site.view().await.handoffs.is_empty() {
        a.round().await;
    }
    a.poll(Duration::ZERO).await.unwrap();
    let renewals = || store.count(|call| matches!(call, StoreCall::KeepAlive));
    let before = renewals();
    let poll = tokio::spawn(async move { a.poll(Duration::from_secs(600)).await });
    site.until("the poll has begun", |_| renewals() > before).await;
    raise_by_hand(&site, 10_000).await;
    assert_eq!(poll.await.unwrap().unwrap_err().code(), Code::NotFound);
}
