//! Finds in one walk which headers that concern the router a request has.
//!
//! Comparing a name costs a few instructions and looking one up some eighty, and most requests have none of these
//! headers. A name is compared only with those that begin with its first letter.
//! Not here: what the headers say ([`headers`](crate::message::headers)).
//!
//! # Invariants
//!
//! * A header that is present is noted.
//! * A head is routine only if each of its headers but `host` and `content-length` goes on to the pod unchanged, whatever
//!   the configuration says.

use http::{HeaderMap, HeaderValue};

/// Bytes that a header takes beside its text: its slots in the map.
const BYTES_PER_HEADER: usize = 104;

#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderScan {
    pub(crate) connection: bool,
    pub(crate) upgrade: bool,
    pub(crate) expect: bool,
    pub(crate) te: bool,
    pub(crate) via: bool,
    pub(crate) x_forwarded_for: bool,
    pub(crate) grpc_timeout: bool,
    pub(crate) traceparent: bool,
    pub(crate) host: bool,
    /// Whether `host` has a byte that ends a host, or separates two, wherever it is read.
    pub(crate) is_bad_host: bool,
    pub(crate) content_type: bool,
    /// Whether there is more than one `Cookie` line.
    pub(crate) cookies: bool,
    /// Whether a name has an underscore.
    pub(crate) underscore: bool,
    /// Whether no header but `host` and `content-length` needs a second look.
    pub(crate) routine: bool,
    /// About how many bytes the headers take up in memory.
    pub(crate) weight: u32,
    cookie: bool,
}

impl HeaderScan {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut scan = HeaderScan {
            connection: false,
            upgrade: false,
            expect: false,
            te: false,
            via: false,
            x_forwarded_for: false,
            grpc_timeout: false,
            traceparent: false,
            host: false,
            is_bad_host: false,
            content_type: false,
            cookies: false,
            underscore: false,
            routine: true,
            weight: 0,
            cookie: false,
        };
        let mut weight = 0;
        for (name, value) in headers {
            let name = name.as_str();
            weight += name.len() + value.len() + BYTES_PER_HEADER;
            scan.routine &= scan.note(name, value);
            if has_underscore(name.as_bytes()) {
                scan.underscore = true;
                scan.routine = false;
            }
        }
        scan.weight = u32::try_from(weight).unwrap_or(u32::MAX);
        scan
    }

    /// Notes a header. Returns whether it is routine.
    #[inline]
    fn note(&mut self, name: &str, value: &HeaderValue) -> bool {
        match name.as_bytes() {
            [b'c', ..] => match name {
                "connection" => self.connection = true,
                "content-type" => {
                    self.content_type = true;
                    return true;
                }
                "cookie" => {
                    // Several of them may have to be joined.
                    let is_second = std::mem::replace(&mut self.cookie, true);
                    self.cookies |= is_second;
                    return !is_second;
                }
                _ => return true,
            },
            [b'e', ..] => {
                self.expect |= name == "expect";
                return true;
            }
            [b'f', ..] => return name != "forwarded",
            [b'g', ..] if name == "grpc-timeout" => self.grpc_timeout = true,
            [b'h', ..] => {
                if name == "host" {
                    self.host = true;
                    self.is_bad_host |= !is_host(value.as_bytes());
                }
                return true;
            }
            [b'k', ..] => return name != "keep-alive",
            [b'p', ..] => return !name.starts_with("proxy-"),
            [b's', ..] => return !name.starts_with("segue-"),
            [b't', ..] => match name {
                "te" => self.te = true,
                "transfer-encoding" => {}
                "traceparent" => {
                    self.traceparent = true;
                    return true;
                }
                _ => return true,
            },
            [b'u', ..] if name == "upgrade" => self.upgrade = true,
            [b'v', ..] if name == "via" => self.via = true,
            [b'x', ..] if name.starts_with("x-forwarded-") => self.x_forwarded_for |= name == "x-forwarded-for",
            _ => return true,
        }
        false
    }
}

/// Returns whether this is one host, perhaps with its port. An empty one is.
pub(crate) fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| IS_IN_A_HOST[usize::from(*byte)])
}

/// Whether a byte can stand in a host, with its port. Laxer than RFC 9110 (7.2): what a server may read in two ways is refused,
/// and nothing else.
static IS_IN_A_HOST: [bool; 256] = {
    let mut table = [true; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = !matches!(byte as u8, 0..=b' ' | b'/' | b'\\' | b'?' | b'#' | b'@' | b',' | 0x7f);
        byte += 1;
    }
    table
};

/// Returns whether the name has an underscore. Looks at eight bytes at a time: the short loop of a search for one byte
/// costs more than the names are long.
fn has_underscore(name: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    let Some(last) = name.last_chunk::<8>() else { return name.contains(&b'_') };
    let (chunks, _) = name.as_chunks::<8>();
    chunks.iter().chain([last]).any(|chunk| {
        let zero_where_equal = u64::from_ne_bytes(*chunk) ^ (ONES * u64::from(b'_'));
        zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & (ONES << 7) != 0
    })
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;
    use crate::message::headers::{ConnectionOptions, passes_to_pod};
    use crate::message::reserved::ReservedHeaders;
    use crate::routing::partition_key::PartitionSource;

    fn scan(names: &[&str]) -> HeaderScan {
        let name = |name: &&str| HeaderName::try_from(*name).unwrap();
        HeaderScan::of(&names.iter().map(|text| (name(text), HeaderValue::from_static("1"))).collect())
    }

    /// Names that mean something to the router, and parts of others.
    const PARTS: &[&str] = &[
        "connection",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "grpc-timeout",
        "host",
        "keep-alive",
        "proxy-",
        "proxy-authorization",
        "segue-",
        "segue-epoch",
        "segue-keyspace",
        "segue-misdirected",
        "segue-partition",
        "segue-reason",
        "segue-router",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "x-forwarded-",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-partition",
        "accept",
        "user-agent",
        "a",
        "_",
        "-",
        "x_forwarded_for",
        "content_length",
    ];

    fn check_that_a_routine_header_passes(text: &str) {
        let Ok(name) = HeaderName::try_from(text) else { return };
        let mut headers = HeaderMap::new();
        headers.append(name.clone(), HeaderValue::from_static("1"));
        let scan = HeaderScan::of(&headers);
        assert_eq!(scan.underscore, text.contains('_'), "{text}");
        if !scan.routine || name == HOST || name == CONTENT_LENGTH {
            return;
        }
        for trusts_forwarded in [false, true] {
            let partition = PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None };
            let reserved = ReservedHeaders::new(&partition, trusts_forwarded);
            assert!(passes_to_pod(&name, scan, &ConnectionOptions::of(&headers, scan), &reserved), "{text}");
        }
    }

    #[test]
    fn what_a_head_has_is_noted() {
        let all = scan(&["connection", "upgrade", "expect", "te", "via", "x-forwarded-for", "grpc-timeout"]);
        assert!(all.connection && all.upgrade && all.expect && all.te && all.via);
        assert!(all.x_forwarded_for && all.grpc_timeout && !all.host && !all.traceparent && !all.routine);
        let other = scan(&["host", "traceparent", "cookie", "content-length", "accept", "x-partition"]);
        assert!(other.host && other.traceparent && other.routine && !other.cookies && !other.content_type);
        assert!(scan(&["content-type"]).content_type && scan(&["content-type"]).routine);
        assert!(scan(&["cookie", "cookie"]).cookies && !scan(&["cookie", "cookie"]).routine);
        assert!(scan(&[]).routine);
    }

    #[test]
    fn a_routine_head_passes_as_it_is() {
        PARTS.iter().for_each(|name| check_that_a_routine_header_passes(name));
    }

    proptest! {
        #[test]
        fn a_routine_head_passes_as_it_is_whatever_its_names(
            parts in prop::collection::vec(prop::sample::select(PARTS), 1..4),
            separator in prop::sample::select(&["", "-", "_"][..]),
        ) {
            check_that_a_routine_header_passes(&parts.join(separator));
        }
    }
}
