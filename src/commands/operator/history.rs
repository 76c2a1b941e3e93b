//! `segue history`: the handoffs that have ended.

use clap_complete::ArgValueCompleter;
use segue_coordination::session::unix_millis;
use segue_protocol::ids::PartitionId;

use super::{CommandFailure, CommandTarget, Reach, block_on, complete, partition_number, print_report};

/// Which handoffs to show.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct HistoryArgs {
    /// Only the handoffs of this partition.
    #[arg(value_parser = partition_number, add = ArgValueCompleter::new(complete::partitions))]
    partition: Option<PartitionId>,
    /// Most handoffs to show.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    target: CommandTarget,
}

pub(in crate::commands) fn history(args: &HistoryArgs) -> Result<(), CommandFailure> {
    block_on(async {
        let reach = Reach::open(&args.target.reach).await?;
        let history = reach.history(args.partition, args.limit).await?;
        print_report(&history, args.target.json, |history| history.table(unix_millis()))?;
        Ok(())
    })
}
