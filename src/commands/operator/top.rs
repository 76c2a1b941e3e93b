//! `segue top`: what goes through the routers now.

use std::io::{IsTerminal as _, stdout};
use std::path::PathBuf;

use super::{CommandFailure, CommandTarget, Reach, Reader, block_on, output, print_report, remark};
use crate::commands::server::admin_tls;
use crate::operator::top::{KeyspaceTraffic, MEASURED_FOR, TrafficTable};

/// What to list.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct TopArgs {
    /// List the pods: requests, errors, latency, requests in flight. This is the default.
    #[arg(long, group = "table")]
    pods: bool,
    /// List the busiest partitions.
    #[arg(long, group = "table")]
    partitions: bool,
    /// List the most frequent keys, at most 64 bytes of each. Routers count them only meanwhile: all of the first 1,024
    /// requests of a worker, then one in 16.
    #[arg(long, group = "table")]
    keys: bool,
    /// Print one measurement and exit.
    #[arg(long)]
    once: bool,
    /// Certificate authorities to trust at the routers' admin endpoints, as a PEM file. Without it they are asked
    /// without TLS. With --server that process asks, by its admin.peers_tls.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    admin_ca: Option<PathBuf>,
    #[command(flatten)]
    target: CommandTarget,
}

impl TopArgs {
    fn table(&self) -> TrafficTable {
        match (self.partitions, self.keys) {
            (true, _) => TrafficTable::Partitions,
            (_, true) => TrafficTable::Keys,
            _ => TrafficTable::Pods,
        }
    }
}

pub(in crate::commands) fn top(args: &TopArgs) -> Result<(), CommandFailure> {
    args.target.reach.refuse_admin_ca(args.admin_ca.as_deref())?;
    let tls = admin_tls(args.admin_ca.as_deref())?;
    block_on(async {
        let reach = Reach::open(&args.target.reach).await?;
        let mut was_shown = false;
        loop {
            match reach.traffic(args.keys, tls.as_ref()).await {
                Ok(traffic) => {
                    let reader = print(args, &traffic)?;
                    if args.once && !traffic.is_complete() {
                        return Err(CommandFailure::AlreadyReported);
                    }
                    if args.once || reader == Reader::Gone {
                        return Ok(());
                    }
                    was_shown = true;
                }
                // An endpoint that was there may come back.
                Err(CommandFailure::Unreachable(error) | CommandFailure::Lost(error)) if was_shown => {
                    remark(format!("segue: {error:#}; trying again"));
                    tokio::time::sleep(MEASURED_FOR).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    })
}

fn print(args: &TopArgs, traffic: &KeyspaceTraffic) -> Result<Reader, CommandFailure> {
    if !args.once && !args.target.json && stdout().is_terminal() {
        // Clears the screen and moves the cursor to its top.
        output::write(b"\x1b[2J\x1b[H")?;
    }
    print_report(traffic, args.target.json, |traffic| traffic.in_words(args.table()))
}
