//! The etcd cluster as an operator sees it: starting a member, finding the leader, disk latency.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use segue_tests::http::{Request, metric};

pub(crate) const MEMBERS: [&str; 3] = ["etcd-0", "etcd-1", "etcd-2"];
const CLIENT: u16 = 2379;
const PEER: u16 = 2380;

/// Where a member listens for clients.
pub(crate) fn client_address(member: Ipv4Addr) -> SocketAddr {
    (member, CLIENT).into()
}

/// The arguments of a member.
pub(crate) fn arguments(name: &str, data: &str, members: &[(&str, Ipv4Addr)]) -> Vec<String> {
    let peer = |address: Ipv4Addr| format!("http://{address}:{PEER}");
    let all: Vec<String> = members.iter().map(|(name, address)| format!("{name}={}", peer(*address))).collect();
    let own = members.iter().find(|(member, _)| *member == name).map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address);
    let client = format!("http://{}", client_address(own));
    let pairs = [
        ("--name", name.to_owned()),
        ("--data-dir", data.to_owned()),
        ("--listen-client-urls", client.clone()),
        ("--advertise-client-urls", client),
        ("--listen-peer-urls", peer(own)),
        ("--initial-advertise-peer-urls", peer(own)),
        ("--initial-cluster", all.join(",")),
        // A failover has to fit into the lease that it is to be survived with.
        ("--heartbeat-interval", "50".to_owned()),
        ("--election-timeout", "500".to_owned()),
        // As little as etcd takes: what is tested here is not how long it calculates.
        ("--bcrypt-cost", "4".to_owned()),
        ("--logger", "zap".to_owned()),
        ("--log-level", "warn".to_owned()),
    ];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

/// What a member says about itself; `None` if it does not answer.
pub(crate) fn metrics(member: Ipv4Addr) -> Option<String> {
    let response = Request::get("/metrics").timeout(Duration::from_secs(1)).send(client_address(member))?;
    (response.status == 200).then_some(response.body)
}

pub(crate) fn is_leader(metrics: &str) -> bool {
    metric(metrics, "etcd_server_is_leader") == Some(1.0)
}

/// How often its log was synced, and how many seconds that took together.
pub(crate) fn syncs(metrics: &str) -> Option<(f64, f64)> {
    let of = |what| metric(metrics, &format!("etcd_disk_wal_fsync_duration_seconds_{what}"));
    of("count").zip(of("sum"))
}
