//! Notices that nobody coordinates the keyspaces of a pod.
//!
//! The first coordinator of a keyspace creates its settings, and without them no pod gets a partition. A process that has
//! a pod and no coordinator of its own gives the others time to start, and ends instead of waiting for ever. It does not end
//! if one of its keyspaces is coordinated: the others may be new, and it serves that one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use segue_coordination::store::{Store, StoreError};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use tokio::time::{Instant, sleep};
use tracing::info;

/// How long a pod waits for the first coordinator of its keyspace.
const GRACE: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a keyspace has of coordination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CoordinationState {
    /// It has settings, or partitions are assigned by another program.
    Settings,
    /// Somebody is about to create the settings.
    Coordinator,
    Nothing,
}

/// Completes when nobody has coordinated any of these keyspaces for 30 s. Pending for ever once one has settings, and
/// if there are none of them.
pub(crate) async fn uncoordinated(store: &Arc<dyn Store>, keyspaces: &[Keyspace]) {
    if keyspaces.is_empty() {
        return std::future::pending().await;
    }
    let mut since = None;
    loop {
        let found = join_all(keyspaces.iter().map(|keys| look(&**store, keys))).await;
        if found.iter().any(|found| matches!(found, Ok(CoordinationState::Settings))) {
            say_which_have_none(keyspaces, &found);
            return std::future::pending().await;
        }
        if found.iter().all(|found| matches!(found, Ok(CoordinationState::Nothing))) {
            let since = *since.get_or_insert_with(|| {
                say_which_have_none(keyspaces, &found);
                Instant::now()
            });
            if since.elapsed() >= GRACE {
                return;
            }
        } else {
            since = None;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn say_which_have_none(keyspaces: &[Keyspace], found: &[Result<CoordinationState, StoreError>]) {
    for (keys, _) in keyspaces.iter().zip(found).filter(|(_, found)| matches!(found, Ok(CoordinationState::Nothing))) {
        info!(keyspace = keys.name(), "keyspace has no settings; waiting for a coordinator to create them");
    }
}

async fn look(store: &dyn Store, keys: &Keyspace) -> Result<CoordinationState, StoreError> {
    if !store.snapshot(&Keys::One(keys.config())).await?.entries.is_empty() {
        return Ok(CoordinationState::Settings);
    }
    let snapshot = store.snapshot(&keys.planned()).await?;
    let has_leader = snapshot.entries.iter().any(|entry| entry.key == keys.leader());
    let view = View::from_snapshot(keys.clone(), snapshot);
    let is_planned = !view.assignments.is_empty() || !view.handoffs.is_empty();
    Ok(if is_planned {
        CoordinationState::Settings
    } else if has_leader || !view.rounds.participants.is_empty() {
        CoordinationState::Coordinator
    } else {
        CoordinationState::Nothing
    })
}

#[cfg(test)]
mod tests {
    use segue_coordination::store::MemoryStore;
    use segue_protocol::records::{KeyspaceConfig, Participant, encode};
    use segue_protocol::txn::{Op, Txn};
    use tokio::time::timeout;

    use super::*;

    async fn put(store: &Arc<dyn Store>, key: String, value: Vec<u8>) {
        let then = vec![Op::Put { key, value, lease: None }];
        assert!(store.commit(Txn { then, ..Txn::default() }).await.unwrap().committed());
    }

    fn keyspaces() -> (Arc<dyn Store>, Vec<Keyspace>) {
        (Arc::new(MemoryStore::new()), ["a", "b"].map(|name| Keyspace::new("/segue/", name)).to_vec())
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_whose_keyspaces_have_no_settings_ends_after_the_grace_period() {
        let (store, keyspaces) = keyspaces();
        let begun = Instant::now();
        uncoordinated(&store, &keyspaces).await;
        assert_eq!(begun.elapsed(), GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_keyspace_without_settings_does_not_end_the_others() {
        let (store, keyspaces) = keyspaces();
        put(&store, keyspaces[0].config(), encode(&KeyspaceConfig::new(4))).await;
        assert!(timeout(GRACE * 3, uncoordinated(&store, &keyspaces)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_starts_in_time_is_waited_for() {
        let (store, keyspaces) = keyspaces();
        let keys = keyspaces[1].clone();
        let waits = uncoordinated(&store, &keyspaces);
        tokio::pin!(waits);
        assert!(timeout(GRACE / 2, &mut waits).await.is_err());
        let record = Participant::new("c", None);
        put(&store, keys.participant("c"), encode(&record)).await;
        assert!(timeout(GRACE * 3, &mut waits).await.is_err(), "it is about to create the settings");
        put(&store, keys.config(), encode(&KeyspaceConfig::new(4))).await;
        assert!(timeout(GRACE * 3, &mut waits).await.is_err());
    }
}
