//! What a preStop hook does: whether it has the sidecar drain, how long it may take, and whether the sidecar lets it. Not
//! for: when Kubernetes runs it, which is in [`rules`](super::rules).
//!
//! # Invariants
//!
//! * A hook that is not understood has no duration and does not drain.

use std::path::Path;
use std::time::Duration;

use segue_config::{Admin, AdminWrite};

use super::manifest::{Container, HttpGet, PreStop, mount_of};

/// Where `segue drain --self` asks for the sidecar if it is not told, before it tries the usual address.
const SOCKET: &str = "/run/segue/admin.sock";
/// How long `segue drain` waits if it is not told.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);
/// How long `/drain` waits if it is not told, and at most.
const DEFAULT_WAIT: Duration = Duration::from_secs(20);
const MAX_WAIT: Duration = Duration::from_secs(50);

/// The obstacle to a hook, and what was expected.
pub(super) type Obstacle = (String, String);

/// Returns the commands that a container or a hook runs, each by its words. A shell's script is not evaluated: its
/// commands are what stands between `;`, `&`, `|` and line ends.
pub(super) fn commands(words: &[String]) -> Vec<Vec<&str>> {
    let is_shell = words.first().is_some_and(|word| ["sh", "bash", "ash", "dash"].contains(&name_of(word)));
    let flag = words.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
    let script = flag.filter(|_| is_shell).and_then(|at| words.get(at + 1));
    let Some(script) = script else { return vec![words.iter().map(String::as_str).collect()] };
    let parts = script.split([';', '&', '|', '\n']);
    let parts = parts.map(|part| part.split_whitespace().map(|word| word.trim_matches(['"', '\''])));
    parts
        .map(|words| words.skip_while(|word| *word == "exec").collect::<Vec<_>>())
        .filter(|it| !it.is_empty())
        .collect()
}

/// Returns whether a hook waits until the pod's partitions have moved.
pub(super) fn drains(hook: &PreStop) -> bool {
    let does = match hook {
        PreStop::Sleep(_) => false,
        PreStop::Exec(words) => commands(words).iter().any(|words| is_drain(words)),
        PreStop::HttpGet(get) => get.path.split('?').next() == Some("/drain"),
    };
    does && lasts(hook).is_none_or(|time| !time.is_zero())
}

/// Returns how long a hook may take, if that is known.
pub(super) fn lasts(hook: &PreStop) -> Option<Duration> {
    match hook {
        PreStop::Sleep(time) => Some(*time),
        PreStop::Exec(words) => commands(words).iter().map(|words| command_lasts(words)).sum(),
        PreStop::HttpGet(get) => match get.path.split_once('?') {
            Some(("/drain", query)) => match query.split('&').find_map(|part| part.strip_prefix("wait=")) {
                Some(wait) => segue_config::parse_duration(wait).ok().map(|wait| wait.min(MAX_WAIT)),
                None => Some(DEFAULT_WAIT),
            },
            None if get.path == "/drain" => Some(DEFAULT_WAIT),
            _ => None,
        },
    }
}

fn name_of(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn is_drain(words: &[&str]) -> bool {
    words.first().is_some_and(|word| name_of(word) == "segue") && words.contains(&"drain") && words.contains(&"--self")
}

fn command_lasts(words: &[&str]) -> Option<Duration> {
    let (program, arguments) = words.split_first()?;
    if name_of(program) == "sleep" {
        let time = |word: &&str| match word.parse() {
            Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Err(_) => segue_config::parse_duration(word).ok(),
        };
        return arguments.iter().map(time).sum();
    }
    if ["true", ":", "exit"].contains(program) {
        return Some(Duration::ZERO);
    }
    if !is_drain(words) {
        return None;
    }
    if words.contains(&"--no-wait") {
        return Some(Duration::ZERO);
    }
    match option(words, "--wait").or_else(|| option(words, "--timeout")) {
        Some(time) => segue_config::parse_duration(time).ok(),
        None => Some(DRAIN_TIMEOUT),
    }
}

/// Returns the value of an option of a command.
pub(super) fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(name)? {
        "" => words.get(at + 1).copied(),
        rest => rest.strip_prefix('='),
    })
}

/// Returns the port of an `http` or `https` URL.
fn port(url: &str) -> Option<u16> {
    let url: http::Uri = url.parse().ok()?;
    url.port_u16().or_else(|| Some(if url.scheme()? == &http::uri::Scheme::HTTPS { 443 } else { 80 }))
}

/// The two ends of a hook that has the sidecar drain.
pub(super) struct Ends<'a> {
    pub(super) service: &'a Container,
    pub(super) sidecar: &'a Container,
    /// The admin endpoint of the sidecar.
    pub(super) admin: Option<&'a Admin>,
}

impl Ends<'_> {
    /// Returns why the sidecar does not do what the hook of the service asks for.
    pub(super) fn obstacle(&self, hook: &PreStop) -> Option<Obstacle> {
        match hook {
            PreStop::Sleep(_) => None,
            PreStop::Exec(words) => commands(words).iter().filter(|it| is_drain(it)).find_map(|it| self.of_command(it)),
            PreStop::HttpGet(get) => self.of_get(get),
        }
    }

    fn of_command(&self, words: &[&str]) -> Option<Obstacle> {
        let socket = self.admin.and_then(|admin| admin.socket.as_deref());
        if let Some(server) = option(words, "--server") {
            return match server.strip_prefix("unix:") {
                Some(path) => self.of_socket(Path::new(path)),
                None => self.of_server(server, words),
            };
        }
        if option(words, "--config").is_some() {
            return match (socket, self.admin) {
                (Some(path), _) => self.of_socket(path),
                (None, Some(Admin { write: AdminWrite::Token(_), tls: None, .. })) => None,
                _ => Some(by_file()),
            };
        }
        self.of_socket(Path::new(SOCKET))
    }

    fn of_socket(&self, path: &Path) -> Option<Obstacle> {
        let is_served = self.admin.is_some_and(|admin| admin.socket.as_deref() == Some(path));
        let path = path.display().to_string();
        let volume = |container: &Container| Some(mount_of(container, &path)?.volume.clone());
        if !is_served || volume(self.service).is_none() || volume(self.service) != volume(self.sidecar) {
            let fact = format!("its preStop hook asks the sidecar at {path}, which it cannot reach");
            let remedy = format!("expected admin.socket = {path:?} and a volume at its folder in both containers");
            return Some((fact, remedy));
        }
        if self.service.user != self.sidecar.user {
            let user = |user: Option<u64>| user.map_or("that of its image".to_owned(), |user| user.to_string());
            let (its, other) = (user(self.service.user), user(self.sidecar.user));
            let fact = format!(
                "its preStop hook runs as user {its} and may not connect to {path}, which belongs to user {other}"
            );
            return Some((fact, "expected the same runAsUser in both containers".to_owned()));
        }
        None
    }

    fn of_server(&self, server: &str, words: &[&str]) -> Option<Obstacle> {
        let by_tls = self.admin.is_some_and(|admin| admin.tls.is_some());
        if server.starts_with("https://") != by_tls {
            let scheme = if by_tls { "https" } else { "http" };
            let fact = format!("its preStop hook asks {server}, and the sidecar's endpoint is served by {scheme}");
            return Some((fact, format!("expected --server {scheme}://…")));
        }
        if let Some(listen) = self.admin.map(|admin| admin.listen).filter(|listen| port(server) != Some(listen.port()))
        {
            let fact = format!("its preStop hook asks {server}, which is not the sidecar's admin endpoint");
            return Some((fact, format!("expected port {}", listen.port())));
        }
        let (fact, remedy) = match self.admin.map(|admin| &admin.write) {
            Some(AdminWrite::Token(_)) if option(words, "--token-file").is_some() => return None,
            Some(AdminWrite::Token(_)) => ("its preStop hook presents no token", "expected --token-file FILE"),
            Some(AdminWrite::ClientCert) if option(words, "--cert").is_some() => return None,
            Some(AdminWrite::ClientCert) => ("its preStop hook presents no certificate", "expected --cert and --key"),
            Some(AdminWrite::None) | None => return Some(read_only("expected admin.write, or admin.socket")),
        };
        Some((fact.to_owned(), remedy.to_owned()))
    }

    fn of_get(&self, get: &HttpGet) -> Option<Obstacle> {
        let Some(admin) = self.admin else { return Some(read_only("expected an exec hook")) };
        let (fact, remedy) = match &admin.write {
            AdminWrite::None => return Some(read_only("expected an exec hook, or admin.write = \"token\"")),
            AdminWrite::ClientCert => (
                "its preStop hook has no certificate, which admin.write of the sidecar asks for".to_owned(),
                "expected an exec hook, or admin.write = \"token\"".to_owned(),
            ),
            AdminWrite::Token(_) if !get.authorized => (
                "its preStop hook presents no token".to_owned(),
                "expected the header Authorization in its httpHeaders".to_owned(),
            ),
            AdminWrite::Token(_) if get.port != Some(admin.listen.port()) => {
                let fact = "its preStop hook does not ask the admin endpoint of the sidecar".to_owned();
                (fact, format!("expected port {}", admin.listen.port()))
            }
            AdminWrite::Token(_) if get.by_tls != admin.tls.is_some() => {
                let scheme = if admin.tls.is_some() { "HTTPS" } else { "HTTP" };
                let fact = format!("the sidecar's endpoint is served by {scheme}, and its preStop hook asks otherwise");
                (fact, format!("expected scheme: {scheme}"))
            }
            AdminWrite::Token(_) => return None,
        };
        Some((fact, remedy))
    }
}

fn read_only(remedy: &str) -> Obstacle {
    let fact = "its preStop hook changes something, and admin.write of the sidecar lets nobody";
    (fact.to_owned(), remedy.to_owned())
}

fn by_file() -> Obstacle {
    let fact = "its preStop hook has --config, and that file names no way to ask the sidecar that lets it drain";
    (fact.to_owned(), "expected admin.socket".to_owned())
}
