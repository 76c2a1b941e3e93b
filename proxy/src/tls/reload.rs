//! Configurations that are made of files, and made again when the files change.
//!
//! Contents are compared, not times: a file that was put in place by renaming a folder (as Kubernetes does with
//! secrets) may be older than the one before, and these files are small.
//!
//! # Invariants
//!
//! * The current configuration is always usable.
//! * The same fault is reported once.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::files::{CertificateIdentity, File, TlsError, Validity};

/// Files that make up a configuration together.
pub(super) trait Files: Debug + Send + Sync + 'static {
    /// The configuration; cheap to clone.
    type Config: Clone + Debug + Send + Sync;

    fn paths(&self) -> Vec<(File, PathBuf)>;

    /// Makes the configuration. `contents` are in the order of `paths`.
    fn build(&self, contents: &[Vec<u8>]) -> Result<(Self::Config, Vec<CertificateIdentity>), TlsError>;
}

/// Files that can be checked for changes.
pub trait Material: Debug + Send + Sync {
    /// Reads the files and uses them if they have changed. Blocks.
    fn refresh(&self) -> RefreshOutcome;

    /// Returns how long each certificate in use is valid; nothing if there are only authorities.
    fn validities(&self) -> Vec<Validity>;

    /// Returns the one that expires first.
    fn expires_first(&self) -> Option<Validity> {
        self.validities().into_iter().min_by_key(|validity| validity.not_after)
    }
}

/// The result of checking the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// The contents have not changed, good or bad.
    Same,
    /// The contents have changed and are used for new connections from now on.
    Replaced,
    /// The contents have changed and are not usable. The previous configuration stays in use.
    Refused(TlsError),
}

#[derive(Debug)]
pub(super) struct ReloadedFiles<F: Files> {
    files: F,
    current: RwLock<CurrentConfig<F::Config>>,
    seen: Mutex<LastRead>,
}

#[derive(Debug)]
struct CurrentConfig<C> {
    config: C,
    validities: Vec<Validity>,
}

impl<C> CurrentConfig<C> {
    fn new((config, identities): (C, Vec<CertificateIdentity>)) -> Self {
        CurrentConfig { config, validities: identities.into_iter().map(|identity| identity.validity).collect() }
    }
}

/// The result of the last read, to tell whether the next one differs.
struct LastRead(Result<Vec<Vec<u8>>, TlsError>);

impl Debug for LastRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // One of them is a key.
        f.debug_tuple("Seen").field(&self.0.as_ref().map(Vec::len)).finish()
    }
}

impl<F: Files> ReloadedFiles<F> {
    pub(super) fn load(files: F) -> Result<Self, TlsError> {
        let contents = read(&files)?;
        let current = RwLock::new(CurrentConfig::new(files.build(&contents)?));
        Ok(ReloadedFiles { files, current, seen: Mutex::new(LastRead(Ok(contents))) })
    }

    pub(super) fn files(&self) -> &F {
        &self.files
    }

    pub(super) fn current(&self) -> F::Config {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    fn seen(&self) -> MutexGuard<'_, LastRead> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Files> Material for ReloadedFiles<F> {
    fn refresh(&self) -> RefreshOutcome {
        let mut seen = self.seen();
        let found = read(&self.files);
        if found == seen.0 {
            return RefreshOutcome::Same;
        }
        seen.0 = found;
        let built = seen.0.as_ref().map_err(Clone::clone).and_then(|contents| self.files.build(contents));
        match built {
            Ok(built) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = CurrentConfig::new(built);
                RefreshOutcome::Replaced
            }
            Err(error) => RefreshOutcome::Refused(error),
        }
    }

    fn validities(&self) -> Vec<Validity> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).validities.clone()
    }
}

fn read(files: &impl Files) -> Result<Vec<Vec<u8>>, TlsError> {
    let read = |(file, path): (File, PathBuf)| {
        std::fs::read(&path).map_err(|error| TlsError::new(file, &path, format!("cannot be read: {error}")))
    };
    files.paths().into_iter().map(read).collect()
}
