//! The variables of a container, as far as the manifests determine them.
//!
//! # Invariants
//!
//! * A value that is in none of the files is never taken for one that the configuration accepts.

use std::collections::BTreeMap;

use super::yaml::{Node, YamlPlace};

/// Stands for a value that is not in the files.
const STAND_IN: &str = "some";

/// The data of ConfigMaps, by namespace and name.
pub(crate) type ConfigMaps = BTreeMap<(String, String), BTreeMap<String, String>>;

/// The variables of a container as they are written.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    /// `envFrom`.
    sources: Vec<Source>,
    /// `env`.
    variables: Vec<Variable>,
}

/// A ConfigMap or Secret all of whose keys are variables.
#[derive(Debug)]
struct Source {
    prefix: String,
    /// `None` if it is a Secret.
    config_map: Option<String>,
    /// Its kind and name.
    what: String,
    place: YamlPlace,
}

#[derive(Debug)]
struct Variable {
    name: String,
    value: VariableValue,
    place: YamlPlace,
}

#[derive(Debug)]
enum VariableValue {
    /// A text, which may refer to earlier variables.
    Text(String),
    ConfigMapKey {
        config_map: String,
        key: String,
    },
    Elsewhere,
}

/// The variables of a container with their values.
#[derive(Debug, Default)]
pub(crate) struct ContainerVariables {
    /// The last one of a name counts.
    pub(crate) variables: Vec<(String, String)>,
    /// The variables of these whose values are in none of the files, and where they are written.
    pub(crate) guessed: Vec<(String, YamlPlace)>,
    /// Sources that are in none of the files: what they are, and where they are named.
    pub(crate) absent: Vec<(String, YamlPlace)>,
}

impl Environment {
    /// `own` are the facts of the pod by their paths.
    pub(crate) fn read(container: Node<'_>, own: &BTreeMap<&str, String>) -> Self {
        let source = |from: Node<'_>| {
            let config_map = from.text(&["configMapRef", "name"]);
            let what = match config_map {
                Some(name) => format!("ConfigMap {name}"),
                None => format!("Secret {}", from.text(&["secretRef", "name"])?),
            };
            let prefix = from.text(&["prefix"]).unwrap_or_default().to_owned();
            Some(Source { prefix, config_map: config_map.map(str::to_owned), what, place: from.place() })
        };
        let variable = |variable: Node<'_>| {
            let from = variable.at(&["valueFrom"]);
            let field = from.and_then(|from| own.get(from.text(&["fieldRef", "fieldPath"])?));
            let key = from.and_then(|from| {
                let config_map = from.text(&["configMapKeyRef", "name"])?.to_owned();
                Some(VariableValue::ConfigMapKey {
                    config_map,
                    key: from.text(&["configMapKeyRef", "key"])?.to_owned(),
                })
            });
            let value = match (variable.text(&["value"]), field) {
                (Some(text), _) => VariableValue::Text(text.to_owned()),
                (None, Some(field)) => VariableValue::Text(field.clone()),
                (None, None) => from.map(|_| key.unwrap_or(VariableValue::Elsewhere))?,
            };
            Some(Variable { name: variable.text(&["name"])?.to_owned(), value, place: variable.place() })
        };
        Environment {
            sources: container.items(&["envFrom"]).filter_map(source).collect(),
            variables: container.items(&["env"]).filter_map(variable).collect(),
        }
    }

    /// Returns the values of the variables, with the ConfigMaps of the container's namespace.
    pub(crate) fn resolve(&self, config_maps: &ConfigMaps, namespace: &str) -> ContainerVariables {
        let data = |config_map: &str| config_maps.get(&(namespace.to_owned(), config_map.to_owned()));
        let mut resolved = ContainerVariables::default();
        for Source { prefix, config_map, what, place } in &self.sources {
            match config_map.as_deref().and_then(data) {
                Some(data) => {
                    data.iter().for_each(|(key, value)| resolved.set(format!("{prefix}{key}"), value.clone()))
                }
                None => resolved.absent.push((what.clone(), place.clone())),
            }
        }
        for Variable { name, value, place } in &self.variables {
            let value = match value {
                VariableValue::Text(text) => Some(text),
                VariableValue::ConfigMapKey { config_map, key } => data(config_map).and_then(|data| data.get(key)),
                VariableValue::Elsewhere => None,
            };
            let Some(value) = value else {
                resolved.guessed.push((name.clone(), place.clone()));
                resolved.set(name.clone(), STAND_IN.to_owned());
                continue;
            };
            // As Kubernetes does: only variables that are defined earlier.
            let refer = |value: String, (name, known): &(String, String)| value.replace(&format!("$({name})"), known);
            let value = resolved.variables.iter().fold(value.clone(), refer);
            resolved.set(name.clone(), value);
        }
        resolved
    }
}

impl ContainerVariables {
    fn set(&mut self, name: String, value: String) {
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value));
    }
}
