//! The models as part of the test run.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    match Command::new(env!("CARGO_BIN_EXE_segue-loom")).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
