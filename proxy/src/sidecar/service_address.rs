//! Where the service behind a sidecar listens, and how a connection to it is made: by TCP, by TLS, or over a Unix socket.
//!
//! Not here: what is known of a connection while it is used ([`connection`](super::connection)).
//!
//! # Invariants
//!
//! * A service with TLS is never sent anything in clear text.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::uri::Authority;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::service_socket::ServiceSocket;
use crate::tls::{AlpnOffer, ClientTls, Stream};
use crate::upstream::{connect, end_without_peer};

const UNIX: &str = "unix:";
/// Longest path of a socket, in bytes: Linux's limit without the terminating zero.
const MAX_PATH_BYTES: usize = 107;

/// The address of a service: a host and a port, or a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceAddress {
    /// A host and a port.
    Tcp(Authority),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Why a text is not the address of a service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceAddressError {
    /// Neither a host and a port nor a socket.
    #[error("it is neither a host and a port nor unix: and a path")]
    Form,
    /// The path of the socket does not begin with a slash.
    #[error("it does not name a socket by an absolute path")]
    RelativePath,
    /// The path of the socket is too long for the kernel.
    #[error("it names a socket by too long a path")]
    LongPath,
}

impl FromStr for ServiceAddress {
    type Err = ServiceAddressError;

    fn from_str(text: &str) -> Result<Self, ServiceAddressError> {
        let Some(path) = text.strip_prefix(UNIX) else {
            return text.parse().map(ServiceAddress::Tcp).map_err(|_| ServiceAddressError::Form);
        };
        // As curl and Docker write it: unix:///socket.
        let path = path.strip_prefix("//").unwrap_or(path);
        match path {
            path if !path.starts_with('/') => Err(ServiceAddressError::RelativePath),
            path if path.len() > MAX_PATH_BYTES => Err(ServiceAddressError::LongPath),
            path => Ok(ServiceAddress::Unix(path.into())),
        }
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceAddress::Tcp(authority) => authority.fmt(out),
            ServiceAddress::Unix(path) => write!(out, "{UNIX}{}", path.display()),
        }
    }
}

impl ServiceAddress {
    /// Returns the host that a request gets which names none.
    pub(super) fn authority(&self) -> Authority {
        match self {
            ServiceAddress::Tcp(authority) => authority.clone(),
            ServiceAddress::Unix(_) => Authority::from_static("localhost"),
        }
    }

    /// Connects to the service, and shakes hands if there is `tls`. Gives up after `limit`.
    pub(super) async fn dial(
        &self,
        tls: Option<&ClientTls>,
        offer: AlpnOffer,
        limit: Duration,
    ) -> io::Result<ServiceSocket> {
        timeout(limit, async {
            let authority = match self {
                ServiceAddress::Unix(path) => return Ok(ServiceSocket::Unix(UnixStream::connect(path).await?)),
                ServiceAddress::Tcp(authority) => authority.as_str(),
            };
            let stream = connect(authority, limit).await?;
            stream.set_nodelay(true)?;
            if offer == AlpnOffer::Http2 {
                end_without_peer(&stream);
            }
            Ok(ServiceSocket::Tcp(match tls {
                None => Stream::Plain(stream),
                Some(tls) => tls.connect(authority, stream, offer).await?,
            }))
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_socket() {
        for text in ["127.0.0.1:8182", "[::1]:8182", "service:80", "unix:/run/app.sock"] {
            assert_eq!(text.parse::<ServiceAddress>().unwrap().to_string(), text);
        }
        let socket = ServiceAddress::Unix("/run/app.sock".into());
        assert_eq!("unix:///run/app.sock".parse(), Ok(socket.clone()));
        assert_eq!(socket.authority(), "localhost");
        assert_eq!("unix:run/app.sock".parse::<ServiceAddress>(), Err(ServiceAddressError::RelativePath));
        let long = format!("unix:/{}", "x".repeat(MAX_PATH_BYTES));
        assert_eq!(long.parse::<ServiceAddress>(), Err(ServiceAddressError::LongPath));
        assert_eq!("a b".parse::<ServiceAddress>(), Err(ServiceAddressError::Form));
    }
}
