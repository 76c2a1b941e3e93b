//! `segue wanted`: writes the owners that the strategy `external` follows.

use std::io::Read as _;
use std::path::PathBuf;

use super::{CommandFailure, OperationArgs, act};
use crate::operator::{Action, GivenOwners};

/// The wanted owners.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct WantedArgs {
    /// File with the wanted owners as JSON: {"generation":41,"owners":{"0":"writer-1"}}; - reads standard input.
    file: PathBuf,
    #[command(flatten)]
    asked: OperationArgs,
}

pub(in crate::commands) fn wanted(args: &WantedArgs) -> Result<(), CommandFailure> {
    let path = args.file.display();
    let mut text = Vec::new();
    let read = match args.file.as_os_str() == "-" {
        true => std::io::stdin().read_to_end(&mut text).map(drop),
        false => std::fs::read(&args.file).map(|read| text = read),
    };
    read.map_err(|error| CommandFailure::BadInput(format!("segue: cannot read {path}: {error}")))?;
    let given: GivenOwners = serde_json::from_slice(&text).map_err(|error| {
        let expected = r#"{"generation":41,"owners":{"0":"writer-1"}}"#;
        CommandFailure::BadInput(format!("segue: {path}: {error}; expected wanted owners, such as {expected}"))
    })?;
    act(Action::Want(given.into()), &args.asked)
}
