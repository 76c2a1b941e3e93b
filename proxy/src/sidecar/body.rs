//! The body of a response to a router, and the error that breaks it.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use tower::BoxError;

pub(super) type SidecarBody = UnsyncBoxBody<Bytes, BoxError>;

pub(super) fn empty() -> SidecarBody {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}
