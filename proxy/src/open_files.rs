//! The limit of open files: every connection is one, on each of its sides.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one: the soft one protects programs that cannot handle descriptors above 1,024.
/// Returns how many files may be open.
pub fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = FOUND.set(limit.current);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "cannot raise the limit on open files");
        }
    }
    files(getrlimit(Resource::Nofile).current)
}

/// Returns the soft limit that this process was started with, for the programs that it starts. `None` if that was
/// unlimited or [`raise_limit`] was never called.
pub fn found() -> Option<u64> {
    FOUND.get().copied().flatten()
}

/// Returns to how many files [`raise_limit`] can raise the limit.
pub fn most() -> usize {
    files(getrlimit(Resource::Nofile).maximum)
}

static FOUND: OnceLock<Option<u64>> = OnceLock::new();

fn files(limit: Option<u64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}
