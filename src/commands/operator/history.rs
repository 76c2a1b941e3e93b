//! `segue history`: the handoffs that have ended.

use std::io::Write as _;

use anyhow::Context as _;
use segue_coordination::session::unix_millis;
use segue_protocol::ids::PartitionId;

use super::{Failure, Link, Target, block_on, unreachable};
use crate::history::History;

/// Which handoffs to show.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct HistoryArgs {
    /// Only the handoffs of this partition.
    partition: Option<PartitionId>,
    /// Most handoffs to show.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    target: Target,
}

pub(in crate::commands) fn history(args: &HistoryArgs) -> Result<(), Failure> {
    block_on(async {
        let link = Link::open(&args.target).await?;
        let history = link.history(args.partition).await?.newest(args.limit);
        let text = match link.json {
            true => serde_json::to_string(&history).map_err(anyhow::Error::from)? + "\n",
            false => history.table(unix_millis()),
        };
        std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to standard output")?;
        Ok(())
    })
}

impl Link {
    /// Returns the handoffs that have ended, the newest first.
    pub(super) async fn history(&self, partition: Option<PartitionId>) -> Result<History, Failure> {
        History::read(self.store.as_ref(), &self.keys, partition).await.map_err(unreachable)
    }
}
