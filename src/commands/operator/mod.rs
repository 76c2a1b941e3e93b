//! The operator's commands: each writes an intention that the coordinator acts on, and waits until it is done.
//!
//! An operator's intention is kept in the store, under keys that only these commands and the leader write, so it holds
//! when the command is interrupted. [`standing`] decides from a view alone whether an intention is fulfilled.

mod drain;
mod explain;
mod history;
mod moves;
mod pause;
mod plan;
mod standing;
mod wait;

use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use segue_coordination::session::unix_millis;
use segue_coordination::store::{Store, StoreError};
use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Origin;
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use segue_protocol::view::View;
use serde_json::{Value, json};

use super::store::StoreArgs;
use super::{Failure, runtime};

pub(super) use self::drain::{DrainArgs, UndrainArgs, drain, undrain};
pub(super) use self::explain::{ExplainArgs, explain};
pub(super) use self::history::{HistoryArgs, history};
pub(super) use self::moves::{CancelArgs, MoveArgs, PartitionArgs, cancel, move_partition, pin, unpin};
pub(super) use self::pause::{PauseArgs, ResumeArgs, pause, resume};
pub(super) use self::plan::{PlanArgs, plan};
pub(super) use self::wait::{WaitArgs, wait};

/// The keyspace, and the format of the output.
#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Why an operator wants something.
#[derive(Debug, clap::Args)]
pub(super) struct Why {
    /// Reason, which is stored and shown to others.
    #[arg(long = "why", value_name = "TEXT", default_value = "")]
    text: String,
}

impl Why {
    fn origin(&self) -> Origin {
        Origin { who: who(), why: self.text.clone(), at: unix_millis() }
    }
}

/// Returns who runs this command: `user@host`.
fn who() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let user = user.filter(|user| !user.is_empty());
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => user,
        host => format!("{user}@{host}"),
    }
}

/// The store of a keyspace.
struct Link {
    store: Arc<dyn Store>,
    keys: Keyspace,
    json: bool,
}

impl Link {
    async fn open(target: &Target) -> Result<Self, Failure> {
        let (store, keys) = target.store.connect().await?;
        Ok(Link { store, keys, json: target.json })
    }

    /// Returns the keyspace as it is now.
    async fn view(&self) -> Result<View, Failure> {
        let snapshot = self.store.snapshot(&self.keys.followed()).await.map_err(unreachable)?;
        Ok(View::from_snapshot(self.keys.clone(), snapshot))
    }

    /// Writes a key that was last put at `seen` (0 if it is absent). Returns `false` if it has changed meanwhile.
    async fn put(&self, key: String, seen: Revision, value: Vec<u8>) -> Result<bool, Failure> {
        let when = vec![Compare::unchanged_since(&key, seen)];
        self.commit(Txn { when, then: vec![Op::Put { key, value, lease: None }], otherwise: None }).await
    }

    /// Deletes a key that was last put at `seen`. Returns `false` if it has changed meanwhile.
    async fn delete(&self, key: String, seen: Revision) -> Result<bool, Failure> {
        let when = vec![Compare::unchanged_since(&key, seen)];
        self.commit(Txn { when, then: vec![Op::Delete(Keys::One(key))], otherwise: None }).await
    }

    async fn commit(&self, txn: Txn) -> Result<bool, Failure> {
        Ok(self.store.commit(txn).await.map_err(unreachable)?.committed())
    }

    /// Prints the result: `text`, or a JSON object with the text and `facts`.
    fn print(&self, facts: Value, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let line = if self.json {
            let mut object = json!({ "text": text });
            if let (Some(object), Value::Object(facts)) = (object.as_object_mut(), facts) {
                object.extend(facts);
            }
            object.to_string()
        } else {
            text.to_owned()
        };
        writeln!(out, "{line}").context("cannot write to standard output")?;
        Ok(())
    }
}

fn unreachable(error: StoreError) -> Failure {
    match error {
        StoreError::Unavailable(_) => Failure::Unreachable(error.into()),
        other => Failure::Work(other.into()),
    }
}

fn refused(why: impl std::fmt::Display) -> Failure {
    Failure::Work(anyhow!("{why}"))
}

/// Returns the failure that somebody else has written the key at the same time.
fn changed(key: &str) -> Failure {
    refused(format!("{key} was changed at the same time; nothing was done: run the command again"))
}

fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    runtime()?.block_on(work)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// Returns `1 partition` or `3 partitions`.
fn partitions(count: usize) -> String {
    format!("{count} partition{}", if count == 1 { "" } else { "s" })
}
