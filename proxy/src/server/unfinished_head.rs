//! Follows the frames that an HTTP/2 client sends, and tells how much memory the head takes up that has not ended.
//!
//! Pure. Not here: the bound for the heads of all clients of a worker ([`registry`](super::registry)).

use crate::message::frame_follower::{CONTINUATION, END_HEADERS, FrameFollower, FramePart, HEADERS};

/// Most bytes that `h2` keeps for a byte of a head: the byte may be the index of a whole header, and `http` keeps so much for
/// each, beside texts that headers share.
const BYTES_PER_BYTE: usize = 104;

/// The frames of one connection.
#[derive(Debug)]
pub(super) struct UnfinishedHead {
    frames: FrameFollower,
    /// Number of bytes of the frame that is arriving, if it is a part of a head.
    part: usize,
    /// Number of bytes of the head in earlier frames.
    before: usize,
}

impl Default for UnfinishedHead {
    fn default() -> Self {
        UnfinishedHead { frames: FrameFollower::of_client(), part: 0, before: 0 }
    }
}

impl UnfinishedHead {
    /// Follows the next bytes that have arrived. Returns about how many bytes the head takes up that has not ended, at most
    /// `most` for what is decoded; 0 if there is none.
    pub(super) fn follow(&mut self, mut bytes: &[u8], most: usize) -> usize {
        while let Some(FramePart { kind, flags, payload, is_last, .. }) = self.frames.next(&mut bytes) {
            if !matches!(kind, HEADERS | CONTINUATION) {
                continue;
            }
            self.part += payload.len();
            if is_last {
                let part = std::mem::take(&mut self.part);
                self.before = if flags & END_HEADERS == 0 { self.before + part } else { 0 };
            }
        }
        self.part + self.before.saturating_mul(BYTES_PER_BYTE).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 100_000;

    /// Returns a head that begins after the preface.
    fn begun() -> UnfinishedHead {
        let mut head = UnfinishedHead::default();
        assert_eq!(head.follow(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", MOST), 0);
        head
    }

    fn frame(kind: u8, flags: u8, len: u8) -> Vec<u8> {
        [&[0, 0, len, kind, flags, 0, 0, 0, 1][..], &vec![0; usize::from(len)]].concat()
    }

    #[test]
    fn a_head_weighs_until_it_ends_however_it_arrives() {
        let first = [frame(HEADERS, 0, 10), frame(CONTINUATION, 0, 20)].concat();
        let all = [first.clone(), frame(CONTINUATION, END_HEADERS, 5), frame(0, 0, 50)].concat();
        for size in 1..20 {
            let mut head = begun();
            let weights: Vec<usize> = all.chunks(size).map(|piece| head.follow(piece, MOST)).collect();
            assert_eq!(*weights.last().unwrap(), 0, "{size}");
            let mut head = begun();
            let weight = first.chunks(size).map(|piece| head.follow(piece, MOST)).last();
            assert_eq!(weight, Some(30 * BYTES_PER_BYTE), "{size}");
        }
    }

    #[test]
    fn a_frame_that_has_not_arrived_weighs_what_has_arrived_of_it() {
        let mut head = begun();
        assert_eq!(head.follow(&frame(HEADERS, END_HEADERS, 100)[..59], MOST), 50);
        assert_eq!(head.follow(&[0; 50], MOST), 0);
        assert_eq!(head.follow(&frame(0, 0, 100)[..59], MOST), 0, "data is no head");
        assert_eq!(head.follow(&[0; 50], MOST), 0);
        assert_eq!(head.follow(&frame(HEADERS, 0, 0), MOST), 0);
    }

    #[test]
    fn what_is_decoded_weighs_no_more_than_it_may() {
        let mut head = begun();
        let weight = (0..100).map(|_| head.follow(&frame(CONTINUATION, 0, 200), MOST)).last();
        assert_eq!(weight, Some(MOST));
    }
}
