//! The keyspace's settings: what they are, and changes of one setting or of the mapping of keys.
//!
//! For: decisions of `segue config` and `segue remap` from a view. Not for: which settings a leader writes by itself
//! ([`in_force`](segue_protocol::planning::in_force())).
//!
//! # Invariants
//!
//! * A change keeps every other field of the settings, those that this version does not know included.
//! * A change requires that the settings are as the operator's view showed them.

use std::fmt::Display;
use std::time::Duration;

use segue_config::show_duration;
use segue_protocol::ids::{Epoch, Revision};
use segue_protocol::mapping::{Replacement, replace};
use segue_protocol::planning::{or_none, stored_names, with_setting};
use segue_protocol::records::{KeyspaceConfig, MAX_PARTITIONS, PROTOCOL, Partitioner, encode};
use segue_protocol::txn::{Compare, Op, Txn};
use segue_protocol::view::{Versioned, View};
use serde_json::{Map, Value, json};

use super::decision::{ChangeDecision, unchanged};
use super::order::ActionOutcome;
use super::{OperatorError, ensure_exists, partitions};

const PARTITIONS: &str = "partitions";
const EPOCH_FLOOR: &str = "epoch_floor";
const SERVICE: &str = "service";
const SPOKEN: &str = "protocol";
const PARTITIONER: &str = "partitioner";
/// Most names in a refusal.
const MAX_NAMED: usize = 8;
/// The end of the stored name of a duration.
const MILLIS: &str = "_ms";

/// Returns the settings by the names that `segue config set` takes, durations as a configuration file has them, and the
/// fields that this version does not know as they are stored.
pub(super) fn all(view: &View) -> Result<Map<String, Value>, OperatorError> {
    let config = &readable(view)?.value;
    let mut all = Map::new();
    all.insert(PARTITIONS.to_owned(), json!(config.partitions));
    all.insert(PARTITIONER.to_owned(), json!(config.partitioner));
    all.insert(EPOCH_FLOOR.to_owned(), json!(config.epoch_floor));
    all.insert(SPOKEN.to_owned(), json!(config.protocol));
    all.insert(SERVICE.to_owned(), json!(config.service.as_deref().unwrap_or_default()));
    match &config.planning {
        Some(Value::Object(planning)) => {
            let known = stored_names();
            let shown = planning.iter().map(|(name, value)| match known.contains(name) {
                true => shown(name, value),
                false => (name.clone(), value.clone()),
            });
            all.extend(shown);
        }
        Some(unreadable) => drop(all.insert("planning".to_owned(), unreadable.clone())),
        None => {}
    }
    all.extend(config.unknown.clone());
    Ok(all)
}

/// Returns a stored planning setting by the name and with the value of the configuration file.
fn shown(name: &str, value: &Value) -> (String, Value) {
    match (name.strip_suffix(MILLIS), value.as_u64()) {
        (Some(short), Some(millis)) => (short.to_owned(), show_duration(Duration::from_millis(millis)).into()),
        _ => (name.to_owned(), value.clone()),
    }
}

/// Returns a value as it is given on the command line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "nothing".to_owned(),
        value => value.to_string(),
    }
}

/// Changes a setting.
pub(super) fn set(view: &View, key: &str, text: &str) -> Result<ChangeDecision, OperatorError> {
    let config = readable(view)?;
    match key {
        PARTITIONS => set_partitions(view, config, text),
        EPOCH_FLOOR => set_epoch_floor(view, config, text),
        SERVICE => set_service(view, config, text),
        SPOKEN => set_protocol(view, config, text),
        PARTITIONER => {
            Err(OperatorError::Refused("the mapping of keys is replaced by segue remap --to FILE".to_owned()))
        }
        key => set_planning(view, config, key, text),
    }
}

fn set_partitions(
    view: &View,
    config: &Versioned<KeyspaceConfig>,
    text: &str,
) -> Result<ChangeDecision, OperatorError> {
    let number = text.parse().ok().filter(|number| (1..=MAX_PARTITIONS).contains(number));
    let number = number.ok_or_else(|| expected(PARTITIONS, text, format!("a number from 1 to {MAX_PARTITIONS}")))?;
    let kept = config.value.partitions;
    if number == kept {
        return Ok(as_it_was(PARTITIONS, kept));
    }
    if number < kept {
        let text = format!("the keyspace has {}, and the number never decreases", partitions(kept as usize));
        return Err(OperatorError::Refused(text));
    }
    if config.value.partitioner != Some(Partitioner::NUMBER) {
        let text = format!(
            "the number of partitions is part of the mapping of keys: with {number}, keys would be in other partitions than \
             their state. It grows only where requests name their partition"
        );
        return Err(OperatorError::Refused(text));
    }
    let mut decision = rewritten(view, config, (PARTITIONS, kept, number), |config| config.partitions = number);
    decision.1.text +=
        "; a coordinator whose file has another number keeps saying so: change coordinator.partitions too";
    Ok(decision)
}

fn set_epoch_floor(
    view: &View,
    config: &Versioned<KeyspaceConfig>,
    text: &str,
) -> Result<ChangeDecision, OperatorError> {
    let room = Epoch::MAX.get().saturating_sub(view.revision.get());
    let floor = text.parse().ok().filter(|floor| (1..room).contains(floor)).map(Epoch::new);
    let floor = floor.ok_or_else(|| {
        let why =
            format!("a number below {room}: the store is at revision {}, and no epoch is above 2^53", view.revision);
        expected(EPOCH_FLOOR, text, why)
    })?;
    let kept = config.value.epoch_floor;
    if floor == kept {
        return Ok(as_it_was(EPOCH_FLOOR, kept));
    }
    if floor < kept {
        let text = format!("epoch_floor is {kept}, and never falls: epochs would come back");
        return Err(OperatorError::Refused(text));
    }
    let mut decision = rewritten(view, config, (EPOCH_FLOOR, kept, floor), |config| config.epoch_floor = floor);
    decision.1.text += "; every pod, router and coordinator registers anew, and later epochs are above it";
    Ok(decision)
}

/// Changes the version of the protocol that the keyspace's participants speak. Nobody may be registered: what one version writes
/// means nothing to another.
fn set_protocol(view: &View, config: &Versioned<KeyspaceConfig>, text: &str) -> Result<ChangeDecision, OperatorError> {
    let version = text.parse().ok().filter(|version: &u32| *version > 0);
    let version = version.ok_or_else(|| {
        let why = format!("the number of a version; this build speaks {PROTOCOL}");
        expected(SPOKEN, text, why)
    })?;
    let shown = |version: Option<u32>| version.map_or("any version".to_owned(), |version| version.to_string());
    if config.value.protocol == Some(version) {
        return Ok(as_it_was(SPOKEN, version));
    }
    let leader = view.leader.as_ref().map(|leader| &leader.value.holder);
    let registered = view.pods.keys().chain(view.routers.keys()).chain(view.rounds.participants.keys()).chain(leader);
    let registered: Vec<_> = registered.map(String::as_str).collect();
    if !registered.is_empty() {
        let named = registered.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
        let text = format!("{} registered ({named}): the version changes only while nobody is", registered.len());
        return Err(OperatorError::Refused(text));
    }
    let words = (SPOKEN, shown(config.value.protocol), shown(Some(version)));
    let (mut txn, mut outcome) = rewritten(view, config, words, |config| config.protocol = Some(version));
    let keys = view.keys();
    for prefix in [keys.pods(), keys.routers(), keys.participants()] {
        txn.when.push(Compare::none_created_after(prefix, Revision::ZERO));
    }
    txn.when.push(Compare::created_at(keys.leader(), Revision::ZERO));
    outcome.text += "; only builds that speak it register from now on";
    Ok((txn, outcome))
}

/// Changes the service that the keyspace belongs to. An empty text removes it.
fn set_service(view: &View, config: &Versioned<KeyspaceConfig>, text: &str) -> Result<ChangeDecision, OperatorError> {
    let service = match text {
        "" => None,
        text => Some(segue_config::parse_name(text).map_err(|error| expected(SERVICE, text, error))?),
    };
    let shown = |service: &Option<String>| service.clone().unwrap_or_else(|| "nothing".to_owned());
    let (kept, new) = (shown(&config.value.service), shown(&service));
    if config.value.service == service {
        return Ok(as_it_was(SERVICE, kept));
    }
    let mut decision = rewritten(view, config, (SERVICE, kept, new), |config| config.service = service);
    decision.1.text += "; who is registered stays so, and only who names it in the file registers from now on";
    Ok(decision)
}

fn set_planning(
    view: &View,
    config: &Versioned<KeyspaceConfig>,
    key: &str,
    text: &str,
) -> Result<ChangeDecision, OperatorError> {
    let known = stored_names();
    let long = format!("{key}{MILLIS}");
    let (name, value) = if known.contains(&long) {
        let time = segue_config::parse_duration(text).map_err(|error| expected(key, text, error))?;
        (long, json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    } else if known.iter().any(|name| name == key && !key.ends_with(MILLIS)) {
        // A name is no JSON and needs no quotes.
        (key.to_owned(), serde_json::from_str(text).unwrap_or_else(|_| text.into()))
    } else {
        let names = known.iter().map(|name| name.strip_suffix(MILLIS).unwrap_or(name));
        let names = [PARTITIONS, EPOCH_FLOOR, SPOKEN, SERVICE].into_iter().chain(names).collect::<Vec<_>>().join(", ");
        return Err(OperatorError::BadInput(format!("{key} is no setting of the keyspace; expected one of {names}")));
    };
    let planning = with_setting(&config.value, &name, value.clone());
    let planning = planning.map_err(|why| OperatorError::BadInput(format!("{key} = {text}: {why}")))?;
    let before = config.value.planning.as_ref().and_then(|planning| planning.get(&name)).unwrap_or(&Value::Null);
    let (kept, new) = (plain(&shown(&name, before).1), plain(&shown(&name, &value).1));
    if *before == value {
        return Ok(as_it_was(key, kept));
    }
    let mut decision = rewritten(view, config, (key, kept, new), |config| config.planning = Some(planning));
    decision.1.text += "; a leader with coordinator.config_wins = true writes the value of its file again";
    Ok(decision)
}

/// Replaces the mapping of keys, if the operator has confirmed it.
pub(super) fn remap(view: &View, to: &Partitioner, confirmed: bool) -> Result<ChangeDecision, OperatorError> {
    ensure_exists(view)?;
    let Replacement { standing, owned, txn } =
        replace(view, to).map_err(|why| OperatorError::Refused(why.to_string()))?;
    let from = standing.as_ref().map(ToString::to_string).unwrap_or_default();
    let facts = |remapped: bool| json!({ "from": standing, "to": to, "owned": owned, "remapped": remapped });
    if standing.as_ref() == Some(to) {
        return Ok(unchanged(ActionOutcome::new(facts(false), format!("the keyspace maps requests by {to} already"))));
    }
    let change = format!("requests mapped to partitions by {to} in place of {}", or_none(&from));
    let owners = format!("{} with an owner", partitions(owned));
    if !confirmed {
        let text = format!(
            "nothing was changed: with {change}, keys of {owners} are in other partitions, whose owners do not have their \
             state. If that state is moved or not needed, confirm it with --yes"
        );
        return Err(OperatorError::Refused(text));
    }
    let text = format!("{change}: keys of {owners} are in other partitions from now on");
    Ok((txn, ActionOutcome::new(facts(true), text)))
}

/// Returns the settings, or why they cannot be changed.
fn readable(view: &View) -> Result<&Versioned<KeyspaceConfig>, OperatorError> {
    if let Some(reason) = view.malformed.get(&view.keys().config()) {
        return Err(OperatorError::Refused(format!("the keyspace's settings cannot be read: {reason}")));
    }
    let root = view.keys().root();
    let missing = || OperatorError::Refused(format!("no keyspace at {root} has settings: no coordinator has led"));
    view.config.as_ref().ok_or_else(missing)
}

fn expected(key: &str, text: &str, what: impl Display) -> OperatorError {
    OperatorError::BadInput(format!("{key} = {text}: expected {what}"))
}

fn as_it_was(key: &str, value: impl Display) -> ChangeDecision {
    unchanged(ActionOutcome::new(json!({ "key": key, "changed": false }), format!("{key} is {value} already")))
}

/// Writes the settings with a change. `(key, from, to)` is what it changes.
fn rewritten<T: Display + serde::Serialize>(
    view: &View,
    config: &Versioned<KeyspaceConfig>,
    (key, from, to): (&str, T, T),
    change: impl FnOnce(&mut KeyspaceConfig),
) -> ChangeDecision {
    let mut settings = config.value.clone();
    change(&mut settings);
    let config_key = view.keys().config();
    let when = vec![Compare::unchanged_since(&config_key, config.mod_revision)];
    let then = vec![Op::Put { key: config_key, value: encode(&settings), lease: None }];
    let text = format!("{key} is {to} in place of {from}");
    let facts = json!({ "key": key, "from": from, "to": to, "changed": true });
    (Txn { when, then, otherwise: None }, ActionOutcome::new(facts, text))
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::LeaseId;
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{KeyValue, Snapshot};

    use super::*;

    const REVISION: u64 = 9;

    /// Returns a keyspace with these settings and, if so, an owner of a partition and a router.
    fn view(config: &str, router: bool) -> View {
        let entry = |key: &str, value: &str, lease| KeyValue {
            key: format!("/segue/default/{key}"),
            value: value.as_bytes().to_vec(),
            create_revision: Revision::new(3),
            mod_revision: Revision::new(8),
            lease,
        };
        let mut entries = vec![
            entry("assignments/0", r#"{"partition":0,"owner":"w","incarnation":3,"epoch":1}"#, None),
            entry("config", config, None),
        ];
        entries.extend(router.then(|| entry("routers/r", "{}", Some(LeaseId::new(1)))));
        View::from_snapshot(
            Keyspace::new("/segue/", "default"),
            Snapshot { revision: Revision::new(REVISION), entries },
        )
    }

    const NUMBERED: &str = r#"{"partitions":4,"partitioner":{"number":true},"protocol":3,"epoch_floor":7,"later":1,"planning":{"settle_ms":1500}}"#;
    const HASHED: &str = r#"{"partitions":4,"partitioner":{"key":"header:a","hash":"murmur2"},"later":1}"#;

    fn changed(config: &str, key: &str, value: &str) -> Result<(KeyspaceConfig, String), String> {
        let (txn, outcome) = set(&view(config, true), key, value).map_err(|error| error.to_string())?;
        let [Op::Put { key, value, .. }] = &txn.then[..] else { return Err(format!("unchanged: {}", outcome.text)) };
        assert_eq!(txn.when, [Compare::unchanged_since(key, Revision::new(8))]);
        let settings: KeyspaceConfig = serde_json::from_slice(value).unwrap();
        assert_eq!(settings.unknown["later"], 1, "what this version does not know is kept");
        Ok((settings, outcome.text))
    }

    #[test]
    fn settings_are_shown_by_the_names_and_values_that_change_them() {
        let all = all(&view(NUMBERED, false)).unwrap();
        for (key, value) in &all {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let again = changed(NUMBERED, key, &value);
            let is_known = !["later", PARTITIONER].contains(&key.as_str());
            assert_eq!(again.is_err_and(|why| why.contains("already")), is_known, "{key} = {value}");
        }
        assert_eq!(all["settle"], "1500ms");
        let missing = View::empty(Keyspace::new("/segue/", "default"));
        assert!(super::all(&missing).unwrap_err().to_string().contains("no coordinator has led"));
        assert!(super::all(&view("{", false)).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn the_version_of_the_protocol_changes_only_while_nobody_is_registered() {
        let set = |router| set(&view(NUMBERED, router), SPOKEN, "4").map_err(|error| error.to_string());
        assert!(set(true).unwrap_err().contains("1 registered (r)"));
        let (txn, outcome) = set(false).unwrap();
        assert_eq!(txn.when.len(), 5, "nobody registers meanwhile");
        assert!(outcome.text.starts_with("protocol is 4 in place of 3"), "{}", outcome.text);
        assert!(changed(NUMBERED, SPOKEN, "three").unwrap_err().contains("this build speaks 3"));
    }

    #[test]
    fn the_number_of_partitions_grows_only_where_requests_name_their_partition() {
        assert_eq!(changed(NUMBERED, "partitions", "8").unwrap().0.partitions, 8);
        assert!(changed(NUMBERED, "partitions", "2").unwrap_err().contains("never decreases"));
        assert!(changed(HASHED, "partitions", "8").unwrap_err().contains("part of the mapping"));
        for value in ["0", "65537", "many", "-1"] {
            assert!(changed(NUMBERED, "partitions", value).unwrap_err().contains("expected a number"), "{value}");
        }
    }

    #[test]
    fn the_floor_of_epochs_never_falls_and_leaves_room_for_epochs() {
        assert_eq!(changed(NUMBERED, "epoch_floor", "8").unwrap().0.epoch_floor, Epoch::new(8));
        assert!(changed(NUMBERED, "epoch_floor", "6").unwrap_err().contains("never falls"));
        let last = Epoch::MAX.get() - REVISION;
        assert!(changed(NUMBERED, "epoch_floor", &last.to_string()).unwrap_err().contains("no epoch is above 2^53"));
        assert!(changed(NUMBERED, "epoch_floor", &(last - 1).to_string()).is_ok());
    }

    #[test]
    fn a_keyspace_gets_the_name_of_its_service_or_none() {
        assert_eq!(changed(NUMBERED, SERVICE, "orders").unwrap().0.service.as_deref(), Some("orders"));
        let named = r#"{"partitions":4,"service":"orders","later":1}"#;
        assert_eq!(changed(named, SERVICE, "").unwrap().0.service, None);
        assert!(changed(named, SERVICE, "two words").unwrap_err().contains("cannot be a name"));
    }

    #[test]
    fn a_planning_setting_takes_the_value_of_a_configuration_file() {
        let (settings, text) = changed(NUMBERED, "settle", "2s").unwrap();
        assert_eq!(settings.planning, Some(json!({ "settle_ms": 2000 })));
        assert!(text.contains("settle is 2s in place of 1500ms") && text.contains("config_wins"), "{text}");
        assert!(changed(NUMBERED, "strategy", "ring").unwrap().1.contains("strategy is ring in place of nothing"));
        for (key, value) in
            [("settle", "2"), ("strategy", "chance"), ("settle_ms", "2000"), ("size", "1"), ("planning", "{}")]
        {
            assert!(changed(NUMBERED, key, value).is_err(), "{key} = {value}");
        }
        assert!(changed(NUMBERED, PARTITIONER, "x").unwrap_err().contains("segue remap"));
    }

    #[test]
    fn a_mapping_is_replaced_once_it_is_confirmed_and_no_router_is_registered() {
        let to = Partitioner::Key { key: "header:b".into(), hash: "murmur2".into() };
        let refused = |router, confirmed| remap(&view(HASHED, router), &to, confirmed).unwrap_err().to_string();
        assert!(refused(true, true).contains("stop r and try again"));
        let asked = refused(false, false);
        assert!(
            asked.contains("header:b in place of the murmur2 hash of header:a") && asked.contains("1 partition with"),
            "{asked}"
        );
        let (txn, outcome) = remap(&view(HASHED, false), &to, true).unwrap();
        assert_eq!((outcome.facts["owned"].as_u64(), txn.when.len()), (Some(1), 2));
        let [Op::Put { value, .. }] = &txn.then[..] else { panic!("{txn:?}") };
        let settings: KeyspaceConfig = serde_json::from_slice(value).unwrap();
        assert_eq!((settings.partitioner.as_ref(), &settings.unknown["later"]), (Some(&to), &json!(1)));
        let same = view(HASHED, false);
        let standing = same.config.as_ref().unwrap().value.partitioner.clone().unwrap();
        assert!(remap(&same, &standing, false).unwrap().0.then.is_empty(), "there is nothing to confirm");
    }
}
