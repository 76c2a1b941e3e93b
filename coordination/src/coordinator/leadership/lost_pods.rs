//! Tells pods that are lost from pods that leave, and when the partitions of a lost one have owners again.
//!
//! Nothing is decided here: the planner has its own view of dead owners.

use std::collections::BTreeMap;
use std::time::Duration;

use segue_protocol::ids::Incarnation;
use segue_protocol::records::{PodRecord, PodStatus};
use segue_protocol::view::{Versioned, View};
use tokio::time::Instant;
use tracing::{info, warn};

/// The pods of a keyspace as they were seen last.
#[derive(Debug, Default)]
pub(super) struct SeenPods {
    /// `None` before the first view.
    registered: Option<BTreeMap<String, SeenPod>>,
    /// The store was not followed for a while.
    was_blind: bool,
    /// The lives that ended with partitions, and since when these have no owner.
    lost: BTreeMap<(String, Incarnation), Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SeenPod {
    incarnation: Incarnation,
    leaves: bool,
}

/// A pod that came to an end, or what followed from that.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PodNews {
    /// The pod is gone, and with it the owner of its partitions.
    Lost { pod: String, partitions: usize, how: &'static str },
    /// The pod is gone, and owned nothing.
    Left { pod: String },
    /// The partitions of a lost pod have owners again.
    Owned { pod: String, after: Duration },
}

impl SeenPods {
    /// Notes that a snapshot has replaced the view. `was_blind`: changes were missed before it.
    pub(super) fn may_have_missed(&mut self, was_blind: bool) {
        self.was_blind |= was_blind;
    }

    /// Returns whether partitions of a lost pod are without an owner.
    pub(super) fn await_owners(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns what is new in this view.
    pub(super) fn news(&mut self, view: &View, now: Instant) -> Vec<PodNews> {
        let was_blind = std::mem::take(&mut self.was_blind);
        let seen = |(name, pod): (&String, &Versioned<PodRecord>)| {
            let leaves = view.is_draining(name) || pod.value.status == PodStatus::Draining;
            (name.clone(), SeenPod { incarnation: pod.incarnation(), leaves })
        };
        let registered: BTreeMap<String, SeenPod> = view.pods.iter().map(seen).collect();
        let mut news = Vec::new();
        let Some(before) = self.registered.replace(registered) else {
            self.find_dead_owners(view, now, &mut news);
            return news;
        };
        let lives_on = |name: &String, life| view.pods.get(name).is_some_and(|pod| pod.incarnation() == life);
        for (pod, SeenPod { incarnation, leaves }) in before {
            if lives_on(&pod, incarnation) {
                continue;
            }
            let how = match () {
                () if view.pods.contains_key(&pod) => "it has begun a new life",
                () if was_blind => "while the store could not be followed",
                () if leaves => "it left before its partitions were handed over",
                () => "its lease ended, or its key was deleted",
            };
            match owned(view, &pod, incarnation) {
                0 => news.push(PodNews::Left { pod }),
                partitions => {
                    self.lost.insert((pod.clone(), incarnation), now);
                    news.push(PodNews::Lost { pod, partitions, how });
                }
            }
        }
        self.lost.retain(|(pod, life), since| {
            let is_over = owned(view, pod, *life) == 0;
            if is_over {
                news.push(PodNews::Owned { pod: pod.clone(), after: now - *since });
            }
            !is_over
        });
        news
    }

    /// Finds the owners that were dead before the first view.
    fn find_dead_owners(&mut self, view: &View, now: Instant, news: &mut Vec<PodNews>) {
        let mut dead: BTreeMap<(String, Incarnation), usize> = BTreeMap::new();
        for assignment in view.assignments.values() {
            let (owner, life) = (&assignment.value.owner, assignment.value.incarnation);
            if view.incarnation_of(owner) != life {
                *dead.entry((owner.clone(), life)).or_default() += 1;
            }
        }
        for ((pod, life), partitions) in dead {
            self.lost.insert((pod.clone(), life), now);
            news.push(PodNews::Lost { pod, partitions, how: "before this coordinator led" });
        }
    }
}

fn owned(view: &View, pod: &str, life: Incarnation) -> usize {
    let is_of_life = |partition| view.assignments.get(&partition).is_some_and(|at| at.value.incarnation == life);
    view.assigned_to(pod).filter(|partition| is_of_life(*partition)).count()
}

/// Logs what is new.
pub(super) fn tell(news: Vec<PodNews>) {
    for news in news {
        match news {
            PodNews::Lost { pod, partitions, how } => {
                warn!(pod, partitions, how, "a pod is gone; its partitions have no owner until they have moved");
            }
            PodNews::Left { pod } => info!(pod, "a pod has left"),
            PodNews::Owned { pod, after } => {
                info!(pod, "the partitions of a lost pod have owners again, after {:.1} s", after.as_secs_f64());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::{LeaseId, Revision};
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{KeyValue, Snapshot};

    use super::*;

    /// Returns the view with these keys, each with its revision.
    fn view(entries: &[(u64, &str, &str)]) -> View {
        let entries = entries.iter().map(|(revision, key, value)| KeyValue {
            key: format!("/segue/test/{key}"),
            value: value.as_bytes().to_vec(),
            create_revision: Revision::new(*revision),
            mod_revision: Revision::new(*revision),
            lease: Some(LeaseId::new(1)),
        });
        let snapshot = Snapshot { revision: Revision::new(100), entries: entries.collect() };
        View::from_snapshot(Keyspace::new("/segue/", "test"), snapshot)
    }

    const POD: &str = r#"{"pod_name":"a","address":"127.0.0.1:1"}"#;
    const OWNED: &str = r#"{"partition":0,"owner":"a","incarnation":5,"epoch":7}"#;

    fn lost(how: &'static str) -> PodNews {
        PodNews::Lost { pod: "a".to_owned(), partitions: 1, how }
    }

    #[test]
    fn a_pod_that_ends_with_partitions_is_lost_until_they_have_owners_and_one_without_has_left() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let registered = view(&[(5, "pods/a", POD), (6, "assignments/0", OWNED)]);
        for (after, how) in [
            (view(&[(6, "assignments/0", OWNED)]), "its lease ended, or its key was deleted"),
            (view(&[(9, "pods/a", POD), (6, "assignments/0", OWNED)]), "it has begun a new life"),
        ] {
            let mut pods = SeenPods::default();
            assert_eq!(pods.news(&registered, now), []);
            assert_eq!(pods.news(&after, now), [lost(how)]);
            assert!(pods.await_owners() && pods.news(&after, now).is_empty());
            let owned = PodNews::Owned { pod: "a".to_owned(), after: second };
            assert_eq!(pods.news(&view(&[(9, "pods/a", POD)]), now + second), [owned]);
            assert!(!pods.await_owners());
        }
        let mut pods = SeenPods::default();
        pods.news(&view(&[(5, "pods/a", POD)]), now);
        assert_eq!(pods.news(&view(&[]), now), [PodNews::Left { pod: "a".to_owned() }]);
    }

    #[test]
    fn an_owner_that_was_dead_before_is_told_and_so_is_one_that_went_unseen() {
        let (now, mut pods) = (Instant::now(), SeenPods::default());
        assert_eq!(pods.news(&view(&[(6, "assignments/0", OWNED)]), now), [lost("before this coordinator led")]);
        let mut pods = SeenPods::default();
        pods.news(&view(&[(5, "pods/a", POD), (6, "assignments/0", OWNED)]), now);
        pods.may_have_missed(true);
        let gone = pods.news(&view(&[(6, "assignments/0", OWNED)]), now);
        assert_eq!(gone, [lost("while the store could not be followed")]);
    }
}
