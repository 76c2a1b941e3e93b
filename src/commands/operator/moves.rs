//! `segue move`, `pin`, `unpin` and `cancel`: the placement of a single partition.

use clap_complete::ArgValueCompleter;
use segue_protocol::ids::PartitionId;

use super::{CommandFailure, OperationArgs, Patience, act, act_and_wait, complete, partition_number, print};
use crate::operator::{Action, Condition};

/// The move.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct MoveArgs {
    /// Number of the partition.
    #[arg(value_parser = partition_number, add = ArgValueCompleter::new(complete::partitions))]
    partition: PartitionId,
    /// Pod that gets the partition.
    #[arg(long, value_name = "POD", add = ArgValueCompleter::new(complete::pods))]
    to: String,
    /// Keep the partition there until `segue unpin`, also after the pod has restarted.
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    asked: OperationArgs,
}

/// The partition.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PartitionArgs {
    /// Number of the partition.
    #[arg(value_parser = partition_number, add = ArgValueCompleter::new(complete::partitions))]
    partition: PartitionId,
    #[command(flatten)]
    asked: OperationArgs,
}

/// The partition whose move is cancelled.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct CancelArgs {
    /// Number of the partition.
    #[arg(value_parser = partition_number, add = ArgValueCompleter::new(complete::partitions))]
    partition: PartitionId,
    #[command(flatten)]
    asked: OperationArgs,
}

pub(in crate::commands) fn move_partition(args: &MoveArgs) -> Result<(), CommandFailure> {
    let (partition, to) = (args.partition, &args.to);
    let condition = Condition::Moved { partition, to: Some(to.clone()) };
    let action = Action::Move { partition, to: to.clone(), pin: args.pin };
    let outcome = act_and_wait(action, &condition, &args.asked, &args.patience)?;
    print(&args.asked.target, &outcome)
}

pub(in crate::commands) fn pin(args: &PartitionArgs) -> Result<(), CommandFailure> {
    act(Action::Pin { partition: args.partition, to: None }, &args.asked)
}

pub(in crate::commands) fn unpin(args: &PartitionArgs) -> Result<(), CommandFailure> {
    act(Action::Unpin { partition: args.partition }, &args.asked)
}

pub(in crate::commands) fn cancel(args: &CancelArgs) -> Result<(), CommandFailure> {
    act(Action::Cancel { partition: args.partition, handoff: None }, &args.asked)
}
