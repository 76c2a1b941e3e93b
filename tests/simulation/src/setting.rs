//! The choices that a seed makes before anything runs: the size of the cluster, the capabilities of its pods, and the
//! faults that may happen.
//!
//! *Swarm*: each seed allows a random part of the faults, so that some runs are all about one and no fault hides
//! another.
//!
//! # Invariants
//!
//! * A fault is allowed only together with pods for which the protocol makes promises under it (the table under "What a
//!   pod must be able to do").

use std::time::Duration;

use segue_protocol::handoff::router::{OnDrainTimeout, OnStoreLoss};
use segue_protocol::planning::{Coordination, Policy, Strategy};
use segue_protocol::records::{Capabilities, Mode};

use crate::fault::Fault;
use crate::loads::Pattern;
use crate::rng::Rng;

/// What the pods of a cluster can do: a row of the protocol's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row {
    /// `drained` and `fence`.
    Full,
    /// `drained`.
    Drained,
    /// Neither, or only `fence`.
    Plain,
}

/// All that is fixed for one run.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) capabilities: Capabilities,
    /// In how many keyspaces each process takes part.
    pub(crate) keyspaces: u64,
    pub(crate) coordinators: u64,
    pub(crate) routers: u64,
    pub(crate) pods: u64,
    pub(crate) clients: u64,
    pub(crate) partitions: u32,
    pub(crate) lease_ttl: Duration,
    pub(crate) policy: Policy,
    /// What pods report of their load.
    pub(crate) load: Pattern,
    pub(crate) on_store_loss: OnStoreLoss,
    pub(crate) drain_timeout: Duration,
    pub(crate) on_drain_timeout: OnDrainTimeout,
    pub(crate) max_wait: Duration,
    pub(crate) max_requests: usize,
    pub(crate) flush_concurrency: usize,
    /// How long a request that had waited keeps its place in a flush.
    pub(crate) gives_way_after: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// How far clocks of machines may be off, in thousandths.
    pub(crate) drift: u64,
    /// Longest that an append is on its way to the log, in milliseconds.
    pub(crate) append_ms: u64,
    /// Longest that a message is on its way, in milliseconds.
    pub(crate) message_ms: u64,
    /// Longest that a call of the store is on its way, in each direction, in milliseconds.
    pub(crate) store_ms: u64,
    /// Longest usual work on a request, in milliseconds, and the percentage of requests that take up to a hundred times that.
    pub(crate) work_ms: u64,
    pub(crate) long_work: u32,
    /// The percentage of clients that hang up early.
    pub(crate) hang_ups: u32,
    /// How long a client rests between two requests at most, in milliseconds.
    pub(crate) rest_ms: u64,
    pub(crate) faults: Vec<Fault>,
    /// How long they rest between two faults at most, in milliseconds.
    pub(crate) fault_rest_ms: u64,
    /// How long things go wrong.
    pub(crate) storm: Duration,
    /// Whether the contract is checked after each call of the store. It costs a look at all keys each time.
    pub(crate) checks_calls: bool,
}

impl Setting {
    pub(crate) fn of(rng: &Rng) -> Self {
        let row = match rng.among(0..=9) {
            0..=5 => Row::Full,
            6 | 7 => Row::Drained,
            _ => Row::Plain,
        };
        let capabilities = Capabilities {
            sync: rng.percent(60),
            drained: row != Row::Plain,
            released: rng.percent(60),
            fence: row == Row::Full || (row == Row::Plain && rng.percent(50)),
            checkpoint: false,
        };
        let lease_ttl = Duration::from_secs(rng.among(3..=6));
        let routers = rng.among(1..=3);
        // What has been added later is drawn last, so that a seed remains as much of what it was as can be.
        let (first, added) = Fault::ALL.split_at(22);
        let mut faults: Vec<Fault> = first.iter().copied().filter(|fault| fault.is_allowed(row)).collect();
        faults.retain(|_| rng.percent(50));
        let independent = routers == 1 && row == Row::Full && rng.percent(20);
        if independent {
            // And no exchange may break in a handoff, by severing or a timeout either.
            faults.retain(|fault| fault.spares_single_router());
        }
        let patient = independent || row == Row::Plain;
        // Nothing but the policy says what becomes of a pod that cannot confirm that it has ended.
        let policies = match row {
            Row::Plain => vec![OnDrainTimeout::Auto, OnDrainTimeout::Cancel],
            _ => vec![OnDrainTimeout::Auto, OnDrainTimeout::Sever, OnDrainTimeout::Cancel],
        };
        let losses = match row {
            Row::Full => vec![OnStoreLoss::Auto, OnStoreLoss::Fence, OnStoreLoss::Serve],
            _ => vec![OnStoreLoss::Auto, OnStoreLoss::Fence],
        };
        let mut setting = Setting {
            capabilities,
            keyspaces: 1,
            coordinators: 2,
            routers,
            pods: rng.among(2..=4),
            clients: rng.among(3..=8),
            partitions: rng.among(2..=8) as u32,
            lease_ttl,
            policy: Policy {
                partitions: 0,
                strategy: match rng.among(0..=99) {
                    0..70 => Strategy::Sticky,
                    70..85 => Strategy::Jump,
                    _ => Strategy::Ring,
                },
                coordination: Coordination::Leader,
                mode: if independent { Mode::Independent } else { Mode::Barrier },
                settle: rng.millis(50..=500),
                settle_max: Duration::from_secs(2),
                min_interval: rng.millis(100..=500),
                heartbeat: Duration::from_secs(3),
                warm_timeout: rng.millis(4_000..=10_000),
                phase_timeout: rng.millis(4_000..=10_000),
                checkpoint_interval: Duration::ZERO,
                checkpoint_timeout: Duration::from_secs(1),
                max_concurrent_handoffs: rng.among(1..=8) as usize,
                max_warming_per_pod: 0,
                cool_down: Duration::ZERO,
                balance_load: false,
                max_keys_per_partition: 0,
                config_wins: false,
            },
            load: Pattern::Requests,
            on_store_loss: rng.pick(&losses).copied().unwrap_or_default(),
            drain_timeout: if independent { Duration::from_secs(60) } else { rng.millis(500..=3_000) },
            on_drain_timeout: rng.pick(&policies).copied().unwrap_or_default(),
            max_wait: rng.millis(2_000..=15_000),
            max_requests: rng.among(2..=60) as usize,
            // A timeout breaks an exchange with work still in the pod.
            request_timeout: if patient { Duration::from_secs(600) } else { rng.millis(2_000..=8_000) },
            connect_timeout: rng.millis(200..=1_000),
            drift: if rng.percent(50) { rng.among(0..=50) } else { 0 },
            append_ms: if row == Row::Full && !independent && rng.percent(30) { 4_000 } else { rng.among(1..=20) },
            message_ms: rng.among(1..=30),
            store_ms: rng.among(1..=10),
            work_ms: rng.among(1..=60),
            long_work: if rng.percent(30) { 3 } else { 0 },
            hang_ups: if rng.percent(50) { 10 } else { 0 },
            rest_ms: rng.among(20..=400),
            faults,
            fault_rest_ms: rng.among(1_000..=6_000),
            storm: 2 * rng.millis(20_000..=40_000),
            checks_calls: true,
            // Few places make a flush release what is hot after a few; many never do.
            flush_concurrency: if rng.percent(50) { rng.among(1..=4) as usize } else { 1_000_000 },
            gives_way_after: rng.millis(5..=250),
        };
        setting.policy.partitions = setting.partitions;
        let added = added.iter().filter(|fault| fault.is_allowed(row) && !independent);
        setting.faults.extend(added.filter(|_| rng.percent(40)));
        setting.policy.max_warming_per_pod = rng.among(1..=4) as usize;
        setting.policy.cool_down = rng.millis(0..=8_000);
        setting.policy.balance_load = rng.percent(50);
        // Told from a number that is drawn already, so that every other seed remains what it was.
        if setting.fault_rest_ms.is_multiple_of(4) {
            (setting.policy.coordination, setting.coordinators) = (Coordination::Rounds, 3);
        }
        // Likewise.
        setting.keyspaces = match setting.rest_ms % 6 {
            0 => 3,
            1 | 2 => 2,
            _ => 1,
        };
        if setting.keyspaces > 1 && row != Row::Plain && !independent {
            setting.faults.push(Fault::PausePart);
        }
        if setting.rest_ms.is_multiple_of(3) && Fault::RefuseWrites.is_allowed(row) && !independent {
            setting.faults.push(Fault::RefuseWrites);
        }
        if setting.rest_ms % 5 == 1 && Fault::StoreGoesBack.is_allowed(row) && !independent {
            setting.faults.retain(|fault| fault.spares_coordinators());
            // Often, as it takes its time.
            setting.faults.extend([Fault::StoreGoesBack; 3]);
        }
        if setting.policy.balance_load && setting.policy.strategy == Strategy::Sticky {
            setting.load = Pattern::ALL[setting.rest_ms as usize % Pattern::ALL.len()];
            // An overload shows only in heartbeats between which nothing moves.
            setting.fault_rest_ms *= if setting.rest_ms.is_multiple_of(2) { 6 } else { 1 };
            setting.faults.extend(Fault::OF_HEARTBEATS);
        }
        setting.capabilities.checkpoint = rng.percent(40);
        if setting.capabilities.checkpoint {
            setting.policy.checkpoint_interval = rng.millis(300..=5_000);
            setting.policy.checkpoint_timeout = rng.millis(50..=2_000);
        }
        setting
    }
}
