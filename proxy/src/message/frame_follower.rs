//! Follows the frames of one direction of an HTTP/2 connection, however its bytes are divided.
//!
//! Pure. Not here: what the frames mean to those who look at them (`server::resets`, `server::unfinished_head`,
//! `sidecar::connection`).

use super::PREFACE;

/// Kinds of frames, and a flag (RFC 9113, 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_HEADERS: u8 = 4;

const HEAD_BYTES: usize = 9;

/// The place in a sequence of frames.
#[derive(Debug)]
pub(crate) struct FrameFollower {
    /// Number of bytes of the preface that have not been seen.
    preface: usize,
    /// The head of the present frame.
    head: [u8; HEAD_BYTES],
    /// Number of bytes of the head that have been seen.
    seen: usize,
    /// Number of bytes of the frame's payload that have not been seen.
    left: usize,
}

/// A part of a frame: all of its payload that is at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePart<'bytes> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'bytes [u8],
    /// Whether the frame ends with it.
    pub(crate) is_last: bool,
}

impl FrameFollower {
    /// Returns the beginning of what a client sends: the preface, and then frames.
    pub(crate) fn of_client() -> Self {
        FrameFollower { preface: PREFACE.len(), ..FrameFollower::of_server() }
    }

    /// Returns the beginning of what a server sends.
    pub(crate) fn of_server() -> Self {
        FrameFollower { preface: 0, head: [0; HEAD_BYTES], seen: 0, left: 0 }
    }

    /// Takes the next part of a frame from the front of `bytes`. Returns nothing once all of them have been taken.
    pub(crate) fn next<'bytes>(&mut self, bytes: &mut &'bytes [u8]) -> Option<FramePart<'bytes>> {
        self.preface -= take(bytes, self.preface).len();
        if self.seen < HEAD_BYTES {
            let part = take(bytes, HEAD_BYTES - self.seen);
            self.head[self.seen..self.seen + part.len()].copy_from_slice(part);
            self.seen += part.len();
            if self.seen < HEAD_BYTES {
                return None;
            }
            let [a, b, c, ..] = self.head;
            self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        }
        let payload = take(bytes, self.left);
        self.left -= payload.len();
        let is_last = self.left == 0;
        if is_last {
            self.seen = 0;
        }
        let [_, _, _, kind, flags, stream @ ..] = self.head;
        let stream = u32::from_be_bytes(stream);
        (is_last || !payload.is_empty()).then_some(FramePart { kind, flags, stream, payload, is_last })
    }
}

/// Takes up to so many bytes from the front.
fn take<'bytes>(bytes: &mut &'bytes [u8], most: usize) -> &'bytes [u8] {
    let (taken, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_followed_however_their_bytes_are_divided() {
        let all =
            [PREFACE, b"\0\0\x03\0\x01\0\0\0\x01abc", b"\0\0\0\x04\x01\0\0\0\0", b"\0\0\x01\x03\0\0\0\0\x01z"].concat();
        let expected = [(DATA, 1, 1, b"abc".to_vec()), (4, 1, 0, Vec::new()), (RST_STREAM, 0, 1, b"z".to_vec())];
        for size in 1..=all.len() {
            let (mut follower, mut frames, mut payload) = (FrameFollower::of_client(), Vec::new(), Vec::new());
            for mut piece in all.chunks(size) {
                while let Some(part) = follower.next(&mut piece) {
                    payload.extend_from_slice(part.payload);
                    if part.is_last {
                        frames.push((part.kind, part.flags, part.stream, std::mem::take(&mut payload)));
                    }
                }
                assert!(piece.is_empty());
            }
            assert_eq!(frames, expected, "in pieces of {size} bytes");
        }
    }
}
