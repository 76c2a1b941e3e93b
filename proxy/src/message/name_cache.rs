//! Remembers how header names were read.
//!
//! Reading a name normalises each of its bytes, looks it up among the names that have a number, and allocates if it is
//! none of them. Nearly every message has the same few names, so each thread remembers them by their bytes.
//!
//! # Invariants
//!
//! * A name is read as it would be without this.
//! * The memory is bounded, whatever peers send.

use std::cell::RefCell;

use http::header::{HeaderName, InvalidHeaderName};

/// Number of names that a thread remembers at most. Each has one place, so two names may displace each other.
const PLACES: usize = 256;
/// Longer names are not remembered.
const MAX_NAME_BYTES: usize = 32;

struct CachedName {
    text: [u8; MAX_NAME_BYTES],
    length: usize,
    name: HeaderName,
}

thread_local! {
    static KNOWN: RefCell<Vec<Option<CachedName>>> = RefCell::new((0..PLACES).map(|_| None).collect());
}

/// Reads the name of a header.
#[inline]
pub(crate) fn header_name(text: &[u8]) -> Result<HeaderName, InvalidHeaderName> {
    if text.len() > MAX_NAME_BYTES {
        return HeaderName::from_bytes(text);
    }
    KNOWN.with_borrow_mut(|known| match &mut known[place(text)] {
        Some(known) if known.text[..known.length] == *text => Ok(known.name.clone()),
        other => {
            let name = HeaderName::from_bytes(text)?;
            *other = Some(remember(text, name.clone()));
            Ok(name)
        }
    })
}

#[cold]
fn remember(name: &[u8], read: HeaderName) -> CachedName {
    let mut text = [0; MAX_NAME_BYTES];
    text[..name.len()].copy_from_slice(name);
    CachedName { text, length: name.len(), name: read }
}

/// Returns the place of a name.
fn place(text: &[u8]) -> usize {
    let mixed = if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29)
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
    } else {
        text.iter().fold(0, |mixed, byte| mixed << 8 | u64::from(*byte))
    };
    let spread = (mixed ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The uppermost bits depend on all others.
    (spread >> (u64::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &[u8]) {
        let expected = HeaderName::from_bytes(text).ok();
        assert_eq!(header_name(text).ok(), expected, "{text:?}");
        assert_eq!(header_name(text).ok(), expected, "{text:?}, again");
    }

    #[test]
    fn a_name_is_read_in_the_same_way_each_time() {
        for text in ["host", "Host", "HOST", "x-partition", "X-Partition", "te", "a", "", "a b", "a:", "\u{e4}"] {
            check(text.as_bytes());
        }
        check(&[b'x'; MAX_NAME_BYTES]);
        check(&[b'X'; MAX_NAME_BYTES + 1]);
    }

    #[test]
    fn names_that_share_a_place_are_told_apart() {
        for number in 0..10 * PLACES {
            check(format!("x-{number}").as_bytes());
        }
        KNOWN.with_borrow(|known| assert_eq!(known.len(), PLACES));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_as_without_the_cache(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20)) {
            texts.iter().for_each(|text| check(text));
        }

        #[test]
        fn any_name_is_read_as_without_the_cache(texts in prop::collection::vec("[-A-Za-z_]{0,36}", 1..20)) {
            texts.iter().for_each(|text| check(text.as_bytes()));
        }
    }
}
