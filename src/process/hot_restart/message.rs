//! The messages of a hot restart, one line of JSON each.
//!
//! Every line carries the protocol version, so that an incompatible process can be distinguished from garbage. The
//! sockets are not here: they follow an [`Offer`](Message::Offer) as ancillary data.

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};

/// The version of the protocol. A change in the meaning of any message increments it.
const VERSION: u32 = 1;
/// The longest line that is accepted, in bytes.
pub(super) const MAX_LINE_BYTES: usize = 4 << 10;

/// The messages, in the order in which they are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Message {
    /// New process: requests the sockets. It becomes ready within this time or gives up. `log`: it also requests what
    /// the old process writes its log to.
    Hello {
        patience_ms: u64,
        #[serde(default)]
        log: bool,
    },
    /// Old process: this many sockets follow, then its standard error if `log`. The name is that of its registration.
    Offer {
        name: String,
        sockets: usize,
        #[serde(default)]
        log: bool,
    },
    /// New process: accepts from now on.
    Ready,
    /// Old process: no longer accepts.
    Leaving,
    /// Old process: its last request is done and its registration gone.
    Ended,
    /// Old process, instead of any other message: it keeps serving, and the new process must not serve.
    Refusal { reason: String },
}

#[derive(Serialize, Deserialize)]
struct MessageLine {
    segue_hot_restart: u32,
    #[serde(flatten)]
    message: Message,
}

#[derive(Deserialize)]
struct AnyVersion {
    segue_hot_restart: u32,
}

impl Message {
    /// Returns the name of the message, as on the wire.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Message::Hello { .. } => "hello",
            Message::Offer { .. } => "offer",
            Message::Ready => "ready",
            Message::Leaving => "leaving",
            Message::Ended => "ended",
            Message::Refusal { .. } => "refusal",
        }
    }

    pub(super) fn encode(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(&MessageLine { segue_hot_restart: VERSION, message: self.clone() })? + "\n")
    }

    pub(super) fn decode(line: &[u8]) -> anyhow::Result<Self> {
        let text = String::from_utf8_lossy(line);
        let Ok(AnyVersion { segue_hot_restart: version }) = serde_json::from_slice(line) else {
            bail!("{:?} is not a hot restart message", text.chars().take(60).collect::<String>());
        };
        ensure!(
            version == VERSION,
            "the other process speaks version {version} of the hot restart protocol, this one version {VERSION}: end \
             the running process with SIGTERM, then start the new one"
        );
        match serde_json::from_slice::<MessageLine>(line) {
            Ok(line) => Ok(line.message),
            Err(error) => bail!("invalid hot restart message: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_encoding() {
        for message in [
            Message::Hello { patience_ms: 7, log: true },
            Message::Offer { name: "router-0~next".to_owned(), sockets: 3, log: true },
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
    fn a_process_that_does_not_know_of_the_log_is_understood() {
        let hello = Message::decode(br#"{"segue_hot_restart":1,"say":"hello","patience_ms":7}"#);
        assert_eq!(hello.unwrap(), Message::Hello { patience_ms: 7, log: false });
        let offer = Message::decode(br#"{"segue_hot_restart":1,"say":"offer","name":"r","sockets":1}"#);
        assert_eq!(offer.unwrap(), Message::Offer { name: "r".to_owned(), sockets: 1, log: false });
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let error = |line: &str| Message::decode(line.as_bytes()).unwrap_err().to_string();
        assert!(
            error(r#"{"segue_hot_restart":2,"say":"salute"}"#)
                .contains("speaks version 2 of the hot restart protocol, this one version 1")
        );
        assert!(error(r#"{"segue_hot_restart":1,"say":"salute"}"#).contains("invalid hot restart message"));
        for garbage in ["", "GET / HTTP/1.1", "{}", "\u{0}"] {
            assert!(error(garbage).contains("is not a hot restart message"), "{garbage:?}");
        }
        assert!(Message::decode(&[0xff, 0xfe]).unwrap_err().to_string().contains("is not a hot restart message"));
    }
}
