//! The newest checkpoint of a partition, from which a new owner starts.
//!
//! The record has no lease: it is meant to outlive the pod that made the checkpoint. There is one per partition, and
//! each checkpoint replaces the one before.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, HandoffId, PartitionId};

/// Longest name of a checkpoint, in bytes. It bounds the size of the record.
pub const MAX_CHECKPOINT_NAME: usize = 1024;

/// The name of a checkpoint or a position in a log: a text that only pods understand.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointName(String);

/// Why a text is no name of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointNameError {
    /// The name is empty.
    Empty,
    /// It has this many bytes.
    Long(usize),
    /// It has a control character.
    Control,
    /// The name is not UTF-8.
    NotText,
}

impl std::fmt::Display for CheckpointNameError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CheckpointNameError::Empty => out.write_str("the name of the checkpoint is empty"),
            CheckpointNameError::Long(bytes) => {
                write!(out, "the name of the checkpoint has {bytes} bytes; expected at most {MAX_CHECKPOINT_NAME}")
            }
            CheckpointNameError::Control => {
                out.write_str("the name of the checkpoint has a control character; expected text on one line")
            }
            CheckpointNameError::NotText => out.write_str("the name of the checkpoint is not UTF-8"),
        }
    }
}

impl std::error::Error for CheckpointNameError {}

impl CheckpointName {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CheckpointName {
    type Error = CheckpointNameError;

    fn try_from(text: String) -> Result<Self, CheckpointNameError> {
        match text.len() {
            0 => Err(CheckpointNameError::Empty),
            bytes if bytes > MAX_CHECKPOINT_NAME => Err(CheckpointNameError::Long(bytes)),
            _ if text.chars().any(char::is_control) => Err(CheckpointNameError::Control),
            _ => Ok(CheckpointName(text)),
        }
    }
}

impl TryFrom<&[u8]> for CheckpointName {
    type Error = CheckpointNameError;

    fn try_from(bytes: &[u8]) -> Result<Self, CheckpointNameError> {
        // The length first: a text that is too long is not copied.
        if bytes.len() > MAX_CHECKPOINT_NAME {
            return Err(CheckpointNameError::Long(bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| CheckpointNameError::NotText)?;
        CheckpointName::try_from(text.to_owned())
    }
}

impl From<CheckpointName> for String {
    fn from(name: CheckpointName) -> String {
        name.0
    }
}

/// `checkpoints/{partition}`: the newest checkpoint of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// The checkpoint. `None` if the owner was asked before any was made and had none.
    #[serde(default)]
    pub checkpoint: Option<CheckpointName>,
    /// The pod that made it.
    pub pod_name: String,
    /// The epoch in which it was made.
    pub epoch: Epoch,
    /// When it was recorded. Informational.
    #[serde(default)]
    pub taken_at: u64,
    /// The last handoff before which the old owner was asked and has answered; 0 if there was none.
    #[serde(default = "no_handoff")]
    pub handoff: HandoffId,
}

fn no_handoff() -> HandoffId {
    HandoffId::NONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_bounded_text_on_one_line() {
        let name = |text: &str| CheckpointName::try_from(text.as_bytes()).map(String::from);
        assert_eq!(name("s3://b/7/offset=42"), Ok("s3://b/7/offset=42".to_owned()));
        assert_eq!(name(&"x".repeat(1024)), Ok("x".repeat(1024)));
        assert_eq!(name(&"x".repeat(1025)), Err(CheckpointNameError::Long(1025)));
        assert_eq!(name(""), Err(CheckpointNameError::Empty));
        assert_eq!(name("a\nb"), Err(CheckpointNameError::Control));
        assert_eq!(CheckpointName::try_from(&[0xff_u8][..]), Err(CheckpointNameError::NotText));
    }

    #[test]
    fn a_record_has_its_wire_form_and_one_with_a_bad_name_is_not_read() {
        let record = Checkpoint {
            partition: PartitionId::new(7),
            checkpoint: Some(CheckpointName("offset=42".to_owned())),
            pod_name: "w".to_owned(),
            epoch: Epoch::new(3),
            taken_at: 5,
            handoff: HandoffId::NONE,
        };
        let text = r#"{"partition":7,"checkpoint":"offset=42","pod_name":"w","epoch":3,"taken_at":5,"handoff":0}"#;
        assert_eq!(String::from_utf8(crate::records::encode(&record)).unwrap(), text);
        assert_eq!(serde_json::from_str::<Checkpoint>(text).unwrap(), record);
        let least = r#"{"partition":7,"pod_name":"w","epoch":3,"news":1}"#;
        assert_eq!(serde_json::from_str::<Checkpoint>(least).unwrap().checkpoint, None);
        for bad in [text.replace("offset=42", ""), text.replace("offset", &"x".repeat(1024))] {
            assert!(serde_json::from_str::<Checkpoint>(&bad).is_err(), "{bad}");
        }
    }
}
