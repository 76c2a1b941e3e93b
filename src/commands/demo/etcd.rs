//! The etcd of a demo with `--etcd`.

use std::sync::Arc;

use segue_coordination::store::{EtcdOptions, EtcdStore, Store};
use segue_demo::etcd::Etcd;

/// The store in the etcd at a client URL.
#[derive(Debug)]
pub(super) struct EtcdAt {
    url: String,
    store: EtcdStore,
}

impl EtcdAt {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let store = EtcdStore::connect(EtcdOptions::new([url]))?;
        Ok(EtcdAt { url: url.to_owned(), store })
    }
}

impl Etcd for EtcdAt {
    fn url(&self) -> &str {
        &self.url
    }

    fn connect(&self) -> Arc<dyn Store> {
        Arc::new(self.store.with_own_connection())
    }
}
