//! `segue check`: is a configuration file good?

use std::path::PathBuf;

use super::{Failure, load};

/// Which file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn check(args: &Args) -> Result<(), Failure> {
    load(&args.config).map(drop)
}
