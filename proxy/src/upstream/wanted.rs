//! What a request needs of the connection that it is sent on.
//!
//! Not here: finding or making one ([`upstream`](super)).

/// The protocol that a request needs, and over HTTP/2 the kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    Http1,
    /// HTTP/2, for a request that has arrived completely.
    Http2Whole,
    /// HTTP/2, for a request whose body is still arriving.
    Http2Uploading,
}

impl ConnectionKind {
    pub(super) const ALL: [ConnectionKind; 3] =
        [ConnectionKind::Http1, ConnectionKind::Http2Whole, ConnectionKind::Http2Uploading];
}

/// Which of those connections it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Any,
    /// A connection that is made after this.
    New,
    /// A connection that no other exchange uses.
    Exclusive,
}
