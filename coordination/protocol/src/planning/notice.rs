//! Notices for the operator, in words. Nothing is decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Policy;
use super::actions::all;
use super::assurance::Assurance;
use super::notice_pods;
use super::notice_settings::{config_missing, growth_refused, number_changed, shrink_refused};
use crate::handoff::advance::PendingOn;
use crate::ids::{Epoch, PartitionId};
use crate::keys::KeyName;
use crate::records::{ClockOffset, KeyspaceConfig, Mode, Origin, Partitioner, Phase};
use crate::view::View;

/// Most pods that one notice names.
const NAMED_PODS: usize = 8;

/// A notice for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The configuration file wants fewer partitions than there are.
    ShrinkRefused {
        /// The number in the configuration file.
        wanted: u32,
        /// The number that stays in force.
        kept: u32,
        /// How requests map to partitions, if a router has written it.
        partitioner: Option<Partitioner>,
    },
    /// The settings have another number of partitions than they had, and with this mapping keys would change their
    /// partition.
    NumberChanged {
        /// The number in the settings.
        shown: u32,
        /// The number that stays in force.
        number: u32,
        /// How requests map to partitions.
        mapping: Partitioner,
        /// The command that restores the settings.
        restore: String,
    },
    /// The configuration file wants more partitions than there are, and with this mapping keys would change their
    /// partition.
    GrowthRefused {
        /// The number in the configuration file.
        wanted: u32,
        /// The number that stays in force.
        kept: u32,
        /// How requests map to partitions, if a router has written it.
        partitioner: Option<Partitioner>,
    },
    /// A planning setting of the keyspace differs from that of the configuration file.
    PolicyDiffers {
        /// The setting.
        key: String,
        /// The value of the configuration file.
        own: String,
        /// The value that is in force.
        kept: String,
    },
    /// A planning setting of the keyspace cannot be read.
    PolicyUnreadable {
        /// The setting.
        key: String,
        /// Its value.
        value: String,
    },
    /// The settings are gone, and the configuration file does not match what is assigned.
    ConfigMissing {
        /// The number in the configuration file.
        wanted: u32,
        /// The number that the assignments imply.
        shown: u32,
        /// The key of the settings.
        key: String,
        /// The settings as far as they are known.
        settings: KeyspaceConfig,
    },
    /// The store refuses writes.
    WritesRefused {
        /// In which words.
        why: String,
    },
    /// The store's database is beyond half of its quota, and nobody compacts it.
    StoreFillsUp {
        /// Its size in bytes.
        bytes: u64,
        /// The size at which it refuses writes.
        quota: u64,
    },
    /// A registration, or the leader's key, exists without its lease: it outlives its writer.
    Leaseless {
        /// The key.
        key: String,
        /// The command that removes it once its writer is gone for good.
        repair: Option<String>,
    },
    /// `independent` needs a single router; `barrier` is used.
    IndependentImpossible {
        /// The number of registered routers.
        routers: usize,
    },
    /// `independent` needs a new owner that reads the tail itself before its first request; `barrier` is used.
    IndependentNotTo {
        /// The pods that have the capability `sync`.
        pods: Vec<String>,
    },
    /// A value cannot be read. Nothing is done about its subject.
    Malformed {
        /// The key.
        key: String,
        /// The error.
        reason: String,
        /// The command that removes it once its writer is gone for good.
        repair: Option<String>,
        /// The key is an assignment or a handoff: nobody may work on its partition when it is removed.
        is_of_partition: bool,
    },
    /// Pods that the strategy `external` follows are not registered.
    WantedAbsent {
        /// The pods, each with how many partitions are wanted there.
        pods: BTreeMap<String, usize>,
    },
    /// A partition cannot move: the epoch of its next owner would be above the last one.
    EpochsSpent {
        /// The partition.
        partition: PartitionId,
        /// Its owner.
        owner: String,
        /// The owner's epoch.
        epoch: Epoch,
        /// The key of its assignment.
        key: String,
    },
    /// No pod accepts partitions.
    NoPod,
    /// An operator has paused planned moves.
    Paused {
        /// Who, and why.
        origin: Origin,
    },
    /// A handoff has waited too long in a phase from which there is no way back.
    Overdue {
        /// The partition that moves.
        partition: PartitionId,
        /// The phase.
        phase: Phase,
        /// What the handoff waits for.
        waiting: Vec<PendingOn>,
    },
    /// A pod gets no more partitions for now, because it was not ready in time.
    Shunned {
        /// The pod.
        pod: String,
        /// Failures in a row.
        failures: u32,
    },
    /// A pod has warmed partitions for long without completing one, and gets no more while another pod can take them.
    WarmsSlowly {
        /// The pod.
        pod: String,
    },
    /// A pod gets no more partitions for now, because it died while it warmed or soon after a flip to it.
    DiesEarly {
        /// The pod.
        pod: String,
        /// Failures in a row.
        failures: u32,
    },
    /// A partition without a living owner rests, because its owners died soon after they had taken it over.
    OwnersDie {
        /// The partition.
        partition: PartitionId,
        /// Deaths in a row.
        deaths: u32,
        /// The pod that died last.
        last: String,
    },
    /// Most pods have gone together, or while the leader did not see the store. Their partitions wait for them.
    CutOff {
        /// The pods that have not come back.
        pods: BTreeSet<String>,
    },
    /// The clock of a pod or router differs from this coordinator's.
    ClockDiffers(ClockOffset),
    /// A pod has missed heartbeats, and gets no more partitions until it sends one.
    Suspected {
        /// The pod.
        pod: String,
    },
    /// A partition has more keys than one should have.
    TooManyKeys {
        /// The partition: the largest of its pod.
        partition: PartitionId,
        /// The pod.
        pod: String,
        /// Its number of keys.
        keys: u64,
        /// The largest number that one should have.
        most: u64,
    },
    /// The keyspace bounds the keys of a partition, and no pod reports any.
    NoKeys {
        /// The bound.
        most: u64,
    },
    /// A rolling restart is in progress, so moves for balance wait.
    Roll {
        /// The version of the pod that registered last, if it has one.
        newest: Option<String>,
    },
    /// Several registered pods advertise one address.
    SharedAddress {
        /// The address.
        address: String,
        /// The pods.
        pods: Vec<String>,
    },
    /// The guarantee that the registered pods allow.
    Assurance(Assurance),
}

impl Notice {
    /// Returns whether the operator should act on it, or look for its cause. The other notices say how things stand.
    pub fn is_warning(&self) -> bool {
        !matches!(self, Notice::Assurance(_) | Notice::Roll { .. })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::ShrinkRefused { wanted, kept, partitioner } => {
                shrink_refused(out, *wanted, *kept, partitioner.as_ref())
            }
            Notice::NumberChanged { shown, number, mapping, restore } => {
                number_changed(out, *shown, *number, mapping, restore)
            }
            Notice::GrowthRefused { wanted, kept, partitioner } => {
                growth_refused(out, *wanted, *kept, partitioner.as_ref())
            }
            Notice::ConfigMissing { wanted, shown, key, settings } => {
                config_missing(out, *wanted, *shown, key, settings)
            }
            Notice::PolicyDiffers { key, own, kept } => policy_differs(out, key, own, kept),
            Notice::PolicyUnreadable { key, value } => policy_unreadable(out, key, value),
            Notice::WritesRefused { why } => write!(
                out,
                "the store refuses writes: {why}; no move begins, and moves that wait are cancelled, until it accepts them"
            ),
            Notice::StoreFillsUp { bytes, quota } => store_fills_up(out, *bytes, *quota),
            Notice::Leaseless { key, repair } => {
                write!(out, "{key} was put without its lease; handoffs wait until its writer restores it")?;
                or_repair(out, repair.as_deref(), false)
            }
            Notice::IndependentImpossible { routers } => write!(
                out,
                "{routers} routers are registered: mode barrier is used, because independent is safe only with a single router"
            ),
            Notice::IndependentNotTo { pods } => independent_not_to(out, pods),
            Notice::Malformed { key, reason, repair, is_of_partition } => {
                write!(out, "{key} cannot be read and is left unchanged: {reason}")?;
                or_repair(out, repair.as_deref(), *is_of_partition)
            }
            Notice::Paused { origin } => write!(
                out,
                "planned moves are paused by {origin}: only partitions without a living owner and those of pods that \
                 shut down move; segue resume ends the pause"
            ),
            Notice::NoPod => out.write_str("no pod accepts partitions"),
            Notice::EpochsSpent { partition, owner, epoch, key } => epochs_spent(out, *partition, owner, *epoch, key),
            Notice::WantedAbsent { pods } => wanted_absent(out, pods),
            Notice::Overdue { partition, phase, waiting } => write!(
                out,
                "partition {partition} has been in {} for too long, waiting for {}",
                phase.as_str(),
                all(waiting)
            ),
            Notice::Shunned { pod, failures } => notice_pods::shunned(out, pod, *failures),
            Notice::WarmsSlowly { pod } => notice_pods::warms_slowly(out, pod),
            Notice::DiesEarly { pod, failures } => notice_pods::dies_early(out, pod, *failures),
            Notice::OwnersDie { partition, deaths, last } => notice_pods::owners_die(out, *partition, *deaths, last),
            Notice::CutOff { pods } => notice_pods::cut_off(out, pods),
            Notice::ClockDiffers(clock) => clock.fmt(out),
            Notice::Suspected { pod } => notice_pods::suspected(out, pod),
            Notice::TooManyKeys { partition, pod, keys, most } => {
                write!(out, "partition {partition} on {pod} has {keys} keys, above max_keys_per_partition = {most}")
            }
            Notice::NoKeys { most } => write!(
                out,
                "max_keys_per_partition = {most} is set, and no pod reports keys; have the service report them, or set it to 0"
            ),
            Notice::Roll { newest } => notice_pods::roll(out, newest.as_deref()),
            Notice::SharedAddress { address, pods } => notice_pods::shared_address(out, address, pods),
            Notice::Assurance(assurance) => assurance.fmt(out),
        }
    }
}

fn store_fills_up(out: &mut fmt::Formatter<'_>, bytes: u64, quota: u64) -> fmt::Result {
    write!(
        out,
        "nobody compacts the store, whose database has {} MiB, more than half of the {} MiB at which it refuses writes: start \
         etcd with --auto-compaction-mode=periodic --auto-compaction-retention=1h",
        bytes >> 20,
        quota >> 20
    )
}

fn independent_not_to(out: &mut fmt::Formatter<'_>, pods: &[String]) -> fmt::Result {
    write!(
        out,
        "mode barrier is used for moves to {}: a pod with the capability sync reads the tail once the log is at rest, which \
         independent cannot guarantee",
        pods.join(", ")
    )
}

fn epochs_spent(
    out: &mut fmt::Formatter<'_>,
    partition: PartitionId,
    owner: &str,
    epoch: Epoch,
    key: &str,
) -> fmt::Result {
    write!(
        out,
        "partition {partition} stays with {owner}: its epoch {epoch} was written by hand, and no epoch up to {} can follow; \
         once nobody works on the partition: etcdctl del {key}",
        Epoch::MAX
    )
}

fn policy_differs(out: &mut fmt::Formatter<'_>, key: &str, own: &str, kept: &str) -> fmt::Result {
    write!(
        out,
        "{key} is {own} in this coordinator's file and {kept} in the keyspace, which stays; a leader with \
         coordinator.config_wins = true writes its file's settings"
    )
}

fn policy_unreadable(out: &mut fmt::Formatter<'_>, key: &str, value: &str) -> fmt::Result {
    write!(
        out,
        "{key} of the keyspace's planning settings is {value}, which this coordinator cannot use; \
         coordinator.config_wins = true replaces it"
    )?;
    match key {
        "strategy" | "planning" => {
            out.write_str("; until then partitions stay where they are unless they have to move")
        }
        _ => Ok(()),
    }
}

fn wanted_absent(out: &mut fmt::Formatter<'_>, pods: &BTreeMap<String, usize>) -> fmt::Result {
    let named = pods.iter().take(NAMED_PODS).map(|(pod, count)| format!("{pod} (partitions: {count})"));
    let named: Vec<String> = named.collect();
    let others = match pods.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ");
    write!(out, "wanted names pods that are not registered: {named}{others}; living owners keep these partitions")
}

/// `is_of_partition`: the key is an assignment or a handoff.
fn or_repair(out: &mut fmt::Formatter<'_>, repair: Option<&str>, is_of_partition: bool) -> fmt::Result {
    match repair {
        Some(command) if command.starts_with(FORGET) => write!(out, "; if its writer is gone for good: {command}"),
        Some(command) if is_of_partition => write!(out, "; once nobody works on the partition: {command}"),
        Some(command) => write!(out, "; to remove it: {command}"),
        None => Ok(()),
    }
}

/// The command with which an operator declares that the owner of a registration is gone.
const FORGET: &str = "segue forget";

/// Returns the command that deletes a key that cannot be read, or a registration without a lease. `None` for records
/// that only their writers may replace.
pub fn repair(view: &View, key: &str) -> Option<String> {
    match view.keys().parse(key)? {
        KeyName::Pod(name) => Some(format!("{FORGET} pod {name}")),
        KeyName::Router(name) => Some(format!("{FORGET} router {name}")),
        KeyName::Drain(pod) => Some(format!("segue undrain {pod}")),
        KeyName::Pin(partition) => Some(format!("segue unpin {partition}")),
        KeyName::Pause => Some("segue resume".to_owned()),
        // The next ownership is a first placement.
        KeyName::Assignment(_) | KeyName::Handoff(_) => Some(format!("etcdctl del {key}")),
        KeyName::Leader | KeyName::Operation(_) | KeyName::Wanted | KeyName::Rounds(_) => {
            Some(format!("etcdctl del {key}"))
        }
        _ => None,
    }
}

/// Returns the text, or `none` in place of an empty one.
pub fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// Returns the notices that follow from the view alone.
pub(super) fn about(view: &View, policy: &Policy) -> Vec<Notice> {
    let mut notices: Vec<Notice> = view
        .malformed
        .iter()
        .map(|(key, reason)| Notice::Malformed {
            key: key.clone(),
            reason: reason.clone(),
            repair: repair(view, key),
            is_of_partition: matches!(view.keys().parse(key), Some(KeyName::Assignment(_) | KeyName::Handoff(_))),
        })
        .collect();
    notices.extend(view.leaseless().map(|key| Notice::Leaseless { repair: repair(view, &key), key }));
    let routers = view.routers.len();
    if policy.mode == Mode::Independent && routers > 1 {
        notices.push(Notice::IndependentImpossible { routers });
    }
    let syncs = view.pods.iter().filter(|(_, pod)| pod.value.capabilities.sync);
    let pods: Vec<String> = syncs.map(|(name, _)| name.clone()).collect();
    if policy.mode == Mode::Independent && !pods.is_empty() {
        notices.push(Notice::IndependentNotTo { pods });
    }
    notices.extend(
        view.shared_addresses().into_iter().map(|(address, pods)| Notice::SharedAddress {
            address,
            pods: pods.into_iter().map(str::to_owned).collect(),
        }),
    );
    if let Some(pause) = &view.intentions.pause {
        notices.push(Notice::Paused { origin: pause.value.origin.clone() });
    }
    if view.pods.keys().all(|pod| view.is_draining(pod)) {
        notices.push(Notice::NoPod);
    }
    notices.extend(Assurance::of(view).map(Notice::Assurance));
    notices
}
