//! Sockets that are not what a hot restart expects, and those who speak to them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use segue_tests::process::until;

use super::{Restarting, answered, askers, finish};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_that_is_understood_gets_nothing_and_harms_nothing() {
    let mut router = Restarting::start(&["w-0"]);
    let old = router.first(&["w-0"]);
    let socket = router.socket();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let clients = askers(router.listen, 2, 2);
    drop(UnixStream::connect(&socket).unwrap());
    for (said, answer) in [
        ("GET / HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "is not a hot restart message"),
        ("\0\u{1}\n".to_owned(), "is not a hot restart message"),
        ("x".repeat(100_000), "is not a hot restart message"),
        (
            "{\"segue_hot_restart\":2,\"say\":\"hello\"}\n".to_owned(),
            "speaks version 2 of the hot restart protocol, this one version 1",
        ),
        ("{\"segue_hot_restart\":1,\"say\":\"ready\"}\n".to_owned(), "instead of hello"),
        (
            "{\"segue_hot_restart\":1,\"say\":\"hello\",\"patience_ms\":60000}\nrubbish\n".to_owned(),
            "not a hot restart message",
        ),
    ] {
        let refused = || {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            // It may be closed before all is said.
            let _ = stream.write_all(said.as_bytes());
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            String::from_utf8_lossy(&heard).into_owned()
        };
        // The one before may not have been given up yet.
        let mut heard = String::new();
        until("an answer about the socket", || {
            heard = refused();
            !heard.contains("in progress")
        });
        assert!(heard.contains(answer), "{said:.60}: {heard}");
    }
    clients.goes_on(100);
    let new = router.restart(old, 2);
    clients.goes_on(100);
    finish(clients);
    assert!(new.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_no_socket_is_refused_and_what_a_crash_left_is_not() {
    let mut router = Restarting::start(&["w-0"]);
    router.cluster.leases.router = 2;
    std::fs::write(router.socket(), "precious").unwrap();
    let mut process = router.process(1);
    assert_eq!(process.wait().code(), Some(1));
    assert!(process.output().contains("r.sock is not a socket"), "{}", process.output());
    std::fs::remove_file(router.socket()).unwrap();
    router.first(&["w-0"]).kill();
    assert!(router.socket().exists());
    let second = router.first(&["w-0"]);
    answered(router.listen);
    assert!(second.terminate().0.success());
    assert!(!router.socket().exists());
}

/// Two messages of an old process, with no sockets to pass on.
const OFFER: &str = "{\"segue_hot_restart\":1,\"say\":\"offer\",\"name\":\"r\",\"sockets\":0}\n";
const REFUSAL: &str = "{\"segue_hot_restart\":1,\"say\":\"refusal\",\"reason\":\"not now\"}\n";

#[test]
fn a_new_process_leaves_the_admin_socket_of_the_old_one_alone_until_that_leaves() {
    let mut router = Restarting::start(&["w-0"]);
    // The test is the old process.
    let hot_restarts = UnixListener::bind(router.socket()).unwrap();
    let _admin = UnixListener::bind(router.admin_socket()).unwrap();
    let before = std::fs::metadata(router.admin_socket()).unwrap().ino();
    let mut new = router.process(2);
    let (stream, _) = hot_restarts.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut lines = BufReader::new(&stream).lines();
    assert!(lines.next().unwrap().unwrap().contains("hello"));
    (&stream).write_all(OFFER.as_bytes()).unwrap();
    assert!(lines.next().unwrap().unwrap().contains("ready"));
    (&stream).write_all(REFUSAL.as_bytes()).unwrap();
    assert_eq!(new.wait().code(), Some(1));
    assert!(new.output().contains("keeps serving: not now"), "{}", new.output());
    assert_eq!(std::fs::metadata(router.admin_socket()).unwrap().ino(), before);
}
