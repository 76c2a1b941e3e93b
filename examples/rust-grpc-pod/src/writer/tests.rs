//! Tests of the service behind its membership.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::*;
use crate::membership::tests::{end_lease, give, identity};

/// Waits until this process waits for the lock of a file.
fn until_a_lock_is_awaited() -> io::Result<()> {
    let (waiter, begun) = (format!(" {} ", std::process::id()), Instant::now());
    while !fs::read_to_string("/proc/locks")?.lines().any(|line| line.contains("->") && line.contains(&waiter)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for the lock");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

// The service blocks a thread of the runtime, so the router here does without the runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_write_that_is_appended_after_the_lease_has_ended_is_not_confirmed() -> io::Result<()> {
    let folder = std::env::temp_dir().join(format!("segue-rust-grpc-pod-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let writer = Arc::new(Writer::new(folder.clone(), Pace { warm: Duration::ZERO, service: Duration::ZERO }));
    writer.warm(0, None).await?;
    let membership = Membership::new(identity(), writer.clone());
    give(&membership, 0, 1);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let mut router = TcpStream::connect(listener.local_addr()?)?;
    router.set_read_timeout(Some(Duration::from_secs(30)))?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let serving = tokio::spawn(axum::serve(listener, routes(writer.clone(), membership.clone())).into_future());

    let locked = File::create(writer.path(0))?;
    locked.lock()?;
    let head = "PUT /keys/k HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 1\r\nsegue-partition: 0\r\n\
                segue-epoch: 1\r\nsegue-keyspace: default\r\nx-request-id: 1\r\nx-sequence: 1\r\n\r\nv";
    router.write_all(head.as_bytes())?;
    until_a_lock_is_awaited()?;
    end_lease(&membership);
    drop(locked);
    let mut response = String::new();
    router.read_to_string(&mut response)?;
    assert!(response.starts_with("HTTP/1.1 500 ") && response.contains("segue-reason: lease-lost"), "{response}");
    assert_eq!(fs::read_to_string(writer.path(0))?.lines().count(), 1, "it was appended");
    serving.abort();
    fs::remove_dir_all(folder)
}
