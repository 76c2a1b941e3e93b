//! `segue keyspace`: the list of keyspaces that running processes follow.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;

use clap::Subcommand;
use segue_protocol::keyspace_list::KeyspaceList;
use serde::{Deserialize, Serialize};

use super::output::print_report;
use super::store::StoreArgs;
use super::{CommandFailure, runtime};
use crate::operator::keyspace_list::{ListLink, ListedKeyspace};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Show the keyspaces of the list, with their settings and what is there of them.
    List(ListArgs),
    /// Add the tables [[keyspaces]] of a file to the list.
    ///
    /// They are checked as a process with every role would check them, beside those of the list. A process leaves the
    /// settings of roles that it does not have unread.
    Add(AddArgs),
    /// Take a keyspace out of the list.
    ///
    /// Routers finish the requests in progress and refuse others; no partition of it moves any more. Nothing of the keyspace
    /// is deleted: whoever adds it again finds its partitions where they were. Without --yes it changes nothing and prints
    /// the consequences.
    Remove(RemoveArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// File with tables [[keyspaces]] and nothing else; - reads standard input.
    file: PathBuf,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// Name of the keyspace.
    name: String,
    /// Confirm that nobody needs the keyspace. Without this option nothing is changed.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    place: Place,
}

/// Where the list is, and the format of the output.
#[derive(Debug, clap::Args)]
struct Place {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeyspaceReport {
    keyspaces: Vec<ListedKeyspace>,
}

pub(super) fn keyspace(args: &Args) -> Result<(), CommandFailure> {
    let (Act::List(ListArgs { place }) | Act::Add(AddArgs { place, .. }) | Act::Remove(RemoveArgs { place, .. })) =
        &args.act;
    if place.store.keyspace_option().is_some() {
        let text = "segue: --keyspace is for commands about one keyspace; the list is of all";
        return Err(CommandFailure::BadInput(text.to_owned()));
    }
    runtime()?.block_on(async {
        let (store, prefix) = place.store.open()?;
        let link = ListLink { store, prefix };
        match &args.act {
            Act::List(_) => {
                let report = KeyspaceReport { keyspaces: link.all().await? };
                print_report(&report, place.json, |report| in_words(report, &link.prefix))?;
            }
            Act::Add(add) => {
                let outcome = link.add(&add.file.display().to_string(), &read(&add.file)?).await?;
                print_report(&outcome, place.json, |outcome| outcome.text.clone() + "\n")?;
            }
            Act::Remove(remove) => {
                let outcome = link.remove(&remove.name, remove.yes).await?;
                print_report(&outcome, place.json, |outcome| outcome.text.clone() + "\n")?;
            }
        }
        Ok(())
    })
}

fn read(path: &PathBuf) -> Result<String, CommandFailure> {
    let mut text = String::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().read_to_string(&mut text).map(drop),
        false => std::fs::read_to_string(path).map(|read| text = read),
    };
    read.map_err(|error| CommandFailure::BadInput(format!("segue: cannot read {}: {error}", path.display())))?;
    Ok(text)
}

fn in_words(report: &KeyspaceReport, prefix: &str) -> String {
    if report.keyspaces.is_empty() {
        return format!("no keyspace is listed below {}\n", KeyspaceList::new(prefix).key(""));
    }
    let mut text = String::new();
    for keyspace in &report.keyspaces {
        let ListedKeyspace { name, settings, partitions, owned, pods, routers } = keyspace;
        let state = match partitions {
            Some(partitions) => format!("{owned} of {partitions} partitions owned, pods {pods}, routers {routers}"),
            None => "no coordinator has created it yet".to_owned(),
        };
        let _ = writeln!(text, "{name}: {state}\n  {settings}");
    }
    text
}
