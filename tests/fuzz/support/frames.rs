//! Writes and reads HTTP/2 frames by the letter of RFC 9113, and headers in the longest form of RFC 7541.

use std::collections::BTreeMap;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;

#[derive(Debug)]
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: &'a [u8],
}

pub fn write(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// Writes a header as a literal that is not added to a table.
pub fn field(to: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    to.push(0);
    for text in [name, value] {
        // An integer with a prefix of seven bits (RFC 7541, 5.1).
        let mut rest = text.len();
        if rest < 127 {
            to.push(rest as u8);
        } else {
            to.push(127);
            rest -= 127;
            while rest >= 128 {
                to.push((rest % 128 + 128) as u8);
                rest /= 128;
            }
            to.push(rest as u8);
        }
        to.extend_from_slice(text);
    }
}

/// Returns the whole frames, in order.
pub fn read(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let Some((payload, later)) = rest.split_at_checked(number(&head[..3]) as usize) else { break };
        frames.push(Frame { kind: head[3], flags: head[4], stream: number(&head[5..]) & 0x7fff_ffff, payload });
        bytes = later;
    }
    frames
}

/// The data that a client has sent on a stream that it opened.
#[derive(Debug, Default)]
pub struct Sent {
    pub body: Vec<u8>,
    pub ended: bool,
}

/// Returns all streams that these frames open, as if none of them broke a rule.
pub fn streams(frames: &[Frame<'_>]) -> BTreeMap<u32, Sent> {
    let mut streams: BTreeMap<u32, Sent> = BTreeMap::new();
    for frame in frames {
        if frame.kind == HEADERS {
            streams.entry(frame.stream).or_default();
        }
        let Some(sent) = streams.get_mut(&frame.stream).filter(|sent| !sent.ended) else { continue };
        if frame.kind == DATA {
            sent.body.extend_from_slice(without_padding(frame));
        }
        sent.ended = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
    }
    streams
}

fn without_padding<'a>(frame: &Frame<'a>) -> &'a [u8] {
    if frame.flags & PADDED == 0 {
        return frame.payload;
    }
    let Some((padding, rest)) = frame.payload.split_first() else { return &[] };
    rest.len().checked_sub(usize::from(*padding)).map_or(&[], |length| &rest[..length])
}
