//! Registration: a participant's own key, which exists as long as its lease and whose `create_revision` identifies this
//! life.
//!
//! Registration never overwrites. An existing key belongs to another life: an earlier one that has not ended yet, or
//! another process of the same name. The participant waits until the key vanishes with its lease. It deletes three kinds
//! of keys: one of this process's own earlier life, which has fenced itself; one that an attempt of this process has put
//! under a shared lease without learning of it, so that nobody acts by it; and a leader's key without a lease, because
//! every write of a leader is guarded by that key.
//!
//! No participant registers in a keyspace of another service. Two sites that share a store and, by mistake, a keyspace would otherwise
//! get each other's partitions. Pods and routers that name a service wait for the settings, which say whose the keyspace is. A
//! registration requires that the settings are as they were read.
//!
//! After the store went back nobody registers before the floor of epochs is above what has been used. A key at the revision
//! of an earlier life is left alone then, as it may be another process's.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::holders::KeyState;
use segue_protocol::horizon::raise;
use segue_protocol::ids::{Epoch, Incarnation, LeaseId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::KeyspaceConfig;
use segue_protocol::registration::{self, ExistingKey, OwnKeys, clear_obstacle, end};
use segue_protocol::txn::{Compare, KeyValue, Keys};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::occupied::{Occupant, OccupiedKeyLog, look_interval};
use super::{KeptLease, Leases, RepeatedLog, StoreRetry};
use crate::store::{SharedHorizon, Store, StoreError};

/// How long the store may take to end a registration.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between two looks whether the keyspace belongs to another service.
const SERVICE_INTERVAL: Duration = Duration::from_secs(5);

/// A key to register, and the conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    keyspace: Keyspace,
    keys: OwnKeys,
    ttl: Duration,
    ended: Incarnation,
    clears_leaseless: bool,
    awaits_settings: bool,
}

impl Claim {
    /// Returns a claim to this key in a keyspace, with a lease of this TTL.
    pub fn new(keyspace: &Keyspace, key: impl Into<String>, ttl: Duration) -> Self {
        let keys = OwnKeys { key: key.into(), also: Vec::new() };
        Claim {
            keyspace: keyspace.clone(),
            keys,
            ttl,
            ended: Incarnation::NONE,
            clears_leaseless: false,
            awaits_settings: false,
        }
    }

    /// Adds a key that the participant may put under its lease, and that ends with the registration.
    pub(crate) fn with(mut self, key: String) -> Self {
        self.keys.also.push(key);
        self
    }

    /// Adds the earlier life `incarnation` of this process, which has fenced itself: its key is deleted if it still
    /// exists. 0 if there was none.
    pub fn after(self, incarnation: Incarnation) -> Self {
        Claim { ended: incarnation, ..self }
    }

    /// Adds that the key means nothing without a lease: one without a lease is deleted, whichever process put it.
    pub fn clearing_leaseless(self) -> Self {
        Claim { clears_leaseless: true, ..self }
    }

    /// Adds that a participant which names its service does not register before the keyspace has settings.
    pub(crate) fn awaiting_settings(self) -> Self {
        Claim { awaits_settings: true, ..self }
    }
}

/// A valid registration.
#[derive(Debug)]
pub struct Registration {
    /// The key.
    pub key: String,
    /// The `create_revision` of the key: the identity of this life.
    pub incarnation: Incarnation,
    /// The lease that the key is attached to.
    pub lease: KeptLease,
    /// Keys that end with the registration.
    also: Vec<String>,
    keyspace: Keyspace,
}

impl Registration {
    /// Ends the registration: the key, even if it has lost its lease, and the lease unless others share it. If the store went
    /// back, the floor of epochs is raised before the seat of a leader is free for one that does not know of it. The
    /// participant must have fenced itself before. Takes at most 2 s: if the store is unreachable the lease expires, or
    /// the key is deleted later.
    ///
    /// # Errors
    ///
    /// Fails if the store refuses, is unavailable, or does not respond within 2 s. The key may then last until the
    /// lease ends.
    pub async fn withdraw(self) -> Result<(), StoreError> {
        let withdrawn = async {
            let Registration { key, incarnation, lease, also, keyspace } = self;
            while raise_floor(lease.store(), lease.horizon(), &keyspace).await? {}
            let mut txn = end(&OwnKeys { key: key.clone(), also }, incarnation);
            if lease.is_past() {
                // The life of another process may have begun at the same revision since.
                txn.when.push(Compare::leased(key, lease.id()));
            }
            let deleted = lease.store().commit(txn).await;
            if deleted.is_ok() {
                lease.set_registered(KeyState::No);
            }
            lease.leave().await.and(deleted.map(drop))
        };
        let no_response = || StoreError::Unavailable(format!("no response within {WITHDRAW_TIMEOUT:?}").into());
        timeout(WITHDRAW_TIMEOUT, withdrawn).await.unwrap_or_else(|_| Err(no_response()))
    }
}

/// Registers with the value that `value` returns for the lease. Waits while the store is unreachable or another life's
/// key exists. Cancel-safe: a lease that was already granted expires, and a key under a shared lease is deleted.
pub async fn register(leases: &Leases, claim: &Claim, value: impl Fn(LeaseId) -> Vec<u8>) -> Registration {
    let key = &claim.keys.key;
    let mut back_off = StoreRetry::default();
    let (mut occupied, mut log) = (OccupiedKeyLog::default(), RepeatedLog::default());
    loop {
        match try_register(leases, claim, &value).await {
            Ok(RegistrationAttempt::Registered(registration)) => {
                info!(key, incarnation = registration.incarnation.get(), "registered");
                return registration;
            }
            Ok(RegistrationAttempt::Cleared) => {}
            Ok(RegistrationAttempt::Taken(occupant)) => {
                occupied.tell(&claim.keyspace, key, claim.ttl, &occupant);
                if let Err(error) = changed(leases.store(), key, claim.ttl, false).await {
                    if let Some(times) = log.note(&error) {
                        warn!(key, %error, times, "earlier registration cannot be watched; retrying");
                    }
                    sleep(back_off.next()).await;
                }
            }
            Ok(RegistrationAttempt::NoSettings) => {
                if log.note_words("no settings").is_some() {
                    let service = claim.keyspace.service();
                    info!(key, service, "keyspace has no settings, so whose it is is not known; waiting for them");
                }
                if let Err(error) = changed(leases.store(), &claim.keyspace.config(), claim.ttl, true).await {
                    if let Some(times) = log.note(&error) {
                        warn!(key, %error, times, "the keyspace's settings cannot be watched; retrying");
                    }
                    sleep(back_off.next()).await;
                }
            }
            Ok(RegistrationAttempt::OtherService(why)) => {
                if let Some(times) = log.note_words(&why) {
                    warn!(
                        key,
                        why, times, "not registered: choose another `keyspace`, or correct `service`; looking again"
                    );
                }
                sleep(SERVICE_INTERVAL).await;
            }
            Ok(RegistrationAttempt::OtherProtocol(why)) => {
                if let Some(times) = log.note_words(&why) {
                    warn!(key, why, times, "not registered: run a build of the keyspace's version; looking again");
                }
                sleep(SERVICE_INTERVAL).await;
            }
            Err(error) => {
                if let Some(times) = log.note(&error) {
                    warn!(key, %error, times, "cannot register; retrying");
                }
                sleep(back_off.next_after(&error)).await;
            }
        }
    }
}

enum RegistrationAttempt {
    Registered(Registration),
    /// An obstacle was removed.
    Cleared,
    /// Another life's key exists.
    Taken(Occupant),
    /// The keyspace has no settings, so it may belong to another service.
    NoSettings,
    /// The keyspace belongs to another service.
    OtherService(String),
    /// The keyspace speaks another version of the protocol.
    OtherProtocol(String),
}

async fn try_register(
    leases: &Leases,
    claim: &Claim,
    value: impl Fn(LeaseId) -> Vec<u8>,
) -> Result<RegistrationAttempt, StoreError> {
    let (store, key) = (leases.store(), &claim.keys.key);
    if raise_floor(store, leases.horizon(), &claim.keyspace).await? {
        return Ok(RegistrationAttempt::Cleared);
    }
    let settings = store.snapshot(&Keys::One(claim.keyspace.config())).await?.entries.pop();
    if settings.is_none() && claim.awaits_settings && claim.keyspace.service().is_some() {
        return Ok(RegistrationAttempt::NoSettings);
    }
    let seen = settings.as_ref().map_or(Revision::ZERO, |entry| entry.mod_revision);
    // Settings that cannot be read keep nobody out.
    let settings: Option<KeyspaceConfig> = settings.and_then(|entry| serde_json::from_slice(&entry.value).ok());
    if let Some(settings) = &settings {
        if let Some(why) = registration::other_protocol(&claim.keyspace, settings) {
            return Ok(RegistrationAttempt::OtherProtocol(why));
        }
        if let Some(why) = registration::other_service(&claim.keyspace, settings) {
            return Ok(RegistrationAttempt::OtherService(why));
        }
    }
    // Another process's life may have begun at the same revision since the store went back.
    let ended = if leases.horizon().times() > 0 { Incarnation::NONE } else { claim.ended };
    // An existing key would cost a lease for nothing.
    if let Some(entry) = store.snapshot(&Keys::One(key.clone())).await?.entries.into_iter().next() {
        let is_forgotten = match entry.lease {
            Some(lease) => leases.have_forgotten(key, lease).await,
            None => false,
        };
        let standing = ExistingKey {
            incarnation: Incarnation::registered_at(entry.create_revision),
            mod_revision: entry.mod_revision,
            lease: entry.lease,
            is_forgotten,
        };
        let Some(clear) = clear_obstacle(key, standing, ended, claim.clears_leaseless) else {
            let KeyValue { lease, value, .. } = entry;
            return Ok(RegistrationAttempt::Taken(Occupant { incarnation: standing.incarnation, lease, value }));
        };
        store.commit(clear).await?;
        return Ok(RegistrationAttempt::Cleared);
    }
    let lease = leases.share(claim.ttl, &claim.keyspace, &claim.keys).await?;
    let mut txn = registration::register(key, value(lease.id()), lease.id());
    txn.when.push(Compare::unchanged_since(claim.keyspace.config(), seen));
    lease.set_registered(KeyState::Perhaps);
    let outcome = match store.commit(txn).await {
        Ok(outcome) => outcome,
        Err(error) => {
            if matches!(error, StoreError::LeaseNotFound) {
                lease.is_gone();
            }
            // Whether or not the write was committed, its key must not block the next attempt.
            let _ = lease.leave().await;
            return Err(error);
        }
    };
    if !outcome.committed() {
        // The key may be that of an earlier attempt, whose put arrived late. Or the settings have changed.
        let _ = lease.leave().await;
        return Ok(RegistrationAttempt::Cleared);
    }
    let incarnation = Incarnation::registered_at(outcome.revision);
    lease.set_registered(KeyState::Since(incarnation));
    lease.made_progress();
    Ok(RegistrationAttempt::Registered(Registration {
        key: key.clone(),
        incarnation,
        lease,
        also: claim.keys.also.clone(),
        keyspace: claim.keyspace.clone(),
    }))
}

/// Raises the keyspace's floor of epochs above what is used up. Returns `true` if it was too low, and has to be looked at
/// again. A store that never went back is asked nothing.
///
/// # Errors
///
/// Fails as the store's read or write of the settings does.
pub async fn raise_floor(
    store: &Arc<dyn Store>,
    horizon: &SharedHorizon,
    keyspace: &Keyspace,
) -> Result<bool, StoreError> {
    let used = horizon.lock().used(keyspace);
    if used == Epoch::default() {
        return Ok(false);
    }
    let key = keyspace.config();
    let config = store.snapshot(&Keys::One(key.clone())).await?.entries.pop();
    let Some(txn) = raise(&key, config.as_ref(), used) else { return Ok(false) };
    if store.commit(txn).await?.committed() {
        info!(key, above = used.get(), "epoch_floor raised, as the store went back");
    }
    Ok(true)
}

/// Returns if the key exists or not, as is `wanted`, or once it has changed, or after a while to check again.
async fn changed(store: &Arc<dyn Store>, key: &str, ttl: Duration, wanted: bool) -> Result<(), StoreError> {
    let one = Keys::One(key.to_owned());
    let snapshot = store.snapshot(&one).await?;
    if snapshot.entries.is_empty() != wanted {
        return Ok(());
    }
    let mut watch = store.watch(&one, snapshot.revision.next()).await?;
    match timeout(look_interval(ttl), watch.next()).await {
        Ok(batch) => batch.map(drop),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::records::{PROTOCOL, encode};
    use segue_protocol::txn::{Op, Txn};
    use tokio::time::Instant;

    use super::*;
    use crate::store::{Fault, FaultyStore, MemoryStore, StoreCall};

    fn claim(key: &str) -> Claim {
        Claim::new(&Keyspace::new("/", "test"), key, Duration::from_secs(15))
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_holds_up_no_end() {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        let registration = register(&store.clone().into(), &claim("/key"), |_| Vec::new()).await;
        store.set_rule(|call| match call {
            StoreCall::Commit(_) | StoreCall::Revoke => Fault::Silence,
            _ => Fault::Pass,
        });
        let began = Instant::now();
        let withdrawn = timeout(Duration::from_secs(60), registration.withdraw()).await.expect("it ends");
        assert!(matches!(withdrawn, Err(StoreError::Unavailable(_))), "{withdrawn:?}");
        assert!(began.elapsed() <= Duration::from_secs(2), "after {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_life_that_a_store_without_memory_has_ended_leaves_the_key_of_another_process_alone() {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        let leases: Leases = store.clone().into();
        let own = register(&leases, &claim("/key"), |_| b"own".to_vec()).await;
        // The volume is lost. Another process registers first, at the same revision.
        let empty = MemoryStore::new();
        empty.grant(Duration::from_secs(3600)).await.unwrap();
        let other = register(&Arc::new(empty.clone()).into(), &claim("/key"), |_| b"other".to_vec()).await;
        assert_eq!(other.incarnation, own.incarnation);
        // Revisions that the lost store would have shown later.
        let asked = leases.horizon().lock().ask();
        leases.horizon().lock().saw(asked, other.incarnation.revision().next());
        store.replace(Arc::new(empty.clone()));
        leases.store().snapshot(&Keys::One("/key".to_owned())).await.unwrap();
        let mut state = own.lease.state();
        assert!(state.wait_for(|state| state.lost).await.is_ok(), "the store went back, and its life is over");
        let ended = own.incarnation;
        own.withdraw().await.unwrap();
        let again = register_once(&leases, &claim("/key").after(ended)).await;
        assert!(
            matches!(again, RegistrationAttempt::Taken(Occupant { lease: Some(_), .. })),
            "it waits for the other one"
        );
        let left = empty.snapshot(&Keys::One("/key".to_owned())).await.unwrap().entries;
        assert_eq!(left[0].value, b"other");
    }

    #[tokio::test(start_paused = true)]
    async fn a_keyspace_of_another_service_is_left_alone_until_it_is_its_own() {
        let store = MemoryStore::new();
        let keys = Keyspace::new("/", "test");
        let settings = |service: Option<&str>| {
            let service = service.map(str::to_owned);
            encode(&KeyspaceConfig { service, ..KeyspaceConfig::new(4) })
        };
        let put = async |value| {
            let txn = Txn::guarded([], [Op::put(keys.config(), value)]);
            store.commit(txn).await.unwrap();
        };
        for (own, standing, may) in [
            (None, None, true),
            (Some("a"), Some("a"), true),
            (Some("a"), Some("b"), false),
            (None, Some("b"), false),
            (Some("a"), None, false),
        ] {
            put(settings(standing)).await;
            let keys = keys.clone().of_service(own.map(str::to_owned));
            let claim = Claim::new(&keys, format!("/{own:?}{standing:?}"), Duration::from_secs(15));
            let leases = Arc::new(store.clone()).into();
            let mut registering = std::pin::pin!(register(&leases, &claim, |_| Vec::new()));
            let at_once = timeout(3 * SERVICE_INTERVAL, registering.as_mut()).await;
            assert_eq!(at_once.is_ok(), may, "{own:?} {standing:?}");
            if !may {
                put(settings(own)).await;
                registering.await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_names_a_service_registers_only_once_the_settings_say_whose_the_keyspace_is() {
        for (service, awaits, at_once) in
            [(Some("a"), true, false), (Some("a"), false, true), (None, true, true), (None, false, true)]
        {
            let store = MemoryStore::new();
            let keys = Keyspace::new("/", "test").of_service(service.map(str::to_owned));
            let claim = Claim::new(&keys, "/key", Duration::from_secs(15));
            let claim = if awaits { claim.awaiting_settings() } else { claim };
            let leases: Leases = Arc::new(store.clone()).into();
            let mut registering = std::pin::pin!(register(&leases, &claim, |_| Vec::new()));
            let registered = timeout(Duration::from_secs(60), registering.as_mut()).await;
            assert_eq!(registered.is_ok(), at_once, "{service:?} {awaits}");
            if !at_once {
                let value = encode(&KeyspaceConfig { service: service.map(str::to_owned), ..KeyspaceConfig::new(4) });
                let put = Op::put(keys.config(), value);
                store.commit(Txn::guarded([], [put])).await.unwrap();
                let began = Instant::now();
                registering.await;
                assert!(began.elapsed() < Duration::from_secs(1), "after {:?}", began.elapsed());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_keyspace_that_speaks_another_version_is_left_alone_until_it_speaks_this_one() {
        let (store, keys) = (MemoryStore::new(), Keyspace::new("/", "test"));
        for (spoken, may) in [(None, true), (Some(PROTOCOL), true), (Some(PROTOCOL - 1), false), (Some(9), false)] {
            let settings = |protocol| encode(&KeyspaceConfig { protocol, ..KeyspaceConfig::new(4) });
            let put = async |value| {
                store.commit(Txn::guarded([], [Op::put(keys.config(), value)])).await.unwrap();
            };
            put(settings(spoken)).await;
            let claim = Claim::new(&keys, format!("/{spoken:?}"), Duration::from_secs(15));
            let leases = Arc::new(store.clone()).into();
            let mut registering = std::pin::pin!(register(&leases, &claim, |_| Vec::new()));
            let at_once = timeout(3 * SERVICE_INTERVAL, registering.as_mut()).await;
            assert_eq!(at_once.is_ok(), may, "{spoken:?}");
            if !may {
                put(settings(Some(PROTOCOL))).await;
                registering.await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn settings_that_appear_while_a_participant_registers_are_looked_at_first() {
        let memory = MemoryStore::new();
        let store = Arc::new(FaultyStore::new(Arc::new(memory.clone())));
        let leases: Leases = store.clone().into();
        // Another service's settings, which have been read by the time a lease is asked for.
        let value = encode(&KeyspaceConfig { service: Some("b".to_owned()), ..KeyspaceConfig::new(4) });
        let put = Op::put(Keyspace::new("/", "test").config(), value);
        let settings = Txn::guarded([], [put]);
        store.set_rule(move |call| match call {
            StoreCall::Grant => {
                let (memory, settings) = (memory.clone(), settings.clone());
                Fault::Hold(Box::pin(async move { drop(memory.commit(settings).await) }))
            }
            _ => Fault::Pass,
        });
        let claim = claim("/key");
        let first = register_once(&leases, &claim).await;
        assert!(matches!(first, RegistrationAttempt::Cleared), "they have changed");
        assert!(matches!(register_once(&leases, &claim).await, RegistrationAttempt::OtherService(_)));
    }

    async fn register_once(leases: &Leases, claim: &Claim) -> RegistrationAttempt {
        try_register(leases, claim, |_| b"own".to_vec()).await.unwrap()
    }
}
