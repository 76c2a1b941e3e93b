//! `segue plan`: a dry run of the planner on the current view.

use std::io::Write as _;

use anyhow::Context as _;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::planning::{Action, Plan, Policy, preview};
use segue_protocol::records::{Drain, Origin};
use segue_protocol::view::{Versioned, View};
use serde::Serialize;

use super::{Failure, Link, Target, block_on, or_none, partitions, refused};

/// Assumptions of the dry run.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PlanArgs {
    /// Assume that this pod is drained.
    #[arg(long, value_name = "POD")]
    without: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// A move that the planner would make.
#[derive(Debug, Serialize)]
pub(super) struct Move {
    pub(super) partition: PartitionId,
    pub(super) from: Option<String>,
    pub(super) to: String,
    cause: &'static str,
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
struct Preview {
    revision: Revision,
    without: Option<String>,
    moves: Vec<Move>,
    /// Other actions of the planner, in words.
    others: Vec<String>,
    notices: Vec<String>,
}

pub(in crate::commands) fn plan(args: &PlanArgs) -> Result<(), Failure> {
    block_on(async {
        let link = Link::open(&args.target).await?;
        let mut view = link.view().await?;
        let policy = policy(&args.target, &view)?;
        if let Some(pod) = &args.without {
            assume_drained(&mut view, pod)?;
        }
        let plan = preview(&view, &policy);
        let preview = Preview {
            revision: view.revision,
            without: args.without.clone(),
            moves: moves(&plan),
            others: others(&plan),
            notices: plan.notices.iter().map(ToString::to_string).collect(),
        };
        let mut out = std::io::stdout().lock();
        let text = match link.json {
            true => serde_json::to_string(&preview).map_err(anyhow::Error::from)? + "\n",
            false => preview.in_words(view.handoffs.len()),
        };
        out.write_all(text.as_bytes()).context("cannot write to standard output")?;
        Ok(())
    })
}

/// Returns the policy to plan with where the keyspace has no settings: that of the configuration file, or the defaults.
pub(super) fn policy(target: &Target, view: &View) -> Result<Policy, Failure> {
    let given = target.store.policy()?;
    if given.is_none() && view.settings().is_none_or(|settings| settings.planning.is_none()) {
        eprintln!(
            "planning with the defaults of [coordinator]; give the coordinator's file with --config to use its settings"
        );
    }
    Ok(Policy { partitions: view.partitions(), ..given.unwrap_or_default() })
}

/// Returns the moves of a plan.
pub(super) fn moves(plan: &Plan) -> Vec<Move> {
    let creates = plan.actions.iter().filter_map(|action| match action {
        Action::Create { handoff, cause, .. } => Some(Move {
            partition: handoff.partition,
            from: handoff.old_owner.clone(),
            to: handoff.new_owner.clone(),
            cause: cause.as_str(),
            reason: handoff.reason.clone(),
        }),
        _ => None,
    });
    creates.collect()
}

fn others(plan: &Plan) -> Vec<String> {
    let is_move = |action: &&Action| matches!(action, Action::Create { .. });
    plan.actions.iter().filter(|action| !is_move(action)).map(ToString::to_string).collect()
}

fn assume_drained(view: &mut View, pod: &str) -> Result<(), Failure> {
    let Some(registered) = view.pod_key(pod) else {
        let pods: Vec<&str> = view.pods.keys().map(String::as_str).collect();
        return Err(refused(format!("no pod {pod} is registered; registered are: {}", or_none(&pods.join(", ")))));
    };
    let origin = Origin { who: "this dry run".into(), why: String::new(), at: 0 };
    let drain = Versioned {
        create_revision: registered.create_revision,
        mod_revision: registered.mod_revision,
        lease: None,
        value: Drain { origin },
    };
    view.intentions.drains.entry(pod.to_owned()).or_insert(drain);
    Ok(())
}

impl Preview {
    fn in_words(&self, in_flight: usize) -> String {
        let mut text = String::new();
        for Move { partition, from, to, reason, .. } in &self.moves {
            let from = from.as_deref().unwrap_or("nobody");
            text += &format!("{partition:>6}  {from} → {to}  ({reason})\n");
        }
        for other in &self.others {
            text += &format!("also    {other}\n");
        }
        for notice in &self.notices {
            text += &format!("notice  {notice}\n");
        }
        let wanted = match self.moves.len() {
            0 => "nothing would move".to_owned(),
            moves => format!("{} would move", partitions(moves)),
        };
        text + &format!("{wanted}; {in_flight} on the move now (revision {})\n", self.revision)
    }
}
