//! The token that the coordinators require.

use std::path::PathBuf;

use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// Presents the token of a file with each call. The file is read anew, because it may have been replaced.
#[derive(Debug, Clone)]
pub(crate) struct Token(pub(crate) Option<PathBuf>);

impl Interceptor for Token {
    fn call(&mut self, mut call: Request<()>) -> Result<Request<()>, Status> {
        if let Some(file) = &self.0 {
            let unreadable = |error: &dyn std::fmt::Display| Status::unauthenticated(format!("--token-file: {error}"));
            let token = std::fs::read_to_string(file).map_err(|error| unreadable(&error))?;
            let value = MetadataValue::try_from(format!("Bearer {}", token.trim()));
            call.metadata_mut().insert("authorization", value.map_err(|error| unreadable(&error))?);
        }
        Ok(call)
    }
}
