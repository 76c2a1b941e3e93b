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
use axum::body::{Body, Bytes};
use http::{Method, Request, Response, StatusCode, Uri, header};
use segue_protocol::headers::{SEGUE_MISDIRECTED, SEGUE_REASON};
use segue_proxy::tls::{ClientFiles, ClientTls};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::either::Either;

use super::CommandFailure;
use super::store::StoreArgs;
use super::target::nobody_answers;
use crate::operator::{exchange, segment};
use crate::process::printable::on_one_line;

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
    /// Returns the admin endpoint of this name, whatever the keyspace. The arguments have the files for TLS.
    pub(super) fn at(name: &str, token: Option<String>, args: &StoreArgs) -> Result<Self, CommandFailure> {
        let bad = |why: &str| CommandFailure::BadInput(format!("segue: admin endpoint {name}: {why}"));
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

    /// Names this keyspace in every request.
    pub(super) fn of_keyspace(self, keyspace: Option<String>) -> Self {
        AdminServer { keyspace, ..self }
    }

    /// Returns the first of these endpoints that accepts a connection.
    pub(super) async fn first_of(endpoints: &[&str], args: &StoreArgs) -> Result<Self, CommandFailure> {
        let mut silent = Vec::new();
        for endpoint in endpoints {
            let server = Self::at(endpoint, None, args)?;
            match timeout(CONNECT_TIMEOUT, server.connect()).await {
                Ok(Ok(_)) => return Ok(server),
                Ok(Err(error)) => silent.push(format!("{endpoint}: {error}")),
                Err(_) => silent.push(format!("{endpoint}: cannot connect in time")),
            }
        }
        Err(CommandFailure::Unreachable(nobody_answers(&silent)))
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
        let response = answer.with_context(silent).map_err(CommandFailure::Lost)?;
        self.judge(path, &response)
    }

    fn judge(&self, path: &str, response: &Response<Bytes>) -> Result<Value, CommandFailure> {
        let status = response.status();
        // What Segue marks for the clients of routers, and for routers.
        if [SEGUE_REASON, SEGUE_MISDIRECTED].into_iter().any(|mark| response.headers().contains_key(mark)) {
            let text = format!("segue: {} serves requests of clients; use its admin.listen", self.name);
            return Err(CommandFailure::BadInput(text));
        }
        let value: Option<Value> = serde_json::from_slice(response.body()).ok();
        if status == StatusCode::OK
            && let Some(value) = value
        {
            return Ok(value);
        }
        let said = |key: &str| Some(on_one_line(value.as_ref()?.get(key)?.as_str()?));
        let Some(text) = said("error") else {
            let name = &self.name;
            let text =
                format!("{name} answers {path} with {status}: expected an admin.listen of this version of segue");
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tokio::net::{TcpListener, UnixListener};

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        store: StoreArgs,
    }

    #[tokio::test]
    async fn the_first_endpoint_of_this_machine_that_accepts_is_asked_and_all_are_named_if_none_does() {
        let args = Arguments::parse_from(["segue"]).store;
        let folder = tempfile::tempdir().unwrap();
        let socket = format!("unix:{}", folder.path().join("admin.sock").display());
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", tcp.local_addr().unwrap());
        let first = async || AdminServer::first_of(&[&socket, &url], &args).await;
        assert_eq!(first().await.unwrap().name(), url, "there is no socket");
        let stale = UnixListener::bind(folder.path().join("admin.sock")).unwrap();
        assert_eq!(first().await.unwrap().name(), socket);
        drop(stale);
        assert_eq!(first().await.unwrap().name(), url, "nobody listens at the socket");
        drop(tcp);
        let Err(CommandFailure::Unreachable(error)) = first().await else { panic!("nobody listens") };
        let said = error.to_string();
        for part in [&*socket, &*url, "--server", "SEGUE_SERVER", "SEGUE_CONFIG"] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
    }
}
