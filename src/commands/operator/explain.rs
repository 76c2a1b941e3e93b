//! `segue explain`: explains the state of a partition, a pod or a key, and the next steps.

use std::path::PathBuf;

use clap_complete::ArgValueCompleter;
use serde::de::DeserializeOwned;

use super::{CommandFailure, CommandTarget, Reach, block_on, complete, print_report};
use crate::commands::server::admin_tls;
use crate::commands::target::TLS_KEY;
use crate::operator::Explanation;

/// What to explain.
// What the keyspace is reached with has an option of the same name.
#[derive(Debug, clap::Args)]
#[command(mut_arg("key", |tls| tls.long(TLS_KEY)))]
pub(in crate::commands) struct ExplainArgs {
    /// Number of a partition, or name of a pod.
    #[arg(value_name = "PARTITION|POD", required_unless_present = "request_key",
        add = ArgValueCompleter::new(complete::pods_and_partitions))]
    subject: Option<String>,
    /// A key of requests, in place of a partition: shows its partition by the keyspace's own mapping, and explains that. A
    /// key in a path is written without escapes.
    #[arg(long = "key", value_name = "KEY", conflicts_with = "subject", allow_hyphen_values = true)]
    request_key: Option<String>,
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
        if let Some(key) = &args.request_key {
            return show(&args.target, &reach.explain_key(key, tls.as_ref()).await?);
        }
        let subject = args.subject.as_deref().unwrap_or_default();
        // A pod may have a number for a name, and then is meant.
        let pod = reach.explain_pod(subject, tls.as_ref()).await;
        match (subject.parse(), pod) {
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
