//! The store that a command uses: given by a configuration file, or by `--etcd` and `--keyspace`.
//!
//! Not here: admin endpoints in the place of a store (`target`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use segue_config::{Config, KeyspaceSection, StoreKind};
use segue_coordination::store::{ClientIdentity, EtcdCredentials, EtcdOptions, EtcdStore, EtcdTls, MemoryStore, Store};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::Policy;
use segue_proxy::tls::{ClientFiles, IdentityFiles};

use super::{CommandFailure, load};

/// The heading of the options that say where the keyspace is.
pub(super) const CONNECTION: &str = "Connection";

/// Variables that take the place of options. An option beats its variable.
pub(super) const CONFIG_VARIABLE: &str = "SEGUE_CONFIG";
const KEYSPACE_VARIABLE: &str = "SEGUE_KEYSPACE";

/// Where the store is.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct StoreArgs {
    /// Configuration file that names the store and the keyspace [env: SEGUE_CONFIG].
    #[arg(long, value_name = "FILE", conflicts_with = "etcd", help_heading = CONNECTION)]
    config: Option<PathBuf>,
    /// etcd endpoint, such as http://127.0.0.1:2379; several are separated by commas, or the option is repeated.
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = CONNECTION)]
    etcd: Vec<String>,
    /// Certificate authorities to trust for https:// endpoints, as a PEM file.
    #[arg(long, value_name = "FILE", conflicts_with = "config", help_heading = CONNECTION)]
    ca: Option<PathBuf>,
    /// Client certificate, for an endpoint that requires one, as a PEM file.
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"], help_heading = CONNECTION)]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, as a PEM file.
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = CONNECTION)]
    key: Option<PathBuf>,
    /// Keyspace [env: SEGUE_KEYSPACE]. Default: with --etcd `default`, otherwise the only one of the file or of the process.
    #[arg(long, value_name = "NAME", help_heading = CONNECTION)]
    keyspace: Option<String>,
    /// Key prefix of all keyspaces, with --etcd.
    #[arg(long, value_name = "PREFIX", default_value = "/segue/", conflicts_with = "config", help_heading = CONNECTION)]
    prefix: String,
}

/// Returns the value of a variable, unless it is empty.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

impl StoreArgs {
    /// Returns whether an option names the store.
    pub(super) fn is_given(&self) -> bool {
        self.config.is_some() || self.has_etcd()
    }

    pub(super) fn has_etcd(&self) -> bool {
        !self.etcd.is_empty()
    }

    /// Returns the configuration file: that of the option or, without `--etcd`, that of the variable.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let of_variable = || variable(CONFIG_VARIABLE).map(PathBuf::from).filter(|_| !self.has_etcd());
        self.config.clone().or_else(of_variable)
    }

    /// Returns the name of the keyspace, if an option or the variable has it.
    pub(super) fn keyspace(&self) -> Option<String> {
        let of_variable = || variable(KEYSPACE_VARIABLE)?.into_string().ok();
        self.keyspace.clone().or_else(of_variable)
    }

    /// Returns the name of the keyspace, if an option has it.
    pub(super) fn keyspace_option(&self) -> Option<String> {
        self.keyspace.clone()
    }

    /// Returns the files for TLS, if any are given.
    pub(super) fn tls(&self) -> Option<ClientFiles> {
        let identity = self.cert.clone().zip(self.key.clone());
        let identity = identity.map(|(cert, key)| IdentityFiles { cert, key });
        Some(ClientFiles { ca: self.ca.clone()?, identity, server_name: None })
    }

    /// Returns the configuration, if it is given by a file.
    pub(super) fn config(&self) -> Result<Option<Config>, CommandFailure> {
        self.file().map(|path| Ok(load(&path)?.config)).transpose()
    }

    /// Connects to the store. Returns it and the keyspace.
    pub(super) async fn connect(&self) -> Result<(Arc<dyn Store>, Keyspace), CommandFailure> {
        let (store, prefix) = self.open()?;
        let name = match &self.file() {
            Some(path) => self.chosen(path, &load(path)?.config)?.name.clone(),
            None => self.keyspace().unwrap_or_else(|| "default".to_owned()),
        };
        Ok((store, Keyspace::new(&prefix, &name)))
    }

    /// Connects to the store. Returns it and the prefix of all keyspaces. Requires a runtime.
    pub(super) fn open(&self) -> Result<(Arc<dyn Store>, String), CommandFailure> {
        if let Some(path) = &self.file() {
            if self.ca.is_some() {
                let text = format!("segue: --ca is for --etcd and --server; {CONFIG_VARIABLE} names a file");
                return Err(CommandFailure::BadInput(text));
            }
            let config = load(path)?.config;
            if config.store.kind == StoreKind::Memory {
                let text = format!(
                    "{}: store.kind = \"memory\" exists only within its process and cannot be read by another one",
                    path.display()
                );
                return Err(CommandFailure::BadInput(text));
            }
            return Ok((open(&config)?, config.store.prefix));
        }
        if !self.has_etcd() {
            let text = format!("segue: expected --config FILE, --etcd URL or the variable {CONFIG_VARIABLE}");
            return Err(CommandFailure::BadInput(text));
        }
        let mut options = EtcdOptions::new(self.etcd.clone());
        options.tls = self.ca.clone().map(|ca| EtcdTls { ca, identity: self.identity() });
        if let Some(url) = self.etcd.iter().find(|url| url.starts_with("https://") != options.tls.is_some()) {
            let text = format!("segue: --etcd {url}: expected https:// together with --ca, or neither");
            return Err(CommandFailure::BadInput(text));
        }
        let store = Arc::new(EtcdStore::connect(options).map_err(anyhow::Error::new)?);
        Ok((store, self.prefix.clone()))
    }

    /// Returns the policy of the configuration file's coordinator, or `None` without a file or a coordinator in it.
    pub(super) fn policy(&self) -> Result<Option<Policy>, CommandFailure> {
        let Some(path) = &self.file() else { return Ok(None) };
        Ok(self.chosen(path, &load(path)?.config)?.policy.clone())
    }

    /// Returns the keyspace of the configuration in `path` that the command is for.
    fn chosen<'a>(&self, path: &Path, config: &'a Config) -> Result<&'a KeyspaceSection, CommandFailure> {
        let wanted = self.keyspace();
        let found = match &wanted {
            Some(name) => config.keyspaces.iter().find(|keyspace| keyspace.name == *name),
            None => config.only_keyspace(),
        };
        found.ok_or_else(|| {
            let names: Vec<_> = config.keyspaces.iter().map(|keyspace| &*keyspace.name).collect();
            let (path, names) = (path.display(), names.join(", "));
            CommandFailure::BadInput(match &wanted {
                Some(name) if self.keyspace.is_none() => {
                    format!("{path}: no keyspace {name}, which {KEYSPACE_VARIABLE} names; expected one of {names}")
                }
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
