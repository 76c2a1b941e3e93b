//! An etcd with users: tokens, and passwords that are replaced.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission, PermissionType};
use segue_coordination::store::{EtcdCredentials, EtcdOptions, EtcdStore, Store, StoreError};
use segue_protocol::ids::Revision;
use segue_tests::etcd::Etcd;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use super::scripted::{Empty, INVALID_ARGUMENT, Reply, Scripted, Token, header, one};
use super::{all, put};

pub(super) const USER: &str = "segue";

/// A second role of the user, which may read.
const READER: &str = "reader";

/// An etcd with users, and the file with the password of one that may use `/segue/`.
pub(super) struct Site {
    etcd: Etcd,
    folder: TempDir,
}

impl Site {
    pub(super) async fn start() -> Self {
        let site = Site { etcd: Etcd::start(), folder: TempDir::new().unwrap() };
        let mut root = Client::connect([site.etcd.endpoint()], None).await.unwrap();
        root.user_add("root", "secret", None).await.unwrap();
        root.role_add("root").await.unwrap();
        root.user_grant_role("root", "root").await.unwrap();
        root.user_add(USER, "old", None).await.unwrap();
        root.role_add(USER).await.unwrap();
        let own = Permission::new(PermissionType::Readwrite, "/segue/").with_prefix();
        root.role_grant_permission(USER, own).await.unwrap();
        root.user_grant_role(USER, USER).await.unwrap();
        root.role_add(READER).await.unwrap();
        root.role_grant_permission(READER, Permission::new(PermissionType::Read, "/segue/").with_prefix())
            .await
            .unwrap();
        root.user_grant_role(USER, READER).await.unwrap();
        root.auth_enable().await.unwrap();
        site.write("old");
        site
    }

    /// Takes the right to write from the user.
    pub(super) async fn let_read_only(&self) {
        self.root().await.user_revoke_role(USER, USER).await.unwrap();
    }

    pub(super) async fn let_write(&self) {
        self.root().await.user_grant_role(USER, USER).await.unwrap();
    }

    pub(super) async fn root(&self) -> Client {
        let options = ConnectOptions::new().with_user("root", "secret");
        Client::connect([self.etcd.endpoint()], Some(options)).await.unwrap()
    }

    /// Lets everybody do everything.
    async fn let_all(&self) {
        self.root().await.auth_disable().await.unwrap();
    }

    async fn let_users_alone(&self) {
        Client::connect([self.etcd.endpoint()], None).await.unwrap().auth_enable().await.unwrap();
    }

    /// Makes every token void that etcd has given.
    async fn void_all_tokens(&self) {
        self.let_all().await;
        self.let_users_alone().await;
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("password")
    }

    fn write(&self, password: &str) {
        std::fs::write(self.file(), format!("{password}\n")).unwrap();
    }

    fn options(&self) -> EtcdOptions {
        let mut options = EtcdOptions::new([self.etcd.endpoint()]);
        options.credentials = Some(EtcdCredentials { username: USER.to_owned(), password_file: self.file() });
        options
    }

    pub(super) fn store(&self) -> EtcdStore {
        EtcdStore::connect(self.options()).unwrap()
    }

    fn authentications(&self) -> f64 {
        let labels = r#"grpc_method="Authenticate",grpc_service="etcdserverpb.Auth",grpc_type="unary""#;
        self.etcd.metric(&format!("grpc_server_started_total{{{labels}}}")).unwrap()
    }
}

#[tokio::test]
async fn a_process_authenticates_once_for_all_its_connections_and_watches() {
    let site = Site::start().await;
    let before = site.authentications();
    let store = site.store();
    let first = store.commit(put("/segue/a")).await.unwrap().revision;
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    for _ in 0..3 {
        store.watch(&all(), first).await.unwrap().next().await.unwrap();
        store.keep_alive(lease).await.unwrap();
    }
    // A renewal that is given up gives up the connection.
    site.etcd.pause();
    assert!(timeout(Duration::from_millis(100), store.keep_alive(lease)).await.is_err());
    site.etcd.resume();
    store.commit(put("/segue/b")).await.unwrap();
    assert_eq!(site.authentications() - before, 1.0);
    // An unexpected token costs one more, whatever is asked first.
    site.void_all_tokens().await;
    let before = site.authentications();
    store.watch(&all(), first).await.unwrap().next().await.unwrap();
    store.commit(put("/segue/c")).await.unwrap();
    assert_eq!(site.authentications() - before, 1.0);
}

#[tokio::test]
async fn a_process_has_its_user_ready_before_etcd_asks_for_users() {
    let site = Site::start().await;
    site.let_all().await;
    let store = site.store();
    let first = store.commit(put("/segue/a")).await.unwrap().revision;
    let mut watch = store.watch(&all(), first).await.unwrap();
    for key in ["/segue/b", "/segue/c"] {
        site.let_users_alone().await;
        let last = store.commit(put(key)).await.unwrap().revision;
        while watch.next().await.unwrap().revision < last {}
        store.watch(&all(), last).await.unwrap().next().await.unwrap();
        site.let_all().await;
        store.commit(put(key)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_start_together_authenticate_once_each() {
    const PROCESSES: u8 = 12;
    let site = Site::start().await;
    let before = site.authentications();
    // Less than etcd takes to check that many passwords on a few cores.
    let options = EtcdOptions { connect_timeout: Duration::from_millis(200), ..site.options() };
    let processes = (0..PROCESSES).map(|number| {
        let store = EtcdStore::connect(options.clone()).unwrap();
        tokio::spawn(async move { while store.commit(put(&format!("/segue/{number}"))).await.is_err() {} })
    });
    for process in processes.collect::<Vec<_>>() {
        process.await.unwrap();
    }
    assert_eq!(site.authentications() - before, f64::from(PROCESSES));
}

#[tokio::test]
async fn an_authentication_outlives_the_calls_that_wait_for_it() {
    let asked = Arc::new(AtomicUsize::new(0));
    let (open, gate) = watch::channel(false);
    let etcd = Scripted::start({
        let asked = asked.clone();
        move |method| {
            let (asked, mut gate) = (asked.clone(), gate.clone());
            async move {
                if method != "Authenticate" {
                    return match *gate.borrow() {
                        true => one(&Empty { header: header(7, 5) }),
                        false => Reply::Failure(INVALID_ARGUMENT, "etcdserver: user name is empty"),
                    };
                }
                asked.fetch_add(1, Ordering::Relaxed);
                gate.wait_for(|open| *open).await.unwrap();
                one(&Token { header: header(7, 5), token: "token".to_owned() })
            }
        }
    });
    let (etcd, folder) = (etcd.await, TempDir::new().unwrap());
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, "old").unwrap();
    let mut options = EtcdOptions::new([etcd.endpoint.clone()]);
    options.credentials = Some(EtcdCredentials { username: USER.to_owned(), password_file });
    options.request_timeout = Duration::from_millis(100);
    let store = EtcdStore::connect(options).unwrap();
    let mut unanswered = 0;
    while unanswered < 5 {
        let error = store.snapshot(&all()).await.unwrap_err().to_string();
        // On a busy machine a call may end before its connection is made.
        unanswered += usize::from(error.contains("no response to the authentication"));
    }
    open.send(true).unwrap();
    while store.snapshot(&all()).await.is_err() {}
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_replaced_password_is_used_without_a_restart() {
    let site = Site::start().await;
    let store = site.store();
    let first = store.commit(put("/segue/a")).await.unwrap().revision;
    let mut watch = store.watch(&all(), first).await.unwrap();

    // etcd's first. Its tokens are void at once.
    site.root().await.user_change_password(USER, "new").await.unwrap();
    let before = site.authentications();
    for _ in 0..20 {
        let error = store.commit(put("/segue/b")).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Refused(failure) if failure.words().contains("authentication failed")),
            "{error}"
        );
    }
    let tried = site.authentications() - before;
    assert!((1.0..10.0).contains(&tried), "{tried} authentications by 20 calls");
    site.write("new");
    let last = store.commit(put("/segue/b")).await.unwrap().revision;
    // What was open has gone on meanwhile.
    while watch.next().await.unwrap().revision < last {}

    // The file first, and a token that ends before etcd knows the new password.
    site.write("newer");
    site.void_all_tokens().await;
    store.commit(put("/segue/c")).await.unwrap();
    site.root().await.user_change_password(USER, "newer").await.unwrap();
    store.commit(put("/segue/d")).await.unwrap();

    // A file that cannot be read.
    std::fs::remove_file(site.file()).unwrap();
    site.void_all_tokens().await;
    store.commit(put("/segue/e")).await.unwrap();
    assert_eq!(store.watch(&all(), Revision::new(1)).await.unwrap().next().await.unwrap().events.len(), 5);
}
