//! The state of a keyspace, as `segue status --json` prints it.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The keyspace as `segue status` shows it.
#[derive(Debug, Clone)]
pub struct Status {
    text: String,
    value: Value,
}

impl Status {
    /// Asks the executable `segue` about the store at `endpoints`.
    ///
    /// # Errors
    /// When the command fails, in its own words.
    pub fn read(segue: &Path, endpoints: &[String]) -> Result<Self, String> {
        Self::ask(segue, endpoints.iter().flat_map(|endpoint| ["--etcd", endpoint]))
    }

    /// Asks the executable `segue` about the store and the keyspace of this configuration file.
    ///
    /// # Errors
    /// When the command fails, in its own words.
    pub fn of(segue: &Path, config: &Path) -> Result<Self, String> {
        Self::ask(segue, [OsStr::new("--config"), config.as_os_str()])
    }

    fn ask(segue: &Path, of: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Self, String> {
        let mut command = Command::new(segue);
        command.args(["status", "--json"]).args(of);
        let output = command.output().map_err(|error| format!("cannot start {}: {error}", segue.display()))?;
        if !output.status.success() {
            return Err(format!("segue status: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let value = serde_json::from_slice(&output.stdout).map_err(|error| format!("segue status: {error}"))?;
        Ok(Status { text: String::from_utf8_lossy(&output.stdout).into_owned(), value })
    }

    /// Returns the names of the registered pods.
    pub fn pods(&self) -> Vec<&str> {
        self.names("pods")
    }

    /// Returns the names of the registered routers.
    pub fn routers(&self) -> Vec<&str> {
        self.names("routers")
    }

    /// Returns the name of the coordinator that leads.
    pub fn leader(&self) -> Option<&str> {
        self.value["leader"].as_str()
    }

    /// Returns whether there are so many partitions, each with a living owner, and none moves.
    pub fn is_at_rest(&self, partitions: u32) -> bool {
        let no_handoff = self.value["handoffs"].as_array().is_some_and(Vec::is_empty);
        no_handoff && self.value["unowned"] == 0 && self.value["partitions"] == partitions
    }

    /// Returns whether each pod owns a partition.
    pub fn every_pod_owns(&self) -> bool {
        self.list("pods").all(|pod| pod["partitions"].as_u64() > Some(0))
    }

    /// Returns whether each record in the store could be read.
    pub fn is_well_formed(&self) -> bool {
        self.value["malformed"].as_array().is_some_and(Vec::is_empty)
    }

    /// Returns whether the JSON contains `text`.
    pub fn contains(&self, text: &str) -> bool {
        self.text.contains(text)
    }

    /// Returns how often the JSON contains `text`.
    pub fn count(&self, text: &str) -> usize {
        self.text.matches(text).count()
    }

    fn names(&self, list: &str) -> Vec<&str> {
        self.list(list).filter_map(|entry| entry["name"].as_str().or(entry.as_str())).collect()
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.value[name].as_array().into_iter().flatten()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.value)
    }
}
