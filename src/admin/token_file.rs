//! A token in a file, which those present who may use an endpoint.
//!
//! # Invariants
//!
//! * The file is read for each comparison, so that a token is replaced by replacing the file.
//! * The comparison takes the same time wherever the tokens differ.

use std::path::{Path, PathBuf};

use segue_config::{AdminWrite, Config, LocatedConfig, Problem};
use subtle::ConstantTimeEq as _;

/// Most bytes of a token's file.
const MAX_TOKEN: u64 = 4096;

/// The file of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenFile(PathBuf);

impl TokenFile {
    /// Returns the token in this file.
    pub(crate) fn new(file: impl Into<PathBuf>) -> Self {
        TokenFile(file.into())
    }

    /// Returns whether this is the token.
    ///
    /// # Errors
    ///
    /// Why the file cannot be used, without its content.
    pub(crate) fn is_token(&self, presented: &[u8]) -> Result<bool, String> {
        Ok(self.read()?.trim_ascii().ct_eq(presented.trim_ascii()).into())
    }

    /// Returns the token and what surrounds it.
    fn read(&self) -> Result<Vec<u8>, String> {
        let file: &Path = &self.0;
        let size = std::fs::metadata(file).map_err(|error| error.to_string())?.len();
        if size > MAX_TOKEN {
            return Err(format!("{size} bytes are no token"));
        }
        let token = std::fs::read(file).map_err(|error| error.to_string())?;
        if token.trim_ascii().is_empty() { Err("the file is empty".to_owned()) } else { Ok(token) }
    }
}

/// Returns a problem for each file of a token that cannot be used now, at the place in the configuration that names it.
pub(crate) fn problems(located: &LocatedConfig) -> Vec<Problem> {
    let Config { admin, coordinator, .. } = &located.config;
    let admin = admin.as_ref().and_then(|admin| match &admin.write {
        AdminWrite::Token(file) => Some(("admin.token_file", file)),
        AdminWrite::ClientCert | AdminWrite::None => None,
    });
    let coordinator = coordinator.as_ref().and_then(|coordinator| coordinator.token_file.as_ref());
    let files = admin.into_iter().chain(coordinator.map(|file| ("coordinator.token_file", file)));
    files
        .filter_map(|(key, file)| {
            let why = TokenFile::new(file).read().err()?;
            let fact = format!("{} cannot be used: {why}", file.display());
            Some(located.problem(key, fact, "expected a file with a token"))
        })
        .collect()
}
