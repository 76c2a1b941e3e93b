//! `segue status`: the keyspace at a glance.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use segue_coordination::session::{Update, Watcher, unix_millis};
use segue_coordination::store::Store;
use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use segue_protocol::view::View;

use super::operator::Reach;
use super::output::{self, Reader, print_report, remark};
use super::server::admin_tls;
use super::target::ReachArgs;
use super::{CommandFailure, runtime};
use crate::operator::RouterComparison;
use crate::operator::status::KeyspaceStatus;

/// Time between two looks at an admin endpoint. Its processes make a status at most that often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The keyspace, and the form of the output.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    reach: ReachArgs,
    /// Keep running and print every change.
    #[arg(long)]
    watch: bool,
    /// Compare every router's table with the store.
    #[arg(long, conflicts_with = "watch")]
    routers: bool,
    /// Certificate authorities to trust at the routers' admin endpoints, as a PEM file. Without it they are asked
    /// without TLS. With --server that process asks, by its admin.peers_tls.
    #[arg(long, value_name = "FILE", requires = "routers", conflicts_with = "server")]
    admin_ca: Option<PathBuf>,
    /// Print JSON; with --watch one object per line.
    #[arg(long)]
    json: bool,
}

pub(super) fn status(args: &Args) -> Result<(), CommandFailure> {
    runtime()?.block_on(show(args))
}

async fn show(args: &Args) -> Result<(), CommandFailure> {
    let reach = Reach::open(&args.reach).await?;
    if args.routers {
        return compare_routers(&reach, args).await;
    }
    if !args.watch {
        let refusal = reach.write_refusal().await;
        // As of after the question, which may have shown that a refusal is over.
        let mut status = reach.status().await?;
        // The status is worth printing without it, as of a process of an earlier version.
        status.resting = reach.history(None, 1).await.map(|history| history.resting).unwrap_or_default();
        let words = status.store_refuses_writes.take().or(refusal);
        return show_once(&status.store_refuses(words), args);
    }
    match &reach {
        Reach::Server(_) => look(&reach, args).await,
        Reach::Store(link) => follow(link.store().clone(), link.keys().clone(), args).await,
    }
}

/// Prints a status. Fails if its process has lost the store, so that nobody takes an old state for the present one.
fn show_once(status: &KeyspaceStatus, args: &Args) -> Result<(), CommandFailure> {
    let is_read = status.revision != Revision::ZERO;
    if is_read || status.stale.is_none() || args.json {
        print(status, args, false)?;
    }
    match &status.stale {
        None => Ok(()),
        Some(stale) if is_read => {
            let text = format!("this is the last state that the process has seen; {stale}; ask another process");
            Err(CommandFailure::Unreachable(anyhow!(text)))
        }
        Some(stale) => Err(CommandFailure::Unreachable(anyhow!("{stale}; ask another process"))),
    }
}

/// Prints the status of an admin endpoint whenever the revision has changed, or whether its process follows the store.
async fn look(reach: &Reach, args: &Args) -> Result<(), CommandFailure> {
    let mut shown = None;
    loop {
        match reach.status().await {
            Ok(status) if shown == Some((status.revision, status.stale.is_some())) => {}
            Ok(status) => {
                if print(&status, args, true)? == Reader::Gone {
                    return Ok(());
                }
                shown = Some((status.revision, status.stale.is_some()));
            }
            Err(CommandFailure::Unreachable(error) | CommandFailure::Lost(error)) => {
                remark(format!("segue: {error:#}; trying again"))
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn follow(store: Arc<dyn Store>, keys: Keyspace, args: &Args) -> Result<(), CommandFailure> {
    let mut watcher = Watcher::start_planning(store, keys.clone());
    let mut view = View::empty(keys);
    loop {
        match watcher.next().await {
            Update::Snapshot(snapshot) => view = *snapshot,
            Update::Batch(batch) => drop(view.apply(batch)),
            Update::Lost(error) => {
                remark(format!("segue: {error}; trying again"));
                continue;
            }
        }
        while let Some(batch) = watcher.try_next_batch() {
            view.apply(batch);
        }
        if print(&KeyspaceStatus::of(&view, unix_millis()), args, true)? == Reader::Gone {
            return Ok(());
        }
        // Faster changes could not be read.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn compare_routers(reach: &Reach, args: &Args) -> Result<(), CommandFailure> {
    args.reach.refuse_admin_ca(args.admin_ca.as_deref())?;
    let tls = admin_tls(args.admin_ca.as_deref())?;
    let comparison = reach.routers(tls.as_ref()).await?;
    print_report(&comparison, args.json, RouterComparison::to_string)?;
    if comparison.is_equal() { Ok(()) } else { Err(CommandFailure::AlreadyReported) }
}

fn print(status: &KeyspaceStatus, args: &Args, repaint: bool) -> Result<Reader, CommandFailure> {
    if repaint && !args.json {
        // Clears the screen and moves the cursor to its top.
        output::write(b"\x1b[2J\x1b[H")?;
    }
    print_report(status, args.json, KeyspaceStatus::to_string)
}
