//! The certificates of a listener, of which a client is shown the one of the name that it asks for (SNI, RFC 6066).
//!
//! # Invariants
//!
//! * A client that asks for no name, or for one that no certificate has, is shown the first certificate.
//! * No two certificates have the same name, so the order of the others decides nothing.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::files::{CertificateIdentity, TlsError};
use super::names::CertificateNames;

/// The certificates, by the names that are in them.
#[derive(Debug)]
pub(super) struct CertificatesByName {
    first: Arc<ShownCertificate>,
    /// A wildcard stands under `*.` and the rest of it.
    others: HashMap<String, Arc<ShownCertificate>>,
}

#[derive(Debug)]
struct ShownCertificate {
    certified: Arc<CertifiedKey>,
    names: CertificateNames,
}

impl CertificatesByName {
    /// Fails if one of `others` has no name by which a client could ask for it, or one that a certificate before it has.
    pub(super) fn new(first: &CertificateIdentity, others: &[CertificateIdentity]) -> Result<Self, TlsError> {
        let shown = |identity: &CertificateIdentity| {
            let certified = Arc::new(identity.certified.clone());
            Arc::new(ShownCertificate { certified, names: identity.names.clone() })
        };
        let mut owners: HashMap<&str, &CertificateIdentity> = HashMap::new();
        owners.extend(first.names.dns.iter().map(|name| (name.as_str(), first)));
        let mut by_name = HashMap::new();
        for identity in others {
            if identity.names.dns.is_empty() {
                return Err(identity.misnamed("it names no host in its subjectAltName".to_owned()));
            }
            let shown = shown(identity);
            for name in &identity.names.dns {
                match owners.insert(name, identity) {
                    Some(owner) if !std::ptr::eq(owner, identity) => {
                        let path = owner.validity.path.display();
                        return Err(identity.misnamed(format!("it names {name:?}, as {path} does")));
                    }
                    _ => by_name.insert(name.clone(), shown.clone()),
                };
            }
        }
        let first_shown = shown(first);
        by_name.extend(first.names.dns.iter().map(|name| (name.clone(), first_shown.clone())));
        Ok(CertificatesByName { first: first_shown, others: by_name })
    }

    /// Returns the names in the certificate that a client is shown who asks for this name.
    pub(super) fn names(&self, asked: Option<&str>) -> &CertificateNames {
        &self.shown(asked).names
    }

    /// `asked` is in lower case.
    fn shown(&self, asked: Option<&str>) -> &ShownCertificate {
        let found = asked.and_then(|name| {
            // A wildcard stands for one label (RFC 9525, 6.3).
            let wildcard = || self.others.get(&format!("*.{}", name.split_once('.')?.1));
            self.others.get(name).or_else(wildcard)
        });
        found.unwrap_or(&self.first)
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown(client.server_name()).certified.clone())
    }
}
