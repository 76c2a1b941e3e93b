//! Asks a process of the keyspace for its status, at the admin address in its registration.
//!
//! # Invariants
//!
//! * A response is bounded in size and in time, and no redirect is followed.
//! * A question has no token of an operator: the address comes from the store, and not from the operator.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use axum::body::{Body, Bytes, to_bytes};
use http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use segue_proxy::tls::ClientTls;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::either::Either;
use tokio_util::task::AbortOnDropHandle;

/// Most bytes of a response.
const MAX_RESPONSE: usize = 32 << 20;

/// What has to be encoded in a segment of a path and in a query.
const SEGMENT: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'/').add(b'?').add(b'&').add(b'+').add(b'=').add(b'\\');

const NO_ADDRESS: &str =
    "its registration has no admin address: if it is a Segue process, set [admin] advertise in its file";
const NO_HTTP: &str = "no response by HTTP; an endpoint with TLS needs --admin-ca, or in the file of the process that asks \
                       admin.peers_tls";

/// Reads the status of the process at an admin address `HOST:PORT`, in this keyspace. Without a name, the process has to
/// have one keyspace. The endpoint is asked by TLS if `tls` is given.
pub(super) async fn status<T: DeserializeOwned>(
    admin: Option<&str>,
    tls: Option<&ClientTls>,
    keyspace: Option<&str>,
    within: Duration,
) -> anyhow::Result<T> {
    let admin = admin.context(NO_ADDRESS)?;
    let asked = timeout(within, ask(admin, tls, keyspace)).await;
    let (status, bytes) = asked.map_err(|_| anyhow!("no response within {within:?}"))??;
    ensure!(status == StatusCode::OK, "/status is answered with {status}");
    serde_json::from_slice(&bytes).context("/status cannot be read")
}

async fn ask(admin: &str, tls: Option<&ClientTls>, keyspace: Option<&str>) -> anyhow::Result<(StatusCode, Bytes)> {
    let keyspace = keyspace.map_or(String::new(), |keyspace| format!("?keyspace={}", segment(keyspace)));
    let request = Request::get(format!("/status{keyspace}")).header(header::HOST, admin).body(Body::empty())?;
    let stream = TcpStream::connect(admin).await.context("cannot connect")?;
    let stream = match tls {
        None => Either::Left(stream),
        Some(tls) => Either::Right(tls.dial(admin, stream, false).await.context("no TLS")?),
    };
    let answer = exchange(stream, request).await;
    if tls.is_none() { answer.context(NO_HTTP) } else { answer }
}

/// Sends a request over a new connection, and returns the response.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await?;
    let status = response.status();
    Ok((status, to_bytes(Body::new(response.into_body()), MAX_RESPONSE).await?))
}

/// Returns a name as a segment of a path, or as a value of a query.
pub(crate) fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}
