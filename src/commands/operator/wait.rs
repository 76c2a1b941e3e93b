//! `segue wait`: waits until a condition holds.

use std::time::Duration;

use clap_complete::ArgValueCompleter;
use segue_protocol::ids::PartitionId;

use super::{CommandFailure, CommandTarget, Reach, block_on, complete, partition_number, print};
use crate::operator::{self, ActionOutcome};

/// The condition to wait for.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct WaitArgs {
    #[command(subcommand)]
    condition: Condition,
}

#[derive(Debug, clap::Subcommand)]
enum Condition {
    /// Wait until the keyspace is at rest.
    ///
    /// Each partition has a living owner, no handoff is in flight, draining pods are empty, and pinned partitions are
    /// on their pods. The coordinator may still plan moves for a change that has just happened (coordinator.settle).
    Settled(WaitLimit),
    /// Wait until a partition has a living owner, does not move, and is on the pod that it is pinned to, if it is
    /// pinned.
    Moved {
        /// The partition.
        #[arg(value_parser = partition_number, add = ArgValueCompleter::new(complete::partitions))]
        partition: PartitionId,
        #[command(flatten)]
        limited: WaitLimit,
    },
    /// Wait until a pod owns no partition and takes part in no handoff.
    Drained {
        /// The pod.
        #[arg(add = ArgValueCompleter::new(complete::pods))]
        pod: String,
        #[command(flatten)]
        limited: WaitLimit,
    },
}

#[derive(Debug, clap::Args)]
struct WaitLimit {
    /// How long to wait before exiting 4.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = segue_config::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    target: CommandTarget,
}

pub(in crate::commands) fn wait(args: &WaitArgs) -> Result<(), CommandFailure> {
    let (condition, limited) = match &args.condition {
        Condition::Settled(limited) => (operator::Condition::Settled, limited),
        Condition::Moved { partition, limited } => {
            (operator::Condition::Moved { partition: *partition, to: None }, limited)
        }
        Condition::Drained { pod, limited } => {
            (operator::Condition::Drained { pod: pod.clone(), by_operator: false }, limited)
        }
    };
    block_on(async {
        let reach = Reach::open(&limited.target.reach).await?;
        let text = reach.until(&condition, limited.timeout).await?;
        print(&limited.target, &ActionOutcome { text, facts: Default::default() })
    })
}
