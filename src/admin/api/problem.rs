//! Responses that say why something was not done: `{"error":"…","reason":"…"}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use segue_coordination::store::StoreError;
use serde_json::json;

use crate::operator::OperatorError;

/// Why a request was not fulfilled: the status, a name for programs, and a sentence.
#[derive(Debug, Clone)]
pub(crate) struct ApiProblem {
    status: StatusCode,
    reason: &'static str,
    error: String,
}

impl ApiProblem {
    pub(crate) fn new(status: StatusCode, reason: &'static str, error: impl Into<String>) -> Self {
        ApiProblem { status, reason, error: error.into() }
    }

    pub(super) fn bad_request(error: impl Into<String>) -> Self {
        ApiProblem::new(StatusCode::BAD_REQUEST, "bad-request", error)
    }

    pub(super) fn failed(error: impl Into<String>) -> Self {
        ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", error)
    }

    /// Returns the problem of a question: what was refused is not there.
    pub(super) fn of_question(self) -> Self {
        match self.reason {
            "refused" => ApiProblem { status: StatusCode::NOT_FOUND, reason: "not-found", ..self },
            _ => self,
        }
    }

    pub(super) fn busy() -> Self {
        let text = "too many requests of this kind are in progress here; try again, or ask another process";
        ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text)
    }
}

impl From<OperatorError> for ApiProblem {
    fn from(error: OperatorError) -> Self {
        let text = error.to_string();
        match error {
            OperatorError::BadInput(_) => ApiProblem::bad_request(text),
            OperatorError::Refused(_) => ApiProblem::new(StatusCode::CONFLICT, "refused", text),
            // What was asked for is stored and continues.
            OperatorError::Waiting { what, .. } => ApiProblem::new(StatusCode::ACCEPTED, "waiting", what),
            OperatorError::Store(StoreError::Unavailable(_)) => {
                let text = format!("{text}; ask a process that reaches it");
                ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", text)
            }
            OperatorError::Store(_) => ApiProblem::failed(text),
        }
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "error": self.error, "reason": self.reason }))).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Responds to a path below `/v1` that does not exist.
pub(super) async fn unknown() -> ApiProblem {
    let text = "no such path; docs/reference/http.md lists those below /v1";
    ApiProblem::new(StatusCode::NOT_FOUND, "not-found", text)
}

/// Responds to a method that a path does not have.
pub(super) async fn method_not_allowed() -> ApiProblem {
    ApiProblem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "the path does not have this method")
}
