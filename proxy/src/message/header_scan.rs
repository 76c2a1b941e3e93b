//! Which of the lines that concern the router a request's head has, found in one walk over them.
//!
//! To compare a name costs a few instructions, to look one up some eighty, and most requests have none of these. What must
//! stay true: a line that is there is noted; what it says is for others to read ([`headers`](crate::message::headers)).

use http::HeaderMap;
use http::header::{CONNECTION, COOKIE, EXPECT, HOST, TE, UPGRADE, VIA};

use super::grpc_timeout::GRPC_TIMEOUT;
use super::header_names::X_FORWARDED_FOR;

/// Beside its text: a line's slots in the map.
const EACH: usize = 104;

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
    /// More than one line of cookies.
    pub(crate) cookies: bool,
    /// A name has an underscore.
    pub(crate) underscore: bool,
    /// Bytes that the lines take up in memory, about.
    pub(crate) weight: usize,
}

impl HeaderScan {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut scan = HeaderScan::default();
        let mut cookie = false;
        for (name, value) in headers {
            scan.weight += name.as_str().len() + value.len() + EACH;
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
        scan
    }
}
