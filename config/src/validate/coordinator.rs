//! The coordinator's section.

use segue_protocol::planning::{Coordination, Policy, Strategy};
use segue_protocol::records::Mode;

use super::{pods_service, seconds};
use crate::reader::Reader;
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

pub(super) fn coordinator(r: &mut Reader<'_>) -> Coordinator {
    let pods_service::PodsService { listen, token_file, tls } = pods_service::read(r);
    Coordinator {
        name: r.role_name("coordinator.name"),
        lease_ttl: r.lease("coordinator.lease_ttl", seconds(10)),
        listen,
        token_file,
        tls,
    }
}

/// Reads the placement policy, which is the default of every keyspace.
pub(super) fn policy(r: &mut Reader<'_>) -> Policy {
    let default = Policy::default();
    let coordination = r.choice("coordinator.coordination", Coordination::NAMES, default.coordination);
    // A stuck participant drops out with the next heartbeat: before a router's `max_wait`, if nothing is set.
    let heartbeat = if coordination == Coordination::Rounds { seconds(20) } else { default.heartbeat };
    let policy = Policy {
        partitions: r.integer("coordinator.partitions", 1..=65536, default.partitions),
        strategy: r.choice("coordinator.strategy", Strategy::NAMES, default.strategy),
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
        max_concurrent_handoffs: r.integer(
            "coordinator.max_concurrent_handoffs",
            1..=i64::MAX,
            default.max_concurrent_handoffs,
        ),
        max_warming_per_pod: r.integer("coordinator.max_warming_per_pod", 1..=i64::MAX, default.max_warming_per_pod),
        cool_down: r.duration_or_zero("coordinator.cool_down", default.cool_down),
        balance_load: r.boolean("coordinator.balance_load", default.balance_load),
        max_keys_per_partition: r.integer(
            "coordinator.max_keys_per_partition",
            0..=i64::MAX,
            default.max_keys_per_partition,
        ),
        config_wins: r.boolean("coordinator.config_wins", default.config_wins),
    };
    let settle = ("coordinator.settle", policy.settle);
    r.ordered(settle, ("coordinator.settle_max", policy.settle_max), false, show_duration);
    policy
}
