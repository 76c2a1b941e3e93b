//! The coordinator's section.

use segue_protocol::planning::{Coordination, Policy};
use segue_protocol::records::Mode;

use super::{placement, pods_service, seconds};
use crate::reader::ConfigReader;
use crate::units::show_duration;
use crate::validated::Coordinator;

pub(super) const KEYS: &[&str] = &[
    "coordinator.name",
    "coordinator.partitions",
    "coordinator.strategy",
    "coordinator.lease_ttl",
    "coordinator.settle",
    "coordinator.settle_max",
    "coordinator.min_interval",
    "coordinator.heartbeat",
    "coordinator.max_concurrent_handoffs",
    "coordinator.max_warming_per_pod",
    "coordinator.cool_down",
    "coordinator.balance_load",
    "coordinator.max_keys_per_partition",
    "coordinator.config_wins",
    "coordinator.mode",
    "coordinator.coordination",
    "coordinator.warm_timeout",
    "coordinator.phase_timeout",
    "coordinator.checkpoint_interval",
    "coordinator.checkpoint_timeout",
    "coordinator.listen",
    pods_service::TOKEN_FILE,
    "coordinator.tls.cert",
    "coordinator.tls.key",
    "coordinator.tls.client_ca",
];

pub(super) fn coordinator(r: &mut ConfigReader<'_>) -> Coordinator {
    let pods_service::PodsService { listen, token_file, tls } = pods_service::read(r);
    Coordinator {
        name: r.role_name("coordinator.name"),
        lease_ttl: r.lease("coordinator.lease_ttl", seconds(10)),
        listen,
        token_file,
        tls,
    }
}

/// Reads the policy of planning, which is the default of every keyspace.
pub(super) fn policy(r: &mut ConfigReader<'_>) -> Policy {
    let default = Policy::default();
    let coordination = r.choice("coordinator.coordination", Coordination::NAMES, default.coordination);
    // A stuck participant drops out with the next heartbeat: before a router's `max_wait`, if nothing is set.
    let heartbeat = if coordination == Coordination::Rounds { seconds(20) } else { default.heartbeat };
    let policy = Policy {
        coordination,
        mode: r.choice("coordinator.mode", Mode::NAMES, default.mode),
        settle: r.duration_or_zero("coordinator.settle", default.settle),
        settle_max: r.duration_or_zero("coordinator.settle_max", default.settle_max),
        min_interval: r.duration_or_zero("coordinator.min_interval", default.min_interval),
        heartbeat: r.duration("coordinator.heartbeat", heartbeat),
        warm_timeout: r.duration("coordinator.warm_timeout", default.warm_timeout),
        phase_timeout: r.duration("coordinator.phase_timeout", default.phase_timeout),
        checkpoint_interval: r.write_interval_or_zero("coordinator.checkpoint_interval", default.checkpoint_interval),
        checkpoint_timeout: r.duration("coordinator.checkpoint_timeout", default.checkpoint_timeout),
        config_wins: r.boolean("coordinator.config_wins", default.config_wins),
        ..placement::read(r, &placement::COORDINATOR, &default)
    };
    let settle = ("coordinator.settle", policy.settle);
    r.ordered(settle, ("coordinator.settle_max", policy.settle_max), false, show_duration);
    policy
}
