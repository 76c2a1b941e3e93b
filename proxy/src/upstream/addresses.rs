//! Connects to a pod, or a sidecar's service, whose name may have several addresses.
//!
//! The attempts are staggered (RFC 8305): the next address is tried when an attempt has failed, or after a while without an
//! outcome. An address that drops packets then delays a connection instead of preventing it.
//!
//! # Invariants
//!
//! * Every address is tried within the time for the connection, unless an earlier attempt succeeds.
//! * The first connection that is established is used, and the other attempts are given up.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;

use crate::runtime::shortage::is_shortage;

/// Time that an attempt has before the next address is tried too (RFC 8305, 5).
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to `address`, a host and a port. The caller gives up after `timeout`.
pub(crate) async fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    if let Ok(only) = address.parse::<SocketAddr>() {
        return TcpStream::connect(only).await;
    }
    let found = tokio::net::lookup_host(address).await?.collect();
    connect_any(&in_order(found), timeout).await
}

/// Returns the addresses in the order in which they are tried: as they were resolved, with the families in turn.
fn in_order(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (mut of_first, mut of_other) = (Vec::new(), Vec::new());
    for address in found {
        if address.is_ipv6() == first_is_v6 { of_first.push(address) } else { of_other.push(address) }
    }
    let (mut of_first, mut of_other) = (of_first.into_iter(), of_other.into_iter());
    let mut ordered = Vec::new();
    loop {
        let two = [of_first.next(), of_other.next()];
        if two == [None, None] {
            return ordered;
        }
        ordered.extend(two.into_iter().flatten());
    }
}

/// Returns the time between two attempts. With many addresses it is shorter, so that the last one has time left.
fn stagger(timeout: Duration, addresses: usize) -> Duration {
    let share = timeout / u32::try_from(addresses).unwrap_or(u32::MAX).saturating_add(1);
    share.min(STAGGER)
}

async fn connect_any(addresses: &[SocketAddr], timeout: Duration) -> io::Result<TcpStream> {
    let stagger = stagger(timeout, addresses.len());
    let mut attempts = FuturesUnordered::new();
    let mut left = addresses.iter();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        match left.next() {
            Some(address) => attempts.push(TcpStream::connect(*address)),
            None if attempts.is_empty() => return Err(failure),
            None => {}
        }
        let has_more = !left.as_slice().is_empty();
        tokio::select! {
            Some(outcome) = attempts.next() => match outcome {
                Err(error) if is_shortage(&error) => return Err(error),
                Err(error) => failure = error,
                connected => return connected,
            },
            () = tokio::time::sleep(stagger), if has_more => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_the_resolvers_order_holds_within_each() {
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "192.0.2.1:1", "192.0.2.2:1"]);
        let expected = addresses(&["[::1]:1", "192.0.2.1:1", "[::2]:1", "192.0.2.2:1", "[::3]:1"]);
        assert_eq!(in_order(found), expected);
        assert_eq!(in_order(addresses(&["192.0.2.1:1", "[::1]:1"])), addresses(&["192.0.2.1:1", "[::1]:1"]));
        assert_eq!(in_order(Vec::new()), []);
    }

    #[test]
    fn the_last_of_many_addresses_is_tried_in_time() {
        assert_eq!(stagger(Duration::from_secs(1), 2), Duration::from_millis(250));
        for addresses in 1..50 {
            let timeout = Duration::from_millis(500);
            let last = stagger(timeout, addresses) * (addresses as u32 - 1);
            assert!(last < timeout, "{addresses}: {last:?}");
        }
    }

    /// Returns an address on which connections stay unanswered, as long as the sockets exist.
    async fn deaf() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        // Linux queues one more than it was told.
        (listener, vec![TcpStream::connect(address).await.unwrap()], address)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_delays_a_connection_and_does_not_prevent_it() {
        let (_deaf, _queued, silent) = deaf().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = listener.local_addr().unwrap();
        // Far less than the system takes to give the first one up.
        let timeout = Duration::from_secs(30);
        let connected = tokio::time::timeout(timeout, connect_any(&[silent, live], timeout)).await.unwrap().unwrap();
        assert_eq!(connected.peer_addr().unwrap(), live);
    }

    #[tokio::test]
    async fn an_address_that_refuses_gives_way_at_once_and_the_last_error_is_reported() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = listener.local_addr().unwrap();
        let connected = connect_any(&[closed, live], Duration::from_secs(3600)).await.unwrap();
        assert_eq!(connected.peer_addr().unwrap(), live);
        let refused = connect_any(&[closed, closed], Duration::from_secs(3600)).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        connect_any(&[], Duration::from_secs(1)).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_name_is_resolved() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        connect(&format!("localhost:{port}"), Duration::from_secs(30)).await.unwrap();
    }
}
