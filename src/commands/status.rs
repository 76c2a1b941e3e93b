//! `segue status`: the keyspace at a glance.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use segue_coordination::session::{Update, Watcher, unix_millis};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use segue_protocol::view::View;

use super::operator::Reach;
use super::store::ReachArgs;
use super::{Failure, routers, runtime};
use crate::status::KeyspaceStatus;

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
    #[arg(long, conflicts_with_all = ["watch", "server"])]
    routers: bool,
    /// Print JSON; with --watch one object per line.
    #[arg(long)]
    json: bool,
}

pub(super) fn status(args: &Args) -> Result<(), Failure> {
    runtime()?.block_on(show(args))
}

async fn show(args: &Args) -> Result<(), Failure> {
    if args.routers {
        let (store, keys) = args.reach.store.connect().await?;
        return compare_routers(store.as_ref(), &keys, args.json).await;
    }
    if !args.watch {
        let reach = Reach::open(&args.reach).await?;
        return Ok(print(&reach.status().await?, args, false)?);
    }
    match args.reach.server {
        Some(_) => look(args).await,
        None => follow(args).await,
    }
}

/// Prints the status of an admin endpoint whenever the revision has changed.
async fn look(args: &Args) -> Result<(), Failure> {
    let reach = Reach::open(&args.reach).await?;
    let mut shown = None;
    loop {
        match reach.status().await {
            Ok(status) if shown == Some(status.revision) => {}
            Ok(status) => {
                print(&status, args, true)?;
                shown = Some(status.revision);
            }
            Err(Failure::Unreachable(error)) => eprintln!("segue: {error:#}; trying again"),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn follow(args: &Args) -> Result<(), Failure> {
    let (store, keys) = args.reach.store.connect().await?;
    let mut watcher = Watcher::start(store, keys.clone());
    let mut view = View::empty(keys);
    loop {
        match watcher.next().await {
            Update::Snapshot(snapshot) => view = *snapshot,
            Update::Batch(batch) => drop(view.apply(batch)),
            Update::Lost(error) => {
                eprintln!("segue: {error}; trying again");
                continue;
            }
        }
        while let Some(batch) = watcher.try_next_batch() {
            view.apply(batch);
        }
        print(&KeyspaceStatus::of(&view, unix_millis()), args, true)?;
        // Faster changes could not be read.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn compare_routers(store: &dyn Store, keys: &Keyspace, json: bool) -> Result<(), Failure> {
    let look = || async {
        let snapshot = store.snapshot(&keys.followed()).await.context("cannot read the keyspace")?;
        Ok(View::from_snapshot(keys.clone(), snapshot))
    };
    let comparison = routers::compare(look).await?;
    let text = match json {
        true => serde_json::to_string(&comparison).map_err(anyhow::Error::from)? + "\n",
        false => comparison.to_string(),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to standard output")?;
    if comparison.is_equal() { Ok(()) } else { Err(Failure::AlreadyReported) }
}

fn print(status: &KeyspaceStatus, args: &Args, repaint: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(status)?)?;
    } else {
        // Clears the screen and moves the cursor to its top.
        let clear = if repaint { "\x1b[2J\x1b[H" } else { "" };
        write!(out, "{clear}{status}")?;
    }
    Ok(out.flush()?)
}
