//! Recognises responses that are streams, which may have no end, by their `content-type`.
//!
//! Pure. Not here: upgraded connections, which are streams as well (`forward::tunnel`), and what is done with streams.

/// Returns whether a response with this `content-type` is a stream: server-sent events, or gRPC in any form, gRPC-Web
/// included. The head of a gRPC response does not tell a single message from many.
pub(crate) fn is_stream(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let grpc = essence
        .get(..b"application/grpc".len())
        .filter(|_| matches!(essence.get(b"application/grpc".len()), None | Some(b'+' | b'-')));
    essence.eq_ignore_ascii_case(b"text/event-stream")
        || grpc.is_some_and(|grpc| grpc.eq_ignore_ascii_case(b"application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_streams_and_grpc_are_streams_and_nothing_that_only_looks_alike() {
        for kind in [
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "application/grpc",
            "application/grpc+proto",
            "application/grpc-web+proto",
            "application/grpc ; x=y",
        ] {
            assert!(is_stream(kind.as_bytes()), "{kind}");
        }
        for kind in
            ["", "text/event-streams", "text/plain", "application/grpcfoo", "application/json", "application/grp"]
        {
            assert!(!is_stream(kind.as_bytes()), "{kind}");
        }
    }
}
