//! The texts of some lines: what the site consists of and what to try, and why there is none.
//!
//! # Invariants
//!
//! * A command that is shown can be copied into another terminal as it stands.
//! * No line of a site with usual addresses is longer than 80 columns.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;

use super::key::RoutingKey;
use super::report::{SiteFailure, end_in_words};
use super::shell;
use crate::commands::store::{CONFIG_VARIABLE, variable};
use crate::commands::target::{LOCAL_ENDPOINTS, SERVER_VARIABLE};

/// The columns of a usual terminal.
const COLUMNS: usize = 80;

/// What a site consists of.
#[derive(Debug)]
pub(super) struct SiteFacts<'a> {
    pub(super) key: &'a RoutingKey,
    pub(super) router: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) copies: Vec<CopyFacts>,
    /// How this program is called from anywhere.
    pub(super) program: String,
    /// Whether commands find the site by themselves.
    pub(super) is_default: bool,
}

/// A copy, as it is shown.
#[derive(Debug)]
pub(super) struct CopyFacts {
    pub(super) name: String,
    pub(super) address: String,
    /// Unless it does not run.
    pub(super) pid: Option<u32>,
    /// A partition that it owns.
    pub(super) partition: Option<u32>,
}

/// Returns the first lines about a site that serves.
pub(super) fn welcome(facts: &SiteFacts<'_>) -> String {
    let (router, admin) = (reachable(facts.router), reachable(facts.admin));
    let mut text = format!("\n  router     http://{router}   key: {}\n", facts.key.as_str());
    let _ = writeln!(text, "  live page  http://{admin}");
    for CopyFacts { name, address, pid, .. } in &facts.copies {
        let pid = pid.map_or_else(|| "starting".to_owned(), |pid| format!("pid {pid}"));
        let _ = writeln!(text, "  {name:9}  http://{address}   {pid}");
    }
    text += "\nTry in another terminal:\n\n";
    let tries = tries(facts, router, admin);
    let longest = tries.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    let is_narrow = tries.iter().all(|(_, effect)| 2 + longest + 4 + effect.len() <= COLUMNS);
    for (command, effect) in tries {
        let _ = match is_narrow {
            true => writeln!(text, "  {command:longest$}  # {effect}"),
            false => writeln!(text, "  # {effect}\n  {command}"),
        };
    }
    text + "\nCtrl-C ends everything.\n"
}

/// Returns commands to try, each with its effect.
fn tries(facts: &SiteFacts<'_>, router: SocketAddr, admin: SocketAddr) -> Vec<(String, String)> {
    let SiteFacts { key, copies, program, .. } = facts;
    let server = if facts.is_default { String::new() } else { format!(" --server http://{admin}") };
    let segue = |words: &str| format!("{program} {words}{server}");
    let example = key.example();
    let mut tries = vec![
        (key.request(router), format!("a request with the key {example}")),
        (segue(&format!("explain --key {example}")), "its partition and its pod".to_owned()),
        (segue("status"), "the pods and what they own".to_owned()),
    ];
    if let [first, second, ..] = &**copies {
        let drain = "its partitions move, until undrain";
        tries.push((segue(&format!("drain {}", first.name)), drain.to_owned()));
        if let Some(partition) = second.partition {
            let to = &first.name;
            let to = if copies.len() > 2 { &copies[2].name } else { to };
            tries.push((segue(&format!("move {partition} --to {to}")), "one partition moves".to_owned()));
        }
    }
    if let Some((copy, pid)) = copies.iter().rev().find_map(|copy| Some((copy, copy.pid?))) {
        tries.push((format!("kill -9 {pid}"), format!("{} dies, and comes back", copy.name)));
    }
    tries
}

/// Returns what is being started, in words.
pub(super) fn copies(count: u16, command: &[String]) -> String {
    let copies = if count == 1 { "a copy".to_owned() } else { format!("{count} copies") };
    format!("{copies} of {}", shell::line(command))
}

/// Returns why no copy of a command serves, with the last lines of one. `ports` are those that the copies should listen on.
pub(super) fn failure(failure: SiteFailure, command: &[String], ports: &[u16], last: &[String]) -> String {
    let command = shell::line(command);
    let text = match failure {
        SiteFailure::Ended { code } => {
            format!("segue: no copy of {command} has come up: dev-1 {}", end_in_words(code, 1))
        }
        SiteFailure::Silent { after } => {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let (ports, after) = (ports.join(", "), segue_config::show_duration(after));
            format!(
                "segue: no copy of {command} listens on its port ({ports}) after {after}; expected {{port}} among the \
                 arguments, or PORT, to be where it listens; --start-timeout gives it longer"
            )
        }
    };
    if last.is_empty() {
        return text + "\ndev-1 has written nothing";
    }
    let lines: String = last.iter().map(|line| format!("\n  {line}")).collect();
    format!("{text}\nlast lines of dev-1:{lines}")
}

/// Returns an address at which this machine reaches a listener.
pub(super) fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    (ip, listener.port()).into()
}

/// Returns whether commands without an option reach the admin endpoint at this address: no variable names another one, and
/// nobody is at the socket that is tried before.
pub(super) fn is_default(admin: SocketAddr) -> bool {
    let [socket, url] = LOCAL_ENDPOINTS;
    let is_named = [SERVER_VARIABLE, CONFIG_VARIABLE].iter().any(|name| variable(name).is_some());
    let has_socket = socket.strip_prefix("unix:").is_some_and(|path| UnixStream::connect(path).is_ok());
    !is_named && !has_socket && url == format!("http://{}", reachable(admin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(key: &RoutingKey, copies: u16) -> SiteFacts<'_> {
        let copy = |number: u16| CopyFacts {
            name: format!("dev-{number}"),
            address: format!("127.0.0.1:{}", 8080 + number),
            pid: Some(4_194_303),
            partition: Some(u32::from(number)),
        };
        SiteFacts {
            key,
            router: SocketAddr::from(([0, 0, 0, 0], 8080)),
            admin: SocketAddr::from(([127, 0, 0, 1], 9090)),
            copies: (1..=copies).map(copy).collect(),
            program: "segue".to_owned(),
            is_default: true,
        }
    }

    #[test]
    fn no_line_is_wider_than_a_usual_terminal() {
        let key = RoutingKey::parse("path:/persons/{key}").unwrap();
        let text = welcome(&facts(&key, 3));
        assert!(text.contains("  curl http://127.0.0.1:8080/persons/42  # a request with the key 42\n"), "{text}");
        assert!(text.contains("  segue move 2 --to dev-3  "), "{text}");
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        let program = "/home/ann/projects/segue/target/release/segue".to_owned();
        let text = welcome(&SiteFacts { program: program.clone(), ..facts(&key, 3) });
        assert!(text.contains(&format!("\n  # one partition moves\n  {program} move 2 --to dev-3\n")), "{text}");
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
    }

    #[test]
    fn commands_name_a_site_that_they_would_not_find() {
        let key = RoutingKey::parse("query:id").unwrap();
        let admin = SocketAddr::from(([127, 0, 0, 1], 9191));
        let text = welcome(&SiteFacts { admin, is_default: false, ..facts(&key, 2) });
        assert!(text.contains("  segue status --server http://127.0.0.1:9191\n"), "{text}");
        assert!(text.contains("  segue move 2 --to dev-1 --server http://127.0.0.1:9191\n"), "{text}");
    }

    #[test]
    fn a_lone_pod_has_nobody_to_give_its_partitions_to() {
        let key = RoutingKey::parse("host").unwrap();
        let text = welcome(&facts(&key, 1));
        assert!(!text.contains("drain") && !text.contains("move "), "{text}");
        assert!(text.contains("kill -9 4194303"), "{text}");
    }
}
