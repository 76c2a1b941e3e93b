//! Requests that meet a connection which the service is closing.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{World, in_time, listen, read_to};

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn request(method: &str) -> String {
    format!("{method} /path HTTP/1.1\r\nhost: client.example\r\nx-kept: yes\r\ncontent-length: 0\r\n\r\n")
}

async fn head(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        assert_ne!(in_time(stream.read_buf(&mut read)).await.unwrap(), 0, "closed");
    }
    String::from_utf8(read).unwrap()
}

/// A router's connection to a sidecar whose service has a request on a connection that carried one before.
struct OnReused {
    world: World,
    listener: tokio::net::TcpListener,
    service: TcpStream,
    head: String,
}

impl OnReused {
    async fn new(method: &str) -> Self {
        let (listener, address) = listen().await;
        let mut world = World::new(address);
        world.router.write_all(request("GET").as_bytes()).await.unwrap();
        let mut service = in_time(listener.accept()).await.unwrap().0;
        head(&mut service).await;
        loop {
            service.write_all(ANSWER.as_bytes()).await.unwrap();
            in_time(read_to(&mut world.router, "\r\n\r\n")).await;
            world.router.write_all(request(method).as_bytes()).await.unwrap();
            tokio::select! {
                head = head(&mut service) => return OnReused { world, listener, service, head },
                // The client was quicker than its pool.
                accepted = listener.accept() => service = accepted.unwrap().0,
            }
            head(&mut service).await;
        }
    }

    async fn told(&mut self) -> String {
        let mut told = Vec::new();
        while !told.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            assert_ne!(in_time(self.world.router.read_buf(&mut told)).await.unwrap(), 0, "closed");
        }
        String::from_utf8(told).unwrap()
    }
}

#[tokio::test]
async fn a_safe_request_whose_idle_connection_the_service_closes_is_sent_once_more() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let mut on_reused = OnReused::new(method).await;
        let first = std::mem::take(&mut on_reused.head);
        drop(on_reused.service);
        on_reused.service = in_time(on_reused.listener.accept()).await.unwrap().0;
        assert_eq!(head(&mut on_reused.service).await, first, "{method}");
        assert!(first.contains("x-kept: yes") && first.contains("host: client.example"), "{first}");
        on_reused.service.write_all(ANSWER.as_bytes()).await.unwrap();
        let told = on_reused.told().await;
        assert!(told.starts_with("HTTP/1.1 200 "), "{method}: {told}");
    }
}

#[tokio::test]
async fn a_request_that_meets_a_second_closing_connection_or_may_change_something_is_not_sent_again() {
    for (method, closes, begins) in [("GET", 2, ""), ("GET", 1, "HTTP/1.1 2"), ("POST", 1, ""), ("DELETE", 1, "")] {
        let mut on_reused = OnReused::new(method).await;
        on_reused.service.write_all(begins.as_bytes()).await.unwrap();
        drop(on_reused.service);
        if closes > 1 {
            head(&mut in_time(on_reused.listener.accept()).await.unwrap().0).await;
        }
        on_reused.service = TcpStream::connect(on_reused.listener.local_addr().unwrap()).await.unwrap();
        let told = on_reused.told().await;
        assert!(told.starts_with("HTTP/1.1 502 "), "{method}, {begins:?}: {told}");
        // The only connection that waits is the one just made.
        let waiting = in_time(on_reused.listener.accept()).await.unwrap().1;
        assert_eq!(waiting, on_reused.service.local_addr().unwrap(), "{method}, {begins:?}");
    }
}

/// It may have ended because of the request, and so might that of the next owner.
#[tokio::test]
async fn a_safe_request_whose_service_ends_is_not_given_back() {
    let mut on_reused = OnReused::new("GET").await;
    drop(on_reused.listener);
    drop(on_reused.service);
    let (listener, address) = listen().await;
    (on_reused.service, on_reused.listener) = (TcpStream::connect(address).await.unwrap(), listener);
    let told = on_reused.told().await;
    assert!(told.starts_with("HTTP/1.1 502 "), "{told}");
}

/// A service that closes a new connection has failed: asking it again would not help.
#[tokio::test]
async fn a_safe_request_on_a_connection_of_its_own_is_not_sent_again() {
    let (listener, address) = listen().await;
    let mut world = World::new(address);
    world.router.write_all(request("GET").as_bytes()).await.unwrap();
    head(&mut in_time(listener.accept()).await.unwrap().0).await;
    in_time(read_to(&mut world.router, "}")).await;
    let near = TcpStream::connect(address).await.unwrap();
    assert_eq!(in_time(listener.accept()).await.unwrap().1, near.local_addr().unwrap());
}
