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
}

pub(crate) const LOADS: [Load; 5] = [
    Load { name: "h1_get", http2: false, post: false, grpc: false },
    Load { name: "h1_post", http2: false, post: true, grpc: false },
    Load { name: "h2_get", http2: true, post: false, grpc: false },
    Load { name: "h2_post", http2: true, post: true, grpc: false },
    Load { name: "grpc", http2: true, post: true, grpc: true },
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
