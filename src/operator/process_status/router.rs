//! What a router does with a partition.

use segue_protocol::ids::{Epoch, PartitionId};
use serde::Deserialize;

use super::super::lasting;
use super::oldest::Oldest;

#[derive(Debug, Deserialize)]
pub(super) struct RouterPart {
    not_ready: Option<String>,
    partitions: Vec<PartitionLine>,
}

#[derive(Debug, Deserialize)]
struct PartitionLine {
    partition: PartitionId,
    stage: String,
    #[serde(default)]
    pod: Option<String>,
    #[serde(default)]
    epoch: Option<Epoch>,
    in_flight: u64,
    /// How many of those are streams.
    #[serde(default)]
    streams: u64,
    #[serde(flatten)]
    oldest: Oldest,
    /// When the drain severs the streams, and when all else.
    severs_streams_in_ms: Option<u64>,
    severs_in_ms: Option<u64>,
    /// When the router asks for the handoff to be cancelled instead.
    gives_up_in_ms: Option<u64>,
    stashed: u64,
}

impl RouterPart {
    /// Returns whether it sends the partition's requests to its owner, or holds them if it has none. `None` if it does not
    /// know the partition.
    pub(super) fn routes_to(&self, partition: PartitionId, owner: Option<(&str, Epoch)>) -> Option<bool> {
        let line = self.line(partition)?;
        Some(line.pod.as_deref().zip(line.epoch) == owner)
    }

    /// Returns what it does with the partition.
    pub(super) fn says(&self, partition: PartitionId) -> String {
        let not_ready = self.not_ready.as_ref().map_or(String::new(), |reason| format!("not ready: {reason}; "));
        let line = self.line(partition).map_or("it does not know the partition".to_owned(), |line| {
            format!(
                "the partition is {}, {} in flight{}, {} held",
                line.stage,
                line.in_flight,
                line.lasting(),
                line.stashed
            )
        });
        not_ready + &line
    }

    fn line(&self, partition: PartitionId) -> Option<&PartitionLine> {
        self.partitions.iter().find(|line| line.partition == partition)
    }
}

impl PartitionLine {
    /// Describes the exchanges that last.
    fn lasting(&self) -> String {
        let streams = match self.streams {
            0 => None,
            1 => Some("1 is a stream".to_owned()),
            count => Some(format!("{count} are streams")),
        };
        let facts: Vec<_> = streams.into_iter().chain(self.oldest.says()).collect();
        let ends = self.ends();
        match (facts.is_empty(), ends.is_empty()) {
            (true, true) => String::new(),
            (false, true) => format!(" ({})", facts.join(", ")),
            (true, false) => format!(" ({ends})"),
            (false, false) => format!(" ({}; {ends})", facts.join(", ")),
        }
    }

    /// Says when the drain ends what is in flight.
    fn ends(&self) -> String {
        let streams = self.severs_streams_in_ms.filter(|_| self.streams > 0);
        let all = self.severs_in_ms.filter(|_| self.in_flight > 0);
        let ends = [
            streams.map(|left| format!("streams are severed in {}", lasting(left))),
            all.map(|left| format!("whatever is left is severed in {}", lasting(left))),
            self.gives_up_in_ms.map(|left| format!("the router gives the move up in {}", lasting(left))),
        ];
        ends.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}
