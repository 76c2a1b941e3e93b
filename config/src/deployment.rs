//! Relations between the files of one deployment.
//!
//! For: relations between processes with a file each, which no process could check by itself. Files belong together if
//! they name the same prefix and keyspace. Not for: the rules of a single file (`validate`).

use std::collections::BTreeMap;

use segue_proxy::routing::partition_key::PartitionSource;

use crate::error::Problem;
use crate::located::Located;
use crate::units::show_duration;
use crate::validated::{Coordinator, Pod, Router};

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Settings that cannot work together.
    pub problems: Vec<Problem>,
    /// Settings that work together with a probably unwanted consequence.
    pub warnings: Vec<Problem>,
}

/// Compares files, each of which is valid by itself.
pub fn compare(files: &[Located]) -> Findings {
    let mut found = Findings::default();
    for (i, one) in files.iter().enumerate() {
        for (j, other) in files.iter().enumerate() {
            if !are_one_deployment(one, other) {
                continue;
            }
            if let (Some(router), Some(coordinator)) = (&one.config.router, &other.config.coordinator) {
                found.handoffs_fit(i == j, (one, router), (other, coordinator));
            }
            if let (Some(router), Some(pod)) = (&one.config.router, &other.config.pod) {
                found.failovers_fit((one, router), (other, pod));
            }
            if i < j {
                found.names_differ(one, other);
                found.routers_agree(one, other);
                found.coordinators_agree(one, other);
            }
        }
    }
    found
}

fn are_one_deployment(one: &Located, other: &Located) -> bool {
    let (one, other) = (&one.config, &other.config);
    one.keyspace == other.keyspace && one.store.prefix == other.store.prefix
}

/// Returns whether both map alike. The name of the header with the number makes no difference.
fn map_alike(one: &PartitionSource, other: &PartitionSource) -> bool {
    match (one, other) {
        (PartitionSource::Number { .. }, PartitionSource::Number { .. }) => true,
        (one, other) => one == other,
    }
}

impl Findings {
    fn handoffs_fit(&mut self, is_same_file: bool, router: (&Located, &Router), coordinator: (&Located, &Coordinator)) {
        const DRAIN: &str = "router.drain.timeout";
        const PHASE: &str = "coordinator.phase_timeout";
        const MAX_WAIT: &str = "router.stash.max_wait";
        let (drain, phase) = (router.1.drain.timeout, coordinator.1.policy.phase_timeout);
        let (phase_text, its_origin) = (show_duration(phase), coordinator.0.origin(PHASE));
        // Within one file this is already a problem.
        if drain >= phase && !is_same_file {
            let fact = format!("{} is not below {PHASE}, which is {phase_text} ({its_origin})", show_duration(drain));
            self.problems.push(router.0.problem(DRAIN, fact, format!("expected less than {phase_text}")));
        }
        let max_wait = router.1.stash.max_wait;
        if phase >= max_wait {
            let bound = show_duration(max_wait);
            let fact = format!(
                "{phase_text} is not below {MAX_WAIT} of router {}, which is {bound} ({}): requests that wait for a \
                 handoff that is cancelled then have been refused before",
                router.1.name,
                router.0.origin(MAX_WAIT)
            );
            self.warnings.push(coordinator.0.problem(PHASE, fact, format!("expected less than {bound}")));
        }
    }

    fn failovers_fit(&mut self, router: (&Located, &Router), pod: (&Located, &Pod)) {
        const LEASE: &str = "pod.lease_ttl";
        const WORK: &str = "pod.work_ends_within";
        const MAX_WAIT: &str = "router.stash.max_wait";
        let (lease, max_wait) = (pod.1.lease_ttl, router.1.stash.max_wait);
        let bound = show_duration(max_wait);
        if lease < max_wait {
            let work = pod.1.work_ends_within.filter(|work| lease.saturating_add(*work) >= max_wait);
            self.warnings.extend(work.map(|work| {
                let fact = format!(
                    "{} and {LEASE}, which is {} ({}), are together not below {MAX_WAIT} of router {}, which is {bound} ({}): \
                     requests for a pod that vanishes are refused before its partitions can move",
                    show_duration(work),
                    show_duration(lease),
                    pod.0.origin(LEASE),
                    router.1.name,
                    router.0.origin(MAX_WAIT)
                );
                pod.0.problem(WORK, fact, format!("expected less than {}", show_duration(max_wait - lease)))
            }));
            return;
        }
        let fact = format!(
            "{} is not below {MAX_WAIT} of router {}, which is {bound} ({}): requests for a pod that vanishes are refused \
             before its lease has ended",
            show_duration(pod.1.lease_ttl),
            router.1.name,
            router.0.origin(MAX_WAIT)
        );
        self.warnings.push(pod.0.problem(LEASE, fact, format!("expected less than {bound}")));
    }

    fn names_differ(&mut self, one: &Located, other: &Located) {
        let names = |file: &Located| {
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

    /// Checks that two routers map alike: otherwise requests of one key would go to two partitions.
    fn routers_agree(&mut self, one: &Located, other: &Located) {
        let (Some(first), Some(second)) = (&one.config.router, &other.config.router) else { return };
        if !map_alike(&first.partition, &second.partition) {
            let fact =
                format!("another mapping of requests to partitions than router {} has ({})", first.name, one.file());
            self.problems.push(other.problem(
                "router.partition",
                fact,
                "expected the same in all routers of a keyspace",
            ));
        }
    }

    fn coordinators_agree(&mut self, one: &Located, other: &Located) {
        let (Some(first), Some(second)) = (&one.config.coordinator, &other.config.coordinator) else { return };
        let differing = [
            ("coordinator.partitions", first.policy.partitions != second.policy.partitions),
            ("coordinator.strategy", first.policy.strategy != second.policy.strategy),
            ("coordinator.mode", first.policy.mode != second.policy.mode),
        ];
        for (key, _) in differing.into_iter().filter(|(_, differs)| *differs) {
            let fact = format!(
                "another value than coordinator {} has ({}): the keyspace keeps that of its first leader",
                first.name,
                one.file()
            );
            self.warnings.push(other.problem(key, fact, "expected the same in all coordinators of a keyspace"));
        }
    }
}
