//! A request in flight as an operator sees it: which one it is, without what it may not tell.
//!
//! # Invariants
//!
//! * The query is left out, because it may have secrets.
//! * Its texts are bounded, whatever the client has sent.

use http::{Method, Uri};

const MAX_METHOD_BYTES: usize = 32;
const MAX_PATH_BYTES: usize = 256;
const MAX_CLIENT_BYTES: usize = 64;

/// The method, the path and the client of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestSummary {
    /// The method.
    pub method: Box<str>,
    /// The path of its target, without the query.
    pub path: Box<str>,
    /// The address of its client.
    pub client: Box<str>,
}

impl RequestSummary {
    /// Returns the summary of a request with this head, from this client.
    pub(crate) fn new(method: &Method, target: &Uri, client: &str) -> Self {
        RequestSummary {
            method: bounded(method.as_str(), MAX_METHOD_BYTES),
            path: bounded(target.path(), MAX_PATH_BYTES),
            client: bounded(client, MAX_CLIENT_BYTES),
        }
    }
}

/// Returns the text, or so much of its beginning that `…` fits in behind it.
fn bounded(text: &str, most: usize) -> Box<str> {
    const CUT: &str = "…";
    if text.len() <= most {
        return text.into();
    }
    let fits = |(at, _): &(usize, char)| *at <= most - CUT.len();
    let end = text.char_indices().take_while(fits).last().map_or(0, |(at, _)| at);
    [&text[..end], CUT].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_no_query_and_is_bounded() {
        let of = |target: &str| RequestSummary::new(&Method::GET, &target.parse().unwrap(), "203.0.113.7");
        assert_eq!(&*of("/feed/7?token=secret").path, "/feed/7");
        assert_eq!(&*of("http://h/feed?token=secret").path, "/feed");
        assert_eq!(&*of("*").path, "*");
        for filler in ["a", "ü"] {
            let path = format!("/{}", filler.repeat(MAX_PATH_BYTES));
            let summary = of(&path);
            assert!(summary.path.len() <= MAX_PATH_BYTES && summary.path.len() > MAX_PATH_BYTES - 8, "{summary:?}");
            assert!(summary.path.ends_with('…') && path.starts_with(summary.path.trim_end_matches('…')), "{summary:?}");
        }
        let exact = format!("/{}", "a".repeat(MAX_PATH_BYTES - 1));
        assert_eq!(*of(&exact).path, *exact);
    }
}
