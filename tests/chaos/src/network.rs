//! The network: a namespace for each host, all on one bridge, and the cuts between them.
//!
//! The bridge is in the namespace of the process itself, where the clients are; they are never cut off. Packets are
//! dropped silently where they arrive and refused where they leave, since only the sender's own kernel can tell it of a
//! refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::namespaces::run;

const BRIDGE: &str = "bridge";

/// What happens to packets between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// Packets are dropped in both directions.
    Silent,
    /// What the first sends does not arrive at the second; the other way all is well.
    SilentOneWay,
    /// Packets are refused with a reset in both directions.
    Refused,
    /// What the first sends is answered with a reset: the second seems not to listen.
    RefusedOneWay,
    /// This share of packets is lost, in percent, either way. TCP's own waiting makes delays of it.
    Lossy(u8),
}

impl Cut {
    pub(crate) fn in_words(self) -> String {
        match self {
            Cut::Silent => "cut off (packets dropped)".into(),
            Cut::SilentOneWay => "cut off in one direction (packets dropped)".into(),
            Cut::Refused => "cut off (connections reset)".into(),
            Cut::RefusedOneWay => "refused (connections reset)".into(),
            Cut::Lossy(percent) => format!("losing {percent} % of packets"),
        }
    }
}

/// The hosts, by name.
#[derive(Debug)]
pub(crate) struct Network {
    addresses: BTreeMap<String, Ipv4Addr>,
    /// Host, hook, and what is done there.
    rules: BTreeSet<(String, &'static str, String)>,
    delays: bool,
}

impl Network {
    pub(crate) fn build<'a>(hosts: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Self> {
        run("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
        run("ip", &["addr", "add", "10.77.0.1/24", "dev", BRIDGE])?;
        run("ip", &["link", "set", BRIDGE, "up"])?;
        let mut addresses = BTreeMap::new();
        for (number, host) in (10..).zip(hosts) {
            let address = Ipv4Addr::new(10, 77, 0, number);
            let (end, within) = (format!("to-{host}"), format!("{address}/24"));
            run("ip", &["netns", "add", host])?;
            run("ip", &["link", "add", &end, "type", "veth", "peer", "name", "eth0", "netns", host])?;
            run("ip", &["link", "set", &end, "master", BRIDGE, "up"])?;
            run("ip", &["-n", host, "addr", "add", &within, "dev", "eth0"])?;
            run("ip", &["-n", host, "link", "set", "eth0", "up"])?;
            run("ip", &["-n", host, "link", "set", "lo", "up"])?;
            addresses.insert(host.to_owned(), address);
        }
        // Asked of a real interface: a kernel without the module refuses.
        let delays = run("tc", &["qdisc", "add", "dev", BRIDGE, "root", "netem", "delay", "0ms"]).is_ok();
        Ok(Network { addresses, rules: BTreeSet::new(), delays })
    }

    /// Whether the kernel can delay packets (netem).
    pub(crate) fn can_delay(&self) -> bool {
        self.delays
    }

    pub(crate) fn address(&self, host: &str) -> Ipv4Addr {
        self.addresses[host]
    }

    /// What starts a process on a host.
    pub(crate) fn command_on(&self, host: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{host}")).arg("--");
        command
    }

    /// Cuts each of these pairs.
    pub(crate) fn cut(&mut self, pairs: &[(&str, &str)], how: Cut) -> anyhow::Result<()> {
        let rules: Vec<_> = pairs.iter().flat_map(|(one, other)| self.rules_of(one, other, how)).collect();
        self.rules.extend(rules);
        self.apply_to(pairs)
    }

    /// Takes back what [`cut`](Self::cut) did.
    pub(crate) fn heal(&mut self, pairs: &[(&str, &str)], how: Cut) -> anyhow::Result<()> {
        for rule in pairs.iter().flat_map(|(one, other)| self.rules_of(one, other, how)).collect::<Vec<_>>() {
            self.rules.remove(&rule);
        }
        self.apply_to(pairs)
    }

    fn apply_to(&self, pairs: &[(&str, &str)]) -> anyhow::Result<()> {
        let hosts: BTreeSet<&str> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
        hosts.into_iter().try_for_each(|host| self.apply(host))
    }

    /// Delays every packet that the host sends; `0`: no longer.
    pub(crate) fn delay(&self, host: &str, milliseconds: u32) -> anyhow::Result<()> {
        let delay = format!("{milliseconds}ms");
        let jitter = format!("{}ms", milliseconds / 3);
        run("tc", &["-n", host, "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", &delay, &jitter])
    }

    fn rules_of(&self, one: &str, other: &str, how: Cut) -> Vec<(String, &'static str, String)> {
        let arriving = |at: &str, from: &str, what: &str| {
            (at.to_owned(), "input", format!("ip saddr {} {what}", self.address(from)))
        };
        let leaving = |at: &str, to: &str| {
            let to = self.address(to);
            (at.to_owned(), "output", format!("ip daddr {to} meta l4proto tcp reject with tcp reset"))
        };
        match how {
            Cut::Silent => vec![arriving(one, other, "drop"), arriving(other, one, "drop")],
            Cut::SilentOneWay => vec![arriving(other, one, "drop")],
            Cut::Refused => vec![leaving(one, other), leaving(other, one)],
            Cut::RefusedOneWay => vec![leaving(one, other)],
            Cut::Lossy(percent) => {
                let drops = format!("numgen random mod 100 < {percent} drop");
                vec![arriving(one, other, &drops), arriving(other, one, &drops)]
            }
        }
    }

    fn apply(&self, host: &str) -> anyhow::Result<()> {
        let mut script = "flush ruleset\ntable inet chaos {\n".to_owned();
        for hook in ["input", "output"] {
            writeln!(script, "chain {hook} {{\ntype filter hook {hook} priority 0; policy accept;")?;
            for (_, _, rule) in self.rules.iter().filter(|(at, of, _)| at == host && *of == hook) {
                writeln!(script, "{rule}")?;
            }
            writeln!(script, "}}")?;
        }
        script.push_str("}\n");
        let mut command = self.command_on(host);
        let mut nft = command.args(["nft", "-f", "-"]).stdin(Stdio::piped()).spawn().context("cannot start nft")?;
        if let Some(mut pipe) = nft.stdin.take() {
            pipe.write_all(script.as_bytes())?;
        }
        ensure!(nft.wait()?.success(), "nft refused this on {host}:\n{script}");
        Ok(())
    }
}
