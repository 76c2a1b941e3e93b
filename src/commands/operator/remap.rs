//! `segue remap`: replaces the mapping of keys to partitions.

use std::path::{Path, PathBuf};

use segue_protocol::records::Partitioner;

use super::{ANSWER_TIMEOUT, CommandFailure, OperationArgs, Reach, block_on, print};
use crate::commands::load;
use crate::operator::Action;

/// The new mapping.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct RemapArgs {
    /// Router's configuration file whose [router.partition], or [keyspaces.partition] of the keyspace, is the new mapping.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Confirm that keys may be in other partitions from now on. Without this option nothing is changed.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    asked: OperationArgs,
}

pub(in crate::commands) fn remap(args: &RemapArgs) -> Result<(), CommandFailure> {
    let target = &args.asked.target;
    block_on(async {
        let reach = Reach::open(&target.reach).await?;
        let to = mapping(&args.to, reach.keyspace(&target.reach).as_deref())?;
        let order = args.asked.order(Action::Remap { to, confirmed: args.yes })?;
        print(target, &reach.perform(&order, ANSWER_TIMEOUT).await?)
    })
}

/// Returns the mapping of a file's keyspace: the one of this name, or the only one.
fn mapping(path: &Path, keyspace: Option<&str>) -> Result<Partitioner, CommandFailure> {
    let config = load(path)?.config;
    let found = match keyspace {
        Some(name) => config.keyspaces.iter().find(|keyspace| keyspace.name == name),
        None => config.only_keyspace(),
    };
    let path = path.display();
    let found = found.ok_or_else(|| {
        let names: Vec<_> = config.keyspaces.iter().map(|keyspace| &*keyspace.name).collect();
        let names = names.join(", ");
        CommandFailure::BadInput(match keyspace {
            Some(name) => format!("{path}: expected a router of keyspace {name}; the file has {names}"),
            None => format!("{path}: several keyspaces; expected --keyspace, one of {names}"),
        })
    })?;
    let missing = || CommandFailure::BadInput(format!("{path}: expected a file with a section [router]"));
    Ok(found.routing.as_ref().ok_or_else(missing)?.partition.partitioner())
}
