//! `segue plan`: a dry run of the planner on the current view.

use clap_complete::ArgValueCompleter;

use super::{CommandFailure, CommandTarget, Reach, block_on, complete, print_report, remark};
use crate::operator::Preview;

/// Assumptions of the dry run.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PlanArgs {
    /// Assume that this pod is drained.
    #[arg(long, value_name = "POD", add = ArgValueCompleter::new(complete::pods))]
    without: Option<String>,
    #[command(flatten)]
    target: CommandTarget,
}

pub(in crate::commands) fn plan(args: &PlanArgs) -> Result<(), CommandFailure> {
    block_on(async {
        let reach = Reach::open(&args.target.reach).await?;
        let preview = reach.plan(args.without.as_deref()).await?;
        if !preview.knows_policy() {
            remark(format!("planned with the defaults of [coordinator]: {}", reach.where_the_policy_is()));
        }
        print_report(&preview, args.target.json, Preview::in_words)?;
        Ok(())
    })
}
