//! TLS towards etcd: PEM files, read for every new connection, so that renewed files need no restart.
//!
//! tonic does the rest.
//!
//! # Invariants
//!
//! * Unusable files do not cut off a store that was reached before: the last usable ones stay in use.

use std::fs;
use std::path::{Path, PathBuf};

use etcd_client::{Certificate, Identity, TlsOptions};

use super::super::StoreFailure;

/// The certificate files for etcd's identity and the client's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// The trusted authorities, PEM.
    pub ca: PathBuf,
    /// The client's certificate, for an etcd that requires one.
    pub identity: Option<ClientIdentity>,
}

/// A client certificate for etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate with its chain, PEM.
    pub cert: PathBuf,
    /// The certificate's private key, PEM.
    pub key: PathBuf,
}

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TlsFiles {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdTls {
    /// Reads the files. Blocks for as long as three small files take, once for each connection.
    pub(super) fn read(&self) -> Result<TlsFiles, StoreFailure> {
        let read = |path: &Path| fs::read(path).map_err(|error| StoreFailure::unreadable(path, error));
        let identity = match &self.identity {
            Some(ClientIdentity { cert, key }) => Some((read(cert)?, read(key)?)),
            None => None,
        };
        Ok(TlsFiles { ca: read(&self.ca)?, identity })
    }
}

impl TlsFiles {
    pub(super) fn options(&self) -> TlsOptions {
        let options = TlsOptions::new().ca_certificate(Certificate::from_pem(&self.ca));
        match &self.identity {
            Some((cert, key)) => options.identity(Identity::from_pem(cert, key)),
            None => options,
        }
    }
}
