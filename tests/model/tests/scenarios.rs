//! The model's searches as part of the test run: the quick ones in debug builds, the usual suite with `--release`.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let quick = cfg!(debug_assertions).then_some("--quick");
    let model = env!("CARGO_BIN_EXE_segue-model");
    let status = Command::new(model).arg("check").args(quick).status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
