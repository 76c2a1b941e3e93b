//! Errors that say that the router itself has run out of something.
//!
//! A connection to a pod that fails with one says nothing of the pod: its partitions stay open and its health as it was.

use std::io;

use rustix::io::Errno;

/// Whether the process or the machine has no files, ports or memory left for one more socket.
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
