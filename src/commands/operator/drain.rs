//! `segue drain` and `segue undrain`: an operator wants a pod empty, in this life and in later ones. With `--self`, the
//! pod of this host's sidecar ends its own life's work.

use clap_complete::ArgValueCompleter;

use super::{CommandFailure, OperationArgs, Patience, Reach, act, act_and_wait, block_on, complete, print};
use crate::operator::{Action, Condition};

/// The pod to drain.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct DrainArgs {
    /// Name of the pod.
    #[arg(required_unless_present = "itself", conflicts_with = "itself", add = ArgValueCompleter::new(complete::pods))]
    pod: Option<String>,
    /// Drain the pod of the sidecar that is asked, for the rest of its life: a preStop hook.
    #[arg(long = "self", conflicts_with_all = ["etcd", "why", "id"])]
    itself: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    asked: OperationArgs,
}

/// The pod whose drain ends.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct UndrainArgs {
    /// Name of the pod.
    #[arg(add = ArgValueCompleter::new(complete::pods))]
    pod: String,
    #[command(flatten)]
    asked: OperationArgs,
}

pub(in crate::commands) fn drain(args: &DrainArgs) -> Result<(), CommandFailure> {
    let (patience, target) = (&args.patience, &args.asked.target);
    let Some(pod) = &args.pod else {
        let timeout = if patience.no_wait { None } else { Some(patience.timeout) };
        let outcome = block_on(async { Reach::sidecar(&target.reach).await?.drain_itself(timeout).await })?;
        return print(target, &outcome);
    };
    let condition = Condition::Drained { pod: pod.clone(), by_operator: true };
    let mut outcome = act_and_wait(Action::Drain { pod: pod.clone() }, &condition, &args.asked, patience)?;
    if !patience.no_wait {
        outcome.text += &format!(", and gets no partition until segue undrain {pod}");
    }
    print(target, &outcome)
}

pub(in crate::commands) fn undrain(args: &UndrainArgs) -> Result<(), CommandFailure> {
    act(Action::Undrain { pod: args.pod.clone() }, &args.asked)
}
