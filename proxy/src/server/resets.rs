//! Follows the frames that an HTTP/2 server writes, and counts the streams that `h2` resets by its own decision.
//!
//! Pure. `h2` ends a connection, with all that is in flight on it, after a number of such resets in its life, and tells
//! nobody of them. Any of the users of a shared connection can cause them: by heads that are malformed, or by data behind a
//! response.
//!
//! # Invariants
//!
//! * Resets that hyper makes because of a response do not count: `NO_ERROR`, `INTERNAL_ERROR` and `CANCEL`.

/// What has been seen of the frame that is being written.
#[derive(Debug, Default)]
pub(super) struct Resets {
    /// The frame's head, and the code behind it if it is a reset.
    head: [u8; 13],
    /// Number of bytes of that which have been seen.
    seen: usize,
    /// Number of bytes left that are not looked at.
    left: usize,
}

/// The resets in some bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Those that `h2` has decided on.
    pub(super) by_h2: u32,
    /// Those of them whose requests were malformed.
    pub(super) malformed: u32,
}

const FRAME_HEAD_BYTES: usize = 9;
const RST_STREAM: u8 = 3;
const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

impl Resets {
    /// Follows the next bytes that have been written.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> Seen {
        let mut seen = Seen::default();
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let is_reset = self.seen >= FRAME_HEAD_BYTES;
            let wanted = if is_reset { self.head.len() } else { FRAME_HEAD_BYTES };
            let taken = (wanted - self.seen).min(bytes.len());
            self.head[self.seen..self.seen + taken].copy_from_slice(&bytes[..taken]);
            self.seen += taken;
            bytes = &bytes[taken..];
            if self.seen < wanted {
                return seen;
            }
            let [a, b, c, kind, .., d, e, f, g] = self.head;
            if is_reset {
                let code = u32::from_be_bytes([d, e, f, g]);
                seen.by_h2 += u32::from(!matches!(code, NO_ERROR | INTERNAL_ERROR | CANCEL));
                seen.malformed += u32::from(code == PROTOCOL_ERROR);
                self.seen = 0;
            } else if kind != RST_STREAM {
                self.left = u32::from_be_bytes([0, a, b, c]) as usize;
                self.seen = 0;
            }
        }
        seen
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
        let expected = Seen { by_h2: 3, malformed: 2 };
        assert_eq!(Resets::default().follow(&all), expected);
        for size in 1..20 {
            let mut resets = Resets::default();
            let each = all.chunks(size).map(|piece| resets.follow(piece));
            let sum = each.fold(Seen::default(), |sum, seen| Seen {
                by_h2: sum.by_h2 + seen.by_h2,
                malformed: sum.malformed + seen.malformed,
            });
            assert_eq!(sum, expected, "in pieces of {size} bytes");
        }
    }
}
