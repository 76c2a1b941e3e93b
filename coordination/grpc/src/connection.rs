//! The service's connections: in clear text or by TLS, and what a client's certificate permits.
//!
//! # Invariants
//!
//! * A slow or broken handshake delays no other connection, and how many there are is bounded.
//! * A client with a certificate speaks only for a pod that the certificate names.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::either::Either;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic::{Extensions, Status};
use tracing::debug;

/// Most handshakes at a time. Others wait in the listener's backlog.
const HANDSHAKES: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The TLS of a listener. Each connection asks for the configuration anew, because certificates are renewed.
#[derive(Clone)]
pub struct PodsTls {
    current: Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>,
    failed: fn(&io::Error),
}

impl PodsTls {
    /// Returns the TLS with the configuration that `current` returns. It has to offer `h2`. `failed` is told of each handshake
    /// that fails.
    pub fn new(current: impl Fn() -> Arc<ServerConfig> + Send + Sync + 'static, failed: fn(&io::Error)) -> Self {
        PodsTls { current: Arc::new(current), failed }
    }
}

impl fmt::Debug for PodsTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("PodsTls")
    }
}

/// The client of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    /// The certificate that the client was asked for.
    certificate: Option<CertificateDer<'static>>,
}

impl Peer {
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Peer>().cloned().unwrap_or_default()
    }

    /// Checks that the client may speak for this pod.
    pub(crate) fn speaks_for(&self, pod: &str) -> Result<(), Status> {
        let Some(certificate) = &self.certificate else { return Ok(()) };
        let names_pod = || {
            let name = ServerName::try_from(pod).ok()?;
            verify_server_name(&ParsedCertificate::try_from(certificate).ok()?, &name).ok()
        };
        names_pod()
            .ok_or_else(|| Status::permission_denied(format!("the client's certificate does not name pod {pod}")))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    io: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    peer: Peer,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Returns the connections that a listener accepts.
pub(crate) fn incoming(
    listener: TcpListener,
    tls: Option<PodsTls>,
) -> Pin<Box<dyn Stream<Item = io::Result<Connection>> + Send>> {
    let accepted = TcpIncoming::from(listener).with_nodelay(Some(true));
    let Some(tls) = tls else {
        let in_clear = |stream| Connection { io: Either::Left(stream), peer: Peer::default() };
        return Box::pin(accepted.map(move |stream| stream.map(in_clear)));
    };
    let (sender, secured) = mpsc::channel(1);
    tokio::spawn(accept(accepted, tls, sender));
    Box::pin(ReceiverStream::new(secured))
}

async fn accept(mut accepted: TcpIncoming, tls: PodsTls, sender: mpsc::Sender<io::Result<Connection>>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let stream = tokio::select! {
            () = sender.closed() => return,
            stream = accepted.next() => match stream {
                Some(Ok(stream)) => stream,
                Some(Err(error)) => {
                    let _ = sender.send(Err(error)).await;
                    continue;
                }
                None => return,
            },
        };
        let (acceptor, sender) = (TlsAcceptor::from((tls.current)()), sender.clone());
        let failed = tls.failed;
        tokio::spawn(async move {
            match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let peer = Peer { certificate: certificate.map(|leaf| leaf.clone().into_owned()) };
                    let connection = Connection { io: Either::Right(Box::new(stream)), peer };
                    let _ = sender.send(Ok(connection)).await;
                }
                Ok(Err(error)) => failed(&error),
                Err(_) => debug!("TLS handshake of a pod took too long"),
            }
            drop(permit);
        });
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
