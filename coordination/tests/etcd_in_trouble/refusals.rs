//! An etcd that answers reads and refuses writes: what a question shows of it, and in which words. And one that fills up.

use etcd_client::Client;
use segue_coordination::store::{EtcdOptions, EtcdStore, Store, StoreErrorKind, Usage};
use segue_protocol::txn::{Op, Txn};
use segue_tests::etcd::Etcd;

use super::users::Site;
use super::{all, put};

const KEY: &str = "/segue/a";

/// Returns the kind of the error with which the store answers a question.
async fn kind(store: &EtcdStore) -> Option<StoreErrorKind> {
    store.commit(Txn::question(KEY)).await.err().and_then(|error| error.kind())
}

#[tokio::test]
async fn a_full_etcd_refuses_a_question_and_takes_deletions() {
    let etcd = Etcd::start();
    let store = EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap();
    store.commit(put(KEY)).await.unwrap();
    etcd.set_full(true);
    assert_eq!(kind(&store).await, Some(StoreErrorKind::NoSpace));
    store.snapshot(&all()).await.unwrap();
    assert!(store.commit(Txn::guarded([], [Op::Delete(all())])).await.unwrap().committed());
    etcd.set_full(false);
    assert_eq!(kind(&store).await, None);
}

#[tokio::test]
async fn a_user_that_may_not_write_is_told_by_a_question() {
    let site = Site::start().await;
    let store = site.store();
    assert_eq!(kind(&store).await, None);
    site.let_read_only().await;
    assert_eq!(kind(&store).await, Some(StoreErrorKind::Permission));
    store.snapshot(&all()).await.unwrap();
    site.let_write().await;
    assert_eq!(kind(&store).await, None);
    site.root().await.user_change_password(super::users::USER, "new").await.unwrap();
    assert_eq!(kind(&store).await, Some(StoreErrorKind::Permission));
}

#[tokio::test]
async fn an_etcd_tells_how_full_it_is_and_whether_its_first_revision_is_there() {
    let etcd = Etcd::start();
    let store = EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap();
    for _ in 0..3 {
        store.commit(put(KEY)).await.unwrap();
    }
    let usage = store.usage(KEY, Usage::FIRST).await.unwrap().unwrap();
    assert!(usage.bytes > 0 && usage.is_readable && !usage.fills_up(), "{usage:?}");
    let revision = i64::try_from(usage.revision.get()).unwrap();
    Client::connect([etcd.endpoint()], None).await.unwrap().compact(revision, None).await.unwrap();
    let after = store.usage(KEY, Usage::FIRST).await.unwrap().unwrap();
    assert!(!after.is_readable, "{after:?}");
    assert!(store.usage(KEY, usage.revision).await.unwrap().unwrap().is_readable);
}
