//! Exchanges by HTTP/2, with a router or with a service.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{HEADERS_FRAME, PING_FRAME, World, call, frames_for, in_time, listen};
use crate::settings::UpstreamProtocol;
use crate::sidecar::body::empty;

/// An upload by HTTP/2 that its service has answered whole: its two ends, and its exchange. It ends when its sender is
/// dropped.
async fn answered_by_http2() -> (mpsc::UnboundedSender<Bytes>, Incoming, JoinHandle<()>) {
    let (listener, address) = listen().await;
    let (to_test, mut uploads) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let stream = listener.accept().await.unwrap().0;
        let service = service_fn(move |request: Request<Incoming>| {
            to_test.send(request.into_body()).unwrap();
            std::future::ready(Ok::<_, Infallible>(Response::new(empty())))
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    });
    let world = World::new(address);
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(world.router)).await.unwrap();
    tokio::spawn(connection);
    let (send, mut sent) = mpsc::unbounded_channel();
    let frames =
        futures_util::stream::poll_fn(move |context| sent.poll_recv(context).map(|data| data.map(Frame::data)));
    let body = StreamBody::new(frames.map(Ok::<_, Infallible>));
    let response = in_time(client.send_request(call("POST").body(body).unwrap())).await;
    assert!(response.unwrap().into_body().is_end_stream());
    (send, in_time(uploads.recv()).await.unwrap(), world.exchange.await.unwrap())
}

#[tokio::test]
async fn an_upload_by_http2_counts_to_its_end_after_its_answer() {
    let (send, mut upload, exchange) = answered_by_http2().await;
    send.send(Bytes::from_static(b"a frame")).unwrap();
    in_time(upload.frame()).await.unwrap().unwrap();
    assert!(!exchange.is_finished(), "the upload goes on");
    drop(send);
    in_time(upload.collect()).await.unwrap();
    in_time(exchange).await.unwrap();
}

#[tokio::test]
async fn a_service_ends_an_upload_by_http2_with_a_reset_behind_its_answer() {
    let (_send, upload, exchange) = answered_by_http2().await;
    drop(upload);
    in_time(exchange).await.unwrap();
}

/// gRPC servers take more than two pings for abuse, unless five minutes are between them or data.
#[tokio::test(start_paused = true)]
async fn a_service_that_works_on_a_request_for_long_gets_no_pings() {
    let (listener, address) = listen().await;
    let world = World::new(address);
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(world.router)).await.unwrap();
    tokio::spawn(connection);
    let request = tokio::spawn(client.send_request(call("GET").body(empty()).unwrap()));
    let service = listener.accept().await.unwrap().0;
    let frames = frames_for(service, Duration::from_secs(600)).await;
    assert!(frames.contains(&HEADERS_FRAME), "{frames:?}");
    assert!(!frames.contains(&PING_FRAME), "{frames:?}");
    assert!(!request.is_finished());
}

/// Starts a service that tells the version, the host, the cookies and the body of each request.
async fn telling_service(by_http2: bool) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let stream = TokioIo::new(listener.accept().await.unwrap().0);
        let service = service_fn(async |request: Request<Incoming>| {
            let (head, body) = request.into_parts();
            let host = head.headers.get("host").map(|host| host.to_str().unwrap().to_owned());
            let host = host.unwrap_or_else(|| head.uri.authority().unwrap().to_string());
            let cookies: Vec<_> = head.headers.get_all("cookie").iter().map(|line| line.to_str().unwrap()).collect();
            let body = body.collect().await.unwrap().to_bytes();
            let told = format!("{:?} {host} {cookies:?} {}", head.version, String::from_utf8_lossy(&body));
            Ok::<_, Infallible>(Response::new(http_body_util::Full::new(Bytes::from(told))))
        });
        let _ = match by_http2 {
            true => {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.serve_connection(stream, service).await
            }
            false => hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await,
        };
    });
    address
}

#[tokio::test]
async fn a_service_is_spoken_to_in_its_protocol_whatever_its_router_speaks() {
    use UpstreamProtocol::{Auto, Http1, Http2};
    for (protocol, is_grpc, expected) in [
        (Auto, false, "HTTP/1.1 host.example [\"a=1; b=2\"] body"),
        (Auto, true, "HTTP/2.0 host.example [\"a=1\", \"b=2\"] body"),
        (Http1, true, "HTTP/1.1 host.example [\"a=1; b=2\"] body"),
        (Http2, false, "HTTP/2.0 host.example [\"a=1\", \"b=2\"] body"),
    ] {
        for router_speaks_http2 in [false, true] {
            let world = World::of(telling_service(expected.starts_with("HTTP/2")).await, protocol);
            let mut request = Request::post("/").header("cookie", "a=1").header("cookie", "b=2");
            request = request.header("content-type", if is_grpc { "application/grpc" } else { "text/plain" });
            let body = http_body_util::Full::new(Bytes::from_static(b"body"));
            let response = if router_speaks_http2 {
                let io = TokioIo::new(world.router);
                let (mut client, connection) =
                    hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
                tokio::spawn(connection);
                in_time(client.send_request(request.uri("http://host.example/").body(body).unwrap())).await
            } else {
                let (mut client, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(world.router)).await.unwrap();
                tokio::spawn(connection);
                in_time(client.send_request(request.header("host", "host.example").body(body).unwrap())).await
            };
            let told = in_time(response.unwrap().collect()).await.unwrap().to_bytes();
            assert_eq!(told, expected, "{protocol:?}, gRPC: {is_grpc}, router by HTTP/2: {router_speaks_http2}");
        }
    }
}
