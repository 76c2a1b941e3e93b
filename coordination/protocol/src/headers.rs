//! The protocol's headers between routers, pods and clients, and the recognition of gRPC messages.
//!
//! Names only: the code that builds a message decides which headers it may carry. Lower case, as HTTP/2 requires.

/// The partition of a request, written by the router.
pub const SEGUE_PARTITION: &str = "segue-partition";
/// The value of [`SEGUE_PARTITION`] on a request without a key, which may go to any pod. It has no epoch.
pub const NO_PARTITION: &str = "none";
/// The epoch of the ownership that the router routes by.
pub const SEGUE_EPOCH: &str = "segue-epoch";
/// The name of the router.
pub const SEGUE_ROUTER: &str = "segue-router";
/// The keyspace that the partition belongs to.
pub const SEGUE_KEYSPACE: &str = "segue-keyspace";
/// On a response of a pod: `1` if the request was not processed and belongs elsewhere, `0` if a `421` is the service's
/// own.
pub const SEGUE_MISDIRECTED: &str = "segue-misdirected";
/// Why Segue responded in place of the service.
pub const SEGUE_REASON: &str = "segue-reason";

/// Returns whether a message with this `content-type` is gRPC: `application/grpc` and `application/grpc+proto`, but not
/// `application/grpc-web`, whose clients read no bare trailers.
pub fn is_grpc(content_type: &[u8]) -> bool {
    let rest = content_type.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_web_and_names_that_only_begin_alike_are_no_grpc() {
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc; charset=utf-8"] {
            assert!(is_grpc(kind.as_bytes()), "{kind}");
        }
        for kind in ["", "application/grpc-web", "application/grpc-web+proto", "application/grpcfoo", "text/plain"] {
            assert!(!is_grpc(kind.as_bytes()), "{kind}");
        }
    }
}
