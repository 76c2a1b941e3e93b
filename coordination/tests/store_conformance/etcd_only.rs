//! Behaviour of the etcd store alone: endpoints, credentials, streams to be closed.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::store::{ClientIdentity, EtcdCredentials, EtcdOptions, EtcdStore, EtcdTls, Store, StoreError};
use segue_protocol::ids::Revision;
use segue_protocol::txn::{Event, Keys, Op, Txn};
use segue_tests::certificates::{Authority, Issued};
use segue_tests::etcd::Etcd;
use tokio::time::{Instant, sleep, timeout};

use super::fixture::{TEST_TIMEOUT, etcd_store};

/// An endpoint at which nothing listens, on a port that is never assigned by chance.
const CLOSED_ENDPOINT: &str = "http://127.0.0.1:1";

fn put(key: &str) -> Txn {
    let then = vec![Op::put(key, b"1".to_vec())];
    Txn::guarded([], then)
}

fn everything() -> Keys {
    Keys::Prefix(String::new())
}

#[tokio::test]
async fn a_dead_member_costs_no_call() {
    let etcd = Etcd::start();
    // Several stores: each begins at an endpoint of its own choice.
    for number in 0..6 {
        let store = etcd_store([CLOSED_ENDPOINT.to_owned(), etcd.endpoint()]);
        for call in 0..3 {
            store.commit(put(&format!("{number}/{call}"))).await.unwrap();
        }
        store.watch(&everything(), Revision::new(1)).await.unwrap().next().await.unwrap();
    }
    assert_eq!(etcd_store([etcd.endpoint()]).snapshot(&everything()).await.unwrap().entries.len(), 18);
}

#[tokio::test]
async fn a_member_that_hangs_from_the_beginning_costs_no_call() {
    let etcd = Etcd::start();
    // Accepts connections, in the kernel, and never says a word.
    let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mute = format!("http://{}", mute.local_addr().unwrap());
    // Several stores: each begins at an endpoint of its own choice.
    for _ in 0..6 {
        let store = etcd_store([mute.clone(), etcd.endpoint()]);
        for _ in 0..3 {
            store.commit(put("a")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_call_does_not_outlive_its_connection() {
    let etcd = Etcd::start();
    let mut options = EtcdOptions::new([etcd.endpoint()]);
    options.request_timeout = 2 * TEST_TIMEOUT;
    let store = Arc::new(EtcdStore::connect(options).unwrap());
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.keep_alive(lease).await.unwrap();
    etcd.pause();
    let began = Instant::now();
    let reader = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.snapshot(&everything()).await }
    });
    // A renewal that its caller gives up shows that the connection is of no use, long before the snapshot's own deadline.
    assert!(timeout(Duration::from_millis(300), store.keep_alive(lease)).await.is_err());
    let read = reader.await.unwrap();
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    assert!(began.elapsed() < TEST_TIMEOUT, "the snapshot waited for {:?}", began.elapsed());
    etcd.resume();
}

#[tokio::test]
async fn a_renewal_that_is_given_up_early_is_tried_at_another_member() {
    let etcd = Etcd::start();
    let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mute = format!("http://{}", mute.local_addr().unwrap());
    let lease = etcd_store([etcd.endpoint()]).grant(Duration::from_secs(60)).await.unwrap();
    // Several stores: each begins at an endpoint of its own choice.
    for _ in 0..8 {
        let store = etcd_store([mute.clone(), etcd.endpoint()]);
        let mut failed = 0;
        // Far earlier than a call's own deadline, as a lease's holder does.
        while !matches!(timeout(Duration::from_millis(500), store.keep_alive(lease)).await, Ok(Ok(()))) {
            failed += 1;
            assert!(failed <= 1, "{failed} renewals failed");
        }
    }
}

#[tokio::test]
async fn an_error_names_the_endpoints() {
    let mut options = EtcdOptions::new([CLOSED_ENDPOINT.to_owned()]);
    (options.request_timeout, options.connect_timeout) = (2 * TEST_TIMEOUT, 2 * TEST_TIMEOUT);
    let began = Instant::now();
    let error = EtcdStore::connect(options).unwrap().commit(put("a")).await.unwrap_err();
    let StoreError::Unavailable(failure) = &error else { panic!("{error}") };
    let text = failure.words();
    assert!(error.cause().is_some(), "the error of the connection is kept");
    assert!(text.contains(CLOSED_ENDPOINT) && text.contains("refused"), "{text}");
    assert!(began.elapsed() < TEST_TIMEOUT, "a refused connection needs no timeout");
}

#[test]
fn endpoints_that_make_no_sense_are_refused() {
    for endpoints in [vec![], vec!["https://a:1"], vec!["http://a b"], vec!["http://"], vec!["a:1", "unix:///x"]] {
        let result = EtcdStore::connect(EtcdOptions::new(endpoints.clone()));
        assert!(matches!(result, Err(StoreError::Refused(_))), "{endpoints:?}");
    }
    for endpoint in ["http://etcd-0.etcd:2379", "http://[::1]:2379/", "10.0.0.1:2379"] {
        assert!(EtcdStore::connect(EtcdOptions::new([endpoint])).is_ok(), "{endpoint}");
    }
}

#[tokio::test]
async fn a_dropped_watch_ends_in_etcd_too() {
    let etcd = Etcd::start();
    let store = etcd_store([etcd.endpoint()]);
    let watchers = || etcd.metric("etcd_debugging_mvcc_watcher_total").unwrap();
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(store.watch(&everything(), Revision::new(1)).await.unwrap());
    }
    assert_eq!(watchers(), 5.0);
    drop(watches);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while watchers() > 0.0 {
        assert!(Instant::now() < deadline, "{} are left", watchers());
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_lease_that_is_forgotten_costs_no_stream_of_renewals_and_goes_on() {
    let etcd = Etcd::start();
    let store = etcd_store([etcd.endpoint()]);
    let labels = r#"grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream""#;
    let begun = || etcd.metric(&format!("grpc_server_started_total{{{labels}}}")).unwrap();
    let mut leases = Vec::new();
    for _ in 0..5 {
        let lease = store.grant(Duration::from_secs(60)).await.unwrap();
        store.keep_alive(lease).await.unwrap();
        store.keep_alive(lease).await.unwrap();
        leases.push(lease);
    }
    assert_eq!(begun(), 5.0);
    leases.iter().for_each(|lease| store.forget_lease(*lease));
    let ended = || {
        // With one code or another.
        let codes = ["OK", "Canceled", "Unavailable", "Unknown"].map(|code| {
            let handled = format!("grpc_server_handled_total{{grpc_code=\"{code}\",{labels}}}");
            etcd.metric(&handled).unwrap_or_default()
        });
        codes.iter().sum::<f64>()
    };
    let deadline = Instant::now() + TEST_TIMEOUT;
    while ended() < 5.0 {
        assert!(Instant::now() < deadline, "{} have ended", ended());
        sleep(Duration::from_millis(10)).await;
    }
    for lease in leases {
        store.keep_alive(lease).await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_whose_reader_is_slow_leaves_nothing_unread_on_the_connection() {
    let etcd = Etcd::start();
    let store = etcd_store([etcd.endpoint()]);
    let watchers = || etcd.metric("etcd_debugging_mvcc_watcher_total").unwrap();
    let mut slow = store.watch(&everything(), Revision::new(1)).await.unwrap();
    // How many events etcd puts into one message is up to it, so how many it takes until the reader is behind is as well.
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut last = Revision::new(1);
    while last == Revision::new(1) || watchers() > 0.0 {
        assert!(Instant::now() < deadline, "after {last} revisions it still waits with its stream open");
        for _ in 0..100 {
            last = store.commit(put("a")).await.unwrap().revision;
        }
    }
    let mut revisions = Vec::new();
    while revisions.last() != Some(&last) {
        revisions.extend(slow.next().await.unwrap().events.iter().map(|event| match event {
            Event::Put(entry) => entry.mod_revision,
            Event::Delete { .. } => Revision::ZERO,
        }));
    }
    assert_eq!(revisions, (2..=last.get()).map(Revision::new).collect::<Vec<_>>());
    store.commit(put("a")).await.unwrap();
    assert_eq!(slow.next().await.unwrap().revision, last.next());
    assert_eq!(watchers(), 1.0);
}

#[tokio::test]
async fn a_late_answer_to_a_renewal_that_was_given_up_does_not_count_for_the_next() {
    let etcd = Etcd::start();
    let mut options = EtcdOptions::new([etcd.endpoint()]);
    options.request_timeout = Duration::from_secs(1);
    let store = EtcdStore::connect(options).unwrap();
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.keep_alive(lease).await.unwrap();

    etcd.pause();
    assert!(timeout(Duration::from_millis(100), store.keep_alive(lease)).await.is_err());
    etcd.resume();
    // Asked for later, so the answer to the renewal has come before these.
    for _ in 0..10 {
        store.snapshot(&everything()).await.unwrap();
    }
    etcd.pause();
    let renewed = store.keep_alive(lease).await;
    assert!(matches!(renewed, Err(StoreError::Unavailable(_))), "renewed by a stopped etcd: {renewed:?}");
    etcd.resume();
    store.keep_alive(lease).await.unwrap();
}

#[tokio::test]
async fn credentials_are_used_and_wrong_ones_refused() {
    let etcd = Etcd::start();
    let mut root = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
    root.user_add("root", "secret", None).await.unwrap();
    root.role_add("root").await.unwrap();
    root.user_grant_role("root", "root").await.unwrap();
    root.user_add("guest", "guest", None).await.unwrap();
    root.auth_enable().await.unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let store = |user: &str, password: &str| {
        let mut options = EtcdOptions::new([etcd.endpoint()]);
        let password_file = folder.path().join(format!("{user}-{password}"));
        std::fs::write(&password_file, format!("{password}\n")).unwrap();
        options.credentials = Some(EtcdCredentials { username: user.into(), password_file });
        EtcdStore::connect(options).unwrap()
    };

    let known = store("root", "secret");
    let lease = known.grant(Duration::from_secs(60)).await.unwrap();
    known.keep_alive(lease).await.unwrap();
    let revision = known.commit(put("a")).await.unwrap().revision;
    assert_eq!(known.watch(&everything(), revision).await.unwrap().next().await.unwrap().events.len(), 1);

    // Off and on again: every token that etcd gave out is void. A watch copes with that, and so does a write.
    let void_all_tokens = async || {
        let user = etcd_client::ConnectOptions::new().with_user("root", "secret");
        let mut known = etcd_client::Client::connect([etcd.endpoint()], Some(user)).await.unwrap();
        known.auth_disable().await.unwrap();
        root.clone().auth_enable().await.unwrap();
    };
    void_all_tokens().await;
    known.watch(&everything(), revision).await.unwrap().next().await.unwrap();
    void_all_tokens().await;
    known.commit(put("a")).await.unwrap();
    etcd.restart();
    // The first call may find that the connection is gone.
    let _ = known.snapshot(&everything()).await;
    known.commit(put("a")).await.unwrap();

    let guest = store("guest", "guest");
    for refused in [
        store("root", "wrong").commit(put("a")).await.unwrap_err(),
        guest.commit(put("a")).await.unwrap_err(),
        guest.watch(&everything(), Revision::new(1)).await.unwrap_err(),
        etcd_store([etcd.endpoint()]).commit(put("a")).await.unwrap_err(),
    ] {
        assert!(matches!(refused, StoreError::Refused(_)), "{refused}");
    }
}

#[tokio::test]
async fn an_etcd_that_wants_client_certificates_is_spoken_to_with_one_and_new_files_need_no_restart() {
    let folder = tempfile::TempDir::new().unwrap();
    let (ours, other) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "other"));
    let etcd = Etcd::start_with_tls(&ours.issue("etcd"), &ours.file);
    let store = |ca: &Authority, identity: Option<Issued>| {
        let mut options = EtcdOptions::new([etcd.endpoint()]);
        let identity = identity.map(|identity| ClientIdentity { cert: identity.cert, key: identity.key });
        options.tls = Some(EtcdTls { ca: ca.file.clone(), identity });
        EtcdStore::connect(options).unwrap()
    };
    let refused = async |store: EtcdStore| match store.commit(put("a")).await {
        Err(StoreError::Unavailable(failure)) => failure.words().to_owned(),
        other => panic!("{other:?}"),
    };

    let known = store(&ours, Some(ours.issue("segue")));
    let lease = known.grant(Duration::from_secs(60)).await.unwrap();
    known.keep_alive(lease).await.unwrap();
    let revision = known.commit(put("a")).await.unwrap().revision;
    assert_eq!(known.watch(&everything(), revision).await.unwrap().next().await.unwrap().events.len(), 1);

    let stranger = refused(store(&other, Some(ours.issue("stranger")))).await;
    assert!(stranger.contains("UnknownIssuer"), "{stranger}");
    refused(store(&ours, None)).await;
    refused(store(&ours, Some(other.issue("foreign")))).await;
    let missing = refused(store(&ours, Some(Issued { cert: "/no/cert.pem".into(), key: "/no/key.pem".into() }))).await;
    assert!(missing.contains("/no/cert.pem"), "{missing}");

    // Files that are inconsistent while certificates are replaced do not cut off existing connections.
    let files = ours.issue("segue");
    std::fs::write(&files.cert, "half").unwrap();
    etcd.restart();
    let _ = known.snapshot(&everything()).await;
    known.commit(put("a")).await.unwrap();
    // Nor do new ones that etcd does not know.
    other.issue("segue");
    etcd.restart();
    let _ = known.snapshot(&everything()).await;
    known.commit(put("a")).await.unwrap();
    // New ones that it knows are used with the next connection.
    let late = store(&ours, Some(other.issue("late")));
    assert!(late.commit(put("a")).await.is_err());
    ours.issue("late");
    let _ = late.snapshot(&everything()).await;
    late.commit(put("a")).await.unwrap();
}

#[test]
fn tls_and_urls_agree() {
    let tls = Some(EtcdTls { ca: "ca.pem".into(), identity: None });
    for endpoint in ["http://a:1", "a:1", "https://"] {
        let mut options = EtcdOptions::new([endpoint]);
        options.tls = tls.clone();
        assert!(matches!(EtcdStore::connect(options), Err(StoreError::Refused(_))), "{endpoint}");
    }
    let mut options = EtcdOptions::new(["https://a:1"]);
    options.tls = tls;
    assert!(EtcdStore::connect(options).is_ok());
}
