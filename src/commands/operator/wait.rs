//! `segue wait`, and the wait of other commands: waits until a condition holds, with progress on standard error.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::anyhow;
use segue_coordination::session::{Update, Watcher};
use segue_protocol::ids::PartitionId;
use segue_protocol::view::View;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::drain::known;
use super::standing::{Standing, drained, moved, settled};
use super::{Failure, Link, Target, block_on};

/// Shortest time between two lines of progress.
const LINE_INTERVAL: Duration = Duration::from_millis(500);
/// How long a command waits before it prints what it waits for.
const FIRST_LINE_AFTER: Duration = Duration::from_millis(200);

/// How long a command waits.
#[derive(Debug, clap::Args)]
pub(super) struct Patience {
    /// Do not wait: exit as soon as the intention is stored and accepted.
    #[arg(long)]
    pub(super) no_wait: bool,
    /// How long to wait before exiting 4. The intention stays in the store.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = segue_config::parse_duration)]
    pub(super) timeout: Duration,
}

/// The condition to wait for.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct WaitArgs {
    #[command(subcommand)]
    condition: Condition,
}

#[derive(Debug, clap::Subcommand)]
enum Condition {
    /// Wait until the keyspace is at rest.
    ///
    /// Each partition has a living owner, no handoff is in flight, draining pods are empty, and pinned partitions are
    /// on their pods. The coordinator may still plan moves for a change that has just happened (coordinator.settle).
    Settled(Limited),
    /// Wait until a partition has a living owner, does not move, and is on the pod that it is pinned to, if it is
    /// pinned.
    Moved {
        /// The partition.
        partition: PartitionId,
        #[command(flatten)]
        limited: Limited,
    },
    /// Wait until a pod owns no partition and takes part in no handoff.
    Drained {
        /// The pod.
        pod: String,
        #[command(flatten)]
        limited: Limited,
    },
}

#[derive(Debug, clap::Args)]
struct Limited {
    /// How long to wait before exiting 4.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = segue_config::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    target: Target,
}

pub(in crate::commands) fn wait(args: &WaitArgs) -> Result<(), Failure> {
    let limited = match &args.condition {
        Condition::Settled(limited) | Condition::Moved { limited, .. } | Condition::Drained { limited, .. } => limited,
    };
    block_on(async {
        let link = Link::open(&limited.target).await?;
        let view = link.view().await?;
        if let Condition::Drained { pod, .. } = &args.condition
            && !view.intentions.drains.contains_key(pod)
        {
            known(&view, pod)?;
        }
        let judge = |view: &View| match &args.condition {
            Condition::Settled(_) => settled(view),
            Condition::Moved { partition, .. } => moved(view, *partition, None),
            Condition::Drained { pod, .. } => drained(view, pod, false),
        };
        let text = until(&link, limited.timeout, judge).await?;
        link.print(json!({}), &text)
    })
}

/// Waits until `judge` returns [`Standing::Done`], and returns its text. Fails if `judge` returns [`Standing::Failed`],
/// or after `timeout`.
pub(super) async fn until(
    link: &Link,
    timeout: Duration,
    mut judge: impl FnMut(&View) -> Standing,
) -> Result<String, Failure> {
    let mut watcher = Watcher::start(link.store.clone(), link.keys.clone());
    let deadline = Instant::now() + timeout;
    let mut view: Option<View> = None;
    let mut progress = Progress::new();
    loop {
        let update = tokio::select! {
            update = watcher.next() => update,
            () = sleep_until(progress.due), if !progress.is_shown => {
                progress.show();
                continue;
            }
            () = sleep_until(deadline) => {
                let what = progress.last.take().unwrap_or_else(|| "nothing is known yet".to_owned());
                progress.end();
                return Err(Failure::Waiting(anyhow!("still waiting after {timeout:?}: {what}")));
            }
        };
        match update {
            Update::Snapshot(snapshot) => view = Some(*snapshot),
            Update::Batch(batch) => view.iter_mut().for_each(|view| drop(view.apply(batch.clone()))),
            Update::Lost(error) => {
                progress.note(format!("{error}; trying again"));
                continue;
            }
        }
        while let Some(batch) = watcher.try_next_batch() {
            view.iter_mut().for_each(|view| drop(view.apply(batch.clone())));
        }
        let Some(view) = &view else { continue };
        match judge(view) {
            Standing::Done(text) => {
                progress.end();
                return Ok(text);
            }
            Standing::Failed(why) => {
                progress.end();
                return Err(super::refused(why));
            }
            Standing::Waiting(text) => progress.note(text),
        }
    }
}

/// Progress on standard error: a single line that is rewritten on a terminal, occasional lines elsewhere. A short wait
/// prints nothing.
#[derive(Debug)]
struct Progress {
    last: Option<String>,
    is_shown: bool,
    due: Instant,
}

impl Progress {
    fn new() -> Self {
        Progress { last: None, is_shown: true, due: Instant::now() + FIRST_LINE_AFTER }
    }

    fn note(&mut self, text: String) {
        if self.last.as_ref() != Some(&text) {
            (self.last, self.is_shown) = (Some(text), false);
        }
    }

    fn show(&mut self) {
        let Some(text) = &self.last else { return };
        let mut out = std::io::stderr().lock();
        // A command does not fail because its progress cannot be printed.
        let _ = if out.is_terminal() { write!(out, "\r\x1b[K{text}") } else { writeln!(out, "{text}") };
        let _ = out.flush();
        (self.is_shown, self.due) = (true, Instant::now() + LINE_INTERVAL);
    }

    fn end(&mut self) {
        let mut out = std::io::stderr().lock();
        if out.is_terminal() {
            let _ = write!(out, "\r\x1b[K");
        }
    }
}
