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
    /// What its participants count.
    pub participants: ParticipantMetrics,
    is_labelled: bool,
}

impl RoleKeyspace {
    /// Returns the keyspaces of a configuration, and registers the metrics of their participants.
    pub(crate) fn all(config: &Config, registry: &mut Registry) -> Vec<Self> {
        let (prefix, is_labelled) = (&config.store.prefix, config.lists_keyspaces);
        config.keyspaces.iter().map(|section| Self::new(section, prefix, is_labelled, registry)).collect()
    }

    /// Returns one of several keyspaces below `prefix`, and a registry with its metrics alone.
    pub(crate) fn apart(section: &KeyspaceSection, prefix: &str) -> (Self, Registry) {
        let mut registry = Registry::with_prefix("segue");
        (Self::new(section, prefix, true, &mut registry), registry)
    }

    fn new(section: &KeyspaceSection, prefix: &str, is_labelled: bool, registry: &mut Registry) -> Self {
        RoleKeyspace {
            section: section.clone(),
            keys: Keyspace::new(prefix, &section.name).of_service(section.service.clone()),
            participants: ParticipantMetrics::new(labelled(registry, is_labelled, &section.name)),
            is_labelled,
        }
    }

    /// Returns where the series of this keyspace are registered.
    pub(crate) fn registry<'a>(&self, registry: &'a mut Registry) -> &'a mut Registry {
        labelled(registry, self.is_labelled, &self.section.name)
    }

    /// Returns what the admin endpoint shows of it, beside what it shows of the roles. Only a process that plans anyway
    /// follows the pods' heartbeats. `registry` has its series, if those of the process do not.
    pub(crate) fn shown(
        self,
        (store, health): (&Arc<dyn Store>, &Arc<StoreHealth>),
        roles: Vec<Arc<dyn StatusSource>>,
        plans: bool,
        registry: Option<Registry>,
    ) -> AdminKeyspace {
        let RoleKeyspace { section, keys, .. } = self;
        let watcher = Watcher::start_beside(store.clone(), keys.clone(), plans);
        let followed = KeyspaceStatusSource::start(store.clone(), keys.clone(), watcher, health.clone());
        let (board, troubles) = (followed.board(), followed.troubles());
        let sources = once(Arc::new(followed) as Arc<dyn StatusSource>).chain(roles).collect();
        AdminKeyspace { sources, board, troubles, link: Link::new(store.clone(), keys, section.policy), registry }
    }

    /// Returns the span of the log lines about this keyspace.
    pub(crate) fn span(&self) -> Span {
        if self.is_labelled { error_span!("keyspace", name = self.section.name) } else { Span::none() }
    }
}

fn labelled<'a>(registry: &'a mut Registry, is_labelled: bool, name: &str) -> &'a mut Registry {
    if is_labelled { registry.sub_registry_with_label(("keyspace".into(), name.to_owned().into())) } else { registry }
}
