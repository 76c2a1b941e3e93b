//! The part of WebSocket (RFC 6455) that it takes to close a connection from outside: the end of a frame, and a close
//! frame.
//!
//! Pure. Not here: passing the bytes ([`tunnel`](crate::forward::tunnel)).
//!
//! # Invariants
//!
//! * A close frame is put only between two frames: elsewhere its peer would read it as part of a message.

use bytes::{BufMut, BytesMut};

/// Two bytes, a length of up to eight, a mask of four.
const MAX_HEAD_BYTES: usize = 14;
const CLOSE: u8 = 0x8;
const MASKED: u8 = 0x80;

/// Close code towards the client: the service restarts, connect again.
pub(crate) const SERVICE_RESTART: u16 = 1012;
/// Close code towards the pod, and towards both sides after a silence: the peer goes away.
pub(crate) const GOING_AWAY: u16 = 1001;

/// The position within the frames of one direction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frames {
    head: [u8; MAX_HEAD_BYTES],
    head_bytes: usize,
    payload_left: u64,
    closed: bool,
}

impl Frames {
    /// Returns whether no frame is incomplete.
    pub(crate) fn is_between(&self) -> bool {
        self.head_bytes == 0 && self.payload_left == 0
    }

    /// Returns whether a close frame has passed, after which nothing may come.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Advances the position past these bytes.
    pub(crate) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let of_frame = self.pass_frame(bytes);
            bytes = &bytes[of_frame..];
        }
    }

    /// Returns how many of these bytes belong to the frame that has begun.
    pub(crate) fn rest_of_frame(&self, bytes: &[u8]) -> usize {
        if self.is_between() { 0 } else { self.clone().pass_frame(bytes) }
    }

    /// Advances to the end of a frame, or of the bytes. Returns the number of bytes passed.
    fn pass_frame(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.payload_left > 0 {
                let here = usize::try_from(self.payload_left).unwrap_or(usize::MAX).min(bytes.len() - at);
                self.payload_left -= here as u64;
                at += here;
            } else {
                self.head[self.head_bytes] = bytes[at];
                self.head_bytes += 1;
                at += 1;
                let Some(payload) = self.payload() else { continue };
                self.closed |= self.head[0] & 0xf == CLOSE;
                self.head_bytes = 0;
                self.payload_left = payload;
            }
            if self.payload_left == 0 {
                break;
            }
        }
        at
    }

    /// Returns the payload length of the frame's head, once the head is complete.
    fn payload(&self) -> Option<u64> {
        let [_, second, rest @ ..] = self.head;
        let length_bytes = match second & !MASKED {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask_bytes = if second & MASKED == 0 { 0 } else { 4 };
        if self.head_bytes < 2 + length_bytes + mask_bytes {
            return None;
        }
        let long = rest[..length_bytes].iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        Some(if length_bytes == 0 { u64::from(second & !MASKED) } else { long })
    }
}

/// Returns a close frame. `masked`: it goes to a server.
pub(crate) fn close(code: u16, reason: &str, masked: bool) -> BytesMut {
    let mut frame = BytesMut::new();
    // A control frame's length fits into seven bits.
    let reason = &reason.as_bytes()[..reason.len().min(123)];
    frame.put_u8(0x80 | CLOSE);
    frame.put_u8((2 + reason.len()) as u8 | if masked { MASKED } else { 0 });
    if masked {
        // Masks protect caches from bytes that a script has chosen. These bytes are the router's, so a mask of zeros is
        // enough.
        frame.put_u32(0);
    }
    frame.put_u16(code);
    frame.put_slice(reason);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns frames of each kind of head, and the position where each ends.
    fn frames() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for (mask, length) in [(0, 0), (0, 5), (MASKED, 5), (0, 126), (MASKED, 300), (0, 70_000), (MASKED, 0)] {
            bytes.push(0x82);
            match length {
                0..126 => bytes.push(mask | length as u8),
                126..65_536 => {
                    bytes.push(mask | 126);
                    bytes.extend((length as u16).to_be_bytes());
                }
                _ => {
                    bytes.push(mask | 127);
                    bytes.extend((length as u64).to_be_bytes());
                }
            }
            if mask != 0 {
                bytes.extend([0x88; 4]);
            }
            // Bytes inside a frame that look like a close frame are none.
            bytes.extend(std::iter::repeat_n(0x88, length));
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn the_end_of_a_frame_is_found_however_the_bytes_are_cut() {
        let (bytes, ends) = frames();
        for piece in [1, 2, 3, 7, 1000, bytes.len()] {
            let mut place = Frames::default();
            let mut passed = 0;
            for part in bytes.chunks(piece) {
                place.pass(part);
                passed += part.len();
                assert_eq!(place.is_between(), ends.contains(&passed), "after {passed} bytes in pieces of {piece}");
            }
            assert!(!place.is_closed());
        }
    }

    #[test]
    fn the_rest_of_a_frame_ends_with_it() {
        let (bytes, ends) = frames();
        let mut place = Frames::default();
        assert_eq!(place.rest_of_frame(&bytes), 0, "none has begun");
        for (begin, end) in ends.iter().zip(&ends[1..]) {
            let mut place = Frames::default();
            place.pass(&bytes[..begin + 1]);
            assert_eq!(place.rest_of_frame(&bytes[begin + 1..]), end - begin - 1);
        }
        place.pass(&bytes);
        assert!(place.is_between());
    }

    #[test]
    fn a_close_frame_is_one() {
        for masked in [false, true] {
            let mut place = Frames::default();
            let frame = close(SERVICE_RESTART, "the partition moves", masked);
            place.pass(&frame);
            assert!(place.is_closed() && place.is_between());
        }
        assert_eq!(&close(1001, "", false)[..], [0x88, 2, 0x03, 0xe9]);
        assert_eq!(&close(1012, "", true)[..], [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xf4]);
    }
}
