//! The token with which a pod resumes its registration at any instance.
//!
//! The registration's record holds a digest of the token, so an instance can check a token that it did not issue, and
//! readers of the store cannot make one.
//!
//! # Invariants
//!
//! * The digest covers the secret and whatever else the record does not show, the lease and its TTL: a pod cannot name
//!   the lease of another.

use std::time::Duration;

use ring::digest::{SHA256, digest};
use segue_protocol::ids::{Incarnation, LeaseId, Revision};
use serde::{Deserialize, Serialize};
use tonic::Status;

/// The longest TTL of a lease.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(3600);

/// The credential with which a pod continues its registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    /// Absent from the tokens of instances that had one keyspace.
    #[serde(default)]
    pub(crate) keyspace: String,
    pub(crate) pod: String,
    incarnation: u64,
    lease: i64,
    ttl_s: u64,
    secret: String,
}

/// A new token's secret with the lease that it is for, and the digest that the record shows.
pub(crate) struct Secret {
    secret: String,
    lease: i64,
    ttl_s: u64,
    pub(crate) digest: String,
}

impl Secret {
    pub(crate) fn new(lease: LeaseId, ttl: Duration) -> Self {
        let secret = hex(&rand::random::<[u8; 16]>());
        let (lease, ttl_s) = (lease.get(), ttl.as_secs());
        let digest = digest_of(&secret, lease, ttl_s);
        Secret { secret, lease, ttl_s, digest }
    }

    pub(crate) fn token(self, (keyspace, pod): (&str, &str), incarnation: Incarnation) -> Token {
        let Secret { secret, lease, ttl_s, .. } = self;
        let (keyspace, pod) = (keyspace.to_owned(), pod.to_owned());
        Token { keyspace, pod, incarnation: incarnation.get(), lease, ttl_s, secret }
    }
}

impl Token {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Status> {
        serde_json::from_slice::<Token>(bytes)
            .ok()
            .filter(|token| token.ttl() <= MAX_TTL)
            .ok_or_else(|| Status::invalid_argument("`resume` is not a token: expected the bytes of Welcome.resume"))
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

    /// Checks the token against the digest of the record.
    pub(crate) fn proves(&self, digest: &str) -> Result<(), Status> {
        if digest == digest_of(&self.secret, self.lease, self.ttl_s) {
            return Ok(());
        }
        Err(Status::permission_denied(format!("`resume` is not the token of pod {}", self.pod)))
    }
}

fn digest_of(secret: &str, lease: i64, ttl_s: u64) -> String {
    hex(digest(&SHA256, format!("{lease}/{ttl_s}/{secret}").as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
