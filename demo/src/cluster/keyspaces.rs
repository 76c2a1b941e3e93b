//! The store of a demo, and the keyspaces in it.

use std::sync::Arc;

use anyhow::Context as _;
use segue_coordination::store::{MemoryStore, Store};
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
    let connect: Box<dyn Fn() -> Arc<dyn Store> + Send + Sync> = match &options.etcd {
        None => {
            let memory = Arc::new(MemoryStore::new());
            Box::new(move || memory.clone())
        }
        Some(etcd) => {
            // An etcd that cannot be reached is reported here, not later by each part.
            let config = Keyspace::new("/segue/", &first).config();
            etcd.connect().snapshot(&Keys::One(config)).await.with_context(|| format!("etcd at {}", etcd.url()))?;
            let etcd = etcd.clone();
            Box::new(move || etcd.connect())
        }
    };
    let keyspaces: Vec<_> = names
        .into_iter()
        .map(|name| {
            let keys = Keyspace::new("/segue/", &name);
            (name, keys.clone(), History::new(connect(), keys))
        })
        .collect();
    // Participants of all keyspaces write through all records, because they share a lease.
    let histories: Vec<_> = keyspaces.iter().map(|(_, _, history)| history.clone()).collect();
    let open = move || histories.iter().fold(connect(), |store, history| Arc::new(history.over(store)));
    Ok((Processes::new(open), keyspaces))
}
