//! The token with which a pod resumes its registration at any instance.
//!
//! The registration's record holds a digest of the token's secret, so an instance can check a token that it did not
//! issue, and readers of the store cannot forge one.

use std::time::Duration;

use ring::digest::{SHA256, digest};
use segue_protocol::ids::{Incarnation, LeaseId, Revision};
use serde::{Deserialize, Serialize};
use tonic::Status;

/// The token that a pod presents to resume its registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) pod: String,
    incarnation: u64,
    lease: i64,
    ttl_s: u64,
    secret: String,
}

/// A new secret, and its digest for the pod's record.
pub(crate) struct Secret {
    secret: String,
    pub(crate) digest: String,
}

impl Secret {
    pub(crate) fn new() -> Self {
        let secret = hex(&rand::random::<[u8; 16]>());
        let digest = digest_of(&secret);
        Secret { secret, digest }
    }

    pub(crate) fn token(self, pod: &str, incarnation: Incarnation, lease: LeaseId, ttl: Duration) -> Token {
        Token {
            pod: pod.to_owned(),
            incarnation: incarnation.get(),
            lease: lease.get(),
            ttl_s: ttl.as_secs(),
            secret: self.secret,
        }
    }
}

impl Token {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Status> {
        serde_json::from_slice(bytes)
            .map_err(|_| Status::invalid_argument("`resume` is not a token: expected the bytes of Welcome.resume"))
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // A struct of strings and numbers serialises.
        serde_json::to_vec(self).expect("a token serialises")
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation::registered_at(Revision::new(self.incarnation))
    }

    pub(crate) fn lease(&self) -> LeaseId {
        LeaseId::new(self.lease)
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_s)
    }

    /// Checks the secret against the digest of the record.
    pub(crate) fn proves(&self, digest: Option<&str>) -> Result<(), Status> {
        match digest {
            Some(digest) if digest == digest_of(&self.secret) => Ok(()),
            _ => Err(Status::permission_denied(format!("`resume` is not the token of pod {}", self.pod))),
        }
    }
}

fn digest_of(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
