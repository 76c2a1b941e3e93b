//! What two processes say to each other while one takes over from the other.
//!
//! Lines of JSON, each with the version of the conversation, so that what is not understood is told from what is garbage.
//! Not here: the sockets, which follow an [`Offer`](Message::Offer) beside the text.

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};

/// Of the conversation as a whole: whoever changes what a message means counts it up.
const VERSION: u32 = 1;
/// No line is longer.
pub(super) const LONGEST: usize = 4 << 10;

/// In the order in which they are said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Message {
    /// The newcomer wants the sockets, and will be ready by then or give up.
    Hello { patience_ms: u64 },
    /// They follow. The name is that with which the running process is registered.
    Offer { name: String, sockets: usize },
    /// The newcomer accepts from now on.
    Ready,
    /// The running process does not any more.
    Leaving,
    /// Its last request is done and its registration gone.
    Ended,
    /// Instead of any of the running process's own: it goes on, and the newcomer must not.
    Refusal { reason: String },
}

#[derive(Serialize, Deserialize)]
struct Line {
    segue_handover: u32,
    #[serde(flatten)]
    message: Message,
}

#[derive(Deserialize)]
struct AnyVersion {
    segue_handover: u32,
}

impl Message {
    pub(super) fn encode(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(&Line { segue_handover: VERSION, message: self.clone() })? + "\n")
    }

    pub(super) fn decode(line: &[u8]) -> anyhow::Result<Self> {
        let text = String::from_utf8_lossy(line);
        let Ok(AnyVersion { segue_handover: version }) = serde_json::from_slice(line) else {
            bail!("{:?} is no word of a hand-over", text.chars().take(60).collect::<String>());
        };
        ensure!(
            version == VERSION,
            "the other process speaks version {version} of the hand-over, this one {VERSION}: end the running one with \
             SIGTERM and start the new one then"
        );
        match serde_json::from_slice::<Line>(line) {
            Ok(line) => Ok(line.message),
            Err(error) => bail!("a word of the hand-over is not understood: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for message in [
            Message::Hello { patience_ms: 7 },
            Message::Offer { name: "router-0~next".to_owned(), sockets: 3 },
            Message::Ready,
            Message::Leaving,
            Message::Ended,
            Message::Refusal { reason: "two\nlines".to_owned() },
        ] {
            let line = message.encode().unwrap();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Message::decode(line.trim_end().as_bytes()).unwrap(), message);
        }
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let error = |line: &str| Message::decode(line.as_bytes()).unwrap_err().to_string();
        assert!(
            error(r#"{"segue_handover":2,"say":"salute"}"#).contains("speaks version 2 of the hand-over, this one 1")
        );
        assert!(error(r#"{"segue_handover":1,"say":"salute"}"#).contains("not understood"));
        for garbage in ["", "GET / HTTP/1.1", "{}", "\u{0}"] {
            assert!(error(garbage).contains("no word of a hand-over"), "{garbage:?}");
        }
        assert!(Message::decode(&[0xff, 0xfe]).unwrap_err().to_string().contains("no word"));
    }
}
