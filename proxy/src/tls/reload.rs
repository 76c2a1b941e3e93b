//! What was made of files, and is made again when they change.
//!
//! The contents are compared, not the times: a file that was put in place by renaming a folder (as Kubernetes does with
//! secrets) may be older than the one before, and these files are small. What must stay true: the current configuration
//! is always a good one; the same fault is told once.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use super::files::{File, Identity, TlsError, show};

/// Files that make a configuration together.
pub(super) trait Files: Debug + Send + Sync + 'static {
    /// What is made of them; cheap to clone.
    type Config: Clone + Debug + Send + Sync;

    fn paths(&self) -> Vec<(File, PathBuf)>;

    /// `contents` are in the order of `paths`.
    fn build(&self, contents: &[Vec<u8>]) -> Result<(Self::Config, Option<Identity>), TlsError>;
}

/// Something that can be looked at again.
pub trait Material: Debug + Send + Sync {
    /// Reads the files. Blocks as reading does.
    fn refresh(&self) -> Refreshed;

    /// Until when the certificate that is in use is valid; `None` if there is none, only authorities.
    fn not_after(&self) -> Option<SystemTime>;

    /// The same as text, such as `2027-01-31T12:00:00Z`.
    fn valid_until(&self) -> Option<String> {
        self.not_after().map(show)
    }
}

/// What a look at the files found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refreshed {
    /// What was there before, good or bad.
    Same,
    /// Something new, which is in use from now on for new connections.
    Replaced,
    /// Something that is no good. What was in use stays so.
    Refused(TlsError),
}

#[derive(Debug)]
pub(super) struct Reloaded<F: Files> {
    files: F,
    current: RwLock<Current<F::Config>>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Current<C> {
    config: C,
    not_after: Option<SystemTime>,
}

/// What the last look found, to tell whether the next one finds anything new.
struct Seen(Result<Vec<Vec<u8>>, TlsError>);

impl Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // There is a key among them.
        f.debug_tuple("Seen").field(&self.0.as_ref().map(Vec::len)).finish()
    }
}

impl<F: Files> Reloaded<F> {
    pub(super) fn load(files: F) -> Result<Self, TlsError> {
        let contents = read(&files)?;
        let (config, identity) = files.build(&contents)?;
        let not_after = identity.map(|identity| identity.not_after);
        Ok(Reloaded {
            files,
            current: RwLock::new(Current { config, not_after }),
            seen: Mutex::new(Seen(Ok(contents))),
        })
    }

    pub(super) fn files(&self) -> &F {
        &self.files
    }

    pub(super) fn current(&self) -> F::Config {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Files> Material for Reloaded<F> {
    fn refresh(&self) -> Refreshed {
        let mut seen = self.seen();
        let found = read(&self.files);
        if found == seen.0 {
            return Refreshed::Same;
        }
        seen.0 = found;
        let built = seen.0.as_ref().map_err(Clone::clone).and_then(|contents| self.files.build(contents));
        match built {
            Ok((config, identity)) => {
                let not_after = identity.map(|identity| identity.not_after);
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Current { config, not_after };
                Refreshed::Replaced
            }
            Err(error) => Refreshed::Refused(error),
        }
    }

    fn not_after(&self) -> Option<SystemTime> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).not_after
    }
}

fn read(files: &impl Files) -> Result<Vec<Vec<u8>>, TlsError> {
    let read = |(file, path): (File, PathBuf)| {
        std::fs::read(&path).map_err(|error| TlsError::new(file, &path, format!("cannot be read: {error}")))
    };
    files.paths().into_iter().map(read).collect()
}
