//! A fault: drawn from the seed, inflicted, and healed.
//!
//! Its victim is drawn when it is inflicted, because only then the leader is known. Healing undoes what the fault did
//! and nothing else, so that faults may overlap.

use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::cluster::{COORDINATORS, Cluster, LEASE_TTL, PODS, ROUTERS};
use crate::etcd::{self, MEMBERS};
use crate::network::Cut;

/// What happens.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// kill -9; healed by starting it again.
    Kill(&'static str),
    /// SIGSTOP; healed by SIGCONT.
    Stop(&'static str),
    /// Pairs of hosts.
    Cut(Vec<(&'static str, &'static str)>, Cut, String),
    /// Every packet that the host sends takes longer.
    Delay(&'static str, u32),
    /// A member of etcd has a slow disk; with what its syncs had taken before.
    SlowDisk(&'static str, Option<(f64, f64)>),
    /// A pod more; it leaves again.
    Join(&'static str),
    /// Ends gracefully; comes back.
    Restart(&'static str),
}

impl Fault {
    /// One that can happen to the cluster as it is, and how long it is to last. Never to one of `spared`.
    pub(crate) fn draw(random: &mut StdRng, cluster: &Cluster, spared: &[&str]) -> Option<(Self, Duration)> {
        let free = |of: &[&'static str]| -> Vec<&'static str> {
            cluster.running(of).into_iter().filter(|name| !spared.contains(name)).collect()
        };
        let (pods, routers, members) = (free(&PODS), free(&ROUTERS), free(&MEMBERS));
        let coordinators = free(&COORDINATORS);
        let etcd_leader = || cluster.etcd_leader().filter(|name| !spared.contains(name));
        let leader = || cluster.leader().filter(|name| !spared.contains(name));
        let kind = random.random_range(0..100);
        let fault = match kind {
            0..8 => Fault::Kill(pods.choose(random)?),
            8..14 => Fault::Kill(routers.choose(random)?),
            14..18 => Fault::Kill(leader()?),
            18..22 => Fault::Kill(members.choose(random)?),
            22..26 => Fault::Kill(etcd_leader()?),
            26..36 => Fault::Stop(pods.choose(random)?),
            36..44 => Fault::Stop(routers.choose(random)?),
            44..48 => Fault::Stop(leader()?),
            48..53 => Fault::Stop(etcd_leader()?),
            53..77 => Self::draw_cut(random, cluster, [&pods, &routers, &coordinators, &members])?,
            77..83 => Fault::SlowDisk(etcd_leader()?, None),
            83..91 => Fault::Join(PODS.into_iter().find(|pod| !cluster.is_running(pod) && !spared.contains(pod))?),
            91..97 => Fault::Restart(pods.choose(random)?),
            _ => Fault::Restart(routers.choose(random)?),
        };
        let ttl = LEASE_TTL.as_millis() as u64;
        // Well within what a lease allows, or beyond its end.
        let lasts = if random.random_bool(0.4) {
            random.random_range(200..ttl / 3)
        } else {
            random.random_range(ttl * 4 / 3..ttl * 7 / 3)
        };
        Some((fault, Duration::from_millis(lasts)))
    }

    fn draw_cut(random: &mut StdRng, cluster: &Cluster, names: [&[&'static str]; 4]) -> Option<Self> {
        let [pods, routers, coordinators, members] = names;
        let how = *[Cut::Silent, Cut::Silent, Cut::Refused, Cut::SilentOneWay, Cut::Lossy(25)].choose(random)?;
        let from_etcd = |who: &'static str| -> (Vec<_>, String) {
            (MEMBERS.map(|member| (who, member)).to_vec(), format!("{who} and etcd"))
        };
        let from_peers = |who: &'static str| -> (Vec<_>, String) {
            let peers = MEMBERS.into_iter().filter(|member| *member != who).map(|member| (who, member));
            (peers.collect(), format!("{who} and its peers"))
        };
        let (pairs, whom) = match random.random_range(0..8) {
            0 => from_etcd(routers.choose(random)?),
            1 => from_etcd(pods.choose(random)?),
            2 => from_etcd(coordinators.choose(random)?),
            3 => {
                let (router, pod) = (*routers.choose(random)?, *pods.choose(random)?);
                (vec![(router, pod)], format!("{router} and {pod}"))
            }
            4 => {
                let router = *routers.choose(random)?;
                (pods.iter().map(|pod| (router, *pod)).collect(), format!("{router} and all pods"))
            }
            5 => from_peers(members.choose(random)?),
            6 => from_peers(cluster.etcd_leader()?),
            _ => {
                let host = *[pods, routers, members].concat().choose(random)?;
                if cluster.network.can_delay() && random.random_bool(0.5) {
                    return Some(Fault::Delay(host, random.random_range(20..200)));
                }
                let all = [pods, routers, coordinators, &MEMBERS].concat();
                let pairs = all.into_iter().filter(|other| *other != host).map(|other| (host, other)).collect();
                return Some(Fault::Cut(
                    pairs,
                    Cut::Lossy(random.random_range(10..40)),
                    format!("{host} and all others"),
                ));
            }
        };
        Some(Fault::Cut(pairs, how, whom))
    }

    /// Whom another fault at the same time must spare.
    pub(crate) fn victims(&self) -> Vec<&'static str> {
        match self {
            Fault::Kill(who) | Fault::Stop(who) | Fault::Join(who) | Fault::Restart(who) => vec![who],
            Fault::Delay(who, _) | Fault::SlowDisk(who, _) => vec![who],
            Fault::Cut(pairs, ..) => pairs.iter().flat_map(|(one, other)| [*one, *other]).collect(),
        }
    }

    pub(crate) fn in_words(&self, cluster: &Cluster) -> String {
        match self {
            Fault::Kill(who) => format!("{who} is killed"),
            Fault::Stop(who) => format!("{who} is stopped (SIGSTOP)"),
            Fault::Cut(_, how, whom) => format!("{whom}: {}", how.in_words()),
            Fault::Delay(who, milliseconds) => format!("{who}: packets take {milliseconds} ms longer"),
            Fault::SlowDisk(who, _) => format!("{who} has a slow disk: {}", cluster.disk.in_words()),
            Fault::Join(who) => format!("{who} joins, and leaves again"),
            Fault::Restart(who) => format!("{who} is told to end (SIGTERM), and comes back"),
        }
    }

    pub(crate) fn inflict(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        match self {
            Fault::Kill(who) => cluster.kill(who),
            Fault::Stop(who) => cluster.stop(who),
            Fault::Cut(pairs, how, _) => cluster.network.cut(pairs, *how)?,
            Fault::Delay(who, milliseconds) => cluster.network.delay(who, *milliseconds)?,
            Fault::SlowDisk(who, before) => {
                *before = syncs(cluster, who);
                if let Some(pid) = cluster.pid(who) {
                    cluster.disk.begin(pid)?;
                }
            }
            Fault::Join(who) => cluster.start(who)?,
            Fault::Restart(who) => cluster.terminate(&[who], TERMINATE),
        }
        Ok(())
    }

    /// What is to be said about it when it is over, if anything.
    pub(crate) fn heal(&self, cluster: &mut Cluster) -> anyhow::Result<Option<String>> {
        match self {
            Fault::Kill(who) | Fault::Restart(who) => cluster.start(who)?,
            Fault::Stop(who) => cluster.resume(who),
            Fault::Cut(pairs, how, _) => cluster.network.heal(pairs, *how)?,
            Fault::Delay(who, _) => cluster.network.delay(who, 0)?,
            Fault::SlowDisk(who, before) => {
                let after = syncs(cluster, who);
                if let Some(pid) = cluster.pid(who) {
                    cluster.disk.end(pid)?;
                }
                return Ok(Some(slowness(who, *before, after)));
            }
            Fault::Join(who) => cluster.terminate(&[who], TERMINATE),
        }
        Ok(None)
    }
}

/// How long anything may take to end gracefully, faults or not.
pub(crate) const TERMINATE: Duration = Duration::from_secs(25);

fn syncs(cluster: &Cluster, member: &str) -> Option<(f64, f64)> {
    etcd::syncs(&etcd::metrics(cluster.network.address(member))?)
}

fn slowness(who: &str, before: Option<(f64, f64)>, after: Option<(f64, f64)>) -> String {
    let milliseconds = |count: f64, seconds: f64| seconds * 1000.0 / count.max(1.0);
    match (before, after) {
        (Some((count, sum)), Some((count_after, sum_after))) => format!(
            "a sync of {who}'s log took {:.1} ms ({:.0} of them; {:.1} ms before)",
            milliseconds(count_after - count, sum_after - sum),
            count_after - count,
            milliseconds(count, sum)
        ),
        _ => format!("what a sync of {who}'s log took could not be read"),
    }
}
