//! `segue move`, `pin`, `unpin` and `cancel`: the placement of a single partition.
//!
//! A move, a pin and a cancel are operations: the coordinator answers each in the transaction that acts on it.

use std::time::Duration;

use segue_coordination::session::unix_millis;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::records::{Operation, Request, encode};
use segue_protocol::view::View;
use serde_json::json;

use super::standing::{Standing, moved};
use super::wait::{Patience, until};
use super::{Failure, Link, Target, Why, block_on, changed, refused};

/// Longest wait for the coordinator's answer with `--no-wait`. An answer takes two writes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The move.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct MoveArgs {
    /// Number of the partition.
    partition: PartitionId,
    /// Pod that gets the partition.
    #[arg(long, value_name = "POD")]
    to: String,
    /// Keep the partition there until `segue unpin`, also after the pod has restarted.
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    asked: Asked,
}

/// The partition.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PartitionArgs {
    /// Number of the partition.
    partition: PartitionId,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    target: Target,
}

/// The partition whose move is cancelled.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct CancelArgs {
    /// Number of the partition.
    partition: PartitionId,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct Asked {
    /// Name of this operation. A command with the id of an earlier one has no second effect.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    target: Target,
}

pub(in crate::commands) fn move_partition(args: &MoveArgs) -> Result<(), Failure> {
    let (partition, to, asked) = (args.partition, args.to.as_str(), &args.asked);
    block_on(async {
        let link = Link::open(&asked.target).await?;
        let request = Request::Move { partition, to: to.to_owned(), pin: args.pin };
        let id = asked.id.clone().unwrap_or_else(new_id);
        let timeout = if asked.patience.no_wait { ANSWER_TIMEOUT } else { asked.patience.timeout };
        let mut text = ask(&link, &id, request, &asked.why, timeout).await?;
        if !asked.patience.no_wait {
            eprintln!("{text}");
            text = until(&link, asked.patience.timeout, |view| moved(view, partition, Some(to))).await?;
        }
        link.print(json!({ "operation": id, "partition": partition, "to": to, "pin": args.pin }), &text)
    })
}

pub(in crate::commands) fn pin(args: &PartitionArgs) -> Result<(), Failure> {
    let partition = args.partition;
    block_on(async {
        let (link, id) = (Link::open(&args.target).await?, new_id());
        let text = ask(&link, &id, Request::Pin { partition }, &args.why, ANSWER_TIMEOUT).await?;
        link.print(json!({ "operation": id, "partition": partition }), &text)
    })
}

pub(in crate::commands) fn unpin(args: &PartitionArgs) -> Result<(), Failure> {
    let partition = args.partition;
    block_on(async {
        let link = Link::open(&args.target).await?;
        let view = link.view().await?;
        let Some(pin) = view.intentions.pins.get(&partition) else {
            if partition.get() >= view.partitions() {
                return Err(refused(format!("there is no partition {partition}")));
            }
            let text = format!("partition {partition} was not pinned");
            return link.print(json!({ "partition": partition, "unpinned": false }), &text);
        };
        let key = link.keys.pin(partition);
        if !link.delete(key.clone(), view.pin_revision(partition)).await? {
            return Err(changed(&key));
        }
        let was = pin.as_ref().map_or("a pin that could not be read".to_owned(), |pin| {
            format!("it was pinned to {} by {}", pin.value.to, pin.value.origin)
        });
        let text = format!("partition {partition} goes where the strategy places it; {was}");
        link.print(json!({ "partition": partition, "unpinned": true }), &text)
    })
}

pub(in crate::commands) fn cancel(args: &CancelArgs) -> Result<(), Failure> {
    let partition = args.partition;
    block_on(async {
        let (link, id) = (Link::open(&args.target).await?, new_id());
        let view = link.view().await?;
        let Some(handoff) = view.handoffs.get(&partition).map(|handoff| handoff.id()) else {
            return Err(refused(format!("partition {partition} does not move: there is nothing to cancel")));
        };
        let text = ask(&link, &id, Request::Cancel { partition, handoff }, &args.why, ANSWER_TIMEOUT).await?;
        link.print(json!({ "operation": id, "partition": partition, "handoff": handoff }), &text)
    })
}

/// Writes an operation and waits for its answer. Fails with the answer if the operation was refused.
async fn ask(link: &Link, id: &str, request: Request, why: &Why, timeout: Duration) -> Result<String, Failure> {
    if id.is_empty() || id.contains('/') {
        return Err(Failure::BadInput(format!("segue: --id {id:?}: expected a name without a slash")));
    }
    let operation = Operation { request, origin: why.origin(), answer: None };
    if !link.put(link.keys.operation(id), Revision::ZERO, encode(&operation)).await? {
        let view = link.view().await?;
        let same = view.intentions.operations.get(id).is_some_and(|known| known.value.request == operation.request);
        if !same {
            return Err(refused(format!("operation {id} exists and asks for something else: choose another --id")));
        }
    }
    let judge = |view: &View| match view.intentions.operations.get(id).map(|operation| &operation.value.answer) {
        Some(Some(answer)) if answer.accepted => Standing::Done(answer.text.clone()),
        Some(Some(answer)) => Standing::Failed(answer.text.clone()),
        Some(None) if view.leader.is_none() => {
            Standing::Waiting(format!("operation {id} waits for an answer; no coordinator leads"))
        }
        Some(None) => Standing::Waiting(format!("operation {id} waits for the coordinator's answer")),
        None => Standing::Failed(format!("operation {id} was deleted before it had an answer")),
    };
    until(link, timeout, judge).await
}

/// Returns a name that no other operation has: the time and the process.
fn new_id() -> String {
    format!("{:x}-{:x}", unix_millis(), std::process::id())
}
