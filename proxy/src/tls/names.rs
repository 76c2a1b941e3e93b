//! The names in a certificate, and the header by which a pod learns whose certificate a client has shown: Envoy's
//! `x-forwarded-client-cert`.
//!
//! Pure. Not here: whether a certificate is trusted (rustls decides), and what becomes of a client's own header of that name.
//!
//! # Invariants
//!
//! * Whatever stands in a certificate stays within its own field of the header: it ends no field, and begins no other.
//! * The header is ASCII.

use std::fmt::{self, Write as _};

use http::HeaderValue;
use rustls::SupportedCipherSuite;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The alternative names of a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CertificateNames {
    /// In lower case, as a server is asked for them.
    pub(super) dns: Vec<String>,
    pub(super) uris: Vec<String>,
}

impl CertificateNames {
    pub(super) fn of(certificate: &Certificate) -> Self {
        let names = certificate.tbs_certificate.get::<SubjectAltName>().ok().flatten().map(|(_, names)| names.0);
        let mut found = CertificateNames::default();
        for name in names.into_iter().flatten() {
            match name {
                GeneralName::DnsName(name) => found.dns.push(name.as_str().to_ascii_lowercase()),
                GeneralName::UniformResourceIdentifier(uri) => found.uris.push(uri.as_str().to_owned()),
                _ => {}
            }
        }
        found
    }
}

/// Returns what the header says of a client with this certificate: who was asked for it (the URIs in the server's own
/// certificate), its SHA-256, its subject, its URIs and its DNS names.
pub(super) fn describe_client(client: &CertificateDer<'_>, server: &CertificateNames) -> Option<HeaderValue> {
    let mut text = String::new();
    write(&mut text, client, server).ok()?;
    HeaderValue::try_from(text).ok()
}

fn write(out: &mut String, client: &CertificateDer<'_>, server: &CertificateNames) -> fmt::Result {
    for uri in &server.uris {
        write!(out, "By={};", Field(uri))?;
    }
    out.write_str("Hash=")?;
    sha256(client).iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
    // rustls has verified it, and reads less of it. One that cannot be read in full is known by its hash alone.
    let Ok(certificate) = Certificate::from_der(client) else { return Ok(()) };
    write!(out, ";Subject=\"{}\"", Subject(&certificate.tbs_certificate.subject.to_string()))?;
    let names = CertificateNames::of(&certificate);
    names.uris.iter().try_for_each(|uri| write!(out, ";URI={}", Field(uri)))?;
    names.dns.iter().try_for_each(|name| write!(out, ";DNS={}", Field(name)))
}

/// Returns the digest by the library that TLS uses already.
fn sha256(bytes: &[u8]) -> Vec<u8> {
    match TLS13_AES_128_GCM_SHA256 {
        SupportedCipherSuite::Tls13(suite) => suite.common.hash_provider.hash(bytes).as_ref().to_vec(),
        _ => Vec::new(),
    }
}

/// A value, in quotes if it has a character that would end it. What cannot stand in a URI is percent-encoded.
struct Field<'a>(&'a str);

impl fmt::Display for Field<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains([',', ';', '=']) { "\"" } else { "" };
        out.write_str(quote)?;
        for byte in self.0.bytes() {
            match byte {
                b'"' | b'\\' => write!(out, "%{byte:02X}")?,
                _ if byte.is_ascii_graphic() => out.write_char(char::from(byte))?,
                _ => write!(out, "%{byte:02X}")?,
            }
        }
        out.write_str(quote)
    }
}

/// A subject as RFC 4514 writes it. Of the forms that it has for a character, quotes and backslashes get their numbers, so
/// that no reader takes them for the end of the value, and so does whatever is not ASCII, as in Envoy.
struct Subject<'a>(&'a str);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut characters = self.0.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some(escaped @ ('"' | '\\')) => write!(out, "\\{:02X}", escaped as u32)?,
                    Some(escaped @ ' '..='~') => write!(out, "\\{escaped}")?,
                    Some(other) => write_bytes(out, other)?,
                    None => {}
                },
                '"' => out.write_str("\\22")?,
                ' '..='~' => out.write_char(character)?,
                other => write_bytes(out, other)?,
            }
        }
        Ok(())
    }
}

fn write_bytes(out: &mut fmt::Formatter<'_>, character: char) -> fmt::Result {
    character.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(out, "\\{byte:02X}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_that_could_end_its_field_is_in_quotes() {
        for (value, expected) in [
            ("spiffe://site/ns/a", "spiffe://site/ns/a"),
            ("urn:a;b", "\"urn:a;b\""),
            ("http://a/?x=1,2", "\"http://a/?x=1,2\""),
            ("a\";Hash=0", "\"a%22;Hash=0\""),
            ("a\\", "a%5C"),
            ("a b\r\nc", "a%20b%0D%0Ac"),
            ("jörg", "j%C3%B6rg"),
        ] {
            assert_eq!(Field(value).to_string(), expected);
        }
    }

    #[test]
    fn a_subject_is_ascii_and_has_no_quote() {
        for (written, expected) in [
            ("CN=a,O=b c", "CN=a,O=b c"),
            (r#"CN=a\"\,O=b"#, r"CN=a\22\,O=b"),
            (r"CN=a\\", r"CN=a\5C"),
            ("CN=jörg", r"CN=j\C3\B6rg"),
            (r"CN=a\0a", r"CN=a\0a"),
        ] {
            assert_eq!(Subject(written).to_string(), expected);
        }
    }

    proptest! {
        #[test]
        fn no_value_leaves_its_field(value: String) {
            let field = Field(&value).to_string();
            let inner = field.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            prop_assert!(inner.is_some() || !field.contains([',', ';', '=']));
            prop_assert!(!inner.unwrap_or(&field).contains(['"', '\\']));
            let subject = Subject(&value).to_string();
            prop_assert!(!subject.contains('"') && !subject.ends_with('\\'));
            prop_assert!(HeaderValue::try_from(field + &subject).is_ok());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let described = describe_client(&CertificateDer::from(bytes), &CertificateNames::default());
            prop_assert!(described.is_some_and(|value| value.as_bytes().starts_with(b"Hash=")));
        }
    }
}
