//! The keyspaces that the store lists, as a process takes part in them while it runs.
//!
//! Not here: how each role begins and ends its part, and how the list is watched.
//!
//! # Invariants
//!
//! * A keyspace whose settings are refused, for itself or beside others, changes nothing for those others.
//! * A keyspace of the file stays, whatever the list says.
//! * A keyspace is served with the settings that it was added with, until it is taken out.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use segue_config::{Config, ConfigSource, Errors, KeyspaceSection, StoredKeyspace};
use segue_coordination::keyspace_list::{KeyspaceListWatcher, ListedKeyspaces};
use segue_coordination::store::Store;
use segue_protocol::keyspace_list::KeyspaceList;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use crate::admin::AdminChange;
use crate::roles::keyspace::RoleKeyspace;
use crate::roles::running::RunningRoles;
use crate::telemetry::metrics::StoreHealth;

/// What a process follows the list by.
#[derive(Debug)]
pub(crate) struct Following {
    source: ConfigSource,
    prefix: String,
    /// The time in which the router drains, which has to be below each `stash.max_wait`.
    drain_timeout: Option<Duration>,
    /// The keyspaces of the list that this process serves.
    served: BTreeMap<String, StoredKeyspace>,
    /// What the log was told last of each keyspace that is not served as it is listed.
    told: BTreeMap<String, String>,
}

/// What the process shows of the keyspaces that come and go.
pub(crate) struct ShownChanges {
    /// The store, and what is known of it.
    pub store: (Arc<dyn Store>, Arc<StoreHealth>),
    /// Whether the process plans.
    pub plans: bool,
    /// To the admin endpoint. Closed if there is none.
    pub admin: UnboundedSender<AdminChange>,
}

impl Following {
    /// Returns what follows the list for a process that was started with `config`, which was read from `source`.
    pub(crate) fn new(source: ConfigSource, config: &Config) -> Self {
        Following {
            source,
            prefix: config.store.prefix.clone(),
            drain_timeout: config.router.as_ref().map(|section| section.drain.timeout),
            served: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Adds the keyspaces that are in the list now to the configuration of a process that starts. Waits for the store.
    pub(crate) async fn begin(&mut self, config: &mut Config, store: &Arc<dyn Store>) {
        let mut watcher = KeyspaceListWatcher::new(store.clone(), KeyspaceList::new(&self.prefix));
        let listed = self.accepted(watcher.next().await);
        for (stored, section) in listed {
            self.served.insert(section.name.clone(), stored);
            config.keyspaces.push(section);
        }
    }

    /// Follows the list: begins the part of all roles in each keyspace that comes, and ends it in each that goes.
    pub(crate) async fn run(mut self, roles: &mut RunningRoles, shown: &ShownChanges) -> Infallible {
        let (store, _) = &shown.store;
        let mut watcher = KeyspaceListWatcher::new(store.clone(), KeyspaceList::new(&self.prefix));
        let mut readiness = BTreeMap::new();
        loop {
            let accepted = self.accepted(watcher.next().await);
            let is_listed = |name: &String| accepted.iter().any(|(_, section)| section.name == *name);
            let gone: Vec<_> = self.served.keys().filter(|name| !is_listed(name)).cloned().collect();
            for name in gone {
                readiness.remove(&name);
                self.remove(&name, roles, shown).await;
            }
            for (stored, section) in accepted {
                match self.served.get(&section.name) {
                    None => {
                        let told = self.add(stored, &section, roles, shown).await;
                        readiness.extend(told.map(|told| (section.name, told)));
                    }
                    Some(served) if *served != stored => {
                        let text = "its settings have changed in the list; they take effect once it is removed and added \
                                    again, or with a restart";
                        self.tell(&section.name, text);
                    }
                    Some(_) => drop(self.told.remove(&section.name)),
                }
            }
        }
    }

    async fn add(
        &mut self,
        stored: StoredKeyspace,
        section: &KeyspaceSection,
        roles: &mut RunningRoles,
        shown: &ShownChanges,
    ) -> Option<AbortOnDropHandle<()>> {
        let name = section.name.clone();
        let (keyspace, mut registry) = RoleKeyspace::apart(section, &self.prefix);
        // Before the parts begin: whatever has begun is ended once the list no longer has it.
        self.served.insert(name.clone(), stored);
        if let Err(error) = roles.add(&keyspace, &mut registry).await {
            error!(keyspace = name, "cannot serve the keyspace: {error:#}");
            return None;
        }
        info!(keyspace = name, "keyspace added");
        let readiness = roles.tell_readiness(&keyspace);
        if !shown.admin.is_closed() {
            let (store, health) = &shown.store;
            let sources = roles.sources(&name);
            let added = keyspace.shown((store, health), sources, shown.plans, Some(registry));
            // Its reader ends with the process.
            let _ = shown.admin.send(AdminChange::Add(Box::new(added)));
        }
        Some(readiness)
    }

    async fn remove(&mut self, name: &str, roles: &mut RunningRoles, shown: &ShownChanges) {
        self.served.remove(name);
        let _ = shown.admin.send(AdminChange::Remove(name.to_owned()));
        roles.remove(name).await;
        info!(keyspace = name, "keyspace removed");
    }

    /// Returns the keyspaces of the list that this process can serve. Tells the log of the others.
    fn accepted(&mut self, listed: &ListedKeyspaces) -> Vec<(StoredKeyspace, KeyspaceSection)> {
        self.told.retain(|name, _| listed.contains_key(name));
        let parsed = listed.iter().map(|(name, value)| (name, StoredKeyspace::parse(name, value)));
        let (mut stored, mut refused) = (Vec::new(), Vec::new());
        for (name, parsed) in parsed {
            match parsed {
                Ok(keyspace) => stored.push(keyspace),
                Err(why) => refused.push((name.clone(), why.to_string())),
            }
        }
        // Most lists have no mistake. One that has is built up keyspace by keyspace, those that are served first.
        let sections = self.sections(&stored).or_else(|_| {
            let mut sound = Vec::new();
            stored.sort_by_key(|keyspace| self.served.get(keyspace.name()) != Some(keyspace));
            for keyspace in std::mem::take(&mut stored) {
                sound.push(keyspace);
                if let Err(why) = self.sections(&sound) {
                    refused.extend(sound.pop().map(|keyspace| (keyspace.name().to_owned(), why.to_string())));
                }
            }
            stored = sound;
            self.sections(&stored)
        });
        for (name, why) in refused {
            self.tell(&name, &format!("it is not served: {}", why.replace('\n', "; ")));
        }
        let sections = sections.unwrap_or_default();
        let found = |keyspace: StoredKeyspace| {
            let section = sections.iter().find(|section| section.name == keyspace.name())?.clone();
            match self.conflict(&section) {
                None => Some((keyspace, section)),
                Some(why) => {
                    self.tell(&section.name, &format!("it is not served: {why}"));
                    None
                }
            }
        };
        stored.into_iter().filter_map(found).collect()
    }

    /// Returns the keyspaces of a file that lists these as well.
    fn sections(&self, stored: &[StoredKeyspace]) -> Result<Vec<KeyspaceSection>, Errors> {
        self.source.locate(stored).map(|located| located.config.keyspaces)
    }

    /// Returns why the settings of a keyspace do not go with what the process keeps.
    fn conflict(&self, section: &KeyspaceSection) -> Option<String> {
        let (drain, max_wait) = (self.drain_timeout?, section.routing.as_ref()?.stash.max_wait);
        (max_wait <= drain).then(|| {
            format!("its stash.max_wait is {max_wait:?}, not above the router.drain.timeout of this process, {drain:?}")
        })
    }

    /// Tells the log of a keyspace, unless it was told that before.
    fn tell(&mut self, name: &str, text: &str) {
        if self.told.insert(name.to_owned(), text.to_owned()).is_none_or(|told| told != text) {
            warn!(keyspace = name, "a keyspace of the store's list: {text}");
        }
    }
}
