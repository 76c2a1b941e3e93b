//! The operator's commands: their arguments, their progress and their output. What they do is in
//! [`operator`](crate::operator), which they reach through a store or through an admin endpoint ([`Reach`]).

mod complete;
mod config;
mod drain;
mod explain;
mod forget;
mod history;
mod moves;
mod pause;
mod plan;
mod progress;
mod reach;
mod remap;
mod top;
mod wait;
mod wanted;

use std::time::{Duration, Instant};

use segue_coordination::session::unix_millis;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Origin;
use serde_json::json;

use super::output::{self, Reader, print_report, remark};
use super::target::ReachArgs;
use super::{CommandFailure, runtime};
use crate::operator::{Action, ActionOutcome, Condition, OperationId, Order};
use crate::process::printable::on_one_line;

pub(super) use self::config::{ConfigArgs, config};
pub(super) use self::drain::{DrainArgs, UndrainArgs, drain, undrain};
pub(super) use self::explain::{ExplainArgs, explain};
pub(super) use self::forget::{ForgetArgs, forget};
pub(super) use self::history::{HistoryArgs, history};
pub(super) use self::moves::{CancelArgs, MoveArgs, PartitionArgs, cancel, move_partition, pin, unpin};
pub(super) use self::pause::{PauseArgs, ResumeArgs, pause, resume};
pub(super) use self::plan::{PlanArgs, plan};
pub(super) use self::reach::Reach;
pub(super) use self::remap::{RemapArgs, remap};
pub(super) use self::top::{TopArgs, top};
pub(super) use self::wait::{WaitArgs, wait};
pub(super) use self::wanted::{WantedArgs, wanted};

/// The keyspace, and the format of the output.
#[derive(Debug, clap::Args)]
pub(super) struct CommandTarget {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: ReachArgs,
}

/// What is kept with an action.
#[derive(Debug, clap::Args)]
pub(super) struct OperationArgs {
    /// Reason, which is stored and shown to others.
    #[arg(long = "why", value_name = "TEXT", default_value = "")]
    why: String,
    /// Name of this operation. A command with the id of an earlier one has no second effect.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    target: CommandTarget,
}

/// How long a command waits.
#[derive(Debug, clap::Args)]
pub(super) struct Patience {
    /// Do not wait: exit as soon as the intention is stored and accepted.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait before exiting 4. The intention stays in the store.
    #[arg(long, visible_alias = "wait", value_name = "TIME", default_value = "10m",
        value_parser = segue_config::parse_duration)]
    timeout: Duration,
}

/// Longest wait for the coordinator's answer by commands that wait for nothing else. An answer takes two writes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Carries out an action whose outcome needs no further wait.
fn act(action: Action, asked: &OperationArgs) -> Result<(), CommandFailure> {
    block_on(async {
        let reach = Reach::open(&asked.target.reach).await?;
        let outcome = reach.perform(&asked.order(action)?, ANSWER_TIMEOUT).await?;
        print(&asked.target, &outcome)
    })
}

/// Carries out an action, and waits until the condition holds unless it is told not to.
fn act_and_wait(
    action: Action,
    condition: &Condition,
    asked: &OperationArgs,
    patience: &Patience,
) -> Result<ActionOutcome, CommandFailure> {
    block_on(async {
        let reach = Reach::open(&asked.target.reach).await?;
        let began = Instant::now();
        let for_answer = if patience.no_wait { ANSWER_TIMEOUT } else { patience.timeout };
        let mut outcome = reach.perform(&asked.order(action)?, for_answer).await?;
        if !patience.no_wait {
            remark(on_one_line(&outcome.text));
            outcome.text = reach.until(condition, patience.timeout.saturating_sub(began.elapsed())).await?;
        }
        outcome.facts.insert("waited".to_owned(), json!(!patience.no_wait));
        Ok(outcome)
    })
}

impl OperationArgs {
    fn order(&self, action: Action) -> Result<Order, CommandFailure> {
        let id = self.id.as_deref().map(str::parse::<OperationId>).transpose();
        let id = id.map_err(|error| CommandFailure::BadInput(format!("segue: {error}")))?;
        let origin = Origin { who: who(), why: self.why.clone(), at: unix_millis() };
        Ok(Order { action, id, origin })
    }
}

/// Reads the number of a partition on the command line.
fn partition_number(text: &str) -> Result<PartitionId, &'static str> {
    text.parse().map_err(|_| "expected the number of a partition, such as 7")
}

/// Returns who runs this command: `user@host`.
fn who() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let user = user.filter(|user| !user.is_empty());
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    match segue_config::hostname().as_str() {
        "" => user,
        host => format!("{user}@{host}"),
    }
}

/// Prints the result: a sentence, or a JSON object with the sentence and facts.
fn print(target: &CommandTarget, outcome: &ActionOutcome) -> Result<(), CommandFailure> {
    print_report(outcome, target.json, |outcome| outcome.text.clone() + "\n")?;
    Ok(())
}

fn block_on<T>(work: impl Future<Output = Result<T, CommandFailure>>) -> Result<T, CommandFailure> {
    runtime()?.block_on(work)
}
