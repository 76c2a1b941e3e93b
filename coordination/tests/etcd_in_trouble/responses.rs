//! Responses that a member should not give, and gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use segue_coordination::store::{EtcdOptions, EtcdStore, Store, StoreError, StoreErrorKind};
use segue_protocol::ids::{LeaseId, Revision};
use tokio::time::{Instant, timeout};

use super::scripted::{Empty, Event, KeyValue, Renewed, Reply, Scripted, UNAVAILABLE, Watched, header, one};
use super::{all, put};

/// Longer than anything here takes, even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn store<'a>(members: impl IntoIterator<Item = &'a Scripted>) -> EtcdStore {
    EtcdStore::connect(EtcdOptions::new(members.into_iter().map(|member| member.endpoint.clone()))).unwrap()
}

#[tokio::test]
async fn a_renewal_by_a_leader_of_an_earlier_term_counts_for_nothing() {
    let term = Arc::new(AtomicU64::new(4));
    let etcd = Scripted::start({
        let term = term.clone();
        move |method| {
            let term = term.load(Ordering::Relaxed);
            async move {
                match &*method {
                    "LeaseKeepAlive" => one(&Renewed { header: header(7, term), id: 1, ttl: 60 }),
                    _ => one(&Empty { header: header(7, 5) }),
                }
            }
        }
    });
    let etcd = etcd.await;
    let store = store([&etcd]);
    let lease = LeaseId::new(1);
    store.keep_alive(lease).await.expect("no later term has been seen");
    store.snapshot(&all()).await.unwrap();
    for stream in ["an open", "a new"] {
        let renewed = store.keep_alive(lease).await;
        assert!(matches!(renewed, Err(StoreError::Unavailable(_))), "over {stream} stream: {renewed:?}");
    }
    term.store(5, Ordering::Relaxed);
    store.keep_alive(lease).await.unwrap();
    store.keep_alive(lease).await.unwrap();
}

#[tokio::test]
async fn changes_of_before_a_watch_are_dropped_deletions_included() {
    let event = |kind, key: &str, mod_revision| {
        let kv = KeyValue { key: key.as_bytes().to_vec(), create_revision: mod_revision, mod_revision };
        Event { kind, kv: Some(kv) }
    };
    let batches = [
        vec![event(1, "/segue/w", 13), event(0, "/segue/w", 14), event(0, "/segue/x", 17)],
        vec![event(1, "/segue/x", 15)],
        vec![event(1, "/segue/x", 18)],
    ];
    let etcd = Scripted::start(move |_| {
        let created = Watched { header: header(17, 5), created: true, events: Vec::new() };
        let changes =
            batches.iter().map(|events| Watched { created: false, events: events.clone(), ..created.clone() });
        let messages = std::iter::once(created.clone()).chain(changes);
        let messages = messages.map(|message| prost::Message::encode_to_vec(&message)).collect();
        async move { Reply::Messages(messages) }
    });
    let etcd = etcd.await;
    let mut watch = store([&etcd]).watch(&all(), Revision::new(16)).await.unwrap();
    for revision in [17, 18] {
        let batch = timeout(TEST_TIMEOUT, watch.next()).await.expect("the change arrives").unwrap();
        let revision = Revision::new(revision);
        assert_eq!(batch.revision, revision);
        assert!(batch.events.len() == 1 && batch.events[0].mod_revision() == revision, "{batch:?}");
    }
}

/// The errors that etcd gives to the calls of a store, each with gRPC's code, who can mend it, and whether the store goes on with
/// the connection. They are those of `api/v3rpc/rpctypes/error.go` of etcd 3.6. `togRPCError` makes the rest `Unknown`.
const ERRORS: [(u32, &str, Option<StoreErrorKind>, bool); 31] = {
    const UNAVAILABLE_KIND: Option<StoreErrorKind> = Some(StoreErrorKind::Unavailable);
    const REFUSED: Option<StoreErrorKind> = Some(StoreErrorKind::Refused);
    const PERMISSION: Option<StoreErrorKind> = Some(StoreErrorKind::Permission);
    [
        (1, "context canceled", UNAVAILABLE_KIND, false),
        (2, "not a primary lessor", UNAVAILABLE_KIND, false),
        (3, "etcdserver: key is not provided", REFUSED, true),
        (3, "etcdserver: duplicate key given in txn request", REFUSED, true),
        (3, "etcdserver: too many operations in txn request", REFUSED, true),
        (3, "etcdserver: request is too large", REFUSED, true),
        (3, "etcdserver: authentication failed, invalid user ID or password", PERMISSION, true),
        (3, "etcdserver: user name is empty", PERMISSION, true),
        (3, "etcdserver: revision of auth store is old", PERMISSION, true),
        (4, "context deadline exceeded", UNAVAILABLE_KIND, false),
        (5, "etcdserver: requested lease not found", None, true),
        (7, "etcdserver: permission denied", PERMISSION, true),
        (8, "etcdserver: mvcc: database space exceeded", Some(StoreErrorKind::NoSpace), true),
        (8, "etcdserver: too many requests", UNAVAILABLE_KIND, true),
        (9, "etcdserver: lease already exists", REFUSED, true),
        (9, "etcdserver: authentication is not enabled", REFUSED, true),
        (11, "etcdserver: mvcc: required revision has been compacted", REFUSED, true),
        (11, "etcdserver: mvcc: required revision is a future revision", REFUSED, true),
        (11, "etcdserver: too large lease TTL", REFUSED, true),
        (12, "unknown method Txn for service etcdserverpb.KV", REFUSED, true),
        (13, "etcdserver: internal", UNAVAILABLE_KIND, false),
        (14, "etcdserver: no leader", UNAVAILABLE_KIND, false),
        (14, "etcdserver: leader changed", UNAVAILABLE_KIND, true),
        (14, "etcdserver: not capable", UNAVAILABLE_KIND, false),
        (14, "etcdserver: server stopped", UNAVAILABLE_KIND, false),
        (14, "etcdserver: request timed out", UNAVAILABLE_KIND, false),
        (14, "etcdserver: request timed out, possibly due to previous leader failure", UNAVAILABLE_KIND, false),
        (14, "etcdserver: unhealthy cluster", UNAVAILABLE_KIND, false),
        (14, "etcdserver: rpc not supported for learner", UNAVAILABLE_KIND, false),
        (15, "etcdserver: corrupt cluster", UNAVAILABLE_KIND, false),
        (16, "etcdserver: invalid auth token", PERMISSION, true),
    ]
};

#[tokio::test]
async fn each_error_of_etcd_says_who_can_mend_it_and_ends_the_connection_if_another_member_may_do_better() {
    for (code, text, kind, goes_on) in ERRORS {
        let failed = Arc::new(AtomicUsize::new(0));
        let etcd = Scripted::start(move |_| {
            let is_first = failed.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if is_first { Reply::Failure(code, text) } else { one(&Empty { header: header(7, 5) }) } }
        });
        let etcd = etcd.await;
        let store = store([&etcd]);
        let error = store.commit(put("/segue/a")).await.expect_err(text);
        assert_eq!((error.kind(), error.to_string().contains(text)), (kind, kind.is_some()), "{error}");
        store.commit(put("/segue/a")).await.unwrap();
        assert_eq!(etcd.connections.load(Ordering::Relaxed), if goes_on { 1 } else { 2 }, "{text}");
    }
}

#[tokio::test]
async fn a_read_that_a_member_fails_goes_to_the_next_one_and_a_write_does_not() {
    let writes = Arc::new(AtomicUsize::new(0));
    let member = |is_well: bool| {
        let writes = writes.clone();
        Scripted::start(move |method| {
            writes.fetch_add(usize::from(method == "Txn"), Ordering::Relaxed);
            async move {
                if is_well {
                    one(&Empty { header: header(7, 5) })
                } else {
                    Reply::Failure(UNAVAILABLE, "etcdserver: request timed out")
                }
            }
        })
    };
    let (ill, well) = (member(false).await, member(true).await);
    // Several stores: each begins at an endpoint of its own choice.
    for _ in 0..8 {
        store([&ill, &well]).snapshot(&all()).await.unwrap();
    }
    let mut failed = 0;
    for _ in 0..16 {
        failed += usize::from(store([&ill, &well]).commit(put("/segue/a")).await.is_err());
    }
    assert_eq!(writes.load(Ordering::Relaxed), 16, "a write is sent once");
    assert!(failed > 0, "no store of 16 began at the first endpoint");
}

/// Starts an etcd that answers reads alone, and a store of it whose calls may take so long.
async fn answers_reads_alone(request_timeout: Duration) -> (Scripted, EtcdStore) {
    let etcd = Scripted::start(|method| async move {
        match &*method {
            "Range" => one(&Empty { header: header(7, 5) }),
            _ => std::future::pending().await,
        }
    });
    let etcd = etcd.await;
    let store = EtcdStore::connect(EtcdOptions { request_timeout, ..EtcdOptions::new([etcd.endpoint.clone()]) });
    (etcd, store.unwrap())
}

#[tokio::test]
async fn a_write_without_a_response_costs_no_connection_while_reads_get_theirs() {
    let timeout = Duration::from_millis(300);
    loop {
        let (etcd, store) = answers_reads_alone(timeout).await;
        let sent = Instant::now();
        let write = tokio::spawn({
            let store = store.clone();
            async move { (store.commit(put("/segue/a")).await, Instant::now()) }
        });
        let (mut reads, mut stood_still) = (Vec::new(), false);
        while !write.is_finished() {
            let asked = Instant::now();
            stood_still |= store.snapshot(&all()).await.is_err();
            reads.push((asked, Instant::now()));
        }
        let (result, ended) = write.await.unwrap();
        assert!(matches!(result, Err(StoreError::Unavailable(_))), "{result:?}");
        // On a machine that stood still a read was too late, or none was answered in the second half of the wait.
        let in_second_half =
            |(asked, answered): &(Instant, Instant)| *asked >= ended - timeout / 2 && *answered <= sent + timeout;
        if !stood_still && reads.iter().any(in_second_half) {
            assert_eq!(etcd.connections.load(Ordering::Relaxed), 1);
            return;
        }
    }
}

#[tokio::test]
async fn a_second_renewal_without_a_response_costs_the_connection_although_reads_get_theirs() {
    let lease = LeaseId::new(1);
    loop {
        let (etcd, store) = answers_reads_alone(TEST_TIMEOUT).await;
        // Connects. A renewal that is not polled would hold up a read that waits for its connection.
        store.snapshot(&all()).await.unwrap();
        let mut reads_were_late = false;
        for connections in [1, 2] {
            let sent = Instant::now();
            let mut renewal = store.keep_alive(lease);
            assert!(timeout(Duration::from_millis(50), &mut renewal).await.is_err());
            let asked = Instant::now();
            store.snapshot(&all()).await.unwrap();
            drop(renewal);
            reads_were_late |= asked.elapsed() >= asked - sent;
            store.snapshot(&all()).await.unwrap();
            if !reads_were_late {
                assert_eq!(etcd.connections.load(Ordering::Relaxed), connections);
            }
        }
        if !reads_were_late {
            return;
        }
    }
}
