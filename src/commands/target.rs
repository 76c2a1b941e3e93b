//! Where a command reaches its keyspace: at a store, or at the admin endpoint of a process that has one.
//!
//! # Invariants
//!
//! * An option beats every variable. Without an option SEGUE_SERVER beats SEGUE_CONFIG.
//! * Without either, the admin endpoints of this machine are tried in order.
//! * A token goes only to an endpoint that is named.

use std::path::{Path, PathBuf};

use super::CommandFailure;
use super::store::{CONFIG_VARIABLE, CONNECTION, StoreArgs, variable};

pub(super) const SERVER_VARIABLE: &str = "SEGUE_SERVER";
const TOKEN_FILE_VARIABLE: &str = "SEGUE_TOKEN_FILE";

/// The option for the private key of the client certificate in `explain`, where `--key` is the key of a request.
pub(super) const TLS_KEY: &str = "tls-key";

/// The admin endpoints that are asked without any other choice: that of the package, and the default of `admin.listen`.
pub(super) const LOCAL_ENDPOINTS: [&str; 2] = ["unix:/run/segue/admin.sock", "http://127.0.0.1:9090"];

/// Where the keyspace can be reached: at its store, or at an admin endpoint.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct ReachArgs {
    /// Admin endpoint of any process of the keyspace, in place of the store [env: SEGUE_SERVER]: http://HOST:PORT,
    /// https://HOST:PORT or unix:PATH. Needs no credentials of the store. Without any of --server, --config and --etcd and
    /// their variables: unix:/run/segue/admin.sock, otherwise http://127.0.0.1:9090.
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "etcd", "prefix"], help_heading = CONNECTION)]
    server: Option<String>,
    /// File with the token that the admin endpoint requires of those who change something [env: SEGUE_TOKEN_FILE].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "etcd"], help_heading = CONNECTION)]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

/// A keyspace's place, as options and variables name it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The store of the arguments.
    Store,
    /// An admin endpoint, and the file of a token for it.
    Server { name: String, token_file: Option<PathBuf> },
    /// None is named.
    Local,
}

impl ReachArgs {
    /// Returns where the keyspace is.
    pub(super) fn target(&self) -> Result<Target, CommandFailure> {
        let of_variable = || variable(SERVER_VARIABLE)?.into_string().ok().filter(|_| !self.store.is_given());
        if let Some(name) = self.server.clone().or_else(of_variable) {
            let token_file = self.token_file.clone().or_else(|| variable(TOKEN_FILE_VARIABLE).map(PathBuf::from));
            return Ok(Target::Server { name, token_file });
        }
        if self.token_file.is_some() {
            let text =
                format!("segue: --token-file needs --server or {SERVER_VARIABLE}: a token goes to a named endpoint");
            return Err(CommandFailure::BadInput(text));
        }
        if self.store.file().is_some() || self.store.has_etcd() {
            return Ok(Target::Store);
        }
        if self.store.tls().is_some() {
            return Err(CommandFailure::BadInput("segue: --ca needs --etcd or --server".to_owned()));
        }
        Ok(Target::Local)
    }

    /// Refuses a file of authorities for processes that somebody else asks.
    pub(super) fn refuse_admin_ca(&self, ca: Option<&Path>) -> Result<(), CommandFailure> {
        match (ca, self.target()?) {
            (None, _) | (Some(_), Target::Store) => Ok(()),
            (Some(_), _) => {
                let text = "segue: --admin-ca is for commands that have the store: at an admin endpoint its process asks, by its \
                            admin.peers_tls";
                Err(CommandFailure::BadInput(text.to_owned()))
            }
        }
    }
}

/// Returns what to do if no keyspace is named and nobody answers at these endpoints, each with the reason.
pub(super) fn nobody_answers(silent: &[String]) -> anyhow::Error {
    anyhow::anyhow!(
        "no keyspace is named, and no process answers here ({}): expected --config, --etcd or --server, or a variable \
         {CONFIG_VARIABLE} or {SERVER_VARIABLE}",
        silent.join("; ")
    )
}
