//! The body of a response on its way to a router.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

pub(super) type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) fn empty() -> ResponseBody {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}
