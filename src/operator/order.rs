//! The orders of operators: an action, its name, and how it is written down.
//!
//! An [`Action`] in JSON is its name and its fields. A client of `/v1` sends the fields that the path does not have.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use segue_config::show_duration;
use segue_coordination::session::unix_millis;
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::{Origin, Partitioner, Wanted, WantedDefault, encode};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use twox_hash::XxHash3_64;

use super::RegistrationKind;

/// An action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Action {
    Move {
        partition: PartitionId,
        to: String,
        #[serde(default)]
        pin: bool,
    },
    /// With `to`, only if that is where it stays.
    Pin {
        partition: PartitionId,
        // Absent rather than null: an earlier version does not know the field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    Unpin {
        partition: PartitionId,
    },
    /// Without `handoff`, cancels the one that stands.
    Cancel {
        partition: PartitionId,
        #[serde(default)]
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
        #[serde(rename = "for", default, serialize_with = "write_span", deserialize_with = "read_span")]
        span: Option<Duration>,
    },
    Resume {},
    Want(#[serde(deserialize_with = "read_wanted")] Wanted),
    /// Changes a setting of the keyspace.
    Set {
        key: String,
        value: String,
    },
    /// Replaces the mapping of keys.
    Remap {
        to: Partitioner,
        #[serde(default, rename = "yes")]
        confirmed: bool,
    },
    Forget {
        kind: RegistrationKind,
        name: String,
        #[serde(default)]
        force: bool,
        #[serde(default, rename = "yes")]
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

fn read_wanted<'de, D: Deserializer<'de>>(from: D) -> Result<Wanted, D::Error> {
    GivenOwners::deserialize(from).map(Wanted::from)
}

fn write_span<S: Serializer>(span: &Option<Duration>, into: S) -> Result<S::Ok, S::Error> {
    span.map(|span| format!("{}ms", span.as_millis())).serialize(into)
}

fn read_span<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.as_deref().map(segue_config::parse_duration).transpose().map_err(D::Error::custom)
}

impl Action {
    /// Returns the fields of the action.
    pub(crate) fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        let named = serde_json::from_value::<BTreeMap<String, Map<String, Value>>>(serde_json::to_value(self)?)?;
        Ok(named.into_values().flatten().collect())
    }

    /// Returns the action with this name and these fields.
    pub(crate) fn named(name: &str, fields: Map<String, Value>) -> serde_json::Result<Self> {
        serde_json::from_value(Value::Object(Map::from_iter([(name.to_owned(), Value::Object(fields))])))
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
            Action::Pause { span: Some(time) } => write!(out, "pause planned moves for {}", show_duration(*time)),
            Action::Pause { span: None } => out.write_str("pause planned moves"),
            Action::Resume {} => out.write_str("resume planned moves"),
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

/// Most bytes of an id.
const MAX_ID: usize = 200;

/// The name of an operation. It becomes part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct OperationId(String);

impl OperationId {
    /// Returns a name that no other operation has.
    pub(crate) fn random() -> Self {
        OperationId(format!("{:x}-{:08x}", unix_millis(), rand::random::<u32>()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OperationId {
    type Err = String;

    fn from_str(id: &str) -> Result<Self, String> {
        if id.is_empty() || id.len() > MAX_ID || id.contains('/') {
            return Err(format!("expected an id of 1 to {MAX_ID} bytes without a slash"));
        }
        Ok(OperationId(id.to_owned()))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// An action, who wants it, and its id. An order with the id of an earlier one has no effect of its own.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) action: Action,
    pub(crate) id: Option<OperationId>,
    pub(crate) origin: Origin,
}

/// The result of an order: a sentence, and facts for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActionOutcome {
    pub(crate) text: String,
    #[serde(flatten)]
    pub(crate) facts: Map<String, Value>,
}

impl ActionOutcome {
    pub(super) fn new(facts: Value, text: impl Into<String>) -> Self {
        let facts = match facts {
            Value::Object(facts) => facts,
            _ => Map::new(),
        };
        ActionOutcome { text: text.into(), facts }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_action_is_read_as_it_was_written() {
        let (partition, pod) = (PartitionId::new(7), "writer-1".to_owned());
        let owners = BTreeMap::from([(partition, pod.clone())]);
        let actions = [
            (
                Action::Move { partition, to: pod.clone(), pin: true },
                json!({"move": {"partition": 7, "to": pod, "pin": true}}),
            ),
            (Action::Pin { partition, to: None }, json!({"pin": {"partition": 7}})),
            (Action::Pin { partition, to: Some(pod.clone()) }, json!({"pin": {"partition": 7, "to": pod}})),
            (Action::Cancel { partition, handoff: None }, json!({"cancel": {"partition": 7, "handoff": null}})),
            (Action::Drain { pod: pod.clone() }, json!({"drain": {"pod": pod}})),
            (Action::Pause { span: Some(Duration::from_millis(1500)) }, json!({"pause": {"for": "1500ms"}})),
            (Action::Pause { span: None }, json!({"pause": {"for": null}})),
            (Action::Resume {}, json!({"resume": {}})),
            (
                Action::Want(Wanted { generation: 41, owners, default: WantedDefault::default() }),
                json!({"want": {"generation": 41, "owners": {"7": pod}, "default": WantedDefault::default()}}),
            ),
            (
                Action::Forget { kind: RegistrationKind::Router, name: pod.clone(), force: false, confirmed: true },
                json!({"forget": {"kind": "router", "name": pod, "force": false, "yes": true}}),
            ),
        ];
        for (action, written) in actions {
            assert_eq!(serde_json::to_value(&action).unwrap(), written);
            assert_eq!(serde_json::from_value::<Action>(written).unwrap(), action);
        }
    }

    #[test]
    fn a_field_that_an_action_does_not_have_is_refused() {
        for action in [
            json!({"drain": {"pod": "w", "for": "1h"}}),
            json!({"resume": {"for": "1h"}}),
            json!({"want": {"generation": 1, "owners": {}, "x": 1}}),
        ] {
            let refused = serde_json::from_value::<Action>(action).unwrap_err().to_string();
            assert!(refused.starts_with("unknown field"), "{refused}");
        }
    }

    #[test]
    fn an_operation_has_a_name_that_fits_a_key() {
        let id: OperationId = "deploy-7".parse().unwrap();
        assert_eq!(id.to_string(), "deploy-7");
        assert!(OperationId::random().to_string().parse::<OperationId>().is_ok());
        for id in [String::new(), "a/b".to_owned(), "x".repeat(MAX_ID + 1)] {
            assert!(id.parse::<OperationId>().is_err(), "{id}");
        }
    }
}
