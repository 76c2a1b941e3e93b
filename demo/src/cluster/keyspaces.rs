//! The store of a demo, and the keyspaces in it.

use std::sync::Arc;

use anyhow::Context as _;
use segue_coordination::store::{EtcdOptions, EtcdStore, MemoryStore, Store};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::Keys;

use super::super::clock;
use super::super::history::History;
use super::super::options::Options;
use super::super::processes::Processes;

/// Opens the store. Returns each keyspace's name, keys, and the record of what is written to it.
pub(super) async fn open(options: &Options) -> anyhow::Result<(Processes, Vec<(String, Keyspace, History)>)> {
    let first = match &options.etcd {
        None => "demo".to_owned(),
        // A keyspace of its own, whatever earlier runs have left in the store.
        Some(_) => format!("demo-{:x}-{}", clock::now(), std::process::id()),
    };
    let names: Vec<String> = (1..=options.keyspaces.max(1))
        .map(|number| if number == 1 { first.clone() } else { format!("{first}-{number}") })
        .collect();
    let mut store: Arc<dyn Store> = match &options.etcd {
        None => Arc::new(MemoryStore::new()),
        Some(url) => {
            let etcd = EtcdStore::connect(EtcdOptions::new([url.clone()]))?;
            // An etcd that cannot be reached is reported here, not later by each part.
            let config = Keyspace::new("/segue/", &first).config();
            etcd.snapshot(&Keys::One(config)).await.with_context(|| format!("etcd at {url}"))?;
            Arc::new(etcd)
        }
    };
    let mut keyspaces = Vec::new();
    for name in names {
        let keys = Keyspace::new("/segue/", &name);
        // Participants of all keyspaces write through all records, because they share a store and a lease.
        let history = History::new(store, keys.clone());
        store = Arc::new(history.clone());
        keyspaces.push((name, keys, history));
    }
    Ok((Processes::new(store), keyspaces))
}
