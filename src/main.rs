//! The `segue` command: reads its arguments, runs one command, and reports a failure in one line.
//!
//! Exit codes: 0 done, 1 the work failed, 2 bad input, 3 the store is unreachable, 4 still waiting. A sidecar whose
//! supervised service ends exits with the service's code.

#![warn(clippy::too_many_lines)]

use std::process::ExitCode;

use segue::commands::{Cli, CommandFailure};
use segue::process::last_words::{say, say_line};

fn main() -> ExitCode {
    match Cli::read().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandFailure::BadInput(text)) => {
            say(text.trim_end());
            ExitCode::from(2)
        }
        Err(CommandFailure::Work(error)) => {
            say_line(&format!("segue: {error:#}"));
            ExitCode::from(1)
        }
        Err(CommandFailure::Unreachable(error) | CommandFailure::Lost(error)) => {
            say_line(&format!("segue: {error:#}"));
            ExitCode::from(3)
        }
        Err(CommandFailure::Waiting(error)) => {
            say_line(&format!("segue: {error:#}"));
            ExitCode::from(4)
        }
        Err(CommandFailure::Exit(code)) => code,
        Err(CommandFailure::AlreadyReported) => ExitCode::from(1),
    }
}
