//! Whether a pod speaks HTTP/2, and the bound on heads that it announces in its first SETTINGS.
//!
//! SETTINGS are the first frame of a server (RFC 9113, 3.4), so one that begins with anything else speaks another protocol
//! and has read no request.
//!
//! `h2` exposes neither. The bound matters because many servers end the whole connection over a head that is somewhat
//! larger: Netty, and so gRPC for Java, announces 8 KiB and does that beyond 10 KiB.
//!
//! Not here: SETTINGS that a pod sends later; none is known to lower its bound.

/// The header of a frame (RFC 9113, 4.1).
const HEADER_BYTES: usize = 9;
const SETTINGS: u8 = 4;
/// A setting: its identifier and its value (6.5.1).
const SETTING_BYTES: usize = 6;
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// Longest SETTINGS frame that is read, with more settings than HTTP/2 defines.
const MAX_FRAME_BYTES: usize = HEADER_BYTES + 32 * SETTING_BYTES;

/// Reads the first frame as it arrives.
#[derive(Debug, Default)]
pub(crate) enum SettingsReader {
    #[default]
    Nothing,
    /// The beginning of the frame.
    Some(Vec<u8>),
    /// The frame has arrived.
    All,
    /// Something else has arrived.
    Foreign,
}

impl SettingsReader {
    /// Reads what has arrived. Returns the bound once it is there.
    pub(crate) fn read(&mut self, arrived: &[u8]) -> Option<usize> {
        let mut frame = match self {
            SettingsReader::All | SettingsReader::Foreign => return None,
            SettingsReader::Some(frame) => std::mem::take(frame),
            SettingsReader::Nothing => Vec::new(),
        };
        frame.extend_from_slice(&arrived[..arrived.len().min(MAX_FRAME_BYTES - frame.len())]);
        let Some(&[first, second, third, kind]) = frame.first_chunk() else {
            *self = SettingsReader::Some(frame);
            return None;
        };
        let length = HEADER_BYTES + u32::from_be_bytes([0, first, second, third]) as usize;
        if kind != SETTINGS {
            *self = SettingsReader::Foreign;
        } else if length > MAX_FRAME_BYTES {
            *self = SettingsReader::All;
        } else if let Some(settings) = frame.get(HEADER_BYTES..length) {
            *self = SettingsReader::All;
            return bound(settings);
        } else {
            *self = SettingsReader::Some(frame);
        }
        None
    }

    /// Returns whether the pod speaks another protocol.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self, SettingsReader::Foreign)
    }
}

/// Returns whether these are the first bytes of a server that speaks HTTP/2 without being asked to: the header of SETTINGS,
/// which belong to no stream. No response by HTTP/1.1 begins so.
pub(crate) fn is_settings(first: &[u8]) -> bool {
    matches!(first, [_, _, _, SETTINGS, _, 0, 0, 0, 0, ..])
}

fn bound(settings: &[u8]) -> Option<usize> {
    let (settings, _) = settings.as_chunks::<SETTING_BYTES>();
    let bounds = settings.iter().filter(|[high, low, ..]| u16::from_be_bytes([*high, *low]) == MAX_HEADER_LIST_SIZE);
    let last = bounds.map(|[_, _, value @ ..]| u32::from_be_bytes(*value)).next_back()?;
    usize::try_from(last).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SETTINGS frame with three settings: concurrent streams, a bound of 8 KiB on heads, a window.
    const FRAME: &[u8] = b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x06\0\0\x20\0\0\x04\0\0\xff\xff";

    #[test]
    fn a_bound_is_read_however_the_frame_arrives() {
        for pieces in 1..=FRAME.len() {
            let mut announced = SettingsReader::default();
            let read: Vec<_> = FRAME.chunks(pieces).filter_map(|piece| announced.read(piece)).collect();
            assert_eq!(read, [8192], "in pieces of {pieces}");
            assert_eq!(announced.read(FRAME), None, "only the first frame counts");
        }
    }

    #[test]
    fn without_a_bound_there_is_none() {
        assert_eq!(SettingsReader::default().read(b"\0\0\0\x04\0\0\0\0\0"), None);
        assert_eq!(SettingsReader::default().read(b"HTTP/1.1 400 Bad Request\r\n\r\n"), None);
        assert_eq!(SettingsReader::default().read(&[0xff; 4096]), None);
        let mut endless = SettingsReader::default();
        assert!((0..1000).all(|_| endless.read(b"\0\x01\0\x04").is_none()));
    }

    #[test]
    fn settings_are_told_from_responses_and_other_frames() {
        assert!(is_settings(FRAME));
        assert!(is_settings(b"\0\0\0\x04\0\0\0\0\0"));
        for other in
            [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\0\0\x08\x07\0\0\0\0\0", b"\0\0\0\x04\0\0\0\0\x01", b""]
        {
            assert!(!is_settings(other), "{other:?}");
        }
    }

    #[test]
    fn a_server_of_another_protocol_is_recognised_however_its_words_arrive() {
        for text in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"220 mail.example ESMTP\r\n", FRAME] {
            for pieces in 1..=text.len() {
                let mut announced = SettingsReader::default();
                for piece in text.chunks(pieces) {
                    let _ = announced.read(piece);
                }
                assert_eq!(announced.is_foreign(), text != FRAME, "{text:?} in pieces of {pieces}");
            }
        }
        assert!(!SettingsReader::default().is_foreign(), "a server that says nothing may have read the request");
    }
}
