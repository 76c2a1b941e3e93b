//! The headers by which routers, pods and clients speak of the protocol, and how a gRPC message is told from others.
//!
//! Names only: which of them a message may carry is decided where the message is. Lower case, as HTTP/2 wants them.

/// The partition of a request, written by the router.
pub const SEGUE_PARTITION: &str = "segue-partition";
/// The epoch of the ownership that the router goes by.
pub const SEGUE_EPOCH: &str = "segue-epoch";
/// The name of the router.
pub const SEGUE_ROUTER: &str = "segue-router";
/// The keyspace that the partition belongs to.
pub const SEGUE_KEYSPACE: &str = "segue-keyspace";
/// On a response of a pod: `1` if nothing was done and the request belongs elsewhere, `0` if a `421` is the service's own.
pub const SEGUE_MISDIRECTED: &str = "segue-misdirected";
/// Why a response comes from Segue and not from the service.
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
