//! Local replies: responses that a router, a sidecar or the pod layer gives in place of the service.
//!
//! Not here: the causes, which each of them lists for itself.
//!
//! # Invariants
//!
//! * A local reply names its reason in `segue-reason` and in its body.
//! * To gRPC the status is `200` and the error in the head (a trailers-only response).

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use segue_protocol::headers::SEGUE_REASON;
use segue_protocol::ids::PartitionId;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The cause of a local reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cause {
    /// The HTTP status.
    pub status: StatusCode,
    /// The gRPC status: a number in digits.
    pub grpc_status: &'static str,
    /// The value of `segue-reason`: letters and dashes.
    pub reason: &'static str,
    /// An explanation in one sentence, without quotation marks and backslashes.
    pub error: &'static str,
}

impl Cause {
    /// Returns the response to a request for `partition`, if its partition was known. `grpc` states that the request
    /// was gRPC.
    pub fn response(self, partition: Option<PartitionId>, grpc: bool) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if grpc {
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(GRPC_STATUS, HeaderValue::from_static(self.grpc_status));
            headers.insert(GRPC_MESSAGE, HeaderValue::from_static(self.error));
        } else {
            let body = self.body(partition);
            *response.status_mut() = self.status;
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
            *response.body_mut() = Bytes::from(body);
        }
        response.headers_mut().insert(SEGUE_REASON, HeaderValue::from_static(self.reason));
        response
    }

    fn body(self, partition: Option<PartitionId>) -> String {
        let Cause { error, reason, .. } = self;
        let partition = partition.map_or_else(|| "null".to_owned(), |partition| partition.to_string());
        format!(r#"{{"error":"{error}","reason":"{reason}","partition":{partition}}}"#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAUSE: Cause = Cause {
        status: StatusCode::SERVICE_UNAVAILABLE,
        grpc_status: "14",
        reason: "no-owner",
        error: "no pod owns the partition at the moment",
    };

    #[test]
    fn a_response_is_json_with_its_reason_in_header_and_body() {
        let response = CAUSE.response(Some(PartitionId::new(7)), false);
        assert_eq!(
            (response.status().as_u16(), &response.headers()["segue-reason"]),
            (503, &"no-owner".parse().unwrap())
        );
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!((&body["reason"], &body["partition"]), (&"no-owner".into(), &7.into()));
        assert_eq!(response.headers()["content-length"], response.body().len().to_string().as_str());
        let unknown: serde_json::Value = serde_json::from_slice(CAUSE.response(None, false).body()).unwrap();
        assert!(unknown["partition"].is_null());
    }

    #[test]
    fn grpc_gets_a_status_without_a_body() {
        let response = CAUSE.response(None, true);
        assert_eq!((response.status().as_u16(), response.body().len()), (200, 0));
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(response.headers()["segue-reason"], "no-owner");
    }
}
