//! A collector, as an HTTP client sees it.
//!
//! # Invariants
//!
//! * A call ends within [`TIMEOUT`], and reads no more than [`MAX_RESPONSE`] bytes.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::time::timeout;

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a response that are read.
const MAX_RESPONSE: usize = 64 << 10;

/// Why a batch was not exported.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    /// The collector could not be reached, or broke the exchange off.
    #[error("{url} cannot be reached: {cause}")]
    Unreachable {
        /// The address of the traces.
        url: Uri,
        /// The cause.
        cause: String,
    },
    /// The collector did not respond in time.
    #[error("{url} did not respond within {TIMEOUT:?}")]
    Timeout {
        /// The address of the traces.
        url: Uri,
    },
    /// The collector refused the batch.
    #[error("{url} responded {status}")]
    Status {
        /// The address of the traces.
        url: Uri,
        /// The status of the response.
        status: StatusCode,
    },
}

impl ExportError {
    /// Returns whether OTLP asks clients to send the batch again.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            ExportError::Unreachable { .. } | ExportError::Timeout { .. } => true,
            ExportError::Status { status, .. } => [429, 502, 503, 504].contains(&status.as_u16()),
        }
    }
}

/// A collector that takes traces by OTLP over HTTP.
#[derive(Debug)]
pub(super) struct Collector {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
}

impl Collector {
    /// `endpoint` is the URL of the receiver, without the path of the traces.
    pub(super) fn new(endpoint: &Uri) -> Self {
        let base = endpoint.to_string();
        // The endpoint is a URL without a query, so one with a longer path is a URL, too.
        let url = format!("{}/v1/traces", base.trim_end_matches('/')).parse().unwrap_or_else(|_| endpoint.clone());
        Collector { client: Client::builder(TokioExecutor::new()).build_http(), url }
    }

    /// Posts a batch. Returns how many of its spans the collector rejected.
    pub(super) async fn post(&self, body: Bytes) -> Result<u64, ExportError> {
        let exchange = timeout(TIMEOUT, self.exchange(body)).await;
        let (status, body) = exchange.map_err(|_| ExportError::Timeout { url: self.url.clone() })??;
        if !status.is_success() {
            return Err(ExportError::Status { url: self.url.clone(), status });
        }
        // A collector may leave the body out, or send another one: all spans were taken.
        let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
        let rejected = response.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }

    async fn exchange(&self, body: Bytes) -> Result<(StatusCode, Bytes), ExportError> {
        let unreachable = |cause: String| ExportError::Unreachable { url: self.url.clone(), cause };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let response = self.client.request(request).await.map_err(|error| unreachable(causes(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        Ok((status, body.map_err(|error| unreachable(error.to_string()))?.to_bytes()))
    }
}

/// Returns an error with its causes: hyper's client alone says no more than "client error (Connect)".
fn causes(error: &dyn std::error::Error) -> String {
    let first = error.to_string();
    std::iter::successors(error.source(), |cause| cause.source()).fold(first, |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_path_of_the_traces_is_added_to_that_of_the_endpoint() {
        for (endpoint, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("http://c/otlp/", "http://c/otlp/v1/traces"),
        ] {
            assert_eq!(Collector::new(&endpoint.parse().unwrap()).url, url);
        }
    }
}
