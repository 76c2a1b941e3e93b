//! The time that a gRPC call may take, as its client states in `grpc-timeout`.
//!
//! Pure. Not here: what becomes of a call whose deadline has passed ([`forward`](crate::forward)).
//!
//! # Invariants
//!
//! * A pod is never given more time than is left.
//! * A timeout that cannot be parsed sets no deadline, and passes unchanged.

use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::message::local_reply::is_grpc;

pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The largest number of eight digits.
const MAX_NUMBER: u128 = 99_999_999;

/// Returns the time that the call may take, if the request is a gRPC call and states one.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT).filter(|_| is_grpc(headers))?.as_bytes();
    let (unit, digits) = text.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Returns `grpc-timeout` for the time that is left, in the finest unit that can express it, rounded down.
pub(crate) fn header(left: Duration) -> HeaderValue {
    let units = [(left.as_micros(), 'u'), (left.as_millis(), 'm'), (u128::from(left.as_secs()), 'S')];
    let (number, unit) =
        units.into_iter().find(|(number, _)| *number <= MAX_NUMBER).unwrap_or((left.as_secs().into(), 'S'));
    // Beyond three years a difference is not noticed.
    HeaderValue::try_from(format!("{}{unit}", number.min(MAX_NUMBER)))
        .unwrap_or_else(|_| HeaderValue::from_static("0u"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: &'static str, value: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(GRPC_TIMEOUT, HeaderValue::try_from(value).unwrap());
        timeout(&headers)
    }

    #[test]
    fn each_unit_is_read() {
        let grpc = |value| said("application/grpc+proto", value);
        assert_eq!(grpc("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(grpc("3M"), Some(Duration::from_secs(180)));
        assert_eq!(grpc("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(grpc("250m"), Some(Duration::from_millis(250)));
        assert_eq!(grpc("5u"), Some(Duration::from_micros(5)));
        assert_eq!(grpc("0n"), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_no_timeout_of_a_grpc_call_is_none() {
        for bad in ["", "S", "5", "5s", "-5S", "+5S", "123456789S", "5 S", "5.0S"] {
            assert_eq!(said("application/grpc", bad), None, "{bad:?}");
        }
        assert_eq!(said("application/json", "5S"), None);
    }

    #[test]
    fn what_is_left_is_said_in_eight_digits_and_never_more_than_it_is() {
        for (left, text) in [
            (Duration::ZERO, "0u"),
            (Duration::from_nanos(1_999), "1u"),
            (Duration::from_millis(99_999), "99999000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(header(left), text);
        }
    }
}
