//! The status of a process about a partition or a pod, in words.
//!
//! A process of another version may have sent it, so only the fields that are used here are read.

mod oldest;
mod pod;
mod router;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use segue_protocol::ids::{Epoch, PartitionId};
use serde::Deserialize;

use self::pod::{Activity, CoordinatorPart, PodPart};
use self::router::RouterPart;
use super::explain::AskedParticipant;

pub(super) use self::pod::Work;

/// The part of a process's status that is used here.
#[derive(Debug, Deserialize)]
pub(super) struct ProcessStatus {
    coordinator: Option<CoordinatorPart>,
    router: Option<RouterPart>,
    pod: Option<PodPart>,
    /// Those of `segue dev`, by their names.
    pods: Option<BTreeMap<String, PodPart>>,
    keyspace: Option<KeyspacePart>,
    /// The names of the keyspaces, if the process has several and was asked of none.
    keyspaces: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct KeyspacePart {
    /// In which words the store refuses the writes of this process, if it does.
    store_refuses_writes: Option<String>,
}

impl ProcessStatus {
    /// Returns in which words the store refuses the writes of this process, if it does.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.keyspace.as_ref()?.store_refuses_writes.as_deref()
    }

    /// Returns whether this router sends the partition's requests to its owner, or holds them if it has none. `None` if
    /// the process does not say.
    pub(super) fn routes_to(&self, partition: PartitionId, owner: Option<(&str, Epoch)>) -> Option<bool> {
        self.router.as_ref()?.routes_to(partition, owner)
    }

    /// Returns what this participant says of the partition.
    pub(super) fn of_partition(self, one: &AskedParticipant, partition: PartitionId) -> anyhow::Result<String> {
        match &*one.kind {
            "router" => {
                let router = self.one_keyspace()?.router;
                Ok(router.context("the process at its admin address runs no router")?.says(partition))
            }
            _ => Ok(self.activity(one)?.on(partition)),
        }
    }

    /// Returns what this pod says of itself, and the work that it has not finished.
    pub(super) fn of_pod(self, pod: &AskedParticipant) -> anyhow::Result<(String, Vec<Work>)> {
        let activity = self.activity(pod)?;
        Ok((activity.in_all(), activity.work))
    }

    fn activity(self, pod: &AskedParticipant) -> anyhow::Result<Activity> {
        let status = self.one_keyspace()?;
        if pod.by_stream {
            let part = status.coordinator.context("the process that served it runs no coordinator now")?;
            return part.activity(&pod.name);
        }
        let part = status.pod.or_else(|| status.pods?.remove(&pod.name));
        Ok(part.context("the process at its admin address runs no sidecar")?.activity())
    }

    fn one_keyspace(self) -> anyhow::Result<Self> {
        let Some(names) = self.keyspaces else { return Ok(self) };
        let names = names.join(", ");
        Err(anyhow!("its process has several keyspaces; expected --keyspace, one of {names}"))
    }
}
