//! The planning settings of the keyspace, which every coordinator follows.
//!
//! The first leader writes those of its configuration file into the keyspace's `config`. From then on they are in force
//! under every leader, so that a failover between coordinators with different files changes nothing. A leader whose file
//! differs says so. With `config_wins` it writes the settings of its file, which starts a round.
//!
//! # Invariants
//!
//! * A setting that cannot be read is neither overwritten, unless the file wins, nor taken for absent: the file's value
//!   applies, and under an unreadable strategy partitions stay where they are.
//! * Settings that this version does not know are kept.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::actions::PlannedWrite;
use super::notice::Notice;
use super::{Coordination, Policy, Strategy};
use crate::ids::Revision;
use crate::keys::KeyName;
use crate::records::{KeyspaceConfig, Mode, Partitioner};
use crate::view::View;

type Field<T> = (&'static str, fn(&mut Policy) -> &mut T);

const STRATEGY: &str = "strategy";
const MODE: &str = "mode";
const COORDINATION: &str = "coordination";
/// Stored in milliseconds.
const DURATIONS: [Field<Duration>; 9] = [
    ("settle_ms", |policy| &mut policy.settle),
    ("settle_max_ms", |policy| &mut policy.settle_max),
    ("min_interval_ms", |policy| &mut policy.min_interval),
    ("heartbeat_ms", |policy| &mut policy.heartbeat),
    ("warm_timeout_ms", |policy| &mut policy.warm_timeout),
    ("phase_timeout_ms", |policy| &mut policy.phase_timeout),
    ("cool_down_ms", |policy| &mut policy.cool_down),
    // Pods read these two (`KeyspaceConfig::checkpoint_times`).
    ("checkpoint_interval_ms", |policy| &mut policy.checkpoint_interval),
    ("checkpoint_timeout_ms", |policy| &mut policy.checkpoint_timeout),
];
const MAY_BE_ZERO: [&str; 5] =
    ["settle_ms", "settle_max_ms", "min_interval_ms", "cool_down_ms", "checkpoint_interval_ms"];
/// Stored as numbers above zero.
const COUNTS: [Field<usize>; 2] = [
    ("max_concurrent_handoffs", |policy| &mut policy.max_concurrent_handoffs),
    ("max_warming_per_pod", |policy| &mut policy.max_warming_per_pod),
];

const BALANCE_LOAD: &str = "balance_load";
const MAX_KEYS: &str = "max_keys_per_partition";

/// The settings of a keyspace, compared with those of one coordinator's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InForce {
    /// The policy to plan by.
    pub(super) policy: Policy,
    /// The value to write. `None` if the keyspace has all settings, and the file does not win.
    pub(super) write: Option<Value>,
    /// Where the file and the keyspace's settings differ.
    pub(super) notices: Vec<Notice>,
}

/// Returns the policy by which a coordinator with the policy `own` plans.
pub fn in_force(view: &View, own: &Policy) -> Policy {
    of(view, own).policy
}

/// Returns the settings of this policy that belong to the keyspace, as they are stored.
pub fn stored(policy: &Policy) -> Value {
    Value::Object(fields(policy))
}

/// Returns where the file of a coordinator with the policy `own` differs from the keyspace's settings, and does not apply.
pub fn differences(view: &View, own: &Policy) -> Vec<Notice> {
    let InForce { notices, .. } = of(view, own);
    let (_, number) = write_config(view, own, None);
    notices.into_iter().chain(number).collect()
}

/// Returns the names under which these settings are stored. Those of durations end with `_ms`.
pub fn stored_names() -> Vec<String> {
    fields(&Policy::default()).into_iter().map(|(name, _)| name).collect()
}

/// Why [`with_setting`] refuses a change.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingError {
    /// The stored settings are no object.
    Unreadable(Value),
    /// The setting cannot have this value, or there is no such setting.
    BadValue(Value),
    /// The changes of the pods would be awaited for longer than the longest time for that.
    SettleTooLong {
        /// The time for which they would be awaited.
        settle: Duration,
        /// The longest time.
        settle_max: Duration,
    },
}

impl std::error::Error for SettingError {}

impl fmt::Display for SettingError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::Unreadable(stored) => {
                write!(out, "the keyspace's planning settings cannot be read: {stored}")
            }
            SettingError::BadValue(value) => write!(out, "{value} is no value of it"),
            SettingError::SettleTooLong { settle, settle_max } => {
                write!(out, "settle {settle:?} would be longer than settle_max {settle_max:?}")
            }
        }
    }
}

/// Returns the planning settings of a keyspace with this one changed, as they are stored. An operator's decision; a
/// setting that is absent is added by the next leader.
///
/// # Errors
///
/// Refuses a setting or a value that does not exist, one that does not fit the others, and any change of settings that
/// cannot be read.
pub fn with_setting(config: &KeyspaceConfig, name: &str, value: Value) -> Result<Value, SettingError> {
    let mut kept = match &config.planning {
        None => Map::new(),
        Some(Value::Object(kept)) => kept.clone(),
        Some(unreadable) => return Err(SettingError::Unreadable(unreadable.clone())),
    };
    let (mut before, mut after) = (Policy::default(), Policy::default());
    for (name, value) in &kept {
        apply(&mut before, name, value);
    }
    if !apply(&mut after, name, &value) {
        return Err(SettingError::BadValue(value));
    }
    kept.insert(name.to_owned(), value);
    for (name, value) in &kept {
        apply(&mut after, name, value);
    }
    // Settings that do not fit each other already are no obstacle to mending one of them.
    if after.settle > after.settle_max && before.settle <= before.settle_max {
        let Policy { settle, settle_max, .. } = after;
        return Err(SettingError::SettleTooLong { settle, settle_max });
    }
    Ok(Value::Object(kept))
}

fn fields(policy: &Policy) -> Map<String, Value> {
    let mut policy = policy.clone();
    let mut fields = Map::new();
    fields.insert(STRATEGY.to_owned(), policy.strategy.name().into());
    fields.insert(MODE.to_owned(), mode_name(policy.mode).into());
    fields.insert(COORDINATION.to_owned(), policy.coordination.name().into());
    for (key, field) in DURATIONS {
        let millis = u64::try_from(field(&mut policy).as_millis()).unwrap_or(u64::MAX);
        fields.insert(key.to_owned(), millis.into());
    }
    for (key, field) in COUNTS {
        fields.insert(key.to_owned(), (*field(&mut policy)).into());
    }
    fields.insert(BALANCE_LOAD.to_owned(), policy.balance_load.into());
    fields.insert(MAX_KEYS.to_owned(), policy.max_keys_per_partition.into());
    fields
}

pub(super) fn of(view: &View, own: &Policy) -> InForce {
    let mut policy = own.clone();
    let own_fields = fields(own);
    let stored = view.settings().and_then(|settings| settings.planning.as_ref());
    let mut kept = match stored {
        None => Map::new(),
        Some(Value::Object(kept)) => kept.clone(),
        Some(unreadable) => {
            policy.strategy = Strategy::Unknown;
            let notice = Notice::PolicyUnreadable { key: "planning".to_owned(), value: unreadable.to_string() };
            let write = own.config_wins.then_some(Value::Object(own_fields));
            return InForce { policy, write, notices: vec![notice] };
        }
    };
    let mut notices = Vec::new();
    let mut differs = false;
    for (key, own_value) in own_fields {
        let Some(value) = kept.get(&key).filter(|value| **value != own_value) else {
            differs |= kept.insert(key, own_value).is_none();
            continue;
        };
        notices.push(match apply(&mut policy, &key, value) {
            true => Notice::PolicyDiffers { key: key.clone(), own: own_value.to_string(), kept: value.to_string() },
            false => Notice::PolicyUnreadable { key: key.clone(), value: value.to_string() },
        });
        if own.config_wins {
            differs = true;
            kept.insert(key, own_value);
        }
    }
    InForce { policy, write: differs.then_some(Value::Object(kept)), notices }
}

/// Returns the settings to write, and what the operator should know about those of the configuration file. `planning` is
/// the value to write.
pub(super) fn write_config(
    view: &View,
    own: &Policy,
    planning: Option<Value>,
) -> (Option<PlannedWrite>, Option<Notice>) {
    let wanted = own.partitions;
    let write = |config, seen| Some(PlannedWrite::WriteConfig { config, seen });
    if view.malformed.contains_key(&view.keys().config()) {
        return (None, None);
    }
    if let Some(observed) = &view.config {
        let kept = observed.value.partitions;
        let (partitions, notice) = match &observed.value.partitioner {
            _ if kept == wanted => (kept, None),
            partitioner if kept > wanted => {
                (kept, Some(Notice::ShrinkRefused { wanted, kept, partitioner: partitioner.clone() }))
            }
            Some(Partitioner::Number { number: true }) => (wanted, None),
            partitioner => (kept, Some(Notice::GrowthRefused { wanted, kept, partitioner: partitioner.clone() })),
        };
        if partitions == kept && planning.is_none() {
            return (None, notice);
        }
        let planning = planning.or_else(|| observed.value.planning.clone());
        return (
            write(KeyspaceConfig { partitions, planning, ..observed.value.clone() }, observed.mod_revision),
            notice,
        );
    }
    let new = |partitions| KeyspaceConfig {
        planning: planning.clone(),
        service: view.keys().service().map(str::to_owned),
        ..KeyspaceConfig::new(partitions)
    };
    match (view.settings(), partitions_shown(view)) {
        // The settings were deleted by hand: they are restored as they were.
        (Some(known), _) => (write(known.clone(), Revision::ZERO), None),
        (None, Some(shown)) if shown != wanted => {
            (None, Some(Notice::ConfigMissing { wanted, shown, key: view.keys().config(), settings: new(shown) }))
        }
        (None, _) => (write(new(wanted), Revision::ZERO), None),
    }
}

/// Returns the number of partitions that the keyspace must have had, judging by its assignments and handoffs.
fn partitions_shown(view: &View) -> Option<u32> {
    let keys = [
        view.assignments.last_key_value().map(|(partition, _)| *partition),
        view.handoffs.last_key_value().map(|(partition, _)| *partition),
    ];
    let unreadable = view.malformed.keys().filter_map(|key| match view.keys().parse(key)? {
        KeyName::Assignment(partition) | KeyName::Handoff(partition) => Some(partition),
        _ => None,
    });
    keys.into_iter().flatten().chain(unreadable).max().map(|last| last.get().saturating_add(1))
}

/// Puts a stored setting into the policy. Returns `false` if it cannot be read.
fn apply(policy: &mut Policy, key: &str, value: &Value) -> bool {
    if key == STRATEGY {
        let named = |name: &str| Strategy::NAMES.iter().find(|(known, _)| *known == name);
        let known = value.as_str().and_then(named).map(|(_, strategy)| *strategy);
        policy.strategy = known.unwrap_or(Strategy::Unknown);
        return known.is_some();
    }
    if key == MODE {
        let named = |name: &str| Mode::NAMES.iter().find(|(known, _)| *known == name);
        let known = value.as_str().and_then(named);
        known.inspect(|(_, mode)| policy.mode = *mode);
        return known.is_some();
    }
    if key == COORDINATION {
        let named = |name: &str| Coordination::NAMES.iter().find(|(known, _)| *known == name);
        let known = value.as_str().and_then(named);
        known.inspect(|(_, coordination)| policy.coordination = *coordination);
        return known.is_some();
    }
    if key == BALANCE_LOAD {
        value.as_bool().inspect(|value| policy.balance_load = *value);
        return value.is_boolean();
    }
    if key == MAX_KEYS {
        value.as_u64().inspect(|value| policy.max_keys_per_partition = *value);
        return value.is_u64();
    }
    if let Some((_, field)) = DURATIONS.iter().find(|(known, _)| *known == key) {
        let millis = value.as_u64().filter(|millis| *millis > 0 || MAY_BE_ZERO.contains(&key));
        millis.inspect(|millis| *field(policy) = Duration::from_millis(*millis));
        return millis.is_some();
    }
    if let Some((_, field)) = COUNTS.iter().find(|(known, _)| *known == key) {
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        count.inspect(|count| *field(policy) = *count);
        return count.is_some();
    }
    false
}

fn mode_name(mode: Mode) -> &'static str {
    Mode::NAMES.iter().find(|(_, known)| *known == mode).map_or("barrier", |(name, _)| name)
}
