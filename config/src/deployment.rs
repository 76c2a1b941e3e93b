//! Relations between the files of one deployment.
//!
//! For: relations between processes with a file each, which no process could check by itself. Files belong together if
//! they name the same prefix and a common keyspace. Not for: the rules of a single file (`validate`).

use std::collections::{BTreeMap, BTreeSet};

use segue_protocol::planning::{Coordination, Policy};
use segue_protocol::records::canonical_address;
use segue_proxy::routing::partition_key::PartitionSource;

use crate::drain_time::{DRAIN, Overrun, PHASE};
use crate::error::{Problem, quoted};
use crate::located::{LocatedConfig, Setting};
use crate::units::show_duration;
use crate::validated::{Coordinator, KeyspaceSection, Pod, Router, Routing};

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparisonFindings {
    /// Settings that cannot work together.
    pub problems: Vec<Problem>,
    /// Settings that work together with a probably unwanted consequence.
    pub warnings: Vec<Problem>,
}

const MAX_WAIT: Setting = Setting { own: "keyspaces.stash.max_wait", common: "router.stash.max_wait" };
const PARTITIONS: Setting = Setting { own: "keyspaces.partitions", common: "coordinator.partitions" };
const PARTITION: Setting = Setting { own: "keyspaces.partition", common: "router.partition" };
const MATCH: Setting = Setting { own: "keyspaces.match", common: "keyspace" };
const SERVICE: Setting = Setting { own: "keyspaces.service", common: "service" };
const STRATEGY: Setting = Setting { own: "keyspaces.strategy", common: "coordinator.strategy" };
const MOST_HANDOFFS: Setting =
    Setting { own: "keyspaces.max_concurrent_handoffs", common: "coordinator.max_concurrent_handoffs" };
const MOST_WARMING: Setting =
    Setting { own: "keyspaces.max_warming_per_pod", common: "coordinator.max_warming_per_pod" };

/// A file, as far as it is about one keyspace.
#[derive(Clone, Copy)]
struct KeyspaceFile<'a> {
    file: &'a LocatedConfig,
    index: usize,
    keyspace: &'a KeyspaceSection,
}

impl<'a> KeyspaceFile<'a> {
    fn all(file: &'a LocatedConfig) -> impl Iterator<Item = KeyspaceFile<'a>> {
        file.config.keyspaces.iter().enumerate().map(move |(index, keyspace)| KeyspaceFile { file, index, keyspace })
    }

    fn router(self) -> Option<(Self, &'a Router, &'a Routing)> {
        Some((self, self.file.config.router.as_ref()?, self.keyspace.routing.as_ref()?))
    }

    fn coordinator(self) -> Option<(Self, &'a Coordinator, &'a Policy)> {
        Some((self, self.file.config.coordinator.as_ref()?, self.keyspace.policy.as_ref()?))
    }

    /// Returns the name of the key of a setting.
    fn key(self, setting: Setting) -> &'static str {
        self.file.key_in(self.index, setting)
    }

    fn origin(self, setting: Setting) -> String {
        self.file.origin_in(self.index, setting)
    }

    fn problem(self, setting: Setting, fact: String, remedy: &str) -> Problem {
        self.file.problem_in(self.index, setting, fact, remedy)
    }
}

/// Compares files, each of which is valid by itself.
pub fn compare(files: &[LocatedConfig]) -> ComparisonFindings {
    let mut found = ComparisonFindings::default();
    for (i, one) in files.iter().enumerate() {
        for (j, other) in files.iter().enumerate() {
            let shared = shared_keyspaces(one, other);
            for (first, second) in &shared {
                found.parts_fit(i == j, *first, *second);
                if i < j {
                    found.services_agree(*first, *second);
                    found.routers_agree(*first, *second);
                    found.coordinators_agree(*first, *second);
                }
            }
            if i < j && !shared.is_empty() {
                found.names_differ(one, other);
                found.addresses_differ(one, other);
            }
        }
    }
    // Several keyspaces of one file may share the setting.
    for problems in [&mut found.problems, &mut found.warnings] {
        let mut seen = BTreeSet::new();
        problems.retain(|problem| seen.insert(problem.clone()));
    }
    found
}

/// Returns the keyspaces that both files are about.
fn shared_keyspaces<'a>(one: &'a LocatedConfig, other: &'a LocatedConfig) -> Vec<(KeyspaceFile<'a>, KeyspaceFile<'a>)> {
    if one.config.store.prefix != other.config.store.prefix {
        return Vec::new();
    }
    let partner =
        |first: KeyspaceFile<'a>| KeyspaceFile::all(other).find(|second| second.keyspace.name == first.keyspace.name);
    KeyspaceFile::all(one).filter_map(|first| Some((first, partner(first)?))).collect()
}

/// Returns whether both map alike. The name of the header with the number makes no difference.
fn map_alike(one: &PartitionSource, other: &PartitionSource) -> bool {
    match (one, other) {
        (PartitionSource::Number { .. }, PartitionSource::Number { .. }) => true,
        (one, other) => one == other,
    }
}

impl ComparisonFindings {
    /// A keyspace belongs to one service. Who has another, or none, does not register.
    fn services_agree(&mut self, one: KeyspaceFile<'_>, other: KeyspaceFile<'_>) {
        let (own, others) = (&one.keyspace.service, &other.keyspace.service);
        if own != others {
            let named = |service: &Option<String>| service.as_deref().map_or_else(|| "not given".to_owned(), quoted);
            let fact = format!("{} here, and {} there ({})", named(own), named(others), other.origin(SERVICE));
            self.problems.push(one.problem(SERVICE, fact, "expected the same in every file of a keyspace"));
        }
    }

    /// Checks what the roles of one keyspace expect of each other.
    fn parts_fit(&mut self, is_same_file: bool, one: KeyspaceFile<'_>, other: KeyspaceFile<'_>) {
        let Some(router) = one.router() else { return };
        if let Some(coordinator) = other.coordinator() {
            self.handoffs_fit(is_same_file, router, coordinator);
            self.rounds_fit(router, coordinator);
        }
        if let Some(pod) = &other.file.config.pod {
            self.failovers_fit(router, (other.file, pod));
        }
    }

    fn handoffs_fit(
        &mut self,
        is_same_file: bool,
        (part, router, routing): (KeyspaceFile<'_>, &Router, &Routing),
        (other, _, policy): (KeyspaceFile<'_>, &Coordinator, &Policy),
    ) {
        let phase = policy.phase_timeout;
        // Within one file `validate` reports this already.
        if !is_same_file && let Some(overrun) = Overrun::of(router.drain.timeout, phase) {
            let (fact, remedy) = overrun.of_drain(&other.file.origin(PHASE));
            self.problems.push(part.file.problem(DRAIN, fact, remedy));
        }
        let phase_text = show_duration(phase);
        let max_wait = routing.stash.max_wait;
        if phase >= max_wait {
            let bound = show_duration(max_wait);
            let fact = format!(
                "{phase_text} is not below {} of router {}, which is {bound} ({}): requests that wait for a \
                 handoff that is cancelled then have been refused before",
                part.key(MAX_WAIT),
                router.name,
                part.origin(MAX_WAIT)
            );
            self.warnings.push(other.file.problem(PHASE, fact, format!("expected less than {bound}")));
        }
    }

    /// A participant of assignment rounds that lives and does nothing drops out with the next heartbeat.
    fn rounds_fit(
        &mut self,
        (part, router, routing): (KeyspaceFile<'_>, &Router, &Routing),
        (other, _, policy): (KeyspaceFile<'_>, &Coordinator, &Policy),
    ) {
        const HEARTBEAT: &str = "coordinator.heartbeat";
        const SETTLE: &str = "coordinator.settle";
        let max_wait = routing.stash.max_wait;
        if policy.coordination != Coordination::Rounds || policy.heartbeat.saturating_add(policy.settle) < max_wait {
            return;
        }
        let bound = show_duration(max_wait);
        let fact = format!(
            "{} and {SETTLE}, which is {} ({}), are together not below {} of router {}, which is {bound} ({}): \
             requests for partitions that a stuck participant should move are refused before it drops out",
            show_duration(policy.heartbeat),
            show_duration(policy.settle),
            other.file.origin(SETTLE),
            part.key(MAX_WAIT),
            router.name,
            part.origin(MAX_WAIT)
        );
        let less = show_duration(max_wait.saturating_sub(policy.settle));
        self.warnings.push(other.file.problem(HEARTBEAT, fact, format!("expected less than {less}")));
    }

    fn failovers_fit(
        &mut self,
        (part, router, routing): (KeyspaceFile<'_>, &Router, &Routing),
        pod: (&LocatedConfig, &Pod),
    ) {
        const LEASE: &str = "pod.lease_ttl";
        const WORK: &str = "pod.work_ends_within";
        let (lease, max_wait) = (pod.1.lease_ttl, routing.stash.max_wait);
        let (key, its_origin) = (part.key(MAX_WAIT), part.origin(MAX_WAIT));
        let bound = show_duration(max_wait);
        if lease < max_wait {
            let work = pod.1.work_ends_within.filter(|work| lease.saturating_add(*work) >= max_wait);
            self.warnings.extend(work.map(|work| {
                let fact = format!(
                    "{} and {LEASE}, which is {} ({}), are together not below {key} of router {}, which is {bound} ({its_origin}): \
                     requests for a pod that vanishes are refused before its partitions can move",
                    show_duration(work),
                    show_duration(lease),
                    pod.0.origin(LEASE),
                    router.name
                );
                pod.0.problem(WORK, fact, format!("expected less than {}", show_duration(max_wait - lease)))
            }));
            return;
        }
        let fact = format!(
            "{} is not below {key} of router {}, which is {bound} ({its_origin}): requests for a pod that vanishes are \
             refused before its lease has ended",
            show_duration(pod.1.lease_ttl),
            router.name
        );
        self.warnings.push(pod.0.problem(LEASE, fact, format!("expected less than {bound}")));
    }

    /// Two pods at one address get each other's requests.
    fn addresses_differ(&mut self, one: &LocatedConfig, other: &LocatedConfig) {
        let (Some(first), Some(second)) = (&one.config.pod, &other.config.pod) else { return };
        if canonical_address(&first.advertise) == canonical_address(&second.advertise) {
            let fact =
                format!("{:?} is the address of another pod, too ({})", second.advertise, one.origin("pod.advertise"));
            let expected = "expected an address of its own: requests for one pod would reach the other";
            self.problems.push(other.problem("pod.advertise", fact, expected));
        }
    }

    fn names_differ(&mut self, one: &LocatedConfig, other: &LocatedConfig) {
        let names = |file: &LocatedConfig| {
            let config = &file.config;
            BTreeMap::from([
                ("router.name", config.router.as_ref().map(|it| it.name.clone())),
                ("coordinator.name", config.coordinator.as_ref().map(|it| it.name.clone())),
                ("pod.name", config.pod.as_ref().map(|it| it.name.clone())),
            ])
        };
        let (first, second) = (names(one), names(other));
        for (key, name) in second {
            if let Some(name) = name.filter(|name| first[key].as_ref() == Some(name)) {
                let fact = format!("{name:?} is {key} of another file, too ({})", one.origin(key));
                self.problems.push(other.problem(key, fact, "expected a name of its own: the second one would wait"));
            }
        }
    }

    /// Checks that two routers map alike: otherwise requests of one key would go to two partitions. Routers may serve
    /// different clients, so another choice of a keyspace's requests is only pointed out.
    fn routers_agree(&mut self, one: KeyspaceFile<'_>, other: KeyspaceFile<'_>) {
        let (Some((_, router, first)), Some((_, _, second))) = (one.router(), other.router()) else { return };
        if !map_alike(&first.partition, &second.partition) {
            let fact = format!(
                "another mapping of requests to partitions than router {} has ({})",
                router.name,
                one.file.file()
            );
            let remedy = "expected the same in all routers of a keyspace";
            self.problems.push(other.file.table_problem(other.index, PARTITION, fact, remedy));
        } else if first.exceptions != second.exceptions {
            let fact = format!(
                "requests without a key, or by routes, go elsewhere than at router {} ({})",
                router.name,
                one.file.file()
            );
            let remedy = "expected the same in all routers that the same clients use";
            self.warnings.push(other.file.table_problem(other.index, PARTITION, fact, remedy));
        } else if first.matching != second.matching {
            let fact = format!(
                "another choice of the requests of keyspace {} than router {} has ({})",
                quoted(&one.keyspace.name),
                router.name,
                one.file.file()
            );
            let remedy = "expected the same `match` in all routers that the same clients use";
            self.warnings.push(other.file.table_problem(other.index, MATCH, fact, remedy));
        }
    }

    fn coordinators_agree(&mut self, one: KeyspaceFile<'_>, other: KeyspaceFile<'_>) {
        let (Some((_, coordinator, first)), Some((_, _, second))) = (one.coordinator(), other.coordinator()) else {
            return;
        };
        let common = |key| Setting { own: "", common: key };
        let differing = [
            (PARTITIONS, first.partitions != second.partitions),
            (STRATEGY, first.strategy != second.strategy),
            (MOST_HANDOFFS, first.max_concurrent_handoffs != second.max_concurrent_handoffs),
            (MOST_WARMING, first.max_warming_per_pod != second.max_warming_per_pod),
            (common("coordinator.mode"), first.mode != second.mode),
            (common("coordinator.coordination"), first.coordination != second.coordination),
        ];
        for (setting, _) in differing.into_iter().filter(|(_, differs)| *differs) {
            let fact = format!(
                "another value than coordinator {} has ({}): the keyspace keeps that of its first leader",
                coordinator.name,
                one.file.file()
            );
            self.warnings.push(other.problem(setting, fact, "expected the same in all coordinators of a keyspace"));
        }
    }
}
