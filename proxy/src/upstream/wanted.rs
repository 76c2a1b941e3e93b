//! What a request needs of the connection that it is sent on.
//!
//! Not here: finding or making one ([`upstream`](super)).

/// How a request is to reach its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Http1,
    /// HTTP/2, for a request that has arrived completely.
    Http2Whole,
    /// HTTP/2, for a request whose body is still arriving.
    Http2Uploading,
}

impl Wanted {
    pub(super) const ALL: [Wanted; 3] = [Wanted::Http1, Wanted::Http2Whole, Wanted::Http2Uploading];
}

/// Which connections will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Any,
    /// One that was made from now on.
    New,
    /// One that nobody else uses.
    LocalReply,
}
