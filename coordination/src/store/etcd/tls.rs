//! TLS towards etcd: PEM files, read for every connection that is made, so that new ones need no restart.
//!
//! tonic does the rest. Must stay true: files that cannot be used do not cut off a store that was reached before; what was
//! used last is used on.

use std::fs;
use std::path::{Path, PathBuf};

use etcd_client::{Certificate, Identity, TlsOptions};

/// Which certificates etcd is known by, and what it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// The authorities that are trusted, PEM.
    pub ca: PathBuf,
    /// A client's certificate and its key, PEM, for an etcd that wants them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// What the files said.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Material {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdTls {
    /// Blocks as reading three small files does, once for each connection.
    pub(super) fn read(&self) -> Result<Material, String> {
        let read = |path: &Path| fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
        let identity = match &self.identity {
            Some((cert, key)) => Some((read(cert)?, read(key)?)),
            None => None,
        };
        Ok(Material { ca: read(&self.ca)?, identity })
    }
}

impl Material {
    pub(super) fn options(&self) -> TlsOptions {
        let options = TlsOptions::new().ca_certificate(Certificate::from_pem(&self.ca));
        match &self.identity {
            Some((cert, key)) => options.identity(Identity::from_pem(cert, key)),
            None => options,
        }
    }
}
