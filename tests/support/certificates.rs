//! Certificates for tests: an authority that lives as long as the test, and what it issues, as PEM files in a folder.
//!
//! Made out to `localhost`, 127.0.0.1 and their own name, for servers and for clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use rcgen::DnType;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};

/// Somebody who issues certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
    /// Its own certificate.
    pub file: PathBuf,
}

/// The files of a certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority that writes its files to `folder`.
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let file = folder.join(format!("{name}.ca.pem"));
        fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), folder: folder.to_owned(), file }
    }

    /// A certificate that is valid for an hour; of the same name as an earlier one, it takes its place.
    pub fn issue(&self, name: &str) -> Issued {
        self.issue_until(name, SystemTime::now() + Duration::from_secs(3600))
    }

    /// A certificate of these names alone, by DNS or, if they have a colon, by URI. `subject` are further parts of its subject.
    pub fn issue_for(&self, file: &str, names: &[&str], subject: &[(DnType, &str)]) -> Issued {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names
            .iter()
            .map(|name| match name.contains(':') {
                true => SanType::URI((*name).try_into().unwrap()),
                false => SanType::DnsName((*name).try_into().unwrap()),
            })
            .collect();
        params.distinguished_name = DistinguishedName::new();
        subject.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
        self.sign(file, params, SystemTime::now() + Duration::from_secs(3600))
    }

    /// A certificate that was valid until a minute ago.
    pub fn issue_expired(&self, name: &str) -> Issued {
        self.issue_until(name, SystemTime::now() - Duration::from_secs(60))
    }

    fn issue_until(&self, name: &str, end: SystemTime) -> Issued {
        self.sign(name, params(name), end)
    }

    fn sign(&self, name: &str, mut params: CertificateParams, end: SystemTime) -> Issued {
        params.not_before = (end - Duration::from_secs(7200)).into();
        params.not_after = end.into();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |kind: &str| self.folder.join(format!("{name}.{kind}.pem"));
        let issued = Issued { cert: file("cert"), key: file("key") };
        fs::write(&issued.cert, certificate.pem()).unwrap();
        fs::write(&issued.key, key.serialize_pem()).unwrap();
        issued
    }
}

fn params(name: &str) -> CertificateParams {
    let names = ["localhost", "127.0.0.1", name].map(str::to_owned);
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
