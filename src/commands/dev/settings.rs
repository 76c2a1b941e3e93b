//! The settings of a site: a configuration as of a file, a section `[pod]` for each copy, and ports.
//!
//! # Invariants
//!
//! * The configuration is checked like that of a file, and the variables `SEGUE__SECTION__KEY` count, too.
//! * A variable that this command could not obey is refused.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};

use anyhow::ensure;
use segue_config::{Config, Exec, Pod, hostname, locate};

use super::Args;
use crate::commands::{CommandFailure, with_certificates};
use crate::process::certificates::Certificates;

/// What the command has of its own.
const OWN: [&str; 3] = ["SEGUE__KEYSPACE", "SEGUE__STORE__", "SEGUE__ADMIN__"];
/// The first port of the copies, unless the router has one.
const FIRST_PORT: u16 = 8081;
/// Python keeps lines back that go to no terminal, unless this is set.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// The settings of a site.
#[derive(Debug)]
pub(super) struct SiteSettings {
    pub(super) config: Config,
    pub(super) certificates: Certificates,
    /// The section of each copy, whose upstream is the copy itself.
    pub(super) pods: Vec<Pod>,
}

impl SiteSettings {
    /// Returns the settings that the arguments and the variables ask for.
    pub(super) fn new(args: &Args) -> Result<Self, CommandFailure> {
        let variables: Vec<(String, String)> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        if let Some((name, _)) = variables.iter().find(|(name, _)| OWN.iter().any(|own| name.starts_with(own))) {
            let text =
                format!("segue: {name} is set: segue dev has a store and an admin endpoint of its own; unset {name}");
            return Err(CommandFailure::BadInput(text));
        }
        let located = locate("segue dev", &file(args), variables, &hostname());
        let located = located.map_err(|errors| CommandFailure::BadInput(errors.to_string()))?;
        let (located, certificates) = with_certificates(located)?;
        let config = located.config;
        let Some(template) = &config.pod else { return Err(anyhow::anyhow!("no section [pod]").into()) };
        let ports = free_ports(usize::from(args.pods), [args.listen.port(), args.admin.port()])?;
        let pod = |(number, port): (usize, u16)| {
            let (name, upstream) = (format!("dev-{number}"), format!("127.0.0.1:{port}").parse()?);
            anyhow::Ok(Pod { name, upstream, exec: Some(exec(&args.command, port)), ..template.clone() })
        };
        let pods = (1..).zip(ports).map(pod).collect::<Result<_, _>>()?;
        Ok(SiteSettings { config, certificates, pods })
    }
}

/// Returns what starts a copy that listens on this port.
fn exec(command: &[String], port: u16) -> Exec {
    let port = port.to_string();
    let command = command.iter().map(|word| word.replace("{port}", &port)).collect();
    let unbuffered = std::env::var_os(UNBUFFERED).is_none().then(|| (UNBUFFERED.to_owned(), "1".to_owned()));
    let env = [("PORT".to_owned(), port)].into_iter().chain(unbuffered).collect();
    Exec { command, cwd: None, env, user: None }
}

/// Returns the file of the site. What moves is seen soon: nobody waits for a fleet of pods that start.
fn file(args: &Args) -> String {
    let Args { key, listen, admin, partitions, .. } = args;
    let key = key.toml();
    format!(
        r#"keyspace = "dev"
[store]
kind = "memory"
[router]
name = "router"
listen = "{listen}"
[router.partition]
key = {key}
without_key = "any"
[coordinator]
name = "coordinator"
partitions = {partitions}
settle = "200ms"
settle_max = "1s"
min_interval = "500ms"
cool_down = "1s"
[pod]
listen = "127.0.0.1:1"
upstream = "127.0.0.1:2"
[admin]
listen = "{admin}"
[log]
level = "error"
"#
    )
}

/// Returns ports that nobody listens on, from the one above the router's on.
fn free_ports(count: usize, taken: [u16; 2]) -> anyhow::Result<Vec<u16>> {
    let first = if taken[0] == 0 { FIRST_PORT } else { taken[0].saturating_add(1) };
    let ports = (first..=u16::MAX).filter(|port| !taken.contains(port) && is_free(*port));
    let ports: Vec<u16> = ports.take(count).collect();
    ensure!(ports.len() == count, "no {count} free ports above {first}: expected a lower port in --listen");
    Ok(ports)
}

/// Returns whether a service could listen on this port at every address.
fn is_free(port: u16) -> bool {
    // With IPv6, this is every address of IPv4 as well.
    let any = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    any.is_ok() || TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).is_ok()
}
