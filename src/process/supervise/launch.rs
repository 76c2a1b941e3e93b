//! What a supervised service starts with beside its command: its folder, variables and user. Passed from the sidecar by the
//! supervisor to the process that becomes the service.
//!
//! # Invariants
//!
//! * The values of variables are on no command line, where every user of the machine could read them.
//! * The supervisor has none of the service's variables: they could change what it does.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use segue_config::Exec;
use serde::{Deserialize, Serialize};

use crate::process::users::Account;

/// The variable with the launch, as JSON.
const VARIABLE: &str = "SEGUE_LAUNCH";

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Launch {
    cwd: Option<PathBuf>,
    env: Vec<(String, String)>,
    user: Option<String>,
}

impl Launch {
    pub(super) fn of(exec: &Exec) -> Self {
        let user = exec.user.as_ref().map(ToString::to_string);
        Launch { cwd: exec.cwd.clone(), env: exec.env.clone(), user }
    }

    /// Passes this on to the supervisor.
    pub(super) fn give(&self, supervisor: &mut Command) {
        match serde_json::to_string(self) {
            Ok(text) if *self != Launch::default() => supervisor.env(VARIABLE, text),
            _ => supervisor.env_remove(VARIABLE),
        };
    }

    /// Returns what was passed on to this process.
    pub(super) fn received() -> anyhow::Result<Self> {
        let Some(text) = env::var_os(VARIABLE) else { return Ok(Launch::default()) };
        let text = text.into_string().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        Ok(serde_json::from_str(&text?)?)
    }

    /// Makes this process one of the service's user. Gives `service` its variables.
    pub(super) fn become_user(&self, service: &mut Command) -> anyhow::Result<()> {
        service.env_remove(VARIABLE);
        if let Some(user) = &self.user {
            let parsed = user.parse().map_err(|()| anyhow::anyhow!("{user} is not a user"))?;
            let account = Account::of(&parsed).map_err(|unknown| anyhow::anyhow!("{unknown}"))?;
            account.assume().with_context(|| format!("cannot become {user}"))?;
            if let Some((name, home)) = &account.named {
                service.env("HOME", home).env("USER", name).env("LOGNAME", name);
            }
        }
        service.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(())
    }

    /// Enters the service's folder.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        let Some(cwd) = &self.cwd else { return Ok(()) };
        env::set_current_dir(cwd).with_context(|| format!("cannot enter {}", cwd.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_passed_on_whole_and_one_without_anything_is_not() {
        let exec = Exec {
            command: vec!["a".to_owned()],
            cwd: Some("/a b".into()),
            env: vec![("A".to_owned(), "b=c\n\"d\"".to_owned())],
            user: Some("7:8".parse().unwrap()),
        };
        let given = |launch: &Launch| {
            let mut command = Command::new("a");
            launch.give(&mut command);
            let value = command.get_envs().find(|(name, _)| *name == VARIABLE).and_then(|(_, value)| value);
            value.map(|text| serde_json::from_str::<Launch>(text.to_str().unwrap()).unwrap())
        };
        assert_eq!(given(&Launch::of(&exec)), Some(Launch::of(&exec)));
        assert_eq!(given(&Launch::default()), None);
    }
}
