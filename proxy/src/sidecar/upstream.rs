//! The service behind a sidecar.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;

use super::traffic::Traffic;

/// The service behind a sidecar.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Where it listens.
    pub address: Authority,
    /// No request's work lasts longer than this after the request's last byte.
    pub work_ends_within: Option<Duration>,
    /// The traffic between the two.
    pub traffic: Arc<Traffic>,
}
