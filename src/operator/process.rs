//! Asks a process of the keyspace, such as for its status, at the admin address that it has put into the store.
//!
//! # Invariants
//!
//! * A response is bounded in size and in time, and no redirect is followed.
//! * The number of questions at a time is bounded, whoever wants the answers.
//! * A question has no token of an operator: the address comes from the store, and not from the operator.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use axum::body::{Body, Bytes, to_bytes};
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use segue_proxy::tls::ClientTls;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::either::Either;
use tokio_util::task::AbortOnDropHandle;

/// Most bytes of a response.
const MAX_RESPONSE: usize = 32 << 20;
/// Most questions at a time, in the whole process.
const MOST_AT_A_TIME: usize = 8;

static PLACES: Semaphore = Semaphore::const_new(MOST_AT_A_TIME);

/// What has to be encoded in a segment of a path and in a query.
const SEGMENT: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'/').add(b'?').add(b'&').add(b'+').add(b'=').add(b'\\');

const NO_ADDRESS: &str =
    "its registration has no admin address: if it is a Segue process, set [admin] advertise in its file";
const NO_HTTP: &str = "no response by HTTP; an endpoint with TLS needs --admin-ca, or in the file of the process that asks \
                       admin.peers_tls";

/// Reads the status of the process at an admin address `HOST:PORT`, in this keyspace. Without a name, the process has to
/// have one keyspace. The endpoint is asked by TLS if `tls` is given.
pub(super) async fn status<T: DeserializeOwned + Send + 'static>(
    admin: Option<&str>,
    tls: Option<&ClientTls>,
    keyspace: Option<&str>,
    within: Duration,
) -> anyhow::Result<T> {
    ask(admin, tls, Question { path: "/status", keyspace, within, most_bytes: MAX_RESPONSE }, &PLACES).await
}

/// What a process is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// The path, which may have a query.
    pub(super) path: &'a str,
    /// The keyspace. `None`: the only one of the process.
    pub(super) keyspace: Option<&'a str>,
    pub(super) within: Duration,
    /// Most bytes of the response.
    pub(super) most_bytes: usize,
}

/// Asks the process at an admin address `HOST:PORT`, once one of these places is free.
pub(super) async fn ask<T: DeserializeOwned + Send + 'static>(
    admin: Option<&str>,
    tls: Option<&ClientTls>,
    question: Question<'_>,
    places: &'static Semaphore,
) -> anyhow::Result<T> {
    let Question { path, within, .. } = question;
    let admin = admin.context(NO_ADDRESS)?;
    let until = Instant::now() + within;
    let busy = |_| anyhow!("not asked within {within:?}: this process is asking too many others; try again");
    let place = timeout_at(until, places.acquire()).await.map_err(busy)??;
    let asked = timeout_at(until, request(admin, tls, question)).await;
    let response = asked.map_err(|_| anyhow!("no response within {within:?}"))??;
    let of_path = path.split_once('?').map_or(path, |(path, _)| path).to_owned();
    ensure!(response.status() == StatusCode::OK, "{of_path} is answered with {}", response.status());
    let bytes = response.into_body();
    // Apart from the tasks of this thread, one of which may renew a lease. The place is kept until the bytes are gone.
    let parse = move || {
        let parsed = serde_json::from_slice::<T>(&bytes);
        drop((bytes, place));
        parsed
    };
    let parsed = tokio::task::spawn_blocking(parse).await?;
    parsed.map_err(|error| anyhow!("{of_path} cannot be read ({})", in_words(error.classify())))
}

/// Returns what is wrong with JSON. The error's own text quotes values of the response.
fn in_words(category: Category) -> &'static str {
    match category {
        Category::Io => "it cannot be received",
        Category::Syntax => "it is not JSON",
        Category::Data => "its fields are not those of this version of Segue",
        Category::Eof => "its JSON is incomplete",
    }
}

async fn request(
    admin: &str,
    tls: Option<&ClientTls>,
    Question { path, keyspace, most_bytes, .. }: Question<'_>,
) -> anyhow::Result<Response<Bytes>> {
    let mark = if path.contains('?') { '&' } else { '?' };
    let keyspace = keyspace.map_or(String::new(), |keyspace| format!("{mark}keyspace={}", segment(keyspace)));
    let request = Request::get(format!("{path}{keyspace}")).header(header::HOST, admin).body(Body::empty())?;
    let stream = TcpStream::connect(admin).await.context("cannot connect")?;
    let stream = match tls {
        None => Either::Left(stream),
        Some(tls) => Either::Right(tls.dial(admin, stream, false).await.context("no TLS")?),
    };
    let sent = send(stream, request).await;
    let (response, _connection) = if tls.is_none() { sent.context(NO_HTTP)? } else { sent? };
    receive(response, most_bytes).await
}

/// Sends a request over a new connection, and returns the response.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> anyhow::Result<Response<Bytes>> {
    let (response, _connection) = send(stream, request).await?;
    receive(response, MAX_RESPONSE).await
}

/// Sends a request over a new connection. The body arrives as long as the returned connection is not dropped.
async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> hyper::Result<(Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await?;
    Ok((response, connection))
}

/// Reads a response to its end.
async fn receive(response: Response<Incoming>, most_bytes: usize) -> anyhow::Result<Response<Bytes>> {
    let (head, body) = response.into_parts();
    let incomplete = || format!("the response is larger than {} MiB or was cut off", most_bytes >> 20);
    let bytes = to_bytes(Body::new(body), most_bytes).await.with_context(incomplete)?;
    Ok(Response::from_parts(head, bytes))
}

/// Returns a name as a segment of a path, or as a value of a query.
pub(crate) fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}
