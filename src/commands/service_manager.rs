//! Tells the service manager, such as systemd, when a process serves and when it ends.
//!
//! `segue restart` waits for its successor in the manager's place. The successor reports to a socket of that command,
//! and keeps the manager's own socket for its end.

use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;

use sd_notify::NotifyState;
use tracing::info;

/// The variable by which `segue restart` names its socket to the process that it starts.
pub(super) const REPORT_SOCKET: &str = "SEGUE_REPORT_SOCKET";

/// Returns whether `segue restart` has started this process.
pub(super) fn is_successor() -> bool {
    std::env::var_os(REPORT_SOCKET).is_some()
}

/// Tells that this process serves: `segue restart` if that has started it, the manager otherwise.
pub(super) fn serves() {
    match std::env::var_os(REPORT_SOCKET) {
        Some(path) => report(&path),
        None => notify(&NotifyState::Ready),
    }
}

/// Tells the manager that this process ends.
pub(super) fn ends() {
    notify(&NotifyState::Stopping);
}

fn report(path: &OsStr) {
    let sent =
        UnixDatagram::unbound().and_then(|socket| socket.send_to(NotifyState::Ready.to_string().as_bytes(), path));
    if let Err(error) = sent {
        info!(%error, "`segue restart` does not wait any more");
    }
}

fn notify(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        info!(%error, "the service manager cannot be notified");
    }
}
