//! The admin endpoint: `/health`, `/ready`, `/metrics`, `/status`.
//!
//! It shows what the process's parts say of themselves and decides nothing.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use anyhow::Context as _;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::registry::Registry;
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A role of this process, as the admin endpoint sees it.
pub trait Part: Send + Sync + 'static {
    /// What it is called in `/status`: the name of its section of the file.
    fn name(&self) -> &'static str;
    /// Whether it can do its work; else why not, in words.
    fn ready(&self) -> Result<(), String>;
    /// What it does just now.
    fn status(&self) -> Value;
    /// Brings gauges up to date that nothing else does.
    fn refresh(&self) {}
}

struct Shared {
    parts: Vec<Arc<dyn Part>>,
    registry: Registry,
}

/// A bound admin endpoint.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
}

impl Admin {
    /// Binds the address, so that one in use is found before anything is started; or takes over a listener that has it.
    pub async fn bind(address: SocketAddr, taken_over: Option<std::net::TcpListener>) -> anyhow::Result<Self> {
        if let Some(listener) = taken_over {
            listener.set_nonblocking(true)?;
            return Ok(Admin { listener: TcpListener::from_std(listener)? });
        }
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("admin.listen: cannot listen on {address}"))?;
        Ok(Admin { listener })
    }

    /// The listener once more, for a process that is to take it over.
    pub fn duplicate(&self) -> std::io::Result<std::net::TcpListener> {
        Ok(self.listener.as_fd().try_clone_to_owned()?.into())
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`.
    pub async fn serve(
        self,
        parts: Vec<Arc<dyn Part>>,
        registry: Registry,
        shutdown: CancellationToken,
    ) -> std::io::Result<()> {
        let routes = Router::new()
            .route("/health", get(|| async { "alive\n" }))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .route("/status", get(status))
            .with_state(Arc::new(Shared { parts, registry }));
        axum::serve(self.listener, routes).with_graceful_shutdown(shutdown.cancelled_owned()).await
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let reasons: Vec<String> = shared
        .parts
        .iter()
        .filter_map(|part| part.ready().err().map(|reason| format!("{}: {reason}\n", part.name())))
        .collect();
    match reasons.is_empty() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, reasons.concat()).into_response(),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    shared.parts.iter().for_each(|part| part.refresh());
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &shared.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

async fn status(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let parts = shared.parts.iter().map(|part| (part.name().to_owned(), part.status()));
    Json(Value::Object(parts.collect::<Map<String, Value>>()))
}
