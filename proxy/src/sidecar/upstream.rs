//! Where the service behind a sidecar is, and what is known of it.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;

use super::traffic::Traffic;
use crate::settings::UpstreamProtocol;

/// The service behind a sidecar.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The address that it listens on.
    pub address: Authority,
    /// The version of HTTP that it speaks.
    pub protocol: UpstreamProtocol,
    /// The longest that a request's work lasts after the request's last byte, if there is a bound.
    pub work_ends_within: Option<Duration>,
    /// The traffic between the two.
    pub traffic: Arc<Traffic>,
}
