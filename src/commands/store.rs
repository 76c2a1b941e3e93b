//! Which store a command talks to: given by a configuration file, or by `--etcd` and `--keyspace`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use segue_config::StoreKind;
use segue_coordination::store::keys::Keyspace;
use segue_coordination::store::{EtcdOptions, EtcdStore, MemoryStore, Store};

use super::{Failure, load};

/// Where the store is.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct StoreArgs {
    /// Take the store and the keyspace from this configuration file.
    #[arg(long, value_name = "FILE", conflicts_with = "etcd")]
    config: Option<PathBuf>,
    /// An etcd endpoint, such as http://127.0.0.1:2379; may be given several times.
    #[arg(long, value_name = "URL")]
    etcd: Vec<String>,
    /// The keyspace, with --etcd.
    #[arg(long, value_name = "NAME", default_value = "default")]
    keyspace: String,
    /// The prefix of all keyspaces, with --etcd.
    #[arg(long, value_name = "PREFIX", default_value = "/segue/")]
    prefix: String,
}

impl StoreArgs {
    /// Connects; and which keyspace.
    pub(super) async fn connect(&self) -> Result<(Arc<dyn Store>, Keyspace), Failure> {
        if let Some(path) = &self.config {
            let config = load(path)?;
            if config.store.kind == StoreKind::Memory {
                let text = format!(
                    "{}: store.kind = \"memory\" lives in one process only and cannot be looked at from here",
                    path.display()
                );
                return Err(Failure::BadInput(text));
            }
            return Ok(open(&config)?);
        }
        let store = etcd(EtcdOptions::new(self.etcd.clone()))?;
        Ok((store, Keyspace::new(&self.prefix, &self.keyspace)))
    }
}

/// The store and the keyspace of a configuration.
pub(super) fn open(config: &segue_config::Config) -> anyhow::Result<(Arc<dyn Store>, Keyspace)> {
    let keys = Keyspace::new(&config.store.prefix, &config.keyspace);
    if config.store.kind == StoreKind::Memory {
        return Ok((Arc::new(MemoryStore::new()), keys));
    }
    let mut options = EtcdOptions::new(config.store.endpoints.clone());
    if let Some(credentials) = &config.store.credentials {
        let path = &credentials.password_file;
        let password = std::fs::read_to_string(path)
            .with_context(|| format!("store.password_file: cannot read {}", path.display()))?;
        options.credentials = Some((credentials.username.clone(), password.trim_end().to_owned()));
    }
    Ok((etcd(options)?, keys))
}

fn etcd(options: EtcdOptions) -> anyhow::Result<Arc<dyn Store>> {
    Ok(Arc::new(EtcdStore::connect(options)?))
}
