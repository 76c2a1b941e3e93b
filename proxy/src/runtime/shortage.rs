//! Errors that mean that the router itself lacks a resource.
//!
//! A connection to a pod that fails with one says nothing about the pod: its partitions stay open and its health is
//! unchanged.

use std::io;

use rustix::io::Errno;

/// Returns whether the process or the machine lacks files, ports or memory for another socket.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS | Errno::NOMEM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_refusal_is_no_shortage() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL] {
            assert!(is_shortage(&errno.into()), "{errno}");
        }
        for errno in [Errno::CONNREFUSED, Errno::CONNRESET, Errno::TIMEDOUT, Errno::HOSTUNREACH] {
            assert!(!is_shortage(&errno.into()), "{errno}");
        }
        assert!(!is_shortage(&io::ErrorKind::TimedOut.into()));
    }
}
