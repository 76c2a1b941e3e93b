//! Headers that a client may not send to a pod unchanged, in heads and in trailers.
//!
//! Pure.
//!
//! # Invariants
//!
//! * A pod that reads one of the router's headers, or the header that the request was routed by, reads what the router
//!   has read or written. This holds even if the pod takes `_` in a name for `-` (as CGI and WSGI do) or merges
//!   trailers into the head.
//! * What a client states about itself in `x-forwarded-*` and `forwarded` is trusted only if the configuration says so.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, HeaderName, VIA};

use super::header_names::{
    X_FORWARDED_CLIENT_CERT, X_FORWARDED_FOR, ends_up_in_a_head, has_quote, is_hop_by_hop, is_said_by_the_router,
};
use crate::routing::partition_key::{BODY_HEADERS, KeySource, PartitionSource};

/// Returns the address that the last `x-forwarded-for` names last: the client of the proxy that stands in front of the
/// router. Earlier addresses are what that client has said.
fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all(X_FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
    let address = last.rsplit(',').next()?.trim();
    let with_port = || address.parse::<SocketAddr>().ok().map(|address| address.ip());
    let bare = address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address);
    bare.parse().ok().or_else(with_port)
}

/// The reserved names, as far as the configuration decides them.
pub(crate) struct ReservedHeaders {
    trusts_forwarded: bool,
    /// The headers that requests are routed and ordered by, and those that routes look at.
    locating: Vec<HeaderName>,
}

impl ReservedHeaders {
    pub(crate) fn new(partition: &PartitionSource, trusts_forwarded: bool) -> Self {
        let locating: Vec<&HeaderName> = match partition {
            PartitionSource::Number { header, order_by } => [header].into_iter().chain(order_by).collect(),
            PartitionSource::Key { source: KeySource::Header(name), .. } => vec![name],
            PartitionSource::Key { source: KeySource::Headers(headers), .. } => headers.names.iter().collect(),
            PartitionSource::Key { source: KeySource::Body(_), .. } => BODY_HEADERS.iter().collect(),
            PartitionSource::Key { .. } => Vec::new(),
        };
        ReservedHeaders { trusts_forwarded, locating: locating.into_iter().cloned().collect() }
    }

    /// Adds headers that routes look at.
    pub(crate) fn and<'a>(mut self, headers: impl IntoIterator<Item = &'a HeaderName>) -> Self {
        self.locating.extend(headers.into_iter().cloned());
        self
    }

    /// Returns whether the client's `x-forwarded-for` is kept and appended to.
    pub(crate) fn trusts_forwarded(&self) -> bool {
        self.trusts_forwarded
    }

    /// Returns the client of a request by the proxy in front of the router, if that one is trusted.
    pub(crate) fn forwarded_client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        if self.trusts_forwarded { forwarded_for(headers) } else { None }
    }

    /// Returns whether the header states something about the client that is not trusted.
    pub(crate) fn is_unbelieved(&self, name: &HeaderName) -> bool {
        !self.trusts_forwarded && is_forwarded(name)
    }

    /// Returns whether a pod needs this header of the client's, whatever `Connection` says: it frames or routes the request, or says
    /// who sends it.
    pub(crate) fn is_end_to_end(&self, name: &HeaderName) -> bool {
        [HOST, CONTENT_LENGTH, COOKIE, AUTHORIZATION].contains(name) || self.locating.contains(name)
    }

    /// Returns whether a name with underscores would be a reserved name if they were dashes.
    pub(crate) fn is_disguised(&self, name: &HeaderName) -> bool {
        if !name.as_str().contains('_') || self.locating.contains(name) {
            return false;
        }
        let Ok(dashed) = HeaderName::try_from(name.as_str().replace('_', "-")) else {
            return true;
        };
        is_hop_by_hop(&dashed)
            || is_said_by_the_router(&dashed)
            || self.is_unbelieved(&dashed)
            || self.locating.contains(&dashed)
            || [CONTENT_LENGTH, HOST, VIA, X_FORWARDED_FOR, X_FORWARDED_CLIENT_CERT].contains(&dashed)
    }

    /// Removes from a request's trailers what a pod may read as if it had been in the head, or could not read at all.
    pub(crate) fn clean_trailers(&self, trailers: &mut HeaderMap) {
        let is_reserved = |name: &HeaderName| {
            ends_up_in_a_head(name)
                || is_said_by_the_router(name)
                || is_forwarded(name)
                || self.locating.contains(name)
                || self.is_disguised(name)
                || *name == COOKIE
                || has_quote(name)
        };
        let others: Vec<HeaderName> = trailers.keys().filter(|name| is_reserved(name)).cloned().collect();
        for name in others {
            trailers.remove(name);
        }
    }
}

fn is_forwarded(name: &HeaderName) -> bool {
    *name == FORWARDED || name.as_str().starts_with("x-forwarded-")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn reserved(trusts_forwarded: bool) -> ReservedHeaders {
        let header = HeaderName::from_static("x-partition");
        let partition = PartitionSource::Number { header, order_by: Some(HeaderName::from_static("x_order")) };
        ReservedHeaders::new(&partition, trusts_forwarded)
    }

    #[test]
    fn underscores_hide_nothing() {
        let is_disguised = |name| reserved(false).is_disguised(&HeaderName::from_static(name));
        for name in ["segue_epoch", "x_partition", "content_length", "transfer_encoding", "x_forwarded-for"] {
            assert!(is_disguised(name), "{name}");
        }
        // The configuration may name a header with an underscore.
        for name in ["x_order", "my_own", "x-partition"] {
            assert!(!is_disguised(name), "{name}");
        }
    }

    #[test]
    fn the_last_address_is_the_one_that_the_proxy_in_front_has_seen() {
        let of = |values: &[&'static str]| {
            let values = values.iter().map(|value| (X_FORWARDED_FOR, HeaderValue::from_static(value)));
            forwarded_for(&values.collect())
        };
        let ip = |text: &str| Some(text.parse().unwrap());
        assert_eq!(of(&["203.0.113.7"]), ip("203.0.113.7"));
        assert_eq!(of(&["198.51.100.1, 203.0.113.7"]), ip("203.0.113.7"));
        assert_eq!(of(&["198.51.100.1", "203.0.113.7:4711"]), ip("203.0.113.7"));
        assert_eq!(of(&["2001:db8::7"]), ip("2001:db8::7"));
        assert_eq!(of(&["[2001:db8::7]:443"]), ip("2001:db8::7"));
        assert_eq!(of(&["[2001:db8::7]"]), ip("2001:db8::7"));
        for none in [&[][..], &["unknown"], &["203.0.113.7, "], &["_hidden"]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }

    #[test]
    fn what_a_client_says_of_itself_is_believed_if_the_configuration_says_so() {
        for name in ["forwarded", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-prefix"] {
            let name = HeaderName::from_static(name);
            assert!(reserved(false).is_unbelieved(&name) && !reserved(true).is_unbelieved(&name), "{name}");
        }
        assert!(!reserved(false).is_unbelieved(&HeaderName::from_static("x-forwarded")));
    }
}
