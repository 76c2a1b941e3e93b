//! TLS on both sides of a router, with curl, OpenSSL and Python as clients, and Python and hyper as pods.

mod behind;
mod client_certificate;
mod front;
mod names;
mod reload;
mod sealed;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use segue_proxy::settings::UpstreamProtocol;
use segue_proxy::tls::{ClientFiles, ClientTls, IdentityFiles, ServerFiles, ServerTls};
use segue_tests::certificates::{Authority, Issued};
use segue_tests::ports::free_address;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::client::{Body, full};
use crate::support::{Fixture, Settings, soon};

/// Two authorities, one of which is trusted.
struct Authorities {
    folder: TempDir,
    ours: Authority,
    other: Authority,
}

impl Authorities {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let (ours, other) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "other"));
        Authorities { folder, ours, other }
    }

    fn server(&self, client_ca: Option<&Authority>) -> ServerTls {
        server(self.ours.issue("router"), client_ca.map(|authority| authority.file.clone()))
    }

    /// Returns a router's settings for TLS towards pods.
    fn pods(&self, identity: Option<Issued>) -> ClientTls {
        let identity = identity.map(|issued| IdentityFiles { cert: issued.cert, key: issued.key });
        ClientTls::load(ClientFiles { ca: self.ours.file.clone(), identity, server_name: None }).unwrap()
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn server(own: Issued, client_ca: Option<PathBuf>) -> ServerTls {
    ServerTls::load(files(own, client_ca, [])).unwrap()
}

/// Returns the files of a listener with these further certificates.
fn files(own: Issued, client_ca: Option<PathBuf>, others: impl IntoIterator<Item = Issued>) -> ServerFiles {
    let others = others.into_iter().map(|other| IdentityFiles { cert: other.cert, key: other.key }).collect();
    ServerFiles { cert: own.cert, key: own.key, client_ca, client_cert_is_optional: false, others }
}

fn fixture(front: Option<ServerTls>, behind: Option<ClientTls>, change: impl FnOnce(&mut Settings)) -> Fixture {
    let mut settings = Settings::default();
    settings.server.tls = front;
    if behind.is_none() && settings.server.tls.is_some() {
        // Pods in clear text speak HTTP/1.1 here, however clients come.
        settings.forward.upstream.protocol = UpstreamProtocol::Http1;
    }
    settings.forward.upstream.tls = behind;
    change(&mut settings);
    Fixture::with(settings)
}

/// Returns curl with a request to partition 0. It prints the body, then status and version on a last line.
fn curl(authority: &Authority, arguments: &[&str], address: SocketAddr) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--max-time", "20", "--header", "x-partition: 0", "--cacert"])
        .arg(&authority.file)
        .args(["--write-out", "\n%{http_code} %{http_version}"])
        .args(arguments)
        .arg(format!("https://{address}/"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn run(mut command: Command) -> Output {
    soon(command.output()).await.expect("curl, openssl and python3 are needed")
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// Returns a program in Python, for clients and pods that curl cannot play.
fn python(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", program]).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// A pod by TLS whose answers describe the request.
struct SecurePod {
    address: SocketAddr,
    /// Number of handshakes that have begun, and of those that have succeeded.
    begun: Arc<AtomicUsize>,
    shaken: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl SecurePod {
    /// Starts a pod that offers these protocols by ALPN.
    async fn start(identity: &Issued, client_ca: Option<&Authority>, protocols: &[&str]) -> Self {
        let listener = TcpListener::bind(free_address()).await.unwrap();
        Self::start_on(listener, identity, client_ca, protocols)
    }

    fn start_on(listener: TcpListener, identity: &Issued, client_ca: Option<&Authority>, protocols: &[&str]) -> Self {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config(identity, client_ca, protocols)));
        let address = listener.local_addr().unwrap();
        let (begun, shaken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, done) = (begun.clone(), shaken.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                let (acceptor, done) = (acceptor.clone(), done.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    done.fetch_add(1, SeqCst);
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service_fn(tell)).await;
                });
            }
        });
        SecurePod { address, begun, shaken, task }
    }

    fn begun(&self) -> usize {
        self.begun.load(SeqCst)
    }

    fn shaken(&self) -> usize {
        self.shaken.load(SeqCst)
    }
}

impl Drop for SecurePod {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a pod's side of TLS. It shares no code with the router.
fn config(identity: &Issued, client_ca: Option<&Authority>, protocols: &[&str]) -> rustls::ServerConfig {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = CertificateDer::pem_file_iter(&identity.cert).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let builder = rustls::ServerConfig::builder();
    let builder = match client_ca {
        Some(authority) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(&authority.file).unwrap()).unwrap();
            let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config
}

/// Answers with `{version} {scheme of the request} {x-forwarded-proto} {bytes}`.
async fn tell(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    use http_body_util::BodyExt as _;
    let scheme = request.uri().scheme_str().unwrap_or("-").to_owned();
    let forwarded = request.headers().get("x-forwarded-proto").map_or("-", |value| value.to_str().unwrap()).to_owned();
    let version = request.version();
    let bytes = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(full(format!("{version:?} {scheme} {forwarded} {}", bytes.len()))))
}
