//! Services that are reached by TLS or over a Unix socket.

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use segue_tests::certificates::Authority;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use super::{PATIENCE, World, in_time, listen, read_to};
use crate::settings::UpstreamProtocol;
use crate::sidecar::{Checks, HealthCheck, ServiceAddress, Upstream};
use crate::tls::{ClientFiles, ClientTls, SealedBytes, ServerFiles, ServerTls, Stream};

/// A service that answers with how it was asked.
async fn echo(
    request: http::Request<hyper::body::Incoming>,
) -> Result<http::Response<String>, std::convert::Infallible> {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok());
    let host = host.or(request.uri().authority().map(|authority| authority.as_str())).unwrap_or("none");
    let scheme = request.uri().scheme_str().unwrap_or("none");
    Ok(http::Response::new(format!("{:?} {host} {scheme} end", request.version())))
}

fn serve(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static) {
    tokio::spawn(async move {
        let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service_fn(echo)).await;
    });
}

/// Returns a service over a Unix socket, and the folder of the socket.
fn over_unix() -> (Upstream, UnixListener, TempDir) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("service.sock");
    let listener = UnixListener::bind(&path).unwrap();
    (Upstream::at(ServiceAddress::Unix(path)), listener, folder)
}

/// Returns the TLS of a service and of its sidecar. The certificate is made out to `localhost`.
fn certificates(folder: &TempDir) -> (ServerTls, ClientTls) {
    let authority = Authority::new(folder.path(), "ours");
    let own = authority.issue("service");
    let files = ServerFiles {
        cert: own.cert,
        key: own.key,
        client_ca: None,
        client_cert_is_optional: false,
        others: Vec::new(),
    };
    let client = ClientFiles { ca: authority.file, identity: None, server_name: None };
    (ServerTls::load(files).unwrap(), ClientTls::load(client).unwrap())
}

/// Returns a service by TLS that serves each connection with `serve`.
async fn by_tls(serve: impl Fn(Stream) + Send + 'static) -> (Upstream, TempDir) {
    let folder = TempDir::new().unwrap();
    let (server, client) = certificates(&folder);
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = server.accept(stream, SealedBytes::default()).await {
                serve(stream);
            }
        }
    });
    (Upstream { tls: Some(client), ..Upstream::at(address.to_string().parse().unwrap()) }, folder)
}

/// Returns what the service answers to a request for `client.example`.
async fn asked(upstream: &Upstream, protocol: UpstreamProtocol) -> String {
    let mut world = World::before(Upstream { protocol, ..upstream.clone() });
    let request = b"GET /a HTTP/1.1\r\nhost: client.example\r\nconnection: close\r\n\r\n";
    world.router.write_all(request).await.unwrap();
    let mut told = String::new();
    in_time(world.router.read_to_string(&mut told)).await.unwrap();
    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    told.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test]
async fn a_service_over_a_unix_socket_is_asked_by_both_versions_for_the_clients_host() {
    let (upstream, listener, _folder) = over_unix();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            serve(stream);
        }
    });
    assert_eq!(asked(&upstream, UpstreamProtocol::Http1).await, "HTTP/1.1 client.example none end");
    assert_eq!(asked(&upstream, UpstreamProtocol::Http2).await, "HTTP/2.0 client.example http end");
}

#[tokio::test]
async fn a_service_by_tls_is_asked_by_both_versions_for_the_clients_host() {
    let (upstream, _folder) = by_tls(serve).await;
    assert_eq!(asked(&upstream, UpstreamProtocol::Http1).await, "HTTP/1.1 client.example none end");
    assert_eq!(asked(&upstream, UpstreamProtocol::Http2).await, "HTTP/2.0 client.example https end");
}

#[tokio::test]
async fn a_service_whose_certificate_is_not_trusted_is_sent_nothing() {
    let (upstream, _folder) = by_tls(serve).await;
    let strangers = TempDir::new().unwrap();
    let (_, stranger) = certificates(&strangers);
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let mut world = World::before(Upstream { tls: Some(stranger.clone()), protocol, ..upstream.clone() });
        world.upload().await;
        let mut told = vec![0; 13];
        in_time(world.router.read_exact(&mut told)).await.unwrap();
        assert_eq!(String::from_utf8(told).unwrap(), "HTTP/1.1 421 ");
    }
}

/// Both are told by the end of this side, and are waited for.
#[tokio::test]
async fn an_exchange_over_a_unix_socket_counts_until_the_service_has_ended() {
    let (upstream, listener, _folder) = over_unix();
    let mut world = World::before(upstream);
    world.upload().await;
    let mut service = in_time(listener.accept()).await.unwrap().0;
    in_time(read_to(&mut service, "ten bytes.")).await;
    service.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly").await.unwrap();
    in_time(read_to(&mut world.router, "early")).await;
    let exchange = world.exchange.await.unwrap();
    drop(world.router);
    assert_eq!(in_time(service.read(&mut [0; 1])).await.unwrap(), 0, "the service is told");
    assert!(!exchange.is_finished(), "the service works on what it has");
    drop(service);
    in_time(exchange).await.unwrap();
}

#[tokio::test]
async fn a_connection_by_tls_or_over_a_unix_socket_switches_protocols() {
    const SWITCH: &str = "connection: upgrade\r\nupgrade: echo\r\n\r\n";
    async fn switch(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
        read_to(&mut stream, "\r\n\r\n").await;
        stream.write_all(format!("HTTP/1.1 101 Switching Protocols\r\n{SWITCH}").as_bytes()).await.unwrap();
        read_to(&mut stream, "ping").await;
        stream.write_all(b"pong").await.unwrap();
        stream.flush().await.unwrap();
    }
    let (unix, listener, _folder) = over_unix();
    tokio::spawn(async move { switch(listener.accept().await.unwrap().0).await });
    let (tls, _files) = by_tls(|stream| drop(tokio::spawn(switch(stream)))).await;
    for upstream in [unix, tls] {
        let mut world = World::before(upstream);
        world.router.write_all(format!("GET / HTTP/1.1\r\nhost: x\r\n{SWITCH}").as_bytes()).await.unwrap();
        in_time(read_to(&mut world.router, "\r\n\r\n")).await;
        world.router.write_all(b"ping").await.unwrap();
        in_time(read_to(&mut world.router, "pong")).await;
    }
}

#[tokio::test]
async fn a_service_is_checked_in_the_way_in_which_it_is_asked() {
    let path = Some(http::uri::PathAndQuery::from_static("/healthz"));
    let checks = Checks { path, every: PATIENCE, unhealthy_after: 1 };
    let (secured, _files) = by_tls(serve).await;
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let health = HealthCheck::watch(Upstream { protocol, ..secured.clone() }, checks.clone());
        in_time(health.up()).await;
    }
    // A socket that appears later is found.
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("service.sock");
    let health = HealthCheck::watch(Upstream::at(ServiceAddress::Unix(path.clone())), checks);
    tokio::task::yield_now().await;
    assert!(!health.is_up());
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            serve(stream);
        }
    });
    in_time(health.up()).await;
}
