//! Progress on standard error: a single line that is rewritten on a terminal, occasional lines elsewhere. A short wait
//! prints nothing.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::operator::WaitProgress;
use crate::process::printable::on_one_line;

/// Shortest time between two lines of progress.
const LINE_INTERVAL: Duration = Duration::from_millis(500);
/// How long a command waits before it prints what it waits for.
const FIRST_LINE_AFTER: Duration = Duration::from_millis(200);

/// Shows what the work waits for, until it is done.
pub(super) async fn shown<T>(work: impl AsyncFnOnce(&WaitProgress) -> T) -> T {
    let (said, saying) = watch::channel(String::new());
    let done = tokio::select! {
        done = work(&said) => done,
        never = show(saying) => match never {},
    };
    let mut out = std::io::stderr().lock();
    if out.is_terminal() {
        // A command does not fail because its progress cannot be printed.
        let _ = write!(out, "\r\x1b[K");
    }
    done
}

async fn show(mut saying: watch::Receiver<String>) -> Infallible {
    let (mut due, mut last) = (Instant::now() + FIRST_LINE_AFTER, String::new());
    loop {
        if saying.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        sleep_until(due).await;
        let text = on_one_line(&saying.borrow_and_update());
        if text != last {
            let mut out = std::io::stderr().lock();
            let _ = if out.is_terminal() { write!(out, "\r\x1b[K{text}") } else { writeln!(out, "{text}") };
            let _ = out.flush();
            (due, last) = (Instant::now() + LINE_INTERVAL, text);
        }
    }
}
