//! The oldest exchange of a partition, in a router or in front of a pod.

use serde::Deserialize;

use super::super::lasting;

/// The oldest exchange of a partition.
#[derive(Debug, Deserialize)]
pub(super) struct Oldest {
    /// For how long it has lasted.
    oldest_ms: Option<u64>,
    #[serde(rename = "oldest")]
    request: Option<RequestLine>,
}

#[derive(Debug, Deserialize)]
struct RequestLine {
    method: String,
    path: String,
    client: String,
}

impl Oldest {
    /// Returns how long it has lasted, and its request if that is known.
    pub(super) fn says(&self) -> Option<String> {
        let lasts = format!("the oldest for {}", lasting(self.oldest_ms?));
        Some(match &self.request {
            Some(RequestLine { method, path, client }) => format!("{lasts}: {method} {path} of {client}"),
            None => lasts,
        })
    }
}
