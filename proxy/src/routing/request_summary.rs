//! A request in flight as an operator sees it: which one it is, without what it may not tell.
//!
//! # Invariants
//!
//! * The query is left out, because it may have secrets.
//! * Its texts are bounded, whatever the client has sent.

use std::borrow::Cow;

use http::{Method, Uri};

const MAX_METHOD_BYTES: usize = 32;
const MAX_PATH_BYTES: usize = 256;
const MAX_CLIENT_BYTES: usize = 64;

/// The method, the path and the client of a request. One text, because every response that outlasts its head needs one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestSummary {
    text: Box<str>,
    /// Where the path begins in the text.
    path: u16,
    /// Where the client begins.
    client: u16,
}

impl RequestSummary {
    /// Returns the summary of a request with this head, from this client.
    pub(crate) fn new(method: &Method, target: &Uri, client: &str) -> Self {
        let method = bounded(method.as_str(), MAX_METHOD_BYTES);
        let path = bounded(target.path(), MAX_PATH_BYTES);
        let client = bounded(client, MAX_CLIENT_BYTES);
        RequestSummary {
            text: [&*method, &*path, &*client].concat().into(),
            path: method.len() as u16,
            client: (method.len() + path.len()) as u16,
        }
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        &self.text[..usize::from(self.path)]
    }

    /// Returns the path of the target, without the query.
    pub fn path(&self) -> &str {
        &self.text[usize::from(self.path)..usize::from(self.client)]
    }

    /// Returns the address of the client.
    pub fn client(&self) -> &str {
        &self.text[usize::from(self.client)..]
    }
}

/// Returns the text, or so much of its beginning that `…` fits in behind it.
fn bounded(text: &str, most: usize) -> Cow<'_, str> {
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
        let feed = of("/feed/7?token=secret");
        assert_eq!([feed.method(), feed.path(), feed.client()], ["GET", "/feed/7", "203.0.113.7"]);
        assert_eq!(of("http://h/feed?token=secret").path(), "/feed");
        assert_eq!(of("*").path(), "*");
        for filler in ["a", "ü"] {
            let path = format!("/{}", filler.repeat(MAX_PATH_BYTES));
            let summary = of(&path);
            assert!(summary.path().len() <= MAX_PATH_BYTES && summary.path().len() > MAX_PATH_BYTES - 8, "{summary:?}");
            assert!(
                summary.path().ends_with('…') && path.starts_with(summary.path().trim_end_matches('…')),
                "{summary:?}"
            );
        }
        let exact = format!("/{}", "a".repeat(MAX_PATH_BYTES - 1));
        assert_eq!(of(&exact).path(), exact);
    }
}
