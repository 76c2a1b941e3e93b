//! One keyspace of this process, as its roles need it: its settings, its place in the store, and its metrics.
//!
//! # Invariants
//!
//! * In a file with a list of keyspaces, every series of a keyspace has the label `keyspace`, and log lines of its
//!   participants have its name. With `keyspace` none has.

use std::iter::once;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use segue_config::{Config, KeyspaceSection};
use segue_coordination::session::Watcher;
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use tracing::{Span, error_span};

use crate::admin::keyspace::KeyspaceStatusSource;
use crate::admin::{AdminKeyspace, StatusSource};
use crate::operator::Link;
use crate::telemetry::metrics::{ParticipantMetrics, StoreHealth};

/// A keyspace that roles of this process take part in.
#[derive(Debug)]
pub(crate) struct RoleKeyspace {
    /// Its settings.
    pub section: KeyspaceSection,
    /// Its place in the store.
    pub keys: Keyspace,
    /// The counters of its participants.
    pub participants: ParticipantMetrics,
    /// The registry of its series, which ends with it, if it is one of a list. An only keyspace has that of the process.
    own: Option<Registry>,
}

impl RoleKeyspace {
    /// Returns the keyspaces of a configuration, and registers the metrics of their participants.
    pub(crate) fn all(config: &Config, process: &mut Registry) -> Vec<Self> {
        let prefix = &config.store.prefix;
        match config.only_keyspace() {
            Some(only) if !config.lists_keyspaces => vec![Self::new(only, prefix, None, process)],
            _ => config.keyspaces.iter().map(|section| Self::of_list(section, prefix)).collect(),
        }
    }

    /// Returns one of a list of keyspaces below `prefix`.
    pub(crate) fn of_list(section: &KeyspaceSection, prefix: &str) -> Self {
        let label = ("keyspace".into(), section.name.clone().into());
        let own = Registry::with_prefix_and_labels("segue", once(label));
        Self::new(section, prefix, Some(own), &mut Registry::default())
    }

    fn new(section: &KeyspaceSection, prefix: &str, mut own: Option<Registry>, process: &mut Registry) -> Self {
        RoleKeyspace {
            section: section.clone(),
            keys: Keyspace::new(prefix, &section.name).of_service(section.service.clone()),
            participants: ParticipantMetrics::new(own.as_mut().unwrap_or(process)),
            own,
        }
    }

    /// Returns where the series of this keyspace are registered.
    pub(crate) fn registry<'a>(&'a mut self, process: &'a mut Registry) -> &'a mut Registry {
        self.own.as_mut().unwrap_or(process)
    }

    /// Returns what the admin endpoint shows of it, beside what it shows of the roles. Only a process that plans anyway
    /// follows the pods' heartbeats and the acknowledgements of routers.
    pub(crate) fn shown(
        self,
        (store, health): (&Arc<dyn Store>, &Arc<StoreHealth>),
        roles: Vec<Arc<dyn StatusSource>>,
        plans: bool,
    ) -> AdminKeyspace {
        let RoleKeyspace { section, keys, own, .. } = self;
        let watcher = Watcher::start_beside(store.clone(), keys.clone(), plans);
        let followed = KeyspaceStatusSource::start(store.clone(), keys.clone(), (watcher, plans), health.clone());
        let (board, on_demand) = (followed.board(), followed.on_demand());
        let sources = once(Arc::new(followed) as Arc<dyn StatusSource>).chain(roles).collect();
        AdminKeyspace { sources, board, on_demand, link: Link::new(store.clone(), keys, section.policy), registry: own }
    }

    /// Returns the span of the log lines about this keyspace.
    pub(crate) fn span(&self) -> Span {
        if self.own.is_some() { error_span!("keyspace", name = self.section.name) } else { Span::none() }
    }
}
