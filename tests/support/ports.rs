//! Free ports on loopback for processes that a test starts.
//!
//! A port is below those that the kernel gives to outgoing connections and to `bind` of port 0. So no connection takes
//! it before its process has started, or while that process restarts. Nothing is bound here.
//!
//! # Invariants
//!
//! * Two test processes, and two tests of one, never get the same port.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::ErrorKind::ConnectionRefused;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

const FIRST_PORT: u16 = 10_000;
const MIN_PORTS: u16 = 1_000;
/// Linux's own default for the first port of outgoing connections.
const FIRST_EPHEMERAL_PORT: u16 = 32_768;

/// The locked files that keep this process's ports its own. The kernel unlocks them when the process ends.
static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());
static PORTS: LazyLock<Range<u16>> = LazyLock::new(|| {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ephemeral = range.split_ascii_whitespace().next().and_then(|first| first.parse().ok());
    let end = ephemeral.filter(|first| *first >= FIRST_PORT + MIN_PORTS).unwrap_or(FIRST_EPHEMERAL_PORT);
    FIRST_PORT..end
});
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join("segue-test-ports");
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("cannot create {}: {error}", folder.display()));
    folder
});

/// Returns a port on which no process listens. It stays reserved for this process until the process ends.
///
/// # Panics
/// When the temporary folder cannot be written.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// Returns the first of so many successive ports, each as that of [`free_port`].
///
/// # Panics
/// As [`free_port`].
pub fn free_ports(count: u16) -> u16 {
    loop {
        let first = PORTS.start + (random() % u64::from(PORTS.end - count - PORTS.start)) as u16;
        let reserved: Option<Vec<File>> = (first..first + count).map(reserved).collect();
        if let Some(reserved) = reserved {
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).extend(reserved);
            return first;
        }
    }
}

/// Returns what reserves this port, unless another process has it.
fn reserved(port: u16) -> Option<File> {
    let path = FOLDER.join(port.to_string());
    let file = File::create(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
    (file.try_lock().is_ok() && nobody_listens(port)).then_some(file)
}

/// Returns whether connections to this port are refused.
///
/// To bind it would tell as well. But a process that another thread starts meanwhile inherits the listener, and the
/// port would stay taken until that process runs its own program.
fn nobody_listens(port: u16) -> bool {
    let connected = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), Duration::from_secs(1));
    matches!(connected, Err(error) if error.kind() == ConnectionRefused)
}

/// Returns [`free_port`] on loopback.
///
/// # Panics
/// As [`free_port`].
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    use super::*;

    #[test]
    fn a_port_stays_free_while_other_threads_start_processes() {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        Command::new("true").status().expect("true is a program");
                    }
                });
            }
            let failed = (0..200).find_map(|_| TcpListener::bind(free_address()).err());
            done.store(true, Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!nobody_listens(listener.local_addr().unwrap().port()));
    }
}
