//! The loop that routers, pods and coordinators share while they are registered: they follow the keyspace, keep their
//! own key, and keep their lease only while they see the store.
//!
//! # Invariants
//!
//! * A participant follows a snapshot that is taken after its registration.
//! * Without sight of the store its loop makes no progress, so its lease ends. If the lease were kept alive, every
//!   handoff would wait for this participant.

use std::sync::Arc;

use segue_protocol::keys::Keyspace;
use segue_protocol::registration::other_protocol;
use segue_protocol::view::{Versioned, View, ViewDelta};
use tokio::sync::watch;
use tracing::warn;

use super::own_key::OwnKey;
use super::patience::Sight;
use super::{KeptLease, LeaseState, Registration, Update, Watcher};
use crate::store::{Store, StoreError};

/// Something that a participant's loop has to act on.
#[derive(Debug)]
pub(crate) enum Event {
    /// A snapshot has replaced the view. `was_blind`: the watch had been lost.
    Synced { was_blind: bool },
    /// The view has changed.
    Changed(ViewDelta),
    /// The watch was lost, or could not be begun anew. `is_new`: by this kind of error for the first time.
    Blind { error: StoreError, is_new: bool },
    /// Something else has happened, such as a renewal of the lease.
    Turn,
}

/// A registered participant.
pub(crate) struct Participant<'a> {
    lease: &'a KeptLease,
    lease_state: watch::Receiver<LeaseState>,
    own_key: OwnKey,
    watcher: Watcher,
    /// The pod whose part of the keyspace is all that is kept of it.
    pod: Option<String>,
    sight: Sight,
    is_synced: bool,
    is_over: Option<LifeEnd>,
}

/// Why a participant's life is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// The lease is lost, or not kept any more.
    LeaseLost,
    /// The keyspace speaks another version of the protocol, in words.
    OtherProtocol(String),
}

impl<'a> Participant<'a> {
    /// Follows the keyspace from now on.
    pub(crate) fn start(store: &Arc<dyn Store>, keys: &Keyspace, registration: &'a Registration) -> Self {
        Self::with(Watcher::start(store.clone(), keys.clone()), store, registration)
    }

    /// Like [`start`](Self::start), for a pod, which keeps what concerns it.
    pub(crate) fn start_pod(
        store: &Arc<dyn Store>,
        keys: &Keyspace,
        registration: &'a Registration,
        pod: &str,
    ) -> Self {
        Participant { pod: Some(pod.to_owned()), ..Self::start(store, keys, registration) }
    }

    /// Like [`start`](Self::start), for those who plan, with the pods' heartbeats.
    pub(crate) fn start_planner(store: &Arc<dyn Store>, keys: &Keyspace, registration: &'a Registration) -> Self {
        Self::with(Watcher::start_planning(store.clone(), keys.clone()), store, registration)
    }

    fn with(watcher: Watcher, store: &Arc<dyn Store>, registration: &'a Registration) -> Self {
        let lease = &registration.lease;
        let own_key = OwnKey::of(store.clone(), registration);
        let (lease_state, sight) = (lease.state(), Sight::default());
        Participant { lease, lease_state, own_key, watcher, pod: None, sight, is_synced: false, is_over: None }
    }

    /// Begins a turn of the participant's loop. Returns what is known of the lease, or why this life is over: the participant must
    /// fence.
    pub(crate) fn turn(&mut self) -> Result<LeaseState, LifeEnd> {
        self.lease.turns(self.sight.is_clear());
        let state = *self.lease_state.borrow_and_update();
        match &self.is_over {
            Some(end) => Err(end.clone()),
            None if state.lost => Err(LifeEnd::LeaseLost),
            None => Ok(state),
        }
    }

    /// Returns whether the view includes a snapshot from after the registration.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Restores the own key as [`OwnKey::keep`] does. Returns `false` if this life is over: the participant must fence.
    pub(crate) fn keep_key<T>(
        &mut self,
        view: &View,
        seen: Option<&Versioned<T>>,
        intact: bool,
        value: impl FnOnce() -> Vec<u8>,
    ) -> bool {
        self.own_key.keep(view, seen, intact, value)
    }

    /// Returns the next event, and applies what it brings to `view`. Cancel-safe.
    pub(crate) async fn next(&mut self, view: &mut View) -> Event {
        tokio::select! {
            biased;
            update = self.watcher.next() => {
                let event = self.updated(update, view);
                if let Some(why) = view.settings().and_then(|settings| other_protocol(view.keys(), settings)) {
                    self.is_over.get_or_insert(LifeEnd::OtherProtocol(why));
                }
                event
            }
            () = self.own_key.written() => Event::Turn,
            changed = self.lease_state.changed() => {
                if changed.is_err() {
                    self.is_over.get_or_insert(LifeEnd::LeaseLost);
                }
                Event::Turn
            }
        }
    }

    fn updated(&mut self, update: Update, view: &mut View) -> Event {
        match update {
            Update::Snapshot(snapshot) => {
                let fresh = match &self.pod {
                    Some(pod) => snapshot.of_pod(pod),
                    None => *snapshot,
                };
                // Settings that cannot be read leave the last ones in force.
                view.resync(fresh);
                let was_blind = !self.sight.is_clear();
                self.is_synced = true;
                self.sight.is_back();
                Event::Synced { was_blind }
            }
            Update::Batch(batch) => Event::Changed(self.watcher.apply(view, batch)),
            Update::Lost(error) => {
                let is_new = self.sight.lost(&error);
                if is_new {
                    warn!(%error, "store watch lost; resyncing");
                }
                Event::Blind { error, is_new }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use segue_protocol::records::{KeyspaceConfig, PROTOCOL, encode};
    use segue_protocol::txn::{Keys, Op, Txn};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::session::{Claim, Leases, count_by_tokio, register};
    use crate::store::{FaultyStore, MemoryStore};

    const TTL: Duration = Duration::from_secs(15);

    /// Runs the loop of a participant for four times its TTL.
    async fn run(participant: &mut Participant<'_>, view: &mut View) {
        let began = Instant::now();
        while began.elapsed() < 4 * TTL {
            let _ = participant.turn();
            let _ = timeout(TTL / 6, participant.next(view)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_keyspace_that_begins_to_speak_another_version_ends_the_life() {
        let (store, keys) = (MemoryStore::new(), Keyspace::new("/segue/", "test"));
        let leases: Leases = Arc::new(store.clone()).into();
        let claim = Claim::new(&keys, keys.router("a"), TTL);
        let registration = register(&leases, &claim, |_| Vec::new()).await;
        let mut participant = Participant::start(leases.store(), &keys, &registration);
        let mut view = View::empty(keys.clone());
        for spoken in [Some(PROTOCOL), None, Some(PROTOCOL + 1)] {
            let settings = encode(&KeyspaceConfig { protocol: spoken, ..KeyspaceConfig::new(4) });
            store.commit(Txn::guarded([], [Op::put(keys.config(), settings)])).await.unwrap();
            while view.settings().is_none_or(|settings| settings.protocol != spoken) {
                participant.next(&mut view).await;
            }
            let other = matches!(participant.turn(), Err(LifeEnd::OtherProtocol(_)));
            assert_eq!(other, spoken == Some(PROTOCOL + 1), "{spoken:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_participant_keeps_its_key_while_it_sees_the_store_and_no_longer() {
        count_by_tokio();
        let (memory, keys) = (MemoryStore::new(), Keyspace::new("/segue/", "test"));
        let store = Arc::new(FaultyStore::new(Arc::new(memory.clone())));
        let leases: Leases = store.clone().into();
        let claim = Claim::new(&keys, keys.router("a"), TTL);
        let registration = register(&leases, &claim, |_| Vec::new()).await;
        let mut participant = Participant::start(leases.store(), &keys, &registration);
        let mut view = View::empty(keys.clone());
        let own = Keys::One(keys.router("a"));
        run(&mut participant, &mut view).await;
        assert!(participant.is_synced());
        assert_eq!(memory.snapshot(&own).await.unwrap().entries.len(), 1);
        store.blind();
        run(&mut participant, &mut view).await;
        assert_eq!(memory.snapshot(&own).await.unwrap().entries.len(), 0, "though each renewal would be answered");
    }
}
