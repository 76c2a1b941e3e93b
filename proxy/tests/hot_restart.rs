//! A hot restart between two servers: one adopts the listeners of the other, which finishes its requests.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use segue_proxy::server::Server;
use segue_proxy::settings::{ServerSettings, UpstreamProtocol};
use tokio::time::Instant;

use crate::support::client::{empty, full};
use crate::support::pod::{Pod, Speaks};
use crate::support::{Fixture, GET, P0, Settings, TEST_TIMEOUT, soon, until};

fn workers(workers: usize) -> Settings {
    Settings::with(|settings| settings.server.workers = workers)
}

/// Returns a server with this number of workers, and duplicates of its listeners.
fn first(count: usize, pod: &Pod) -> (Fixture, Vec<std::net::TcpListener>) {
    let settings = workers(count);
    let server = Server::bind(settings.server.clone()).unwrap();
    let duplicates = server.duplicates().unwrap();
    assert_eq!(duplicates.len(), count);
    let fixture = Fixture::over(server, settings);
    fixture.route(P0, pod.address, 1);
    (fixture, duplicates)
}

#[tokio::test]
async fn an_idle_client_is_answered_once_more_and_told_to_close() {
    let mut fixture = Fixture::new();
    let _pod = fixture.pod(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
    let (mut used, mut fresh) = (fixture.client().await, fixture.client().await);
    let answer = used.ask(GET).await;
    assert_eq!((answer.text(), answer.header("connection")), ("ok", ""));
    let left = fixture.replace_server();
    fixture.refuses_connections().await;
    for client in [&mut used, &mut fresh] {
        let answer = client.ask(GET).await;
        assert_eq!((answer.status, answer.text(), answer.header("connection")), (200, "ok", "close"));
    }
    assert_eq!((used.rest().await, fresh.rest().await), (String::new(), String::new()));
    soon(left).await.unwrap();
}

#[tokio::test]
async fn a_client_in_an_exchange_is_told_to_close_with_its_answer() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    let http2 = fixture.http2_client().await;
    let left = fixture.replace_server();
    until(|| http2.is_closed(), "the HTTP/2 client to be sent away").await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let answer = client.answer().await;
    assert_eq!((answer.text(), answer.header("connection")), ("ok", "close"));
    soon(left).await.unwrap();
}

#[tokio::test]
async fn a_stream_of_http2_is_answered_after_its_client_was_told_to_go() {
    let mut fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let pod = fixture.scripted_pod().await;
    let http2 = fixture.http2_client().await;
    let answer = http2.spawn_ask(http2.request("GET", "/").body(empty()).unwrap());
    let mut connection = pod.accept_request().await;
    let left = fixture.replace_server();
    fixture.refuses_connections().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(soon(answer).await.unwrap().text(), "ok");
    soon(left).await.unwrap();
}

/// Longer than an idle connection is kept by a server that stops without a successor.
const HEAD_TIMEOUT: Duration = Duration::from_millis(1500);

/// The server closes connections whose time is up when it looks for them, idle ones and unfinished heads alike.
#[tokio::test]
async fn an_idle_client_of_a_replaced_server_is_kept_for_its_request() {
    let mut fixture = Fixture::with(Settings::with_limits(|limits| limits.header_read_timeout = HEAD_TIMEOUT));
    let _pod = fixture.pod(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
    let (mut used, mut fresh, mut slow) = (fixture.client().await, fixture.client().await, fixture.client().await);
    assert_eq!(used.ask(GET).await.status, 200);
    let left = fixture.replace_server();
    fixture.refuses_connections().await;
    slow.write("GET / HTTP/1.1\r\nhost:").await;
    assert_eq!(slow.answer().await.status, 408);
    drop(slow);
    for client in [&mut used, &mut fresh] {
        let answer = client.ask(GET).await;
        assert_eq!((answer.status, answer.text(), answer.header("connection")), (200, "ok", "close"));
    }
    assert_eq!((used.rest().await, fresh.rest().await), (String::new(), String::new()));
    soon(left).await.unwrap();
}

#[tokio::test]
async fn a_client_that_asks_nothing_more_is_closed_at_the_deadline() {
    let mut fixture = Fixture::new();
    let _pod = fixture.quick_pod().await;
    let mut silent = fixture.client().await;
    assert_eq!(silent.ask(GET).await.status, 200);
    soon(fixture.server.take().unwrap().shutdown_replaced(Instant::now() + Duration::from_millis(50))).await;
    assert_eq!(silent.rest().await, "");
}

#[tokio::test]
async fn a_successor_with_fewer_or_more_workers_serves_the_same_address() {
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    for count in [1, 3, 5] {
        let (mut old, listeners) = first(3, &pod);
        let settings = workers(count);
        let server = Server::adopt(settings.server.clone(), listeners).unwrap();
        assert_eq!((server.workers(), server.local_addr()), (count, old.address));
        assert_eq!(server.duplicates().unwrap().len(), count.max(3));
        let new = Fixture::over(server, settings);
        new.route(P0, pod.address, 1);
        soon(old.replace_server()).await.unwrap();
        for _ in 0..48 {
            assert_eq!(new.ask(GET).await.status, 200, "{count} workers");
        }
    }
}

#[tokio::test]
async fn no_client_is_sent_to_a_successor_that_does_not_serve_yet() {
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    let (old, listeners) = first(1, &pod);
    let successor = Server::adopt(workers(8).server, listeners).unwrap();
    for _ in 0..48 {
        assert_eq!(old.ask(GET).await.status, 200);
    }
    drop(successor);
    assert_eq!(old.ask(GET).await.status, 200);
}

/// Connections that wait in the listeners' queues go to whichever server accepts next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_lost_in_hot_restarts_one_after_another() {
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    let (mut fixture, mut listeners) = first(2, &pod);
    let address = fixture.address;
    let (done, failed) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (done, failed, over) = (done.clone(), failed.clone(), over.clone());
            std::thread::spawn(move || {
                while !over.load(Relaxed) {
                    match ask_once(address) {
                        Ok(()) => drop(done.fetch_add(1, Relaxed)),
                        Err(error) => failed.lock().unwrap().push(error),
                    }
                }
            })
        })
        .collect();
    for round in 0..20 {
        let before = done.load(Relaxed);
        until(|| done.load(Relaxed) > before + 20, "requests to flow").await;
        let settings = workers(1 + round % 3);
        let server = Server::adopt(settings.server.clone(), listeners).unwrap();
        listeners = server.duplicates().unwrap();
        let next = Fixture::over(server, settings);
        next.route(P0, pod.address, 1);
        let mut old = std::mem::replace(&mut fixture, next);
        soon(old.replace_server()).await.unwrap();
    }
    over.store(true, Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(*failed.lock().unwrap(), Vec::<String>::new(), "of {}", done.load(Relaxed));
}

fn ask_once(address: std::net::SocketAddr) -> Result<(), String> {
    use std::io::{Read as _, Write as _};
    let mut answer = String::new();
    let exchange = || -> std::io::Result<()> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.write_all(GET.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes())?;
        stream.read_to_string(&mut answer).map(drop)
    };
    match { exchange }() {
        Ok(()) if answer.starts_with("HTTP/1.1 200 ") => Ok(()),
        Ok(()) => Err(format!("answered {answer:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn without_listeners_to_take_over_the_address_is_bound() {
    let settings = ServerSettings { listen: "127.0.0.1:0".to_owned(), workers: 2, tls: None };
    assert_eq!(Server::adopt(settings, Vec::new()).unwrap().duplicates().unwrap().len(), 2);
}
