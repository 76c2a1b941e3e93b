//! The token with which a pod resumes its registration at any instance.
//!
//! The registration's record holds a digest of the token, so an instance can check a token that it did not issue, and
//! readers of the store cannot make one.
//!
//! # Invariants
//!
//! * The digest covers the secret and whatever else the record does not show, the lease, its TTL and the floor of epochs: a
//!   pod cannot name the lease of another, nor outlive a store that went back.

use std::time::Duration;

use ring::digest::{SHA256, digest};
use segue_protocol::ids::{Epoch, Incarnation, LeaseId, Revision};
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
    /// The floor of epochs under which this life began. A token of an instance that did not know of floors has none, and its
    /// life ends where the floor was ever raised: nobody can say whether it began before.
    #[serde(default)]
    floor: Epoch,
    /// The instance that gave the pod this token last. 0 in that of an instance that does not say.
    #[serde(default)]
    pub(crate) given_by: u64,
    secret: String,
}

/// A new token's secret with the lease that it is for, and the digest that the record shows.
pub(crate) struct Secret {
    secret: String,
    lease: i64,
    ttl_s: u64,
    floor: Epoch,
    pub(crate) digest: String,
}

impl Secret {
    pub(crate) fn new(lease: LeaseId, ttl: Duration, floor: Epoch) -> Self {
        let secret = hex(&rand::random::<[u8; 16]>());
        let (lease, ttl_s) = (lease.get(), ttl.as_secs());
        let digest = digest_of(&secret, lease, ttl_s, floor);
        Secret { secret, lease, ttl_s, floor, digest }
    }

    pub(crate) fn token(self, (keyspace, pod): (&str, &str), incarnation: Incarnation) -> Token {
        let Secret { secret, lease, ttl_s, floor, .. } = self;
        let (keyspace, pod) = (keyspace.to_owned(), pod.to_owned());
        Token { keyspace, pod, incarnation: incarnation.get(), lease, ttl_s, floor, given_by: 0, secret }
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

    /// Returns the floor of epochs under which this life began.
    pub(crate) fn floor(&self) -> Epoch {
        self.floor
    }

    /// Checks the token against the digest of the record.
    pub(crate) fn proves(&self, digest: &str) -> Result<(), Status> {
        if digest == digest_of(&self.secret, self.lease, self.ttl_s, self.floor) {
            return Ok(());
        }
        Err(Status::permission_denied(format!("`resume` is not the token of pod {}", self.pod)))
    }
}

fn digest_of(secret: &str, lease: i64, ttl_s: u64, floor: Epoch) -> String {
    let text = format!("{lease}/{ttl_s}/{secret}");
    // Where the floor was never raised, instances that do not know of floors make and check the same digest.
    let text = if floor == Epoch::default() { text } else { format!("{floor}/{text}") };
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a token of a life that began under this floor, and its digest.
    fn token(floor: u64) -> (Token, String) {
        let secret = Secret::new(LeaseId::new(7), Duration::from_secs(15), Epoch::new(floor));
        let digest = secret.digest.clone();
        (secret.token(("default", "w"), Incarnation::registered_at(Revision::new(3))), digest)
    }

    #[test]
    fn a_token_of_an_instance_that_did_not_know_of_floors_is_of_a_life_that_began_under_none() {
        let (token, digest) = token(0);
        let mut earlier: serde_json::Value = serde_json::from_slice(&token.to_bytes()).unwrap();
        earlier.as_object_mut().unwrap().remove("floor").unwrap();
        let earlier = Token::parse(&serde_json::to_vec(&earlier).unwrap()).unwrap();
        assert_eq!(earlier, token);
        earlier.proves(&digest).unwrap();
    }

    #[test]
    fn the_digest_covers_the_floor() {
        let (token, digest) = token(444);
        assert_eq!(Token::parse(&token.to_bytes()).unwrap().floor(), Epoch::new(444));
        token.proves(&digest).unwrap();
        for floor in [0, 443, 445] {
            assert!(Token { floor: Epoch::new(floor), ..token.clone() }.proves(&digest).is_err());
        }
    }
}
