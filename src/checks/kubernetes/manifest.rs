//! Manifests as plain data: what the rules compare, and where it was written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::environment::{ConfigMaps, Environment};
use super::yaml::{Node, YamlPlace, documents};

const RUN_AS_USER: [&str; 2] = ["securityContext", "runAsUser"];

/// The objects of one or more files.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) config_maps: ConfigMaps,
    pub(crate) budgets: Vec<DisruptionBudget>,
    pub(crate) services: Vec<ServiceManifest>,
}

/// A Deployment, a StatefulSet or a DaemonSet.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) place: YamlPlace,
    /// `None` if something else than the manifest determines it: an autoscaler, or the number of nodes.
    pub(crate) replicas: Option<u64>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Whether an update ends all pods before it starts new ones.
    pub(crate) recreates: bool,
    /// `terminationGracePeriodSeconds`, if it is written, and where.
    pub(crate) grace: Option<(u64, YamlPlace)>,
    /// The containers, in the order in which they start.
    pub(crate) containers: Vec<Container>,
    /// The volumes that are ConfigMaps.
    pub(crate) config_volumes: BTreeMap<String, ConfigVolume>,
}

#[derive(Debug)]
pub(crate) struct ConfigVolume {
    pub(crate) config_map: String,
    /// The files of the volume and their keys, if not each key is a file.
    pub(crate) items: Option<BTreeMap<String, String>>,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) place: YamlPlace,
    pub(crate) stage: ContainerStage,
    /// The command and its arguments.
    pub(crate) words: Vec<String>,
    pub(crate) environment: Environment,
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) mounts: Vec<Mount>,
    /// The user that the manifest names.
    pub(crate) user: Option<u64>,
    pub(crate) readiness: Option<Probe>,
    pub(crate) liveness: Option<Probe>,
    pub(crate) pre_stop: Option<(PreStop, YamlPlace)>,
}

/// When a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerStage {
    /// Ends before the next one starts.
    Before,
    /// An init container with `restartPolicy: Always`: it gets SIGTERM when all later containers have ended.
    Beside,
    /// One of `containers`: all of them get SIGTERM together.
    Main,
}

#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) sub_path: Option<String>,
}

/// A probe. Other kinds than `httpGet` have no path.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) place: YamlPlace,
    pub(crate) path: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) by_tls: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PreStop {
    Sleep(Duration),
    Exec(Vec<String>),
    HttpGet(HttpGet),
}

/// A request of a hook.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpGet {
    /// The path with its query.
    pub(crate) path: String,
    pub(crate) port: Option<u16>,
    pub(crate) by_tls: bool,
    /// Whether it has the header `Authorization`.
    pub(crate) authorized: bool,
}

#[derive(Debug)]
pub(crate) struct DisruptionBudget {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) place: YamlPlace,
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) max_unavailable: Option<Amount>,
    pub(crate) min_available: Option<Amount>,
}

/// A number of pods, or a percentage of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    Number(u64),
    Percent(u64),
}

#[derive(Debug)]
pub(crate) struct ServiceManifest {
    pub(crate) namespace: String,
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) publishes_not_ready: bool,
}

impl Manifests {
    /// Adds the objects of a file. The error is a mistake of its YAML, in one line.
    pub(crate) fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        let (documents, file) = (documents(file, text)?, Arc::from(file));
        for document in &documents {
            let document = Node::new(&file, document);
            self.add_object(document);
            // `kubectl get --output yaml` wraps the objects in a List.
            document.items(&["items"]).for_each(|object| self.add_object(object));
        }
        Ok(())
    }

    fn add_object(&mut self, object: Node<'_>) {
        let namespace = object.text(&["metadata", "namespace"]).unwrap_or_default().to_owned();
        let name = object.text(&["metadata", "name"]).unwrap_or_default().to_owned();
        match object.text(&["kind"]) {
            Some(kind @ ("Deployment" | "StatefulSet" | "DaemonSet")) => {
                self.workloads.push(Workload::read(kind, namespace, name, object));
            }
            Some("ConfigMap") => {
                let data = object.entries(&["data"]);
                let data = data.filter_map(|(key, value)| Some((key.to_owned(), value.text(&[])?.to_owned())));
                self.config_maps.insert((namespace, name), data.collect());
            }
            Some("PodDisruptionBudget") => self.budgets.push(DisruptionBudget {
                namespace,
                name,
                place: object.place(),
                selector: labels(object, &["spec", "selector", "matchLabels"]),
                max_unavailable: amount(object, "maxUnavailable"),
                min_available: amount(object, "minAvailable"),
            }),
            Some("Service") => self.services.push(ServiceManifest {
                namespace,
                selector: labels(object, &["spec", "selector"]),
                publishes_not_ready: object.is_true(&["spec", "publishNotReadyAddresses"]),
            }),
            _ => {}
        }
    }
}

/// Returns whether all labels of a selector are among those of a pod.
pub(crate) fn selects(selector: &BTreeMap<String, String>, workload: &Workload) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| workload.labels.get(key) == Some(value))
}

/// Returns the mount of a container below which a path is.
pub(crate) fn mount_of<'a>(container: &'a Container, path: &str) -> Option<&'a Mount> {
    let below = |mount: &str| path == mount || path.strip_prefix(mount).is_some_and(|rest| rest.starts_with('/'));
    container.mounts.iter().filter(|mount| below(&mount.path)).max_by_key(|mount| mount.path.len())
}

fn labels(object: Node<'_>, path: &[&str]) -> BTreeMap<String, String> {
    let entries = object.entries(path);
    entries.filter_map(|(key, value)| Some((key.to_owned(), value.text(&[])?.to_owned()))).collect()
}

fn amount(budget: Node<'_>, key: &str) -> Option<Amount> {
    let percent = || budget.text(&["spec", key])?.strip_suffix('%')?.parse().ok().map(Amount::Percent);
    budget.number(&["spec", key]).map(Amount::Number).or_else(percent)
}

impl Workload {
    fn read(kind: &str, namespace: String, name: String, object: Node<'_>) -> Self {
        const POD: [&str; 3] = ["spec", "template", "spec"];
        let pod = object.at(&POD);
        let own = BTreeMap::from([
            ("status.podIP", "10.0.0.1".to_owned()),
            ("status.hostIP", "10.1.0.1".to_owned()),
            ("metadata.name", name.clone()),
            ("metadata.namespace", namespace.clone()),
        ]);
        let user = pod.and_then(|pod| pod.number(&RUN_AS_USER));
        let containers = |key, main| {
            let found = pod.into_iter().flat_map(move |pod| pod.items(&[key]));
            found.map(|container| Container::read(container, main, user, &own)).collect::<Vec<_>>()
        };
        let mut all = containers("initContainers", false);
        all.extend(containers("containers", true));
        let grace = pod.and_then(|pod| pod.at(&["terminationGracePeriodSeconds"]));
        let volumes = pod.into_iter().flat_map(|pod| pod.items(&["volumes"]));
        let config_map = |volume: Node<'_>| {
            let item = |item: Node<'_>| Some((item.text(&["path"])?.to_owned(), item.text(&["key"])?.to_owned()));
            let items = volume.at(&["configMap", "items"]).map(|items| items.items(&[]).filter_map(item).collect());
            let config_map = volume.text(&["configMap", "name"])?.to_owned();
            Some((volume.text(&["name"])?.to_owned(), ConfigVolume { config_map, items }))
        };
        Workload {
            kind: kind.to_owned(),
            namespace,
            name,
            place: object.place(),
            replicas: object.number(&["spec", "replicas"]),
            labels: labels(object, &["spec", "template", "metadata", "labels"]),
            recreates: object.text(&["spec", "strategy", "type"]) == Some("Recreate"),
            grace: grace.and_then(|grace| Some((grace.number(&[])?, grace.place()))),
            config_volumes: volumes.filter_map(config_map).collect(),
            containers: all,
        }
    }
}

impl Container {
    /// `user` is the one that the pod names.
    fn read(node: Node<'_>, main: bool, user: Option<u64>, own: &BTreeMap<&str, String>) -> Self {
        let ports = node.items(&["ports"]).filter_map(|port| {
            let number: u16 = port.number(&["containerPort"])?.try_into().ok()?;
            Some((port.text(&["name"]).map_or_else(|| number.to_string(), str::to_owned), number))
        });
        let ports: BTreeMap<String, u16> = ports.collect();
        let mut words = node.texts(&["command"]);
        words.extend(node.texts(&["args"]));
        let mounts = node.items(&["volumeMounts"]).filter_map(|mount| {
            Some(Mount {
                volume: mount.text(&["name"])?.to_owned(),
                path: mount.text(&["mountPath"])?.trim_end_matches('/').to_owned(),
                sub_path: mount.text(&["subPath"]).map(str::to_owned),
            })
        });
        Container {
            name: node.text(&["name"]).unwrap_or_default().to_owned(),
            place: node.place(),
            stage: match (main, node.text(&["restartPolicy"])) {
                (true, _) => ContainerStage::Main,
                (false, Some("Always")) => ContainerStage::Beside,
                (false, _) => ContainerStage::Before,
            },
            words,
            environment: Environment::read(node, own),
            mounts: mounts.collect(),
            user: node.number(&RUN_AS_USER).or(user),
            readiness: probe(node, "readinessProbe", &ports),
            liveness: probe(node, "livenessProbe", &ports),
            pre_stop: node.at(&["lifecycle", "preStop"]).and_then(|hook| Some((pre_stop(hook, &ports)?, hook.place()))),
            ports,
        }
    }
}

fn probe(container: Node<'_>, key: &str, ports: &BTreeMap<String, u16>) -> Option<Probe> {
    let probe = container.at(&[key])?;
    let path = probe.text(&["httpGet", "path"]).map(|path| path.split('?').next().unwrap_or_default().to_owned());
    Some(Probe {
        place: probe.place(),
        path: probe.at(&["httpGet"]).map(|_| path.unwrap_or_else(|| "/".to_owned())),
        port: port_of(probe, ports),
        by_tls: is_by_tls(probe),
    })
}

/// Returns the port of a probe or a hook, which may be the name of one.
fn port_of(asking: Node<'_>, ports: &BTreeMap<String, u16>) -> Option<u16> {
    const PORT: [&str; 2] = ["httpGet", "port"];
    let named = || asking.text(&PORT).and_then(|name| ports.get(name).copied());
    asking.number(&PORT).and_then(|number| number.try_into().ok()).or_else(named)
}

fn is_by_tls(asking: Node<'_>) -> bool {
    asking.text(&["httpGet", "scheme"]) == Some("HTTPS")
}

fn pre_stop(hook: Node<'_>, ports: &BTreeMap<String, u16>) -> Option<PreStop> {
    if let Some(seconds) = hook.number(&["sleep", "seconds"]) {
        return Some(PreStop::Sleep(Duration::from_secs(seconds)));
    }
    if hook.at(&["exec"]).is_some() {
        return Some(PreStop::Exec(hook.texts(&["exec", "command"])));
    }
    let mut headers = hook.items(&["httpGet", "httpHeaders"]).filter_map(|header| header.text(&["name"]));
    Some(PreStop::HttpGet(HttpGet {
        path: hook.text(&["httpGet", "path"])?.to_owned(),
        port: port_of(hook, ports),
        by_tls: is_by_tls(hook),
        authorized: headers.any(|name| name.eq_ignore_ascii_case("authorization")),
    }))
}
