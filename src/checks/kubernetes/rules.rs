//! What the manifests of one process must have, given its configuration. Pure functions over plain data.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use segue_config::{Admin, Config, Pod};
use segue_proxy::sidecar::ServiceAddress;

use super::ManifestFindings;
use super::hook::{Ends, drains, lasts};
use super::manifest::{
    Amount, Container, ContainerStage, DisruptionBudget, Manifests, PreStop, Probe, Workload, selects,
};

/// The grace period that Kubernetes assumes, in seconds.
const DEFAULT_GRACE: u64 = 30;

/// A container that runs Segue, and its configuration.
pub(super) struct Process<'a> {
    pub(super) manifests: &'a Manifests,
    pub(super) workload: &'a Workload,
    pub(super) container: &'a Container,
    pub(super) config: &'a Config,
}

impl Process<'_> {
    pub(super) fn check(&self, found: &mut ManifestFindings) {
        self.grace_period(found);
        self.readiness(found);
        self.liveness(found);
        self.addresses(found);
        self.budgets(found);
        self.routers(found);
        if let Some(pod) = self.config.pod.as_ref().filter(|pod| pod.exec.is_none()) {
            self.service(pod, found);
        }
    }

    fn grace_period(&self, found: &mut ManifestFindings) {
        let written = self.workload.grace.as_ref();
        let grace = Duration::from_secs(written.map_or(DEFAULT_GRACE, |(seconds, _)| *seconds));
        let place = written.map_or(&self.workload.place, |(_, place)| place);
        let hook = self.container.pre_stop.as_ref().and_then(|(hook, _)| lasts(hook));
        let parts = [
            ("its preStop hook", hook),
            ("pod.shutdown_timeout", self.config.pod.as_ref().map(|pod| pod.shutdown_timeout)),
            ("router.drain.timeout", self.config.router.as_ref().map(|router| router.drain.timeout)),
        ];
        let parts: Vec<_> = parts.into_iter().filter_map(|(name, time)| Some((name, time?))).collect();
        let needed: Duration = parts.iter().map(|(_, time)| *time).sum();
        if !parts.is_empty() && grace <= needed {
            let names: Vec<_> = parts.iter().map(|(name, time)| format!("{name}, {time:?}")).collect();
            let fact = format!("the grace period is {grace:?}, and the process may take {}", names.join(" and "));
            let remedy = format!("expected terminationGracePeriodSeconds above {}", needed.as_secs());
            found.problem(place, &self.about(self.container), fact, &remedy);
        }
        if let Some((_, place)) = self.container.pre_stop.as_ref().filter(|(hook, _)| lasts(hook).is_none()) {
            let fact = "it is unknown how long its preStop hook takes, which the grace period has to cover";
            found.warning(place, &self.about(self.container), fact, "expected preStop: {sleep: {seconds: 10}}");
        }
        for other in self.others() {
            let hook = other.pre_stop.as_ref().and_then(|(hook, place)| Some((lasts(hook)?, place)));
            if let Some((time, place)) = hook.filter(|(time, _)| *time >= grace) {
                let fact = format!("its preStop hook takes up to {time:?}, and the grace period is {grace:?}");
                found.problem(place, &self.about(other), fact, "expected a shorter hook or a longer grace period");
            }
        }
    }

    /// The service must not get SIGTERM before the sidecar has handed its partitions over.
    fn service(&self, pod: &Pod, found: &mut ManifestFindings) {
        let port = match &pod.upstream {
            ServiceAddress::Tcp(authority) => authority.port_u16(),
            ServiceAddress::Unix(_) => None,
        };
        let others: Vec<_> = self.others().filter(|other| other.stage != ContainerStage::Before).collect();
        let named = others.iter().find(|other| other.ports.values().any(|other| Some(*other) == port));
        let service = match (named, others.as_slice()) {
            (Some(service), _) | (None, [service]) => *service,
            (None, []) => {
                let fact = format!("no other container of the pod can be the service at {}", pod.upstream);
                return found.problem(&self.container.place, &self.about(self.container), fact, "expected a container");
            }
            (None, several) => {
                let names: Vec<_> = several.iter().map(|one| one.name.as_str()).collect();
                let fact = format!("it is unknown which of the containers {} is the service", names.join(", "));
                let remedy = format!("expected containerPort {} on one of them", port.unwrap_or_default());
                return found.problem(&self.container.place, &self.about(self.container), fact, &remedy);
            }
        };
        match &service.pre_stop {
            Some((hook, _)) if drains(hook) => self.hook_works(service, hook, found),
            hook if self.outlives(service) => {
                if let Some((PreStop::Exec(_) | PreStop::HttpGet(_), place)) = hook {
                    let fact = "Kubernetes runs its preStop hook at once, while the sidecar still sends it requests";
                    found.problem(place, &self.about(service), fact, "expected none: it ends last without one");
                }
            }
            _ => self.service_ends_early(service, found),
        }
    }

    fn service_ends_early(&self, service: &Container, found: &mut ManifestFindings) {
        let when = match (service.stage, self.container.stage) {
            (ContainerStage::Main, ContainerStage::Beside) => "before its sidecar",
            (ContainerStage::Beside, _) => "before its sidecar, which starts earlier",
            _ => "together with its sidecar",
        };
        let wrong_place = match &self.container.pre_stop {
            Some((hook, _)) if drains(hook) => {
                format!(", because the preStop hook is that of container {}", self.container.name)
            }
            _ => String::new(),
        };
        let fact = format!("it gets SIGTERM {when}{wrong_place}, and breaks its requests off");
        let remedy = "expected an init container with restartPolicy: Always and Segue under containers, or its own \
                      preStop hook: segue drain --self --wait 60s";
        found.problem(&service.place, &self.about(service), fact, remedy);
    }

    /// Returns whether a container gets SIGTERM only once Segue's has ended.
    fn outlives(&self, service: &Container) -> bool {
        let place =
            |container: &Container| self.workload.containers.iter().position(|one| std::ptr::eq(one, container));
        match (service.stage, self.container.stage) {
            (ContainerStage::Beside, ContainerStage::Main) => true,
            (ContainerStage::Beside, ContainerStage::Beside) => place(service) < place(self.container),
            _ => false,
        }
    }

    /// A hook in another container than Segue's reaches the sidecar, and may change something there.
    fn hook_works(&self, service: &Container, hook: &PreStop, found: &mut ManifestFindings) {
        let Some((_, place)) = &service.pre_stop else { return };
        let ends = Ends { service, sidecar: self.container, admin: self.config.admin.as_ref() };
        if let Some((fact, remedy)) = ends.obstacle(hook) {
            found.problem(place, &self.about(service), fact, &remedy);
        }
    }

    fn readiness(&self, found: &mut ManifestFindings) {
        let about = self.about(self.container);
        let Some(admin) = &self.config.admin else {
            let fact = "its configuration has no [admin], so no probe can ask it";
            return found.problem(&self.container.place, &about, fact, "expected [admin] listen = \"0.0.0.0:9090\"");
        };
        if admin.listen.ip().is_loopback() {
            let fact = format!("admin.listen is {}, and the kubelet connects to the pod's own address", admin.listen);
            found.problem(&self.container.place, &about, fact, "expected 0.0.0.0");
        }
        let remedy = expected("/ready", admin);
        match &self.container.readiness {
            None => found.problem(&self.container.place, &about, "it has no readinessProbe", &remedy),
            Some(probe) if !asks(probe, "/ready", admin) => {
                found.problem(&probe.place, &about, "its readinessProbe does not ask for /ready", &remedy);
            }
            Some(probe) if !speaks(probe, admin) => {
                found.problem(&probe.place, &about, "its readinessProbe has another scheme than [admin]", &remedy);
            }
            Some(_) => {}
        }
    }

    fn liveness(&self, found: &mut ManifestFindings) {
        let Some(admin) = &self.config.admin else { return };
        let (about, remedy) = (self.about(self.container), expected("/health", admin));
        match &self.container.liveness {
            None => found.warning(&self.container.place, &about, "it has no livenessProbe", &remedy),
            Some(probe) if asks(probe, "/ready", admin) => {
                let fact = "its livenessProbe asks for /ready, and no restart brings back a store that is unreachable";
                found.problem(&probe.place, &about, fact, &remedy);
            }
            Some(probe) if !asks(probe, "/health", admin) => {
                found.problem(&probe.place, &about, "its livenessProbe does not ask for /health", &remedy);
            }
            Some(probe) if !speaks(probe, admin) => {
                found.problem(&probe.place, &about, "its livenessProbe has another scheme than [admin]", &remedy);
            }
            Some(_) => {}
        }
        let config = self.config;
        let listens = [config.router.as_ref().map(|it| it.listen), config.pod.as_ref().map(|it| it.listen)];
        let ports: Vec<u16> =
            listens.into_iter().flatten().chain([admin.listen]).map(|address| address.port()).collect();
        for other in self.others() {
            let foreign = other.liveness.as_ref().filter(|probe| probe.port.is_some_and(|port| ports.contains(&port)));
            if let Some(probe) = foreign {
                let fact =
                    format!("its livenessProbe asks container {}, and would restart this one", self.container.name);
                found.problem(&probe.place, &self.about(other), fact, "expected a port of its own");
            }
        }
    }

    fn addresses(&self, found: &mut ManifestFindings) {
        let (about, place) = (self.about(self.container), &self.container.place);
        let listens = [
            ("router.listen", self.config.router.as_ref().map(|router| router.listen)),
            ("pod.listen", self.config.pod.as_ref().map(|pod| pod.listen)),
        ];
        for (key, listen) in listens {
            if let Some(listen) = listen.filter(|listen: &SocketAddr| listen.ip().is_loopback()) {
                found.problem(
                    place,
                    &about,
                    format!("{key} is {listen}, which no other pod reaches"),
                    "expected 0.0.0.0",
                );
            }
        }
        let Some((host, _)) = self.config.pod.as_ref().and_then(|pod| pod.advertise.rsplit_once(':')) else { return };
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) if address.is_loopback() => {
                let fact = format!("pod.advertise is {host}, which no router reaches");
                found.problem(place, &about, fact, "expected SEGUE__POD__ADVERTISE with the pod's own address");
            }
            Ok(_) => {}
            Err(_) => {
                let services = self.manifests.services.iter();
                let mut its = services
                    .filter(|it| it.namespace == self.workload.namespace && selects(&it.selector, self.workload));
                if !its.any(|service| service.publishes_not_ready) {
                    let fact = format!("pod.advertise is {host}, a name that only pods have that are ready");
                    found.problem(place, &about, fact, "expected publishNotReadyAddresses: true on its Service");
                }
            }
        }
    }

    fn budgets(&self, found: &mut ManifestFindings) {
        let (workload, about) = (self.workload, self.about_workload());
        let budgets = self.manifests.budgets.iter();
        let its: Vec<_> =
            budgets.filter(|it| it.namespace == workload.namespace && selects(&it.selector, workload)).collect();
        let budget = match its.as_slice() {
            [] => {
                if workload.replicas.is_some_and(|replicas| replicas > 1) {
                    let fact = "no PodDisruptionBudget selects its pods, so all of them may be evicted at once";
                    found.warning(&workload.place, &about, fact, "expected one with maxUnavailable: 1");
                }
                return;
            }
            [budget] => budget,
            [first, second, ..] => {
                let fact = format!("the PodDisruptionBudgets {} and {} both select its pods", first.name, second.name);
                let remedy = "expected one: Kubernetes evicts no pod that has several";
                return found.problem(&second.place, &about, fact, remedy);
            }
        };
        let Some(replicas) = workload.replicas else { return self.budget_of_any_number(budget, found) };
        let of = |amount: Amount| match amount {
            Amount::Number(number) => number,
            Amount::Percent(percent) => (replicas * percent).div_ceil(100),
        };
        let kept = budget.min_available.map(|amount| replicas.saturating_sub(of(amount)));
        let Some(allowed) = budget.max_unavailable.map(of).or(kept) else { return };
        if allowed == 0 {
            let fact = format!("PodDisruptionBudget {} lets none of its {replicas} pods go", budget.name);
            found.problem(&budget.place, &about, fact, "expected maxUnavailable: 1, or no node can be drained");
        } else if allowed >= replicas && replicas > 1 {
            let fact = format!("PodDisruptionBudget {} lets all of its {replicas} pods go at once", budget.name);
            found.warning(&budget.place, &about, fact, "expected maxUnavailable: 1");
        }
    }

    /// The budget of a workload whose number of pods something else determines, such as an autoscaler.
    fn budget_of_any_number(&self, budget: &DisruptionBudget, found: &mut ManifestFindings) {
        let none = [Amount::Number(0), Amount::Percent(0)];
        if budget.max_unavailable.is_some_and(|amount| none.contains(&amount))
            || budget.min_available == Some(Amount::Percent(100))
        {
            let fact = format!("PodDisruptionBudget {} lets none of its pods go", budget.name);
            let remedy = "expected maxUnavailable: 1, or no node can be drained";
            found.problem(&budget.place, &self.about_workload(), fact, remedy);
        }
    }

    fn routers(&self, found: &mut ManifestFindings) {
        if self.config.router.is_some() && self.container.pre_stop.is_none() {
            let fact = "it has no preStop hook, and nodes still send requests to a router that has just got SIGTERM";
            let remedy = "expected preStop: {sleep: {seconds: 10}}";
            found.warning(&self.container.place, &self.about(self.container), fact, remedy);
        }
        if self.workload.recreates {
            let fact = "an update ends all of its pods before it starts others";
            found.warning(&self.workload.place, &self.about_workload(), fact, "expected strategy: RollingUpdate");
        }
    }

    fn others(&self) -> impl Iterator<Item = &Container> {
        self.workload.containers.iter().filter(|other| !std::ptr::eq(*other, self.container))
    }

    fn about_workload(&self) -> String {
        format!("{} {}", self.workload.kind, self.workload.name)
    }

    fn about(&self, container: &Container) -> String {
        format!("{}, container {}", self.about_workload(), container.name)
    }
}

fn asks(probe: &Probe, path: &str, admin: &Admin) -> bool {
    probe.port == Some(admin.listen.port()) && probe.path.as_deref() == Some(path)
}

/// Returns what a probe should have.
fn expected(path: &str, admin: &Admin) -> String {
    let scheme = if admin.tls.is_some() { ", scheme: HTTPS" } else { "" };
    format!("expected httpGet of {path} at port {}{scheme}", admin.listen.port())
}

fn speaks(probe: &Probe, admin: &Admin) -> bool {
    probe.by_tls == admin.tls.is_some()
}
