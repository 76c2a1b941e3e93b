//! The actions of operators: what each is called, and how it is carried out.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::{Origin, Partitioner, Wanted, WantedDefault, encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use twox_hash::XxHash3_64;

use super::wait::Said;
use super::{Kind, Link, OperatorError, change, operation, span};

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Move {
        partition: PartitionId,
        to: String,
        pin: bool,
    },
    /// With `to`, only if that is where it stays.
    Pin {
        partition: PartitionId,
        to: Option<String>,
    },
    Unpin {
        partition: PartitionId,
    },
    /// Without `handoff`, cancels the one that stands.
    Cancel {
        partition: PartitionId,
        handoff: Option<HandoffId>,
    },
    Drain {
        pod: String,
    },
    Undrain {
        pod: String,
    },
    /// Without `span`, the pause lasts until it is ended.
    Pause {
        span: Option<Duration>,
    },
    Resume,
    Want(Wanted),
    /// Changes a setting of the keyspace.
    Set {
        key: String,
        value: String,
    },
    /// Replaces the mapping of keys.
    Remap {
        to: Partitioner,
        confirmed: bool,
    },
    Forget {
        kind: Kind,
        name: String,
        force: bool,
        confirmed: bool,
    },
}

/// The wanted owners as somebody gives them. An unknown field is a mistake here, while a record in the store may be that of
/// a later version.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenOwners {
    generation: u64,
    owners: BTreeMap<PartitionId, String>,
    #[serde(default)]
    default: WantedDefault,
}

impl From<GivenOwners> for Wanted {
    fn from(GivenOwners { generation, owners, default }: GivenOwners) -> Self {
        Wanted { generation, owners, default }
    }
}

/// The name of an action as it is recorded with an id. Equal names mean equal actions.
impl fmt::Display for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Move { partition, to, pin } => {
                write!(out, "move partition {partition} to {to}{}", if *pin { " and pin it" } else { "" })
            }
            Action::Pin { partition, to: None } => write!(out, "pin partition {partition}"),
            Action::Pin { partition, to: Some(to) } => write!(out, "pin partition {partition} to {to}"),
            Action::Unpin { partition } => write!(out, "unpin partition {partition}"),
            Action::Cancel { partition, .. } => write!(out, "cancel the handoff of partition {partition}"),
            Action::Drain { pod } => write!(out, "drain pod {pod}"),
            Action::Undrain { pod } => write!(out, "undrain pod {pod}"),
            Action::Pause { span: Some(time) } => write!(out, "pause planned moves for {}", span(*time)),
            Action::Pause { span: None } => out.write_str("pause planned moves"),
            Action::Resume => out.write_str("resume planned moves"),
            Action::Want(wanted) => {
                let hash = XxHash3_64::oneshot(&encode(wanted));
                write!(out, "write generation {} of the wanted owners (xxh3 {hash:016x})", wanted.generation)
            }
            Action::Set { key, value } => write!(out, "set {key} to {value}"),
            Action::Remap { to, .. } => write!(out, "map requests to partitions by {to}"),
            Action::Forget { kind, name, force, .. } => {
                write!(out, "forget {} {name}{}", kind.word(), if *force { " by force" } else { "" })
            }
        }
    }
}

/// An action, who wants it, and its id. An order with the id of an earlier one has no effect of its own.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) action: Action,
    pub(crate) id: Option<String>,
    pub(crate) origin: Origin,
}

/// The result of an order: a sentence, and facts for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    #[serde(flatten)]
    pub(crate) facts: Map<String, Value>,
}

impl Outcome {
    pub(super) fn new(facts: Value, text: impl Into<String>) -> Self {
        let facts = match facts {
            Value::Object(facts) => facts,
            _ => Map::new(),
        };
        Outcome { text: text.into(), facts }
    }
}

/// Carries an order out. A move, a pin and a cancel are carried out by the leader; its answer is waited for at most
/// `patience`.
pub(crate) async fn perform(
    link: &Link,
    order: &Order,
    patience: Duration,
    said: &Said,
) -> Result<Outcome, OperatorError> {
    // The id becomes part of a key.
    if order.id.as_ref().is_some_and(|id| id.is_empty() || id.len() > MAX_ID || id.contains('/')) {
        let text = format!("expected an id of 1 to {MAX_ID} bytes without a slash");
        return Err(OperatorError::BadInput(text));
    }
    match &order.action {
        Action::Move { .. } | Action::Pin { .. } | Action::Cancel { .. } => {
            operation::ask(link, order, patience, said).await
        }
        _ => change::write(link, order).await,
    }
}

/// Most bytes of an id.
const MAX_ID: usize = 200;
