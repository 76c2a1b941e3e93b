//! SIGHUP: takes over the settings of the file that can change in a running process, and names the others.
//!
//! # Invariants
//!
//! * A file with a mistake changes no setting. Neither does one whose settings do not go with those that the process
//!   keeps.
//! * A changed setting either takes effect or is named.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use segue_config::{Config, LocatedConfig, WrittenValues};
use segue_proxy::routing::key_limit::{KeyLimiter, KeyLimits};
use segue_proxy::routing::table::{StashLimits, Table};
use segue_proxy::spans::Tracer;
use tracing::{info, warn};

use super::logging::{LevelHandle, level_filter};

const DRAIN_TIMEOUT: &str = "router.drain.timeout";

/// What a SIGHUP needs.
pub(super) struct Reloader<'a> {
    file: &'a Path,
    level: LevelHandle,
    /// The settings that this process was started with.
    running: WrittenValues,
    roles: OnceLock<Changeable>,
}

/// What of the roles takes settings over while it runs.
#[derive(Debug, Default)]
pub(super) struct Changeable {
    /// The table of each of the router's keyspaces, by name.
    pub(super) tables: Vec<(String, Arc<Table>)>,
    /// What limits the keys of each of the router's keyspaces that has such limits, by name.
    pub(super) key_limiters: Vec<(String, KeyLimiter)>,
    /// The router's `drain.timeout`, which has to be below each `stash.max_wait`.
    pub(super) drain_timeout: Option<Duration>,
    pub(super) tracer: Option<Tracer>,
}

impl Changeable {
    /// Returns the limits that a configuration has for each table.
    fn limits<'a>(&'a self, config: &'a Config) -> impl Iterator<Item = (&'a str, &'a Table, StashLimits)> {
        self.tables.iter().filter_map(|(name, table)| {
            let keyspace = config.keyspaces.iter().find(|keyspace| keyspace.name == *name)?;
            Some((&**name, &**table, keyspace.routing.as_ref()?.stash))
        })
    }

    /// Returns why the limits of a configuration do not go with what the process keeps.
    fn conflict(&self, config: &Config) -> Option<String> {
        let drain = self.drain_timeout?;
        let (name, max_wait) = self
            .limits(config)
            .map(|(name, _, limits)| (name, limits.max_wait))
            .find(|(_, max_wait)| *max_wait <= drain)?;
        Some(format!(
            "stash.max_wait of keyspace {name} would be {max_wait:?}, which is not above the router.drain.timeout of this \
             process, {drain:?}; expected a longer one, or a restart with this file"
        ))
    }

    /// Returns whether a router that is started with this configuration drains for another time than the running one.
    fn would_drain_otherwise(&self, config: &Config) -> bool {
        let configured = config.router.as_ref().map(|section| section.drain.timeout);
        self.drain_timeout.zip(configured).is_some_and(|(running, configured)| running != configured)
    }

    fn apply(&self, config: &Config) {
        self.limits(config).for_each(|(_, table, limits)| table.set_limits(limits));
        for (name, limiter) in &self.key_limiters {
            if let Some(limits) = key_limits(config, name) {
                limiter.set(limits);
            }
        }
        if let (Some(tracer), Some(section)) = (&self.tracer, &config.tracing) {
            tracer.set_sampling(section.sampling);
        }
    }

    /// Returns whether a change of this key takes effect.
    fn takes(&self, key: &str, config: &Config) -> bool {
        match key {
            "log.level" => true,
            "tracing.sample" => self.tracer.is_some() && config.tracing.is_some(),
            _ if key.starts_with("router.stash.") => !self.tables.is_empty() && config.router.is_some(),
            _ if is_number_of_key_limits(key.strip_prefix("router.")) => {
                !self.tables.is_empty() && self.tables.iter().all(|(name, _)| self.takes_key_limits(config, name))
            }
            _ => self.takes_of_table(key, config).unwrap_or(false),
        }
    }

    /// Returns whether a change of a key of a table in the list takes effect, such as `keyspaces.1.stash.max_wait` of the second
    /// table.
    fn takes_of_table(&self, key: &str, config: &Config) -> Option<bool> {
        let (number, rest) = key.strip_prefix("keyspaces.")?.split_once('.')?;
        let keyspace = config.keyspaces.get(number.parse::<usize>().ok()?)?;
        let is_served = self.tables.iter().any(|(name, _)| *name == keyspace.name);
        let of_key_limits = is_number_of_key_limits(Some(rest)) && self.takes_key_limits(config, &keyspace.name);
        Some(is_served && (rest.starts_with("stash.") || of_key_limits))
    }

    /// Returns whether a keyspace's limits of keys can become those of the configuration: it has some, or none, as before.
    fn takes_key_limits(&self, config: &Config, keyspace: &str) -> bool {
        self.key_limiters.iter().any(|(name, _)| name == keyspace) == key_limits(config, keyspace).is_some()
    }
}

/// Returns the limits of a keyspace's keys that a configuration has.
fn key_limits<'a>(config: &'a Config, name: &str) -> Option<&'a KeyLimits> {
    let keyspace = config.keyspaces.iter().find(|keyspace| keyspace.name == name)?;
    keyspace.routing.as_ref()?.key_limits.as_ref()
}

/// Returns whether a key, without the section of its role, is a number in the limits of keys. What is limited stays.
fn is_number_of_key_limits(key: Option<&str>) -> bool {
    let name = key.and_then(|key| key.strip_prefix("limits.key."));
    name.is_some_and(|name| !name.starts_with("by."))
}

impl<'a> Reloader<'a> {
    /// Returns what reloads this file in a process that was started with `running`.
    pub(super) fn new(file: &'a Path, level: LevelHandle, running: WrittenValues) -> Self {
        Reloader { file, level, running, roles: OnceLock::new() }
    }

    /// Sets what of the roles takes settings over. Later calls have no effect.
    pub(super) fn reach(&self, roles: Changeable) {
        let _ = self.roles.set(roles);
    }

    /// Applies the changes of the file that are possible while running, and names the others.
    pub(super) fn reload(&self) {
        let located = match segue_config::load(self.file) {
            Ok(located) => located,
            Err(problems) => return warn!("configuration reload rejected: {problems}"),
        };
        let nothing = Changeable::default();
        let roles = self.roles.get().unwrap_or(&nothing);
        if let Some(conflict) = roles.conflict(&located.config) {
            let problems = format!("{}: {conflict}", self.file.display());
            return warn!("configuration reload rejected: {problems}");
        }
        roles.apply(&located.config);
        let level = level_filter(located.config.log.level);
        if self.level.modify(|filter| *filter = level).is_ok() {
            info!(%level, "configuration reloaded");
        }
        let waiting = self.waiting(roles, &located);
        if !waiting.is_empty() {
            let keys = waiting.join(", ");
            warn!(keys, "settings that have changed take effect with a restart");
        }
    }

    /// Returns the changed keys that do not take effect.
    fn waiting(&self, roles: &Changeable, located: &LocatedConfig) -> Vec<String> {
        let mut changed = self.running.differing(located.written());
        changed.retain(|key| !roles.takes(key, &located.config));
        // Its default follows from `stash.max_wait`, so it may change without being written.
        if roles.would_drain_otherwise(&located.config) && !changed.iter().any(|key| key == DRAIN_TIMEOUT) {
            changed.push(DRAIN_TIMEOUT.to_owned());
        }
        changed
    }
}
