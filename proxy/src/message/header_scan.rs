//! Finds in one walk which headers that concern the router a request has.
//!
//! Comparing a name costs a few instructions and looking one up some eighty, and most requests have none of these
//! headers.
//! Not here: what the headers say ([`headers`](crate::message::headers)).
//!
//! # Invariants
//!
//! * A header that is present is noted.

use http::HeaderMap;
use http::header::{CONNECTION, COOKIE, EXPECT, HOST, TE, UPGRADE, VIA};

use super::grpc_timeout::GRPC_TIMEOUT;
use super::header_names::X_FORWARDED_FOR;

/// Bytes that a header takes beside its text: its slots in the map.
const BYTES_PER_HEADER: usize = 104;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeaderScan {
    pub(crate) connection: bool,
    pub(crate) upgrade: bool,
    pub(crate) expect: bool,
    pub(crate) te: bool,
    pub(crate) via: bool,
    pub(crate) x_forwarded_for: bool,
    pub(crate) grpc_timeout: bool,
    pub(crate) host: bool,
    /// Whether there is more than one `Cookie` line.
    pub(crate) cookies: bool,
    /// Whether a name has an underscore.
    pub(crate) underscore: bool,
    /// About how many bytes the headers take up in memory.
    pub(crate) weight: u32,
}

impl HeaderScan {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut scan = HeaderScan::default();
        let (mut cookie, mut weight) = (false, 0);
        for (name, value) in headers {
            weight += name.as_str().len() + value.len() + BYTES_PER_HEADER;
            scan.connection |= *name == CONNECTION;
            scan.upgrade |= *name == UPGRADE;
            scan.expect |= *name == EXPECT;
            scan.te |= *name == TE;
            scan.via |= *name == VIA;
            scan.x_forwarded_for |= *name == X_FORWARDED_FOR;
            scan.grpc_timeout |= *name == GRPC_TIMEOUT;
            scan.host |= *name == HOST;
            scan.underscore |= name.as_str().as_bytes().contains(&b'_');
            let is_cookie = *name == COOKIE;
            scan.cookies |= cookie && is_cookie;
            cookie |= is_cookie;
        }
        scan.weight = u32::try_from(weight).unwrap_or(u32::MAX);
        scan
    }
}
