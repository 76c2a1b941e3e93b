//! Configuration files of `segue run`: the section of each role as tests need it, and keys that override it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// A configuration file.
#[derive(Debug, Clone, Default)]
pub struct Config(Table);

impl Config {
    /// Returns a file that names the store.
    pub fn new(endpoints: impl IntoIterator<Item = String>) -> Self {
        Config::default().set("store.endpoints", endpoints.into_iter().collect::<Vec<_>>())
    }

    /// Adds a coordinator.
    pub fn coordinator(self, name: &str, partitions: u32) -> Self {
        self.set("coordinator.name", name).set("coordinator.partitions", partitions)
    }

    /// Adds a router.
    pub fn router(self, name: &str, listen: SocketAddr) -> Self {
        self.set("router.name", name).set("router.listen", listen.to_string())
    }

    /// Adds a sidecar in front of the service at `upstream`.
    pub fn pod(self, name: &str, listen: SocketAddr, upstream: SocketAddr) -> Self {
        let addresses = [("pod.listen", listen), ("pod.upstream", upstream)];
        addresses.into_iter().fold(self.set("pod.name", name), |all, (key, at)| all.set(key, at.to_string()))
    }

    /// Adds an admin endpoint.
    pub fn admin(self, listen: SocketAddr) -> Self {
        self.set("admin.listen", listen.to_string())
    }

    /// Sets the TTL of a role's lease. For tests that wait for the end of one, and for those that compare its times.
    pub fn lease(self, role: &str, ttl: &str) -> Self {
        self.set(&format!("{role}.lease_ttl"), ttl)
    }

    /// Makes moves quick, and leases longer than any pause of a busy machine, as far as nothing else is set.
    pub fn quick(mut self) -> Self {
        let lease = ["coordinator", "router", "pod"].map(|role| (role, "lease_ttl", "10m"));
        let moves = [("settle", "50ms"), ("min_interval", "100ms"), ("cool_down", "0s")];
        let moves = moves.map(|(key, value)| ("coordinator", key, value));
        for (role, key, value) in lease.into_iter().chain(moves) {
            if let Some(Value::Table(section)) = self.0.get_mut(role) {
                section.entry(key).or_insert_with(|| value.into());
            }
        }
        self
    }

    /// Sets a key, named with its sections: `router.drain.timeout`.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
        self.section(section).insert(key.to_owned(), value.into());
        self
    }

    /// Sets the keys of a section that `text` says, in TOML.
    ///
    /// # Panics
    /// When `text` is no TOML.
    pub fn with(mut self, section: &str, text: &str) -> Self {
        let more: Table = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        merge(self.section(section), more);
        self
    }

    /// Adds the table of a keyspace, with what `text` says beside its name, in TOML.
    ///
    /// # Panics
    /// When `text` is no TOML.
    pub fn keyspace(mut self, name: &str, text: &str) -> Self {
        let mut table: Table = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        table.insert("name".to_owned(), name.into());
        let keyspaces = self.0.entry("keyspaces").or_insert_with(|| Value::Array(Vec::new()));
        keyspaces.as_array_mut().expect("`keyspaces` is a list").push(Value::Table(table));
        self
    }

    /// Sets the URLs of hooks of a pod: each has its own name below `url`.
    pub fn hooks(self, url: &str, hooks: &[&str]) -> Self {
        hooks.iter().fold(self, |config, hook| config.set(&format!("pod.hooks.{hook}.url"), format!("{url}/{hook}")))
    }

    /// Writes it into `folder`. Returns where it is.
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(format!("{name}.toml"));
        std::fs::write(&path, self.0.to_string())
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }

    fn section(&mut self, path: &str) -> &mut Table {
        path.split('.').filter(|name| !name.is_empty()).fold(&mut self.0, |table, name| {
            let section = table.entry(name).or_insert_with(|| Value::Table(Table::new()));
            section.as_table_mut().unwrap_or_else(|| panic!("{path} is no section"))
        })
    }
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_later_or_explicitly_wins() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 1));
        let config = Config::new(["http://e:1".to_owned()])
            .router("r", listen)
            .lease("router", "9s")
            .with("router", "drain = { timeout = \"1s\" }\npartition = { header = \"a\" }")
            .with("router.partition", "header = \"b\"\norder_by = { header = \"c\" }")
            .coordinator("c", 4)
            .quick();
        let expected = "[store]\nendpoints = [\"http://e:1\"]\n[router]\nname = \"r\"\nlisten = \"127.0.0.1:1\"\n\
             lease_ttl = \"9s\"\ndrain.timeout = \"1s\"\npartition = { header = \"b\", order_by = { header = \"c\" } }\n\
             [coordinator]\nname = \"c\"\npartitions = 4\nlease_ttl = \"10m\"\n\
             settle = \"50ms\"\nmin_interval = \"100ms\"\ncool_down = \"0s\"\n";
        assert_eq!(config.0.to_string().parse::<Table>(), expected.parse::<Table>());
    }
}
