//! Reads certificate files, and tells what is wrong with them.
//!
//! Pure: bytes in, certificates or the fault out.
//!
//! # Invariants
//!
//! * A key never appears in a message.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::names::CertificateNames;

/// The purpose of a file, named as the configuration key that names the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    /// Authorities that a client trusts.
    Ca,
    /// Authorities that sign the certificates of a listener's clients.
    ClientCa,
    /// A certificate and its intermediates.
    Cert,
    /// A certificate's key.
    Key,
    /// A further certificate of a listener, and its intermediates.
    OtherCert,
    /// The key of a further certificate.
    OtherKey,
}

impl File {
    /// Returns the last part of the configuration key.
    pub fn key(self) -> &'static str {
        match self {
            File::Ca => "ca",
            File::ClientCa => "client_ca",
            File::Cert => "cert",
            File::Key => "key",
            File::OtherCert | File::OtherKey => "certificates",
        }
    }

    fn expected(self) -> &'static str {
        match self {
            File::Ca | File::ClientCa => "expected certificates of authorities, PEM",
            File::Cert | File::OtherCert => {
                "expected a certificate, and those between it and its authority behind it, PEM"
            }
            File::Key | File::OtherKey => {
                "expected the private key of the certificate, PEM (PKCS #8, PKCS #1 or SEC 1), not encrypted"
            }
        }
    }
}

/// The fault of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}: {fact}; {expected}", file.key(), path.display())]
pub struct TlsError {
    /// The purpose of the file.
    pub file: File,
    /// The path of the file.
    pub path: PathBuf,
    /// The fault, in words.
    pub fact: String,
    /// What was expected of it.
    pub expected: &'static str,
}

impl TlsError {
    pub(super) fn new(file: File, path: &Path, fact: impl Into<String>) -> Self {
        TlsError { file, path: path.to_owned(), fact: fact.into(), expected: file.expected() }
    }

    pub(super) fn unusable(file: File, path: &Path, error: &dyn std::error::Error) -> Self {
        Self::new(file, path, format!("cannot be used: {error}"))
    }
}

/// A certificate with its key.
#[derive(Debug)]
pub(super) struct CertificateIdentity {
    pub(super) certified: CertifiedKey,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) names: CertificateNames,
    pub(super) validity: Validity,
}

/// How long a certificate is valid.
#[derive(Debug, Clone)]
pub struct Validity {
    /// The purpose of the certificate's file.
    pub file: File,
    /// The file.
    pub path: PathBuf,
    /// The end.
    pub not_after: SystemTime,
}

impl Validity {
    /// Returns the end as text, such as `2027-01-31T12:00:00Z`.
    pub fn until(&self) -> String {
        show(self.not_after)
    }
}

impl CertificateIdentity {
    /// Reads a certificate and its key from the contents of their files. `kinds` are the purposes of the two.
    pub(super) fn read(kinds: (File, File), cert: (&Path, &[u8]), key: (&Path, &[u8])) -> Result<Self, TlsError> {
        let chain = certificates(kinds.0, cert.0, cert.1)?;
        let wrong_key = |fact: String| TlsError::new(kinds.1, key.0, fact);
        let key = PrivateKeyDer::from_pem_slice(key.1).map_err(|error| match error {
            rustls::pki_types::pem::Error::NoItemsFound => wrong_key("there is no private key in it".into()),
            error => wrong_key(format!("cannot be read: {error}")),
        })?;
        let leaf = chain.first().and_then(|leaf| Certificate::from_der(leaf).ok());
        let certified = CertifiedKey::from_der(chain, key.clone_key(), &ring::default_provider());
        let certified = certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                wrong_key(format!("it is not the key of the certificate in {}", cert.0.display()))
            }
            rustls::Error::InvalidCertificate(_) => TlsError::unusable(kinds.0, cert.0, &error),
            error => wrong_key(format!("cannot be used: {error}")),
        })?;
        let leaf = leaf.ok_or_else(|| TlsError::new(kinds.0, cert.0, "its end cannot be read"))?;
        let not_after = SystemTime::UNIX_EPOCH + leaf.tbs_certificate.validity.not_after.to_unix_duration();
        let validity = Validity { file: kinds.0, path: cert.0.to_owned(), not_after };
        Ok(CertificateIdentity { certified, key, names: CertificateNames::of(&leaf), validity })
    }

    pub(super) fn unusable(&self, error: &dyn std::error::Error) -> TlsError {
        TlsError::unusable(self.validity.file, &self.validity.path, error)
    }

    /// Returns the fault of a certificate whose names are not its own alone.
    pub(super) fn misnamed(&self, fact: String) -> TlsError {
        let Validity { file, path, .. } = &self.validity;
        TlsError {
            file: *file,
            path: path.clone(),
            fact,
            expected: "expected names of its own, by which clients ask for it",
        }
    }
}

/// Returns a time in the format of certificates.
fn show(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = x509_cert::der::DateTime::from_unix_duration(Duration::from_secs(since.as_secs()));
    time.map_or_else(|_| "a time beyond reckoning".to_owned(), |time| time.to_string())
}

pub(super) fn authorities(file: File, path: &Path, text: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, path, text)? {
        roots.add(certificate).map_err(|error| TlsError::unusable(file, path, &error))?;
    }
    Ok(roots)
}

fn certificates(file: File, path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let read = read.map_err(|error| TlsError::new(file, path, format!("cannot be read: {error}")))?;
    if read.is_empty() {
        return Err(TlsError::new(file, path, "there is no certificate in it"));
    }
    Ok(read)
}
