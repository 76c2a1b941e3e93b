//! TLS towards clients and pods, with certificates from files that are reloaded when they change.
//!
//! rustls implements the protocol, with ring beneath it. Not here: when to check the files again (the binary does), and
//! how long a handshake may take (the caller decides).
//!
//! # Invariants
//!
//! * A file that is not usable never replaces one that is in use.
//! * An open connection outlives every change of files.
//! * An error names the file, the fact and what was expected.

mod alpn;
mod by_name;
mod counted;
mod files;
pub mod handshakes;
mod names;
mod reload;
mod stream;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderValue;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use alpn::{HTTP1, HTTP2};
use by_name::CertificatesByName;
use counted::CountingSocket;
pub(crate) use counted::SealedBytes;
use files::{CertificateIdentity, authorities};
pub use files::{File, TlsError, Validity};
use names::describe_client;
use reload::{Files, ReloadedFiles};
pub use reload::{Material, RefreshOutcome};
#[cfg(test)]
pub(crate) use stream::tests::pair;
pub(crate) use stream::{ReadHalf, Stream, WriteHalf, forget, refuses_certificate, refuses_protocol, throw_away};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates that a listener shows to its clients, and the ones that it requires of them.
#[derive(Debug, Clone)]
pub struct ServerTls(Arc<ReloadedFiles<ServerFiles>>);

/// The files of a listener, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, and its intermediates.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The authorities of clients. If set, clients must have certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is accepted nevertheless, for listeners that distinguish their clients.
    pub client_cert_is_optional: bool,
    /// Further certificates. A client that asks for a name in one of them is shown that one.
    pub others: Vec<IdentityFiles>,
}

/// The configuration of a listener.
#[derive(Debug)]
pub struct ServerSide {
    config: Arc<ServerConfig>,
    certificates: Arc<CertificatesByName>,
}

impl Files for ServerFiles {
    type Config = Arc<ServerSide>;

    fn paths(&self) -> Vec<(File, PathBuf)> {
        let own = [(File::Cert, self.cert.clone()), (File::Key, self.key.clone())];
        let others = self.others.iter();
        let others =
            others.flat_map(|other| [(File::OtherCert, other.cert.clone()), (File::OtherKey, other.key.clone())]);
        own.into_iter().chain(others).chain(self.client_ca.clone().map(|path| (File::ClientCa, path))).collect()
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<(Self::Config, Vec<CertificateIdentity>), TlsError> {
        let (own, rest) = contents.split_at(2);
        let (others, client_ca) = rest.split_at(2 * self.others.len());
        let identity = CertificateIdentity::read((File::Cert, File::Key), (&self.cert, &own[0]), (&self.key, &own[1]))?;
        let others = self.others.iter().zip(others.chunks_exact(2)).map(|(files, contents)| {
            let (cert, key) = ((&*files.cert, &*contents[0]), (&*files.key, &*contents[1]));
            CertificateIdentity::read((File::OtherCert, File::OtherKey), cert, key)
        });
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let certificates = Arc::new(CertificatesByName::new(&identity, &others)?);
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| identity.unusable(&error))?;
        let builder = match self.client_ca.as_ref().zip(client_ca.first()) {
            Some((path, text)) => {
                let roots = Arc::new(authorities(File::ClientCa, path, text)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = if self.client_cert_is_optional { verifier.allow_unauthenticated() } else { verifier };
                let verifier = verifier.build().map_err(|error| identity.unusable(&error))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(certificates.clone());
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        let identities = std::iter::once(identity).chain(others).collect();
        Ok((Arc::new(ServerSide { config: Arc::new(config), certificates }), identities))
    }
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read or parsed, or the key does not belong to the certificate.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        Ok(ServerTls(Arc::new(ReloadedFiles::load(files)?)))
    }

    /// Returns the handle for checking the files again.
    pub fn material(&self) -> Arc<dyn Material> {
        self.0.clone()
    }

    /// Returns the configuration in use, for a listener that is not one of this crate.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.0.current().config.clone()
    }

    /// Shakes hands with a client. A client that does not speak TLS, or lacks a required certificate, gets an alert and
    /// is disconnected. `sealed` counts what has arrived and TLS cannot open yet, also behind the handshake.
    pub(crate) async fn accept(&self, stream: TcpStream, sealed: SealedBytes) -> io::Result<Stream> {
        let accepted = accept(self.current(), stream, sealed).await?;
        Ok(Stream::secure(accepted.into()))
    }

    /// As [`accept`](Self::accept). Also returns what `x-forwarded-client-cert` says of a client that has shown a certificate of
    /// the authorities.
    pub(crate) async fn accept_client(
        &self,
        stream: TcpStream,
        sealed: SealedBytes,
    ) -> io::Result<(Stream, Option<HeaderValue>)> {
        let side = self.0.current();
        let accepted = accept(side.config.clone(), stream, sealed).await?;
        let connection = accepted.get_ref().1;
        // In a resumed session it is the one that was verified in the first.
        let shown = connection.peer_certificates().and_then(<[_]>::first);
        let described =
            shown.and_then(|client| describe_client(client, side.certificates.names(connection.server_name())));
        Ok((Stream::secure(accepted.into()), described))
    }
}

async fn accept(
    config: Arc<ServerConfig>,
    stream: TcpStream,
    sealed: SealedBytes,
) -> io::Result<tokio_rustls::server::TlsStream<CountingSocket>> {
    let accepting = TlsAcceptor::from(config).accept(CountingSocket::watched(stream, sealed));
    match accepting.into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            handshakes::note_failure(&error);
            stream.close_gently().await;
            Err(error)
        }
    }
}

impl ServerTls {
    /// Shakes hands with a client of a server that speaks HTTP/1.1 only. Returns the connection, and whether the client
    /// has a certificate of the authorities.
    ///
    /// # Errors
    ///
    /// Fails if the client disconnects, does not speak TLS, or lacks a required certificate.
    pub async fn accept_http1(
        &self,
        stream: TcpStream,
    ) -> io::Result<(impl AsyncRead + AsyncWrite + Unpin + Send + 'static + use<>, bool)> {
        let mut config = ServerConfig::clone(&self.current());
        config.alpn_protocols = vec![HTTP1.to_vec()];
        let accepted = TlsAcceptor::from(Arc::new(config)).accept(stream).await;
        let stream = accepted.inspect_err(handshakes::note_failure)?;
        let has_certificate = stream.get_ref().1.peer_certificates().is_some();
        Ok((stream, has_certificate))
    }
}

/// The authorities that a client trusts, and the certificate that it shows.
#[derive(Debug, Clone)]
pub struct ClientTls(Arc<ReloadedFiles<ClientFiles>>);

/// The files of a client, all PEM, and the name that it expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities that are trusted.
    pub ca: PathBuf,
    /// The certificate for servers that ask for one.
    pub identity: Option<IdentityFiles>,
    /// The name or address in the server's certificate. `None`: the host that is connected to.
    pub server_name: Option<String>,
}

/// The files of a certificate, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate, and its intermediates.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
}

/// The configurations made of [`ClientFiles`], one for each choice of protocols.
#[derive(Debug)]
pub struct ClientConfigs {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    either: Arc<ClientConfig>,
}

/// The protocols that a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlpnOffer {
    Http1,
    Http2,
    /// HTTP/2 if the server supports it.
    Either,
}

impl Files for ClientFiles {
    type Config = Arc<ClientConfigs>;

    fn paths(&self) -> Vec<(File, PathBuf)> {
        let own = self.identity.iter().flat_map(|own| [(File::Cert, own.cert.clone()), (File::Key, own.key.clone())]);
        [(File::Ca, self.ca.clone())].into_iter().chain(own).collect()
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<(Self::Config, Vec<CertificateIdentity>), TlsError> {
        let roots = authorities(File::Ca, &self.ca, &contents[0])?;
        let identity = match (&self.identity, contents) {
            (Some(own), [_, cert, key]) => {
                Some(CertificateIdentity::read((File::Cert, File::Key), (&own.cert, cert), (&own.key, key))?)
            }
            _ => None,
        };
        let unusable = |error: rustls::Error| TlsError::unusable(File::Ca, &self.ca, &error);
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(roots);
        let config = match &identity {
            Some(identity) => {
                let config = builder.with_client_auth_cert(identity.certified.cert.clone(), identity.key.clone_key());
                config.map_err(|error| identity.unusable(&error))?
            }
            None => builder.with_no_client_auth(),
        };
        let offering = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        let configs =
            ClientConfigs { http1: offering(&[HTTP1]), http2: offering(&[HTTP2]), either: offering(&[HTTP2, HTTP1]) };
        Ok((Arc::new(configs), identity.into_iter().collect()))
    }
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read or parsed, or the key does not belong to the certificate.
    pub fn load(files: ClientFiles) -> Result<Self, TlsError> {
        Ok(ClientTls(Arc::new(ReloadedFiles::load(files)?)))
    }

    /// Returns the handle for checking the files again.
    pub fn material(&self) -> Arc<dyn Material> {
        self.0.clone()
    }

    /// Shakes hands with the server at `address`, `host:port`.
    pub(crate) async fn connect(&self, address: &str, stream: TcpStream, offer: AlpnOffer) -> io::Result<Stream> {
        let name = match &self.0.files().server_name {
            Some(name) => name,
            None => host(address),
        };
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a server")))?;
        let configs = self.0.current();
        let config = match offer {
            AlpnOffer::Http1 => &configs.http1,
            AlpnOffer::Http2 => &configs.http2,
            AlpnOffer::Either => &configs.either,
        };
        let stream = TlsConnector::from(config.clone()).connect(name, CountingSocket::new(stream)).await?;
        Ok(Stream::secure(stream.into()))
    }

    /// Returns a connection to a server as `segue bench` makes it, by HTTP/2 or by HTTP/1.1.
    ///
    /// # Errors
    ///
    /// Fails if the host is no name of a server, the server is not trusted, or the connection breaks.
    pub async fn dial(
        &self,
        address: &str,
        stream: TcpStream,
        http2: bool,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static + use<>> {
        self.connect(address, stream, if http2 { AlpnOffer::Http2 } else { AlpnOffer::Http1 }).await
    }
}

/// Returns the host of `host:port`; an IPv6 address without its brackets.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn the_host_of_an_address_is_what_certificates_are_made_out_to() {
        assert_eq!(host("writer-0.pods:8181"), "writer-0.pods");
        assert_eq!(host("10.0.0.7:8181"), "10.0.0.7");
        assert_eq!(host("[::1]:8181"), "::1");
    }
}
