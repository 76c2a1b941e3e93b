//! A token in a file, which those present who may use an endpoint.
//!
//! # Invariants
//!
//! * The file is read for each comparison, so that a token is replaced by replacing the file.
//! * The comparison takes the same time wherever the tokens differ.

use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq as _;

/// Most bytes of a token's file.
const MAX_TOKEN: u64 = 4096;

/// The file of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    /// Returns the token in this file.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        TokenFile(file.into())
    }

    /// Returns whether this is the token.
    ///
    /// # Errors
    ///
    /// Why the file cannot be used, without its content.
    pub fn is_token(&self, presented: &[u8]) -> Result<bool, String> {
        let file: &Path = &self.0;
        let size = std::fs::metadata(file).map_err(|error| error.to_string())?.len();
        if size > MAX_TOKEN {
            return Err(format!("{size} bytes are no token"));
        }
        let token = std::fs::read(file).map_err(|error| error.to_string())?;
        match token.trim_ascii() {
            [] => Err("the file is empty".to_owned()),
            token => Ok(token.ct_eq(presented.trim_ascii()).into()),
        }
    }
}
