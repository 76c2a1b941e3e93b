//! `segue explain`: explains the state of a partition or a pod, and the next steps.

use std::path::PathBuf;

use clap_complete::ArgValueCompleter;
use serde::de::DeserializeOwned;

use super::{CommandFailure, CommandTarget, Reach, block_on, complete, print_report};
use crate::commands::server::admin_tls;
use crate::operator::Explanation;

/// What to explain.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ExplainArgs {
    /// Number of a partition, or name of a pod.
    #[arg(value_name = "PARTITION|POD", add = ArgValueCompleter::new(complete::pods_and_partitions))]
    subject: String,
    /// Certificate authorities to trust at the admin endpoints of the participants that a handoff waits for, or of the
    /// pod, as a PEM file. Without it they are asked without TLS. With --server that process asks, by its admin.peers_tls.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    admin_ca: Option<PathBuf>,
    #[command(flatten)]
    target: CommandTarget,
}

pub(in crate::commands) fn explain(args: &ExplainArgs) -> Result<(), CommandFailure> {
    args.target.reach.refuse_admin_ca(args.admin_ca.as_deref())?;
    let tls = admin_tls(args.admin_ca.as_deref())?;
    block_on(async {
        let reach = Reach::open(&args.target.reach).await?;
        // A pod may have a number for a name, and then is meant.
        let pod = reach.explain_pod(&args.subject, tls.as_ref()).await;
        match (args.subject.parse(), pod) {
            (_, Ok(pod)) => show(&args.target, &pod),
            (Ok(partition), Err(CommandFailure::Work(_))) => {
                show(&args.target, &reach.explain_partition(partition, tls.as_ref()).await?)
            }
            (_, Err(failure)) => Err(failure),
        }
    })
}

fn show(target: &CommandTarget, explanation: &(impl Explanation + DeserializeOwned)) -> Result<(), CommandFailure> {
    print_report(explanation, target.json, Explanation::in_words)?;
    Ok(())
}
