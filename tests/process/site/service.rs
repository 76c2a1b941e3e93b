//! Services in the test's own process, which respond as the test says.

use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// A partition in its keyspace, under an epoch.
pub(crate) type Owned = (String, u64, u64);

/// A response: its status and its body.
pub(crate) type Answer = (u16, String);

/// A request that a service got.
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Call {
    /// Returns a header, or nothing.
    pub(crate) fn text(&self, header: &str) -> String {
        self.headers.get(header).map_or("", |value| value.to_str().unwrap()).to_owned()
    }

    /// Returns a header that is a number, or the largest one.
    pub(crate) fn number(&self, header: &str) -> u64 {
        self.text(header).parse().unwrap_or(u64::MAX)
    }

    /// Returns what a request is stamped with.
    pub(crate) fn stamps(&self) -> Owned {
        (self.text("segue-keyspace"), self.number("segue-partition"), self.number("segue-epoch"))
    }

    /// Returns what the call of a hook is about.
    pub(crate) fn told(&self) -> Owned {
        let said: Value = serde_json::from_str(&self.body).unwrap();
        let number = |name: &str| said[name].as_u64().unwrap();
        (said["keyspace"].as_str().unwrap().to_owned(), number("partition"), number("epoch"))
    }
}

/// Starts a service that responds to each request as `answer` does.
pub(crate) async fn serve<F>(answer: impl Fn(Call) -> F + Clone + Send + Sync + 'static) -> SocketAddr
where
    F: Future<Output = Answer> + Send + 'static,
{
    let respond = move |request: Request| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
            let body = String::from_utf8_lossy(&body).into_owned();
            let (status, body) = answer(Call { path: head.uri.to_string(), headers: head.headers, body }).await;
            (StatusCode::from_u16(status).unwrap(), body)
        }
    };
    serve_routes(Router::new().fallback(respond)).await
}

/// Starts a service that responds with this text.
pub(crate) async fn serve_text(text: &'static str) -> SocketAddr {
    serve(move |_| async move { (200, text.to_owned()) }).await
}

/// Starts a service with these routes. It works on when a client closes its side of the connection, which axum's own server
/// does not.
pub(crate) async fn serve_routes(routes: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut builder = Builder::new();
            let service = TowerToHyperService::new(routes.clone());
            tokio::spawn(builder.half_close(true).serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// Starts a service with these routes that speaks HTTP/1.1 and HTTP/2.
pub(crate) async fn serve_both_versions(routes: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, routes.clone()));
        }
    });
    address
}

/// Does the same at a Unix socket.
pub(crate) async fn serve_both_versions_at(socket: &Path, routes: Router) {
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, routes.clone()));
        }
    });
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Router) {
    let (builder, service) = (auto::Builder::new(TokioExecutor::new()), TowerToHyperService::new(routes));
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}
