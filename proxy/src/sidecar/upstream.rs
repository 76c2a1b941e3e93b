//! Where the service behind a sidecar is, and what is known of it.

use std::sync::Arc;
use std::time::Duration;

use super::service_address::ServiceAddress;
use super::traffic::Traffic;
use crate::settings::UpstreamProtocol;
use crate::tls::ClientTls;

/// The service behind a sidecar.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The address that it listens on.
    pub address: ServiceAddress,
    /// TLS towards it; `None` for clear text.
    pub tls: Option<ClientTls>,
    /// The version of HTTP that it speaks.
    pub protocol: UpstreamProtocol,
    /// The longest that a request's work lasts after the request's last byte, if there is a bound.
    pub work_ends_within: Option<Duration>,
    /// The traffic between the two.
    pub traffic: Arc<Traffic>,
}

impl Upstream {
    /// Returns a service that is spoken to in clear text, by the version of HTTP that a request needs.
    pub fn at(address: ServiceAddress) -> Self {
        let (protocol, traffic) = (UpstreamProtocol::Auto, Arc::default());
        Upstream { address, tls: None, protocol, work_ends_within: None, traffic }
    }
}
