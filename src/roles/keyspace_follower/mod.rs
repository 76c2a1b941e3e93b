//! Follows the list of keyspaces in the store: begins the part of a process in each keyspace that comes, and ends it in each
//! that goes.
//!
//! Not here: what a reading of the list changes ([`changes`]), how it is watched, and how each role begins and ends its part.
//!
//! # Invariants
//!
//! * A keyspace of the file stays, whatever the list says.
//! * A process with a sidecar stays in a keyspace that goes, with all of its roles, until it ends.

mod changes;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use segue_config::{Config, ConfigSource, KeyspaceSection, StoredKeyspace};
use segue_coordination::keyspace_list::KeyspaceListWatcher;
use segue_coordination::store::Store;
use segue_protocol::keyspace_list::KeyspaceList;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{error, info, warn};

use self::changes::{ListChanges, ListTerms};
use crate::admin::AdminChange;
use crate::roles::keyspace::RoleKeyspace;
use crate::roles::running::RunningRoles;
use crate::telemetry::metrics::StoreHealth;

const STAYS: &str = "it was removed; a process with a sidecar stays in it until it ends";

/// The part of a process that follows the list.
#[derive(Debug)]
pub(crate) struct KeyspaceFollower {
    terms: ListTerms,
    prefix: String,
    /// The keyspaces of the list that this process serves.
    served: BTreeMap<String, StoredKeyspace>,
    /// The last remark in the log on each keyspace that is not served as it is listed.
    told: BTreeMap<String, String>,
}

/// The way by which keyspaces that come and go are shown.
pub(crate) struct ShownChanges {
    /// The store, and what is known of it.
    pub store: (Arc<dyn Store>, Arc<StoreHealth>),
    /// Whether the process plans.
    pub plans: bool,
    /// To the admin endpoint. Closed if there is none.
    pub admin: UnboundedSender<AdminChange>,
}

impl KeyspaceFollower {
    /// Returns the follower of a process that was started with `config`, which was read from `source`.
    pub(crate) fn new(source: ConfigSource, config: &Config) -> Self {
        let drain_timeout = config.router.as_ref().map(|section| section.drain.timeout);
        let (terms, prefix) = (ListTerms { source, drain_timeout }, config.store.prefix.clone());
        KeyspaceFollower { terms, prefix, served: BTreeMap::new(), told: BTreeMap::new() }
    }

    /// Adds the keyspaces that are in the list now to the configuration of a process that starts. Waits for the store.
    pub(crate) async fn begin(&mut self, config: &mut Config, store: &Arc<dyn Store>) {
        let mut watcher = KeyspaceListWatcher::new(store.clone(), KeyspaceList::new(&self.prefix));
        let ListChanges { new, remarks, .. } = self.terms.changes(&self.served, watcher.next().await);
        self.tell(remarks);
        for (stored, section) in new {
            self.served.insert(section.name.clone(), stored);
            config.keyspaces.push(section);
        }
    }

    /// Follows the list for as long as the process runs.
    pub(crate) async fn run(mut self, roles: &mut RunningRoles, shown: &ShownChanges) -> Infallible {
        let mut watcher = KeyspaceListWatcher::new(shown.store.0.clone(), KeyspaceList::new(&self.prefix));
        loop {
            let listed = watcher.next().await;
            let ListChanges { new, gone, mut remarks } = self.terms.changes(&self.served, listed);
            if let Some(pod) = &mut roles.pod {
                self.served.keys().for_each(|name| pod.set_taken_out(name, gone.contains(name)));
                remarks.extend(gone.into_iter().map(|name| (name, STAYS.to_owned())));
            } else {
                for name in gone {
                    self.remove(&name, roles, shown).await;
                }
            }
            self.tell(remarks);
            for (stored, section) in new {
                self.add(stored, &section, roles, shown).await;
            }
        }
    }

    async fn add(
        &mut self,
        stored: StoredKeyspace,
        section: &KeyspaceSection,
        roles: &mut RunningRoles,
        shown: &ShownChanges,
    ) {
        let name = &section.name;
        let mut keyspace = RoleKeyspace::of_list(section, &self.prefix);
        // Before the parts begin: whatever has begun is ended once the list no longer has it.
        self.served.insert(name.clone(), stored);
        if let Err(error) = roles.add(&mut keyspace).await {
            return error!(keyspace = name, "cannot serve the keyspace: {error:#}");
        }
        info!(keyspace = name, "keyspace added");
        if !shown.admin.is_closed() {
            let (store, health) = &shown.store;
            let added = keyspace.shown((store, health), roles.sources(name), shown.plans);
            // Its reader ends with the process.
            let _ = shown.admin.send(AdminChange::Add(Box::new(added)));
        }
    }

    async fn remove(&mut self, name: &str, roles: &mut RunningRoles, shown: &ShownChanges) {
        self.served.remove(name);
        let _ = shown.admin.send(AdminChange::Remove(name.to_owned()));
        roles.remove(name).await;
        info!(keyspace = name, "keyspace removed");
    }

    /// Tells the log of keyspaces, unless it was told the same before.
    fn tell(&mut self, remarks: BTreeMap<String, String>) {
        for (name, text) in remarks.iter().filter(|(name, text)| self.told.get(*name) != Some(text)) {
            warn!(keyspace = name, "a keyspace of the store's list: {text}");
        }
        self.told = remarks;
    }
}
