//! The token that every call has to present, if the service has one.
//!
//! Not for: the token of a registration ([`token`](super::token)), which says which pod calls, or certificates
//! ([`connection`](super::connection)).
//!
//! # Invariants
//!
//! * A call without the token reaches nothing, and no response, error or log line contains a token.

use std::fmt;
use std::sync::Arc;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};
use tracing::warn;

type IsToken = dyn Fn(&[u8]) -> Result<bool, String> + Send + Sync;

/// The token of a service. Each call asks anew, because tokens are replaced. A stream that is open stays open.
#[derive(Clone)]
pub struct PodsToken(Arc<IsToken>);

impl PodsToken {
    /// Returns the token that `is_token` recognises in the same time wherever a wrong one differs. Its error says why
    /// the token cannot be read, and is logged.
    pub fn new<E: fmt::Display>(is_token: impl Fn(&[u8]) -> Result<bool, E> + Send + Sync + 'static) -> Self {
        PodsToken(Arc::new(move |presented| is_token(presented).map_err(|why| why.to_string())))
    }
}

impl fmt::Debug for PodsToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("PodsToken")
    }
}

/// Admits the calls that present the token. Without one it admits all.
#[derive(Debug, Clone)]
pub(crate) struct Access(pub(crate) Option<PodsToken>);

impl Interceptor for Access {
    fn call(&mut self, call: Request<()>) -> Result<Request<()>, Status> {
        let Some(PodsToken(is_token)) = &self.0 else { return Ok(call) };
        let presented = call.metadata().get("authorization").and_then(bearer);
        match presented.map_or(Ok(false), |presented| is_token(presented)) {
            Ok(true) => Ok(call),
            Ok(false) => {
                Err(Status::unauthenticated("expected `authorization: Bearer` with the token of this service"))
            }
            Err(why) => {
                warn!(why, "token of the pods' service cannot be read; pods are refused");
                // Another instance may have a readable one.
                Err(Status::unavailable("the token of this service cannot be read"))
            }
        }
    }
}

fn bearer(value: &MetadataValue<Ascii>) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
