//! The keyspace that a command is for: a store, given by a configuration file or by `--etcd` and `--keyspace`, or the
//! admin endpoint of a process that has one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use segue_config::{Config, KeyspaceSection, StoreKind};
use segue_coordination::store::{ClientIdentity, EtcdCredentials, EtcdOptions, EtcdStore, EtcdTls, MemoryStore, Store};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::Policy;
use segue_proxy::tls::{ClientFiles, IdentityFiles};

use super::{CommandFailure, load};

/// Where the store is.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("store").required(true).multiple(true).args(["config", "etcd"]))]
pub(super) struct StoreArgs {
    /// Configuration file that names the store and the keyspace.
    #[arg(long, value_name = "FILE", conflicts_with = "etcd")]
    config: Option<PathBuf>,
    /// etcd endpoint, such as http://127.0.0.1:2379; several are separated by commas, or the option is repeated.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd: Vec<String>,
    /// Certificate authorities to trust for https:// endpoints, as a PEM file.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    ca: Option<PathBuf>,
    /// Client certificate, for an endpoint that requires one, as a PEM file.
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, as a PEM file.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Keyspace. Default: with --etcd `default`, otherwise the only one of the file or of the process.
    #[arg(long, value_name = "NAME")]
    pub(super) keyspace: Option<String>,
    /// Key prefix of all keyspaces, with --etcd.
    #[arg(long, value_name = "PREFIX", default_value = "/segue/", conflicts_with = "config")]
    prefix: String,
}

/// Where the keyspace can be reached: at its store, or at an admin endpoint.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct ReachArgs {
    /// Admin endpoint of any process of the keyspace, in place of the store: http://HOST:PORT, https://HOST:PORT or
    /// unix:PATH. Needs no credentials of the store.
    #[arg(long, value_name = "URL", group = "store", conflicts_with_all = ["config", "etcd", "prefix"])]
    pub(super) server: Option<String>,
    /// File with the token that the admin endpoint requires of those who change something.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(super) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

impl ReachArgs {
    /// Returns the files for TLS towards an admin endpoint, if any are given.
    pub(super) fn tls(&self) -> Option<ClientFiles> {
        let identity = self.store.cert.clone().zip(self.store.key.clone());
        let identity = identity.map(|(cert, key)| IdentityFiles { cert, key });
        Some(ClientFiles { ca: self.store.ca.clone()?, identity, server_name: None })
    }
}

impl StoreArgs {
    /// Returns the configuration, if it is given by a file.
    pub(super) fn config(&self) -> Result<Option<Config>, CommandFailure> {
        Ok(match &self.config {
            Some(path) => Some(load(path)?.config),
            None => None,
        })
    }

    /// Connects to the store. Returns it and the keyspace.
    pub(super) async fn connect(&self) -> Result<(Arc<dyn Store>, Keyspace), CommandFailure> {
        if let Some(path) = &self.config {
            let config = load(path)?.config;
            if config.store.kind == StoreKind::Memory {
                let text = format!(
                    "{}: store.kind = \"memory\" exists only within its process and cannot be read by another one",
                    path.display()
                );
                return Err(CommandFailure::BadInput(text));
            }
            let keyspace = self.chosen(path, &config)?;
            let keys = Keyspace::new(&config.store.prefix, &keyspace.name);
            return Ok((open(&config)?, keys));
        }
        let mut options = EtcdOptions::new(self.etcd.clone());
        options.tls = self.ca.clone().map(|ca| EtcdTls { ca, identity: self.identity() });
        if let Some(url) = self.etcd.iter().find(|url| url.starts_with("https://") != options.tls.is_some()) {
            let text = format!("segue: --etcd {url}: expected https:// together with --ca, or neither");
            return Err(CommandFailure::BadInput(text));
        }
        let store = Arc::new(EtcdStore::connect(options).map_err(anyhow::Error::new)?);
        Ok((store, Keyspace::new(&self.prefix, self.keyspace.as_deref().unwrap_or("default"))))
    }

    /// Returns the policy of the configuration file's coordinator, or `None` without a file or a coordinator in it.
    pub(super) fn policy(&self) -> Result<Option<Policy>, CommandFailure> {
        let Some(path) = &self.config else { return Ok(None) };
        Ok(self.chosen(path, &load(path)?.config)?.policy.clone())
    }

    /// Returns the keyspace of the configuration in `path` that the command is for.
    fn chosen<'a>(&self, path: &Path, config: &'a Config) -> Result<&'a KeyspaceSection, CommandFailure> {
        let found = match &self.keyspace {
            Some(name) => config.keyspaces.iter().find(|keyspace| keyspace.name == *name),
            None => config.only_keyspace(),
        };
        found.ok_or_else(|| {
            let names: Vec<_> = config.keyspaces.iter().map(|keyspace| &*keyspace.name).collect();
            let (path, names) = (path.display(), names.join(", "));
            CommandFailure::BadInput(match &self.keyspace {
                Some(name) => format!("{path}: no keyspace {name}; expected one of {names}"),
                None => format!("{path}: several keyspaces; expected --keyspace, one of {names}"),
            })
        })
    }

    fn identity(&self) -> Option<ClientIdentity> {
        Some(ClientIdentity { cert: self.cert.clone()?, key: self.key.clone()? })
    }
}

/// Returns the store of a configuration.
pub(super) fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    if config.store.kind == StoreKind::Memory {
        return Ok(Arc::new(MemoryStore::new()));
    }
    Ok(Arc::new(open_etcd(config)?))
}

/// Returns the store of a configuration that has one in etcd.
pub(super) fn open_etcd(config: &Config) -> anyhow::Result<EtcdStore> {
    let mut options = EtcdOptions::new(config.store.endpoints.clone());
    if let Some(credentials) = &config.store.credentials {
        let (username, password_file) = (credentials.username.clone(), credentials.password_file.clone());
        // The store reads it when it needs it. A missing file is better told at once.
        std::fs::read_to_string(&password_file)
            .with_context(|| format!("store.password_file: cannot read {}", password_file.display()))?;
        options.credentials = Some(EtcdCredentials { username, password_file });
    }
    options.tls = config.store.tls.as_ref().map(|tls| EtcdTls {
        ca: tls.ca.clone(),
        identity: tls.identity.clone().map(|identity| ClientIdentity { cert: identity.cert, key: identity.key }),
    });
    Ok(EtcdStore::connect(options)?)
}
