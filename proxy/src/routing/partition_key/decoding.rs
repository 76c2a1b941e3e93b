//! Decodes the part of a request that names its key, and tells why a request names none.
//!
//! Pure.

use std::borrow::Cow;

/// Why a request is for no partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocationError {
    /// The request names no partition.
    Missing,
    /// The request names a partition that does not exist, or two.
    Bad,
    /// Its key is in the body, of which more would have to be there than is read ahead.
    TooFar,
    /// Its key is in the body, which is compressed.
    Compressed,
    /// Its key is in the body, which is not what its type says.
    Unreadable,
    /// Its key is in the body, where parsers find different ones.
    Unclear,
}

/// Decodes percent escapes; `plus` makes `+` a space, as forms do. Returns `None` if a `%` has no two digits after it:
/// producers would disagree on the key.
pub(in crate::routing) fn decode(raw: &[u8], plus: bool) -> Option<Cow<'_, [u8]>> {
    if !raw.iter().any(|byte| *byte == b'%' || (plus && *byte == b'+')) {
        return Some(Cow::Borrowed(raw));
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(*bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' if plus => b' ',
            other => *other,
        });
    }
    Some(Cow::Owned(decoded))
}
