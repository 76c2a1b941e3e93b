//! The client of an admin endpoint: what a command with `--server` does in place of using the store.
//!
//! # Invariants
//!
//! * The token goes to the endpoint that the operator named and appears in no message.
//! * A response is bounded in size ([`exchange`]) and in time.
//! * A request that the endpoint may have carried out fails as [`CommandFailure::Lost`] if it gets no response.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::body::Body;
use http::{Method, Request, StatusCode, Uri, header};
use segue_proxy::tls::{ClientFiles, ClientTls};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::either::Either;

use super::CommandFailure;
use super::store::ReachArgs;
use crate::operator::{exchange, segment};

/// How long connecting may take, the TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a response may take beyond the time that its request waits.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Most bytes of a token.
const MAX_TOKEN: usize = 4096;

const EXPECTED: &str = "expected http://HOST:PORT, https://HOST:PORT or unix:PATH";

/// An admin endpoint.
#[derive(Debug)]
pub(super) struct AdminServer {
    name: String,
    address: AdminAddress,
    token: Option<String>,
    /// The keyspace that every request names.
    keyspace: Option<String>,
}

#[derive(Debug)]
enum AdminAddress {
    Unix(PathBuf),
    Tcp { authority: String, tls: Option<ClientTls> },
}

impl AdminServer {
    /// Returns the admin endpoint that the arguments name, if they name one.
    pub(super) fn given(args: &ReachArgs) -> Result<Option<Self>, CommandFailure> {
        let Some(name) = &args.server else { return Ok(None) };
        let token = args.token_file.as_deref().map(read_token).transpose()?;
        let server = Self::at(name, token, args)?;
        Ok(Some(AdminServer { keyspace: args.store.keyspace.clone(), ..server }))
    }

    /// Returns the admin endpoint of this name, whatever the keyspace.
    pub(super) fn at(name: &str, token: Option<String>, args: &ReachArgs) -> Result<Self, CommandFailure> {
        let bad = |why: &str| CommandFailure::BadInput(format!("segue: --server {name}: {why}"));
        let server = |address| Ok(AdminServer { name: name.to_owned(), address, token: token.clone(), keyspace: None });
        if let Some(path) = name.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad(EXPECTED)) } else { server(AdminAddress::Unix(path.into())) };
        }
        let uri: Uri = name.parse().map_err(|_| bad(EXPECTED))?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let (Some(authority), "" | "/", None) = (authority, uri.path(), uri.query()) else { return Err(bad(EXPECTED)) };
        let (port, tls) = match (uri.scheme_str(), args.tls()) {
            (Some("http"), None) => (80, None),
            (Some("http"), Some(_)) => return Err(bad("expected https:// with --ca")),
            (Some("https"), Some(files)) => {
                let tls = ClientTls::load(files)
                    .map_err(|error| bad(&format!("{}: {}; {}", error.path.display(), error.fact, error.expected)))?;
                (443, Some(tls))
            }
            (Some("https"), None) => return Err(bad("expected --ca with the authorities to trust")),
            _ => return Err(bad(EXPECTED)),
        };
        let authority = match authority.port_u16() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:{port}"),
        };
        server(AdminAddress::Tcp { authority, tls })
    }

    /// Returns the endpoint's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Asks a question.
    pub(super) async fn get(&self, path: &str, waits: Duration) -> Result<Value, CommandFailure> {
        self.send(Method::GET, path, None, waits).await
    }

    /// Sends a request and returns the JSON of a successful response. `waits` is how long the endpoint was asked to wait.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        waits: Duration,
    ) -> Result<Value, CommandFailure> {
        let silent = || format!("{} does not answer", self.name);
        let request = self.request(method, path, body).with_context(silent).map_err(CommandFailure::Unreachable)?;
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await.context("cannot connect in time");
        let stream = connected.and_then(|connected| Ok(connected?)).with_context(silent);
        let exchange =
            timeout(waits + RESPONSE_TIMEOUT, exchange(stream.map_err(CommandFailure::Unreachable)?, request));
        let answer = exchange.await.unwrap_or_else(|_| Err(anyhow!("no response in time")));
        let (status, bytes) = answer.with_context(silent).map_err(CommandFailure::Lost)?;
        self.judge(path, status, &bytes)
    }

    fn judge(&self, path: &str, status: StatusCode, bytes: &[u8]) -> Result<Value, CommandFailure> {
        let value: Option<Value> = serde_json::from_slice(bytes).ok();
        if status == StatusCode::OK
            && let Some(value) = value
        {
            return Ok(value);
        }
        let said = |key: &str| Some(value.as_ref()?.get(key)?.as_str()?.to_owned());
        let Some(text) = said("error") else {
            let name = &self.name;
            let text =
                format!("{name} answers {path} with {status}: expected the admin endpoint of this version of segue");
            return Err(CommandFailure::Work(anyhow!(text)));
        };
        Err(match (status, said("reason").as_deref()) {
            (_, Some("waiting")) => CommandFailure::Waiting(anyhow!(text)),
            (StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNSUPPORTED_MEDIA_TYPE, _) => {
                CommandFailure::BadInput(format!("segue: {text}"))
            }
            (StatusCode::SERVICE_UNAVAILABLE, _) => CommandFailure::Unreachable(anyhow!(text)),
            _ => CommandFailure::Work(anyhow!(text)),
        })
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Request<Body>> {
        let host = match &self.address {
            AdminAddress::Unix(_) => "localhost",
            AdminAddress::Tcp { authority, .. } => authority,
        };
        let path = match &self.keyspace {
            Some(keyspace) => {
                let mark = if path.contains('?') { '&' } else { '?' };
                format!("{path}{mark}keyspace={}", segment(keyspace))
            }
            None => path.to_owned(),
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok(match body {
            Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        }?)
    }

    async fn connect(&self) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static + use<>> {
        Ok(match &self.address {
            AdminAddress::Unix(path) => Either::Left(UnixStream::connect(path).await?),
            AdminAddress::Tcp { authority, tls } => {
                let stream = TcpStream::connect(authority).await?;
                Either::Right(match tls {
                    None => Either::Left(stream),
                    Some(tls) => Either::Right(tls.dial(authority, stream, false).await?),
                })
            }
        })
    }
}

/// Returns how to ask the admin endpoints in registrations: by TLS if there is a file of authorities to trust.
pub(super) fn admin_tls(ca: Option<&Path>) -> Result<Option<ClientTls>, CommandFailure> {
    let load = |ca: &Path| {
        ClientTls::load(ClientFiles { ca: ca.to_owned(), identity: None, server_name: None }).map_err(|error| {
            let text = format!("segue: --admin-ca {}: {}; {}", error.path.display(), error.fact, error.expected);
            CommandFailure::BadInput(text)
        })
    };
    ca.map(load).transpose()
}

/// Returns the token in a file.
pub(super) fn read_token(path: &Path) -> Result<String, CommandFailure> {
    let bad = |why: &str| CommandFailure::BadInput(format!("segue: token file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(&error.to_string()))?;
    let token = text.trim();
    let is_usable = !token.is_empty() && token.len() <= MAX_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_usable.then(|| token.to_owned()).ok_or_else(|| bad("expected a token in printable ASCII, without spaces"))
}
