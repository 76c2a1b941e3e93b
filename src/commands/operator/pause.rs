//! `segue pause` and `segue resume`: stop and resume planned moves.

use std::time::Duration;

use super::{CommandFailure, OperationArgs, act};
use crate::operator::Action;

/// How long, and why.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PauseArgs {
    /// How long the pause lasts; without it, until `segue resume`.
    #[arg(long = "for", value_name = "TIME", value_parser = segue_config::parse_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    asked: OperationArgs,
}

/// The keyspace.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ResumeArgs {
    #[command(flatten)]
    asked: OperationArgs,
}

pub(in crate::commands) fn pause(args: &PauseArgs) -> Result<(), CommandFailure> {
    act(Action::Pause { span: args.duration }, &args.asked)
}

pub(in crate::commands) fn resume(args: &ResumeArgs) -> Result<(), CommandFailure> {
    act(Action::Resume {}, &args.asked)
}
