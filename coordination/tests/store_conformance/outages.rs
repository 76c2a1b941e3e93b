//! A store that becomes unavailable and available again.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use segue_coordination::store::{StoreError, Watch};
use segue_protocol::ids::{LeaseId, Revision};
use tokio::time::{Instant, timeout};

use super::fixture::{Fixture, REQUEST_TIMEOUT, TEST_TIMEOUT, collect, next};

/// Time that a call may take beyond its timeout on a busy machine.
const MAX_TIMEOUT_OVERRUN: Duration = Duration::from_secs(2);

async fn is_unavailable<T: Debug>(what: &str, call: impl Future<Output = Result<T, StoreError>>) {
    let began = Instant::now();
    let result = timeout(TEST_TIMEOUT, call).await.unwrap_or_else(|_| panic!("{what} hangs"));
    assert!(matches!(result, Err(StoreError::Unavailable(_))), "{what}: {result:?}");
    let took = began.elapsed();
    assert!(took < REQUEST_TIMEOUT + MAX_TIMEOUT_OVERRUN, "{what} took {took:?}");
}

/// Reads a watch to its end, which must say that the store is gone.
async fn ends(mut watch: Watch) {
    is_unavailable("the watch", read_on(&mut watch)).await;
    is_unavailable("the watch, once more", watch.next()).await;
}

async fn read_on(watch: &mut Watch) -> Result<Infallible, StoreError> {
    loop {
        watch.next().await?;
    }
}

async fn everything_is_unavailable(fixture: &Fixture, lease: LeaseId, watch: Watch) {
    let began = Instant::now();
    is_unavailable("a commit", fixture.commit([], [fixture.put_op("b", "lost?")])).await;
    // The failed call condemns the connection, and the watch on it.
    ends(watch).await;
    assert!(began.elapsed() < REQUEST_TIMEOUT + MAX_TIMEOUT_OVERRUN, "the watch outlived its connection");
    let all = fixture.all();
    tokio::join!(
        is_unavailable("a snapshot", fixture.store.snapshot(&all)),
        is_unavailable("a keepalive", fixture.store.keep_alive(lease)),
        is_unavailable("a new watch", fixture.store.watch(&all, Revision::new(1))),
        is_unavailable("a grant", fixture.store.grant(Duration::from_secs(1))),
        is_unavailable("a revoke", fixture.store.revoke(LeaseId::new(lease.get() + 1))),
    );
}

async fn everything_works(fixture: &Fixture, lease: LeaseId) {
    // What was asked for during the outage may have been done or not.
    assert_eq!(fixture.get("a").await.unwrap().value, b"1");
    fixture.store.keep_alive(lease).await.unwrap();
    fixture.delete(fixture.all()).await;
    let last = fixture.write([fixture.leased_op("a", "2", Some(lease))]).await;
    let mut watch = fixture.watch(fixture.all(), last).await;
    assert_eq!(fixture.short(&next(&mut watch).await.events), ["a=2"]);
    fixture.store.revoke(lease).await.unwrap();
    assert_eq!(fixture.short(&next(&mut watch).await.events), ["-a"]);
}

pub(crate) async fn a_store_that_is_gone_is_unavailable_and_comes_back_whole(fixture: Fixture) {
    let lease = fixture.store.grant(Duration::from_secs(60)).await.unwrap();
    fixture.store.keep_alive(lease).await.unwrap();
    let first = fixture.put("a", "1").await;
    for _ in 0..2 {
        let mut watch = fixture.watch(fixture.all(), first).await;
        assert_eq!(fixture.short(&collect(&mut watch, 1).await)[0], "a=1", "the history is whole");
        fixture.stop();
        everything_is_unavailable(&fixture, lease, watch).await;
        fixture.start();
    }
    everything_works(&fixture, lease).await;
}

pub(crate) async fn a_store_that_hangs_is_unavailable_in_bounded_time(fixture: Fixture) {
    let lease = fixture.store.grant(Duration::from_secs(60)).await.unwrap();
    fixture.store.keep_alive(lease).await.unwrap();
    let first = fixture.put("a", "1").await;
    let watch = fixture.watch(fixture.all(), first).await;
    fixture.pause();
    everything_is_unavailable(&fixture, lease, watch).await;
    fixture.resume();
    everything_works(&fixture, lease).await;
}
