//! `segue explain`: explains the state of a partition or a pod, and the next steps.

use super::{Failure, Reach, Target, block_on, print_text};
use crate::operator::Explanation;

/// What to explain.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ExplainArgs {
    /// Number of a partition, or name of a pod.
    #[arg(value_name = "PARTITION|POD")]
    subject: String,
    #[command(flatten)]
    target: Target,
}

pub(in crate::commands) fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    block_on(async {
        let reach = Reach::open(&args.target.reach).await?;
        // A pod may have a number for a name, and then is meant.
        let pod = reach.explain_pod(&args.subject).await;
        match (args.subject.parse(), pod) {
            (_, Ok(pod)) => show(&args.target, &pod),
            (Ok(partition), Err(Failure::Work(_))) => show(&args.target, &reach.explain_partition(partition).await?),
            (_, Err(failure)) => Err(failure),
        }
    })
}

fn show(target: &Target, explanation: &impl Explanation) -> Result<(), Failure> {
    let text = match target.json {
        true => serde_json::to_string(explanation).map_err(anyhow::Error::from)? + "\n",
        false => explanation.in_words(),
    };
    print_text(&text)
}
