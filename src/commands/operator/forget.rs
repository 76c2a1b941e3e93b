//! `segue forget`: deletes a registration that does not end by itself.

use clap_complete::ArgValueCompleter;

use super::{CommandFailure, OperationArgs, act, complete};
use crate::operator::{Action, RegistrationKind};

/// The registration to forget.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ForgetArgs {
    /// Kind of the registration.
    #[arg(value_enum)]
    kind: RegistrationKind,
    /// Name of the pod or router.
    #[arg(add = ArgValueCompleter::new(complete::participants))]
    name: String,
    /// Delete the registration even if it is readable and has a lease.
    #[arg(long)]
    force: bool,
    /// Confirm that the process is gone and its work is over. Without this option nothing is deleted.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    asked: OperationArgs,
}

pub(in crate::commands) fn forget(args: &ForgetArgs) -> Result<(), CommandFailure> {
    let (kind, name) = (args.kind, args.name.clone());
    act(Action::Forget { kind, name, force: args.force, confirmed: args.yes }, &args.asked)
}
