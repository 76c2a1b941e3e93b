//! `segue history`: the handoffs that have ended.

use segue_coordination::session::unix_millis;
use segue_protocol::ids::PartitionId;

use super::{CommandFailure, CommandTarget, Reach, block_on, partition_number, print_text};

/// Which handoffs to show.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct HistoryArgs {
    /// Only the handoffs of this partition.
    #[arg(value_parser = partition_number)]
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
        let text = match args.target.json {
            true => serde_json::to_string(&history).map_err(anyhow::Error::from)? + "\n",
            false => history.table(unix_millis()),
        };
        print_text(&text)
    })
}
