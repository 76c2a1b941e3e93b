//! `segue pause` and `segue resume`: stop and resume planned moves.

use std::time::Duration;

use super::{Asked, Failure, act};
use crate::operator::Action;

/// How long, and why.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PauseArgs {
    /// How long the pause lasts; without it, until `segue resume`.
    #[arg(long = "for", value_name = "TIME", value_parser = segue_config::parse_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    asked: Asked,
}

/// The keyspace.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ResumeArgs {
    #[command(flatten)]
    asked: Asked,
}

pub(in crate::commands) fn pause(args: &PauseArgs) -> Result<(), Failure> {
    act(Action::Pause { span: args.duration }, &args.asked)
}

pub(in crate::commands) fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    act(Action::Resume {}, &args.asked)
}
