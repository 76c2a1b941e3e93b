//! `segue check`: is a configuration file good?

use std::path::PathBuf;
use std::time::SystemTime;

use super::{Failure, bad, load_with_certificates};

/// Which file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn check(args: &Args) -> Result<(), Failure> {
    let (located, certificates) = load_with_certificates(&args.config)?;
    match certificates.expired(&located, SystemTime::now()) {
        none if none.is_empty() => Ok(()),
        expired => Err(bad(located, expired)),
    }
}
