//! The headers of an HTTP/1.1 response that concern its connection or frame its body.
//!
//! Pure. Each line is looked at once, as it is read, and left out if it does not go on to the client.
//!
//! # Invariants
//!
//! * A response whose length can be read in two ways is refused.
//! * Nothing that concerns the connection goes on to the client.

use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{StatusCode, Version};

use crate::message::header_names::{KEEP_ALIVE, SEGUE_REASON, is_hop_by_hop};
use crate::message::headers::{MAX_OPTIONS, options};
use crate::message::local_reply::PodReason;

/// How the body of a response is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFraming {
    Length(u64),
    Chunked,
    UntilClose,
}

/// Why bytes are not a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("the pod's response is not HTTP/1")]
    Syntax,
    #[error("the head of the pod's response is too large")]
    TooLarge,
    #[error("the pod's response has no definite length")]
    Length,
    #[error("the pod's response has a transfer coding other than chunked")]
    Coding,
    #[error("the pod's response declares more than {MAX_OPTIONS} connection options")]
    Options,
}

/// What the lines of a response declare about its connection and its length.
#[derive(Default)]
pub(super) struct FramingHeaders {
    /// Whether the request was a HEAD.
    pub(super) to_head: bool,
    close: bool,
    keep_alive: bool,
    pub(super) keep_for: Option<Duration>,
    /// Further headers that concern the connection.
    declared: Vec<HeaderName>,
    chunked: bool,
    pub(super) length: Option<u64>,
    /// Number of lines that state the length.
    lengths: usize,
}

impl FramingHeaders {
    /// Returns whether each line stands for itself: none concerns another one, and none contradicts another one.
    pub(super) fn is_ordinary(&self) -> bool {
        self.declared.is_empty() && self.lengths <= 1 && !(self.chunked && self.length.is_some())
    }

    /// Interprets a line. Returns whether it goes on to the client.
    pub(super) fn passes(
        &mut self,
        version: Version,
        status: StatusCode,
        name: &HeaderName,
        value: &HeaderValue,
    ) -> Result<bool, HeadError> {
        if *name == CONTENT_LENGTH {
            let length = length(value)?;
            if self.length.is_some_and(|earlier| earlier != length) {
                return Err(HeadError::Length);
            }
            self.length = Some(length);
            self.lengths += 1;
            return Ok(self.lengths == 1);
        }
        if *name == TRANSFER_ENCODING {
            // Any other coding is refused: pods were not told that one is understood here, and without its header the
            // client would take the coded bytes for the content. HTTP/1.0 has no codings, so the meaning of one there
            // is unknown.
            let plain = version == Version::HTTP_11 && value.as_bytes().eq_ignore_ascii_case(b"chunked");
            if !plain || self.chunked {
                return Err(HeadError::Coding);
            }
            self.chunked = true;
        } else if *name == CONNECTION {
            options(value).try_for_each(|option| self.option(option))?;
        }
        let is_hop_by_hop = is_hop_by_hop(name);
        if is_hop_by_hop && *name == KEEP_ALIVE {
            self.keep_for = keep_for(value);
        }
        let switches = status == StatusCode::SWITCHING_PROTOCOLS && *name == UPGRADE;
        let forged = *name == SEGUE_REASON && PodReason::of(value).is_none();
        Ok(switches || !(is_hop_by_hop || forged))
    }

    fn option(&mut self, option: &[u8]) -> Result<(), HeadError> {
        if option.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
        } else if option.eq_ignore_ascii_case(b"close") {
            self.close = true;
        } else if let Ok(name) = HeaderName::from_bytes(option)
            && !is_hop_by_hop(&name)
        {
            if self.declared.len() == MAX_OPTIONS {
                return Err(HeadError::Options);
            }
            self.declared.push(name);
        }
        Ok(())
    }

    /// Removes what could not be recognised line by line.
    pub(super) fn clean(&self, headers: &mut HeaderMap) {
        if let (Some(length), true) = (self.length, self.lengths > 1) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        for name in &self.declared {
            headers.remove(name);
        }
    }

    /// Returns how the body is delimited, and whether the connection can still be trusted.
    pub(super) fn framing(&self, headers: &mut HeaderMap, status: StatusCode) -> (ResponseFraming, bool) {
        // In the response to a HEAD, and in a 304, length and coding describe what is not sent.
        if self.to_head {
            return (ResponseFraming::Length(0), true);
        }
        if status == StatusCode::NOT_MODIFIED {
            // hyper's server would drop it as well.
            headers.remove(CONTENT_LENGTH);
            return (ResponseFraming::Length(0), true);
        }
        if status.is_informational() || status == StatusCode::NO_CONTENT {
            headers.remove(CONTENT_LENGTH);
            // A pod that declares a body here may well send it.
            return (ResponseFraming::Length(0), !self.chunked && self.length.unwrap_or(0) == 0);
        }
        if self.chunked {
            // Both at once: the coding counts, the length is wrong, and so may be what follows on this connection.
            headers.remove(CONTENT_LENGTH);
            return (ResponseFraming::Chunked, self.length.is_none());
        }
        (self.length.map_or(ResponseFraming::UntilClose, ResponseFraming::Length), true)
    }

    /// Returns whether the connection may serve another request.
    pub(super) fn keeps_alive(&self, version: Version) -> bool {
        !self.close && (self.keep_alive || version != Version::HTTP_10)
    }
}

/// Returns how long a connection may be idle whose pod sent `timeout=`: a second less, for what is in transit.
fn keep_for(value: &HeaderValue) -> Option<Duration> {
    let seconds = options(value).find_map(|option| {
        let (name, seconds) = std::str::from_utf8(option).ok()?.split_once('=')?;
        name.trim_end().eq_ignore_ascii_case("timeout").then(|| seconds.trim().parse::<u32>().ok())?
    });
    let timeout = Duration::from_secs(seconds?.into());
    Some(timeout.saturating_sub(Duration::from_secs(1)).max(timeout / 2))
}

fn length(value: &HeaderValue) -> Result<u64, HeadError> {
    let text = value.to_str().ok().filter(|text| !text.is_empty() && !text.starts_with('+'));
    text.and_then(|text| text.parse().ok()).ok_or(HeadError::Length)
}
