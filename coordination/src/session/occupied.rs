//! Tells the log who has the key that a participant waits for.
//!
//! A key that outlives its lease's time is renewed: another process lives under the same name. For the leader's key that is as
//! it should be.

use std::time::Duration;

use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::keys::Keyspace;
use segue_protocol::registration::KeyHolder;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::repeats::Repeats;

/// How long after the end of its lease a key may still exist.
const EXPIRY_DELAY: Duration = Duration::from_secs(1);

/// Another life's key, where a participant wants to register.
#[derive(Debug)]
pub(super) struct Occupant {
    pub(super) incarnation: Incarnation,
    pub(super) lease: Option<LeaseId>,
    pub(super) value: Vec<u8>,
}

/// The lines that were told of the occupants of a key.
#[derive(Debug, Default)]
pub(super) struct OccupiedKeyLog {
    /// The life that was seen last, and since when.
    seen: Option<(Incarnation, Instant)>,
    warnings: Repeats,
}

/// Returns how long to wait for a change of the key. `ttl`: that of the participant's own lease.
pub(super) fn look_interval(ttl: Duration) -> Duration {
    ttl.max(Duration::from_secs(1)) + EXPIRY_DELAY
}

impl OccupiedKeyLog {
    /// Tells who has the key. `ttl`: that of the participant's own lease.
    pub(super) fn tell(&mut self, keyspace: &Keyspace, key: &str, ttl: Duration, occupant: &Occupant) {
        let now = Instant::now();
        let seen = self.seen.filter(|(life, _)| *life == occupant.incarnation);
        let since = seen.map_or(now, |(_, since)| since);
        self.seen = Some((occupant.incarnation, since));
        let holder = KeyHolder::of(keyspace, key, &occupant.value);
        if occupant.lease.is_none() {
            if self.warnings.note(1, now).is_some() {
                warn!(
                    key,
                    "the registration of an earlier incarnation never ends by itself: another writer has detached it from its \
                     lease. If its process is gone, delete it with `segue forget`"
                );
            }
            return;
        }
        if seen.is_none() {
            match holder {
                Some(KeyHolder::Leader { name }) => info!(leader = name, "standing by: another coordinator leads"),
                _ => info!(key, "registration of an earlier incarnation exists; waiting until its lease ends"),
            }
            return;
        }
        let Some(KeyHolder::Namesake { name, setting, address, lease_ttl }) = holder else { return };
        if now - since >= ttl.max(lease_ttl) + EXPIRY_DELAY && self.warnings.note(1, now).is_some() {
            warn!(
                name,
                address = address.unwrap_or_else(|| "unknown".to_owned()),
                "another process lives under this process's name; set {setting} to another one"
            );
        }
    }
}
