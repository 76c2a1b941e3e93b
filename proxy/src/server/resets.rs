//! Follows the frames that an HTTP/2 server writes, and counts the streams that `h2` resets by its own decision.
//!
//! Pure. `h2` ends a connection, with all that is in flight on it, after a number of such resets in its life, and tells
//! nobody of them. Any of the users of a shared connection can cause them: by heads that are malformed, or by data behind a
//! response.
//!
//! # Invariants
//!
//! * Resets that hyper makes because of a response do not count: `NO_ERROR`, `INTERNAL_ERROR` and `CANCEL`.

use crate::message::frame_follower::{FrameFollower, RST_STREAM};

/// The frames of one connection.
#[derive(Debug)]
pub(super) struct Resets {
    frames: FrameFollower,
    /// The code of a reset, as far as it has been seen.
    code: u32,
}

impl Default for Resets {
    fn default() -> Self {
        Resets { frames: FrameFollower::of_server(), code: 0 }
    }
}

/// The numbers of resets in some bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResetCounts {
    /// Those that `h2` has decided on.
    pub(super) by_h2: u32,
    /// Those of them whose requests were malformed.
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
            if part.kind != RST_STREAM {
                continue;
            }
            self.code = part.payload.iter().fold(self.code, |code, byte| code << 8 | u32::from(*byte));
            if part.is_last {
                let code = std::mem::take(&mut self.code);
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
}
