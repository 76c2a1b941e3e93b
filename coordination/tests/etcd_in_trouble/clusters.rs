//! Endpoints of several clusters, and of members that serve no requests.

use std::time::Duration;

use segue_coordination::store::{EtcdOptions, EtcdStore, Store, StoreError};
use segue_protocol::ids::Revision;
use segue_tests::etcd::Etcd;

use super::{all, put};

fn store<'a>(members: impl IntoIterator<Item = &'a Etcd>) -> EtcdStore {
    EtcdStore::connect(EtcdOptions::new(members.into_iter().map(Etcd::endpoint))).unwrap()
}

/// Returns the number of keys behind one endpoint.
async fn keys(etcd: &Etcd) -> usize {
    store([etcd]).snapshot(&all()).await.unwrap().entries.len()
}

#[tokio::test]
async fn endpoints_of_two_clusters_serve_nobody() {
    let (one, other) = (Etcd::start(), Etcd::start());
    // Several stores: each begins at an endpoint of its own choice.
    for _ in 0..6 {
        let error = store([&one, &other]).commit(put("/segue/a")).await.unwrap_err();
        let StoreError::Refused(failure) = error else { panic!("{error}") };
        let text = failure.words();
        assert!(text.contains("different etcd clusters"), "{text}");
        assert!(text.matches(&one.endpoint()).count() > 1 && text.matches(&other.endpoint()).count() > 1, "{text}");
    }
    assert_eq!((keys(&one).await, keys(&other).await), (0, 0));
}

#[tokio::test]
async fn endpoints_of_two_clusters_serve_nobody_once_the_slow_ones_have_responded_too() {
    let (one, other) = (Etcd::start(), Etcd::start());
    other.pause();
    let store = store([&one, &other]);
    store.commit(put("/segue/a")).await.unwrap();
    let mut watch = store.watch(&all(), Revision::new(1)).await.unwrap();
    watch.next().await.unwrap();
    other.resume();
    // The watch ends with the connection.
    tokio::time::timeout(Duration::from_secs(60), watch.next()).await.unwrap().unwrap_err();
    let error = store.commit(put("/segue/b")).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Refused(failure) if failure.words().contains("different etcd clusters")),
        "{error}"
    );
}

/// The slow endpoint is a learner: one that votes would take the leader away as it comes back, and a watch ends then.
#[tokio::test]
async fn a_slow_endpoint_of_the_same_cluster_changes_nothing() {
    let member = Etcd::start();
    let learner = member.start_learner();
    learner.pause();
    let store = store([&member, &learner]);
    store.commit(put("/segue/a")).await.unwrap();
    let mut watch = store.watch(&all(), Revision::new(1)).await.unwrap();
    watch.next().await.unwrap();
    learner.resume();
    // A refusal ends the watch. It would come within the interval at which a slow endpoint is asked.
    let ends = tokio::time::timeout(Duration::from_secs(3), watch.next()).await;
    assert!(ends.is_err(), "{ends:?}");
    store.commit(put("/segue/b")).await.unwrap();
    watch.next().await.unwrap();
}

#[tokio::test]
async fn a_member_of_another_cluster_is_passed_over_where_most_endpoints_belong_to_one() {
    let [a, b] = Etcd::cluster();
    let stranger = Etcd::start();
    for number in 0..6 {
        store([&stranger, &a, &b]).commit(put(&format!("/segue/{number}"))).await.unwrap();
    }
    assert_eq!((keys(&a).await, keys(&stranger).await), (6, 0));
}

#[tokio::test]
async fn a_process_never_goes_to_another_cluster() {
    let (own, other) = (Etcd::start(), Etcd::start());
    other.kill();
    let known = store([&own, &other]);
    known.commit(put("/segue/a")).await.unwrap();
    other.restart();
    own.kill();
    for _ in 0..4 {
        let error = known.commit(put("/segue/b")).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    }
    let error = known.snapshot(&all()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{} is refused: it belongs to etcd cluster", other.endpoint())), "{error}");
    own.restart();
    // The first endpoint may be the other one, and the connection to it is no use.
    while known.commit(put("/segue/c")).await.is_err() {}
    assert_eq!(keys(&other).await, 0);
}

#[tokio::test]
async fn a_learner_among_the_endpoints_costs_no_call() {
    let member = Etcd::start();
    let learner = member.start_learner();
    for number in 0..6 {
        let store = store([&learner, &member]);
        store.snapshot(&all()).await.unwrap();
        store.commit(put(&format!("/segue/{number}"))).await.unwrap();
    }
    let members = store([&learner, &member]).members().await;
    let is_learner = |(_, member): &(String, Result<segue_coordination::store::EtcdMember, StoreError>)| {
        member.as_ref().unwrap().is_learner
    };
    assert_eq!(members.iter().map(is_learner).collect::<Vec<_>>(), [true, false]);
}
