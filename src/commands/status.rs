//! `segue status`: the keyspace at a glance.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use segue_coordination::session::{Update, Watcher, unix_millis};
use segue_protocol::txn::Keys;
use segue_protocol::view::View;

use super::store::StoreArgs;
use super::{Failure, runtime};
use crate::status::KeyspaceStatus;

/// The keyspace, and the form of the output.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Keep running and print every change.
    #[arg(long)]
    watch: bool,
    /// Print JSON; with --watch one object per line.
    #[arg(long)]
    json: bool,
}

pub(super) fn status(args: &Args) -> Result<(), Failure> {
    runtime()?.block_on(show(args))
}

async fn show(args: &Args) -> Result<(), Failure> {
    let (store, keys) = args.store.connect().await?;
    if !args.watch {
        let snapshot =
            store.snapshot(&Keys::Prefix(keys.root().to_owned())).await.context("cannot read the keyspace")?;
        return Ok(print(&View::from_snapshot(keys, snapshot), args, false)?);
    }
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
        print(&view, args, true)?;
        // Faster changes could not be read.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn print(view: &View, args: &Args, repaint: bool) -> anyhow::Result<()> {
    let status = KeyspaceStatus::of(view, unix_millis());
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&status)?)?;
    } else {
        // Clears the screen and moves the cursor to its top.
        let clear = if repaint { "\x1b[2J\x1b[H" } else { "" };
        write!(out, "{clear}{status}")?;
    }
    Ok(out.flush()?)
}
