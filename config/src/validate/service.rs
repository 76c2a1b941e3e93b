//! The service behind a sidecar: its address and TLS, and how the sidecar starts it.
//!
//! For: the form of each value, and that what belongs to `exec` is not given without it. Not for: whether this machine has
//! the folder, the user and the program, nor the service's hooks ([`hooks`](super::hooks)).

use std::path::PathBuf;

use segue_proxy::sidecar::{ServiceAddress, ServiceAddressError};
use segue_proxy::tls::ClientFiles;

use super::{host_and_port, tls};
use crate::error::{Wrong, quoted};
use crate::raw::RawValue;
use crate::reader::{self, ConfigReader, text};
use crate::validated::{Exec, ExecUser};

pub(super) const UPSTREAM: &str = "pod.upstream";
pub(super) const EXEC: &str = "pod.exec";
pub(super) const EXEC_CWD: &str = "pod.exec_cwd";
pub(super) const EXEC_ENV: &str = "pod.exec_env";
pub(super) const EXEC_USER: &str = "pod.exec_user";

const UPSTREAM_TLS: tls::ClientKeys = tls::ClientKeys {
    section: "pod.upstream_tls",
    ca: "pod.upstream_tls.ca",
    cert: "pod.upstream_tls.cert",
    key: "pod.upstream_tls.key",
    server_name: Some("pod.upstream_tls.server_name"),
};

const EXPECTED_UPSTREAM: &str = "expected a host and a port, such as \"127.0.0.1:8182\", or unix: and an absolute path, such as \"unix:/run/app.sock\"";

/// Reads the address of the service, and TLS towards it.
pub(super) fn upstream(r: &mut ConfigReader<'_>, default: &str) -> (ServiceAddress, Option<ClientFiles>) {
    let read = r.read(UPSTREAM, |value| {
        let written = text(value, EXPECTED_UPSTREAM)?;
        let wrong = |fact: &str| Wrong::new(format!("{} {fact}", quoted(written)), EXPECTED_UPSTREAM);
        if written.starts_with("unix:") {
            return written.parse().map_err(|error| match error {
                ServiceAddressError::LongPath => wrong("names a socket by too long a path"),
                _ => wrong("does not name a socket by an absolute path"),
            });
        }
        if let Some((scheme, rest)) = written.split_once("://") {
            let near = rest.split('/').next().map(quoted);
            let expected = match scheme {
                "https" => "expected the host and the port alone, and upstream_tls",
                _ => EXPECTED_UPSTREAM,
            };
            return Err(Wrong::new(format!("{} is a URL", quoted(written)), expected).did_you_mean(near));
        }
        host_and_port(value)?.parse().map_err(|_| wrong("is not a host and a port"))
    });
    let files = tls::client(r, &UPSTREAM_TLS);
    if let (Some(ServiceAddress::Unix(_)), Some(place)) = (&read, r.anything_in(UPSTREAM_TLS.section)) {
        let fact = format!("given for a service that listens on a Unix socket ({})", r.origin(UPSTREAM));
        r.report(Some(place), UPSTREAM_TLS.section, Wrong::new(fact, "expected TLS only towards a host and a port"));
    }
    let address = read.or_else(|| default.parse().ok());
    // The default is an address.
    (address.unwrap_or(ServiceAddress::Unix(PathBuf::new())), files)
}

/// Reads how the service is started; `None` if the sidecar does not start it.
pub(super) fn exec(r: &mut ConfigReader<'_>) -> Option<Exec> {
    let command = r.read(EXEC, command);
    let cwd = r.read(EXEC_CWD, folder);
    let env = r.read(EXEC_ENV, variables);
    let user = r.read(EXEC_USER, user);
    for key in [EXEC_CWD, EXEC_ENV, EXEC_USER].into_iter().filter(|key| r.is_given(key)).collect::<Vec<_>>() {
        if !r.is_given(EXEC) {
            r.report_key(key, Wrong::new(format!("given without {EXEC}"), "expected both"));
        }
    }
    Some(Exec { command: command?, cwd, env: env.unwrap_or_default(), user })
}

/// Reads a command line: the program and its arguments.
fn command(value: &RawValue) -> Result<Vec<String>, Wrong> {
    const EXPECTED: &str = "expected a list of words, such as [\"/usr/bin/service\", \"--port\", \"8182\"]";
    let words = reader::list(value, EXPECTED)?;
    let wrong = |fact| Err(Wrong::new(fact, EXPECTED));
    match words.first() {
        None => wrong("no command"),
        Some(program) if program.is_empty() => wrong("the program has no name"),
        Some(_) if words.iter().any(|word| word.contains('\0')) => wrong("a word holds a zero byte"),
        Some(_) => Ok(words),
    }
}

fn folder(value: &RawValue) -> Result<PathBuf, Wrong> {
    const EXPECTED: &str = "expected the absolute path of a folder, such as \"/var/lib/service\"";
    let path = text(value, EXPECTED)?;
    if path.starts_with('/') && !path.contains('\0') {
        return Ok(path.into());
    }
    Err(Wrong::new(format!("{} is not an absolute path", quoted(path)), EXPECTED))
}

/// Reads variables. In a variable of Segue's own they are TOML too, or NAME=VALUE between commas.
fn variables(value: &RawValue) -> Result<Vec<(String, String)>, Wrong> {
    const EXPECTED: &str = "expected variables, such as { TZ = \"UTC\", WORKERS = \"4\" }";
    let variables = table(value, EXPECTED)?;
    let bad =
        variables.iter().find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    match bad {
        None => Ok(variables),
        Some((name, _)) => Err(Wrong::new(format!("{} cannot be a variable", quoted(name)), EXPECTED)),
    }
}

/// Returns the names and texts of a table. A variable may contain TOML, or NAME=TEXT separated by commas.
fn table(value: &RawValue, expected: &str) -> Result<Vec<(String, String)>, Wrong> {
    let parsed = match value {
        RawValue::Variable(written) if !written.trim_start().starts_with('{') => {
            let items = written.split(',').map(str::trim).filter(|item| !item.is_empty());
            let pair = |item: &str| item.split_once('=').map(|(name, text)| (name.to_owned(), text.to_owned()));
            let wrong = |item: &str| Wrong::new(format!("{} has no =", quoted(item)), expected);
            return items.map(|item| pair(item).ok_or_else(|| wrong(item))).collect();
        }
        RawValue::Variable(written) => RawValue::from_toml(written),
        _ => None,
    };
    match parsed.as_ref().unwrap_or(value) {
        RawValue::Table(items) => {
            items.iter().map(|(name, value)| Ok((name.clone(), text(value, expected)?.to_owned()))).collect()
        }
        other => Err(Wrong::new(format!("{} is not a table", reader::show(other)), expected)),
    }
}

/// Reads a user: a name, or a number with or without that of a group.
fn user(value: &RawValue) -> Result<ExecUser, Wrong> {
    const EXPECTED: &str = "expected the name of a user, or a number such as \"1000\" or \"1000:1000\"";
    if let RawValue::Integer(number) = value {
        return number.to_string().parse().map_err(|()| Wrong::new(format!("{number} is not a user"), EXPECTED));
    }
    let text = text(value, EXPECTED)?;
    text.parse().map_err(|()| Wrong::new(format!("{} is not a user", quoted(text)), EXPECTED))
}
