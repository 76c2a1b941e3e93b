//! Compares Kubernetes manifests with the configurations of the processes that they run.
//!
//! For: what neither Kubernetes' schemas nor `segue check --config` can see, because it lies between the two: grace
//! periods, the order in which the containers of a pod end, preStop hooks, probes and disruption budgets. Not for:
//! validating manifests, rendering them (`kubectl kustomize`, `helm template`), or asking a cluster.
//!
//! ```text
//! text ──(yaml, manifest)──► plain data ──(rules, per container that runs Segue)──► findings
//!                               └── ConfigMap ──(segue_config)──► configuration ──┘
//! ```
//!
//! # Invariants
//!
//! * Everything here is a pure function of the files' texts.
//! * A finding is one line: its place, its object, what is wrong and what was expected.
//! * What is absent from the files is never taken as right: it is a finding, or its part is given as an argument.

mod environment;
mod hook;
mod manifest;
mod rules;
mod yaml;

#[cfg(test)]
mod tests;

use std::fmt::Display;

use segue_config::{LocatedConfig, locate};

use self::environment::ContainerVariables;
use self::hook::{commands, option};
use self::manifest::{Container, Manifests, Workload, mount_of};
use self::rules::Process;
use self::yaml::YamlPlace;

/// The findings of a comparison. Each finding is one line.
#[derive(Debug, Default)]
pub(crate) struct ManifestFindings {
    /// Settings that cannot work, or that lose requests.
    pub(crate) problems: Vec<String>,
    /// Settings that work with a probably unwanted consequence.
    pub(crate) warnings: Vec<String>,
    /// The configurations that the manifests contain.
    pub(crate) configs: Vec<LocatedConfig>,
}

impl ManifestFindings {
    fn problem(&mut self, place: &YamlPlace, about: &str, fact: impl Display, remedy: &str) {
        self.problems.push(format!("{place}: {about}: {fact}; {remedy}"));
    }

    fn warning(&mut self, place: &YamlPlace, about: &str, fact: impl Display, remedy: &str) {
        self.warnings.push(format!("{place}: {about}: {fact}; {remedy}"));
    }
}

/// Checks manifests, by the names of their files. `given` is the configuration of containers whose file is in none of
/// the manifests' ConfigMaps.
pub(crate) fn check(files: &[(String, String)], given: Option<&LocatedConfig>) -> ManifestFindings {
    let (mut manifests, mut found) = (Manifests::default(), ManifestFindings::default());
    for (name, text) in files {
        if let Err(problem) = manifests.add(name, text) {
            found.problems.push(problem);
        }
    }
    let mut processes = 0;
    for workload in &manifests.workloads {
        for container in &workload.containers {
            let Some(path) = config_path(container) else { continue };
            processes += 1;
            let config = match config_of(&manifests, workload, container, path, given, &mut found) {
                Ok(config) => config,
                Err(problem) => {
                    found.problems.push(problem);
                    continue;
                }
            };
            Process { manifests: &manifests, workload, container, config: &config.config }.check(&mut found);
            found.configs.push(config);
        }
    }
    if processes == 0 && found.problems.is_empty() {
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        let fact = "no container of a Deployment, StatefulSet or DaemonSet runs Segue";
        found.problems.push(format!("{}: {fact}; expected one with the arguments run --config FILE", names.join(", ")));
    }
    found
}

/// Returns the path of a container's configuration file, or `None` if it does not run Segue.
fn config_path(container: &Container) -> Option<&str> {
    let is_segue = |word: &str| word == "segue" || word.ends_with("/segue");
    commands(&container.words).into_iter().find_map(|mut words| {
        if words.first().is_some_and(|word| is_segue(word)) {
            words.remove(0);
        }
        let (_, arguments) = words.split_first().filter(|(command, _)| **command == "run")?;
        option(arguments, "--config")
    })
}

/// Returns the configuration that a container reads, or the text of the problems.
fn config_of(
    manifests: &Manifests,
    workload: &Workload,
    container: &Container,
    path: &str,
    given: Option<&LocatedConfig>,
    findings: &mut ManifestFindings,
) -> Result<LocatedConfig, String> {
    let about = format!("{} {}, container {}", workload.kind, workload.name, container.name);
    let found = mount_of(container, path).and_then(|mount| {
        let volume = workload.config_volumes.get(&mount.volume)?;
        let rest = path.strip_prefix(&mount.path)?.trim_start_matches('/');
        let file = mount.sub_path.as_deref().unwrap_or(rest);
        let key = match &volume.items {
            Some(items) => items.get(file)?,
            None => file,
        };
        let map = &volume.config_map;
        let data = manifests.config_maps.get(&(workload.namespace.clone(), map.clone()))?;
        Some((map, key, data.get(key)?))
    });
    let Some((map, key, text)) = found else {
        let fact = format!("{path} is in no ConfigMap of these files");
        let problem = format!("{}: {about}: {fact}; expected its ConfigMap, or --config FILE", container.place);
        return given.cloned().ok_or(problem);
    };
    let name = format!("ConfigMap {map}: {key}");
    let ContainerVariables { mut variables, guessed, absent } =
        container.environment.resolve(&manifests.config_maps, &workload.namespace);
    let located = |variables: &[(String, String)]| locate(&name, text, variables.to_vec(), &workload.name);
    let mistakes = |variables: &[(String, String)]| located(variables).err().map_or(0, |errors| errors.iter().count());
    let remedy = "expected its value in these files; what it sets is not checked";
    for (variable, place) in guessed {
        // A stand-in is as good as any text, and is neither a number nor a time nor an address.
        let without: Vec<_> = variables.iter().filter(|(name, _)| *name != variable).cloned().collect();
        if mistakes(&variables) > mistakes(&without) {
            findings.warning(&place, &about, format!("the value of {variable} is somewhere else"), remedy);
            variables = without;
        }
    }
    for (source, place) in absent {
        let fact = format!("{source} is not in these files");
        findings.warning(&place, &about, fact, "expected it; variables of Segue in it are not checked");
    }
    located(&variables).map_err(|errors| errors.to_string())
}
