//! Since when a handoff waits for whom, in words and as JSON. The times come from the store ([`waits`](segue_protocol::handoff::waits)), so
//! that every process says the same.

use std::fmt;

use segue_protocol::handoff::waits::waits;
use segue_protocol::ids::PartitionId;
use segue_protocol::view::View;
use serde::{Deserialize, Serialize};

const STORE: &str = "store";

/// Something that a handoff waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaitLine {
    /// `router`, `pod`, `key` for a key that has to be repaired, or `store` for one that refuses writes.
    pub kind: String,
    /// The participant, or the key; empty for the store.
    pub name: String,
    /// What is waited for, in words.
    pub what: String,
    /// Since when, in Unix milliseconds. `None` if the store does not say.
    pub since: Option<u64>,
    /// The time since then, by the clocks of two machines. Informational.
    pub age_ms: Option<u64>,
}

impl WaitLine {
    /// Returns all that the partition's handoff waits for. `now` is in Unix milliseconds.
    pub(crate) fn all(view: &View, partition: PartitionId, now: u64) -> Vec<Self> {
        let line = |wait: segue_protocol::handoff::waits::HandoffWait| {
            let ((kind, name), what) = (wait.on.party(), wait.on.to_string());
            let age_ms = wait.since.map(|since| now.saturating_sub(since));
            WaitLine { kind: kind.to_owned(), name: name.to_owned(), what, since: wait.since, age_ms }
        };
        waits(view, partition).into_iter().map(line).collect()
    }

    /// Returns whether it is a wait for the store.
    pub(crate) fn is_for_store(&self) -> bool {
        self.kind == STORE
    }

    /// Returns the wait for a store that refuses writes in these words. Nobody can write what the others wait for.
    pub(crate) fn for_store(words: &str) -> Self {
        let what = format!("the store, which refuses writes: {words}");
        WaitLine { kind: STORE.to_owned(), name: String::new(), what, since: None, age_ms: None }
    }
}

impl fmt::Display for WaitLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.what)?;
        self.age_ms.map_or(Ok(()), |age| write!(out, ", for {}", super::lasting(age)))
    }
}
