//! Durations and sizes in text form.
//!
//! For: `"250ms"`, `"10s"`, `"5m"`, `"1h"`, and `"512B"`, `"64KiB"`, `"64MiB"`, `"1GiB"`, in both directions. Not for:
//! the limits of single keys.
//!
//! # Invariants
//!
//! * The text of a setting is one whole number and one unit, nothing else.
//! * A setting that is shown parses to the same value. A measured duration is rounded.
//! * No duration is so long that adding it to a clock could overflow.

use std::time::Duration;

use crate::error::{Wrong, quoted};

const MILLISECOND: u64 = 1;
const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A year: far above any sensible setting, far below what a clock can add.
const MAX_MILLISECONDS: u64 = 365 * 24 * HOUR;

/// Units with their common other names, in lower case; the smallest comes first.
type Units = [(&'static str, u64, &'static [&'static str])];

const DURATIONS: &Units = &[
    ("ms", MILLISECOND, &["msec", "msecs", "millis", "millisecond", "milliseconds"]),
    ("s", SECOND, &["", "sec", "secs", "second", "seconds"]),
    ("m", MINUTE, &["min", "mins", "minute", "minutes"]),
    ("h", HOUR, &["hr", "hrs", "hour", "hours"]),
];

const SIZES: &Units = &[
    ("B", 1, &["", "b", "byte", "bytes"]),
    ("KiB", 1 << 10, &["k", "kb", "ki", "kib"]),
    ("MiB", 1 << 20, &["m", "mb", "mi", "mib"]),
    ("GiB", 1 << 30, &["g", "gb", "gi", "gib"]),
];

pub(crate) const EXPECTED_DURATION: &str = r#"expected a duration such as "250ms", "10s", "5m" or "1h""#;
pub(crate) const EXPECTED_SIZE: &str = r#"expected a size such as "512B", "64KiB" or "64MiB""#;

pub(crate) fn duration(text: &str) -> Result<Duration, Wrong> {
    match amount(text, DURATIONS, "a duration", EXPECTED_DURATION)? {
        Some(millis) if millis <= MAX_MILLISECONDS => Ok(Duration::from_millis(millis)),
        _ => Err(Wrong::new(format!("{} is too long", quoted(text)), "expected at most a year, \"8760h\"")),
    }
}

pub(crate) fn size(text: &str) -> Result<usize, Wrong> {
    let bytes = amount(text, SIZES, "a size", EXPECTED_SIZE)?;
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| Wrong::new(format!("{} is too large", quoted(text)), EXPECTED_SIZE))
}

/// Returns a duration in the largest unit that divides it.
pub(crate) fn show_duration(duration: Duration) -> String {
    show(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), DURATIONS)
}

/// Returns a duration for people, with two or three digits: `564 µs`, `4.2 ms`, `73 ms`, `4.9 s`, and from two minutes on in
/// its two largest units, such as `3m20s`.
pub(crate) fn readable(duration: Duration) -> String {
    let (micros, seconds) = (duration.as_micros(), duration.as_secs());
    match micros {
        0 => "0 s".to_owned(),
        // Tenths that would be rounded up to the next unit's size already have its form.
        1..1_000 => format!("{micros} µs"),
        1_000..9_950 => format!("{:.1} ms", micros as f64 / 1e3),
        9_950..999_500 => format!("{:.0} ms", micros as f64 / 1e3),
        999_500..120_000_000 => format!("{:.1} s", micros as f64 / 1e6),
        _ => match seconds {
            0..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
            3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds / 60 % 60),
            _ => format!("{}d{}h", seconds / 86_400, seconds / 3_600 % 24),
        },
    }
}

/// Returns a size in the largest unit that divides it.
pub(crate) fn show_size(bytes: usize) -> String {
    show(u64::try_from(bytes).unwrap_or(u64::MAX), SIZES)
}

/// Returns the amount in the smallest unit. An error if it does not fit.
fn amount(text: &str, units: &Units, what: &str, expected: &str) -> Result<Option<u64>, Wrong> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let wrong = || Wrong::new(format!("{} is not {what}", quoted(text)), expected);
    if number.is_empty() {
        return Err(wrong());
    }
    if let Some((_, factor, _)) = units.iter().find(|(name, ..)| *name == unit) {
        return Ok(number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)));
    }
    let alias = unit.trim().to_lowercase();
    let meant = units.iter().find(|(name, _, aliases)| name.to_lowercase() == alias || aliases.contains(&&*alias));
    Err(wrong().did_you_mean(meant.map(|(name, ..)| quoted(&format!("{number}{name}")))))
}

fn show(amount: u64, units: &Units) -> String {
    let largest = units.iter().rev().find(|(_, factor, _)| amount > 0 && amount.is_multiple_of(*factor));
    let (name, factor, _) = largest.unwrap_or(&units[0]);
    format!("{}{name}", amount / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_unit_counts_what_it_says() {
        for (text, millis) in [("0s", 0), ("250ms", 250), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, bytes) in [("0B", 0), ("512B", 512), ("64KiB", 65_536), ("64MiB", 67_108_864), ("1GiB", 1 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_duration_for_people_has_two_or_three_digits_or_two_units() {
        let shown = [0, 1, 563, 1_000, 9_949, 9_950, 73_400, 999_499, 999_500, 4_943_278, 46_703_100, 119_900_000];
        let expected = [
            "0 s", "1 µs", "563 µs", "1.0 ms", "9.9 ms", "10 ms", "73 ms", "999 ms", "1.0 s", "4.9 s", "46.7 s",
            "119.9 s",
        ];
        assert_eq!(shown.map(|micros| readable(Duration::from_micros(micros))), expected);
        let shown = [120, 200, 3_600, 7_260, 180_000].map(|seconds| readable(Duration::from_secs(seconds)));
        assert_eq!(shown, ["2m0s", "3m20s", "1h0m", "2h1m", "2d2h"]);
    }

    #[test]
    fn other_spellings_of_a_unit_are_refused_and_the_right_one_is_offered() {
        for (text, meant) in [("10", "10s"), ("10sec", "10s"), ("5 min", "5m"), ("3MS", "3ms"), ("1H", "1h")] {
            assert_eq!(duration(text).unwrap_err().nearest, Some(format!("{meant:?}")), "{text}");
        }
        for (text, meant) in [("64", "64B"), ("64kb", "64KiB"), ("64 MB", "64MiB"), ("1g", "1GiB")] {
            assert_eq!(size(text).unwrap_err().nearest, Some(format!("{meant:?}")), "{text}");
        }
        for text in ["", "s", "-1s", "+1s", "1.5s", "1m30s", " 1s", "1s ", "1d", "١s"] {
            assert_eq!(duration(text).unwrap_err().remedy, EXPECTED_DURATION, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for text in ["8761h", "18446744073709551615s", "99999999999999999999999ms"] {
            assert!(duration(text).unwrap_err().fact.ends_with("is too long"), "{text}");
        }
        for text in ["18446744073709551615KiB", "99999999999999999999999B"] {
            assert!(size(text).unwrap_err().fact.ends_with("is too large"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_parses_to_the_same(millis in 0..=MAX_MILLISECONDS, bytes: usize) {
            let length = Duration::from_millis(millis);
            prop_assert_eq!(duration(&show_duration(length)), Ok(length));
            prop_assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }
    }
}
