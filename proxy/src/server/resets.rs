//! Follows the frames that an HTTP/2 server writes, and counts the streams that `h2` resets by its own decision.
//!
//! Pure. `h2` ends a connection, with all that is in flight on it, after a number of such resets in its life, and tells
//! nobody of them. Any of the users of a shared connection can cause them: by heads that are malformed, or by data behind a
//! response.
//!
//! # Invariants
//!
//! * Resets that hyper makes because of a response do not count: `NO_ERROR`, `INTERNAL_ERROR` and `CANCEL`.
//! * A request that has been answered is not malformed. Some clients end an upload short once they have its response.

use crate::message::frame_follower::{FrameFollower, HEADERS, RST_STREAM};

/// The frames of one connection.
#[derive(Debug)]
pub(super) struct Resets {
    frames: FrameFollower,
    answered: AnsweredStreams,
    /// The code of a reset, as far as it has been seen.
    code: u32,
}

/// The streams whose response has begun, as far as they are among the newest of those.
#[derive(Debug, Default)]
struct AnsweredStreams {
    newest: u32,
    /// A bit for each stream, beginning with the newest.
    bits: u128,
}

impl AnsweredStreams {
    /// Returns how many streams are newer than this one. A client has only those of odd numbers.
    fn age(&self, stream: u32) -> Option<u32> {
        Some(self.newest.checked_sub(stream)? / 2)
    }

    fn add(&mut self, stream: u32) {
        let newer = stream.saturating_sub(self.newest) / 2;
        self.bits = self.bits.checked_shl(newer).unwrap_or(0);
        self.newest = self.newest.max(stream);
        self.bits |= self.age(stream).and_then(|age| 1_u128.checked_shl(age)).unwrap_or(0);
    }

    fn contains(&self, stream: u32) -> bool {
        self.age(stream).and_then(|age| self.bits.checked_shr(age)).is_some_and(|bits| bits & 1 == 1)
    }
}

impl Default for Resets {
    fn default() -> Self {
        Resets { frames: FrameFollower::of_server(), answered: AnsweredStreams::default(), code: 0 }
    }
}

/// The numbers of resets in some bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResetCounts {
    /// Those that `h2` has decided on, but for malformed ends of requests that have been answered.
    pub(super) by_h2: u32,
    /// The resets among them whose requests were malformed.
    pub(super) malformed: u32,
}

const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

impl Resets {
    /// Follows the next bytes that have been written.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> ResetCounts {
        let mut counts = ResetCounts::default();
        while let Some(part) = self.frames.next(&mut bytes) {
            if part.kind == HEADERS {
                self.answered.add(part.stream);
            }
            if part.kind != RST_STREAM {
                continue;
            }
            self.code = part.payload.iter().fold(self.code, |code, byte| code << 8 | u32::from(*byte));
            if part.is_last {
                let code = std::mem::take(&mut self.code);
                if code == PROTOCOL_ERROR && self.answered.contains(part.stream) {
                    continue;
                }
                counts.by_h2 += u32::from(!matches!(code, NO_ERROR | INTERNAL_ERROR | CANCEL));
                counts.malformed += u32::from(code == PROTOCOL_ERROR);
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(code: u8) -> Vec<u8> {
        [&b"\0\0\x04\x03\0\0\0\0\x01\0\0\0"[..], &[code]].concat()
    }

    #[test]
    fn resets_are_counted_by_their_codes_however_they_are_written() {
        let data = b"\0\0\x05\0\0\0\0\0\x01\0\0\x04\x03\x01".to_vec();
        let settings = b"\0\0\0\x04\x01\0\0\0\0".to_vec();
        let all: Vec<u8> = [settings, reset(1), data, reset(0), reset(2), reset(8), reset(5), reset(1)].concat();
        let expected = ResetCounts { by_h2: 3, malformed: 2 };
        assert_eq!(Resets::default().follow(&all), expected);
        for size in 1..20 {
            let mut resets = Resets::default();
            let each = all.chunks(size).map(|piece| resets.follow(piece));
            let sum = each.fold(ResetCounts::default(), |sum, counts| ResetCounts {
                by_h2: sum.by_h2 + counts.by_h2,
                malformed: sum.malformed + counts.malformed,
            });
            assert_eq!(sum, expected, "in pieces of {size} bytes");
        }
    }

    #[test]
    fn an_answered_request_is_not_malformed() {
        let frame = |kind, stream: u8, payload: &[u8]| {
            [&[0, 0, payload.len() as u8, kind, 4, 0, 0, 0, stream][..], payload].concat()
        };
        let head = |stream| frame(HEADERS, stream, b"\x88");
        let reset = |stream, code| frame(RST_STREAM, stream, &[0, 0, 0, code]);
        let malformed = |frames: &[Vec<u8>]| Resets::default().follow(&frames.concat());
        for (before, stream) in [(vec![1], 1), (vec![3, 1], 1), (vec![1, 251], 1), (vec![5, 3, 1, 7], 3)] {
            let mut frames: Vec<_> = before.iter().copied().map(head).collect();
            frames.push(reset(stream, 1));
            assert_eq!(malformed(&frames), ResetCounts::default(), "{before:?}");
        }
        for (before, stream) in [(vec![], 1), (vec![1], 3), (vec![3], 1), (vec![1, 5], 3), (vec![1, 255], 3)] {
            let mut frames: Vec<_> = before.iter().copied().map(head).collect();
            frames.push(reset(stream, 1));
            assert_eq!(malformed(&frames), ResetCounts { by_h2: 1, malformed: 1 }, "{before:?}");
        }
        // Data behind a response is a mistake nevertheless.
        assert_eq!(malformed(&[head(1), reset(1, 5)]), ResetCounts { by_h2: 1, malformed: 0 });
    }
}
