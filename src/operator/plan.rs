//! A dry run of the planner on the current view.

use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::planning::{MoveCause, Plan, PlannedWrite, Policy, or_none, preview as run};
use segue_protocol::records::{Drain, Origin};
use segue_protocol::view::{Versioned, View};
use serde::{Deserialize, Serialize};

use super::partitions;

/// A move that the planner would make.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PlannedMove {
    pub(super) partition: PartitionId,
    pub(super) from: Option<String>,
    pub(super) to: String,
    cause: String,
    pub(super) reason: String,
}

/// What the planner would do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Preview {
    revision: Revision,
    without: Option<String>,
    /// Whether the planner ran with the settings of a coordinator, and not with the defaults.
    policy_is_known: bool,
    moves: Vec<PlannedMove>,
    in_flight: usize,
    /// Other actions of the planner, in words.
    others: Vec<String>,
    notices: Vec<String>,
}

/// Runs the planner on a view, as if `without` were drained.
pub(super) fn preview(
    mut view: View,
    policy: &Policy,
    without: Option<&str>,
    policy_is_known: bool,
) -> Result<Preview, String> {
    if let Some(pod) = without {
        assume_drained(&mut view, pod)?;
    }
    let plan = run(&view, policy);
    Ok(Preview {
        revision: view.revision,
        without: without.map(str::to_owned),
        policy_is_known,
        moves: moves(&plan),
        in_flight: view.handoffs.len(),
        others: others(&plan),
        notices: plan.notices.iter().map(ToString::to_string).collect(),
    })
}

/// Returns the moves of a plan.
pub(super) fn moves(plan: &Plan) -> Vec<PlannedMove> {
    let creates = plan.actions.iter().filter_map(|action| match action {
        PlannedWrite::Create { handoff, cause, .. } => Some(PlannedMove {
            partition: handoff.partition,
            from: handoff.old_owner.clone(),
            to: handoff.new_owner.clone(),
            cause: cause.as_str().to_owned(),
            reason: handoff.reason.clone(),
        }),
        PlannedWrite::Assign { assignment, .. } => Some(PlannedMove {
            partition: assignment.partition,
            from: None,
            to: assignment.owner.clone(),
            cause: MoveCause::FirstPlacement.as_str().to_owned(),
            reason: "first placement, and it has nothing to warm".to_owned(),
        }),
        _ => None,
    });
    creates.collect()
}

fn others(plan: &Plan) -> Vec<String> {
    let is_move = |action: &&PlannedWrite| matches!(action, PlannedWrite::Create { .. } | PlannedWrite::Assign { .. });
    plan.actions.iter().filter(|action| !is_move(action)).map(ToString::to_string).collect()
}

fn assume_drained(view: &mut View, pod: &str) -> Result<(), String> {
    let Some(registered) = view.pod_key(pod) else {
        let pods: Vec<&str> = view.pods.keys().map(String::as_str).collect();
        return Err(format!("no pod {pod} is registered; registered are: {}", or_none(&pods.join(", "))));
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
    /// Returns whether the planner ran with the settings of a coordinator.
    pub(crate) fn knows_policy(&self) -> bool {
        self.policy_is_known
    }

    /// Returns the plan as text, a line for each move.
    pub(crate) fn in_words(&self) -> String {
        let mut text = String::new();
        for PlannedMove { partition, from, to, reason, .. } in &self.moves {
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
        text + &format!("{wanted}; {} on the move now (revision {})\n", self.in_flight, self.revision)
    }
}
