//! The loads: what the client sends, and by which protocol the router speaks to its pods.

/// Bytes of each body, in both directions.
pub(crate) const BODY_BYTES: usize = 256;

/// A kind of request.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// Whether the client speaks HTTP/2.
    pub(crate) http2: bool,
    /// Whether it is a `POST` with a body, and not a `GET`.
    pub(crate) post: bool,
    /// Whether it is a unary call of gRPC. The router speaks HTTP/2 to pods then, and HTTP/1.1 otherwise.
    pub(crate) grpc: bool,
    /// Whether the router traces. It records none of the requests, because they have no `traceparent`.
    pub(crate) tracing: bool,
    /// Whether the request has as many options of `Connection` as it may, beside many headers.
    pub(crate) options: bool,
}

const GET: Load = Load { name: "h1_get", http2: false, post: false, grpc: false, tracing: false, options: false };

pub(crate) const LOADS: [Load; 9] = [
    GET,
    Load { name: "h1_get_options", options: true, ..GET },
    Load { name: "h1_post", post: true, ..GET },
    Load { name: "h1_get_unsampled", tracing: true, ..GET },
    Load { name: "h1_post_unsampled", post: true, tracing: true, ..GET },
    Load { name: "h2_get", http2: true, ..GET },
    Load { name: "h2_post", http2: true, post: true, ..GET },
    Load { name: "h2_post_unsampled", http2: true, post: true, tracing: true, ..GET },
    Load { name: "grpc", http2: true, post: true, grpc: true, ..GET },
];

impl Load {
    /// Returns the headers of a request, without those about its target.
    pub(crate) fn headers(&self) -> &'static [(&'static str, &'static str)] {
        const GET: &[(&str, &str)] = &[("user-agent", "load/1.0"), ("accept", "*/*"), ("x-partition", "7")];
        const POST: &[(&str, &str)] =
            &[("user-agent", "load/1.0"), ("accept", "*/*"), ("x-partition", "7"), ("content-length", "256")];
        const GRPC: &[(&str, &str)] = &[
            ("user-agent", "load/1.0"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-partition", "7"),
        ];
        match (self.grpc, self.post) {
            (true, _) => GRPC,
            (false, true) => POST,
            (false, false) => GET,
        }
    }

    pub(crate) fn method(&self) -> &'static str {
        if self.post { "POST" } else { "GET" }
    }
}
