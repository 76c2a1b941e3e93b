//! `segue completions` and `segue man`: what shells and `man` read about the command line.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, CommandFailure};

/// The shell.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// Shell that reads the completions.
    shell: Shell,
}

/// Prints the completions for a shell.
pub(super) fn completions(args: &CompletionsArgs) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "segue", &mut script);
    std::io::stdout().write_all(&script).context("cannot write the completions")?;
    Ok(())
}

/// Where the pages go.
#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Folder that gets a page for `segue` and for each of its commands. It is created if it does not exist.
    folder: PathBuf,
}

/// Writes the manual pages.
pub(super) fn man(args: &ManArgs) -> Result<(), CommandFailure> {
    std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.folder))
        .with_context(|| format!("cannot write manual pages into {}", args.folder.display()))?;
    Ok(())
}
