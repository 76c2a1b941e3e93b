//! Forgetting: deletes a registration that does not end by itself.
//!
//! With it the operator declares that the process is gone and its work is over, which cannot be checked here. A
//! registration with a lease needs no such declaration: it ends with the lease.

use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::view::{Versioned, View};
use serde::{Deserialize, Serialize};

/// The kinds of registrations that can be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RegistrationKind {
    Pod,
    Router,
}

/// A deleted registration, and the partitions that its pod owned.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ForgottenRegistration {
    kind: RegistrationKind,
    name: String,
    incarnation: Incarnation,
    /// The partitions that the pod owned.
    partitions: Vec<PartitionId>,
}

/// Returns the key, when it was last written, and the consequence of its deletion; or why it is not deleted.
pub(super) fn judge(
    view: &View,
    kind: RegistrationKind,
    name: &str,
    force: bool,
) -> Result<(String, Revision, ForgottenRegistration), String> {
    let (key, standing) = match kind {
        RegistrationKind::Pod => (view.keys().pod(name), view.pod_key(name)),
        RegistrationKind::Router => (view.keys().router(name), view.routers.get(name).map(Versioned::key)),
    };
    let word = kind.word();
    let standing = standing.ok_or_else(|| format!("no {word} {name} is registered: there is nothing to forget"))?;
    if standing.lease.is_some() && !view.malformed.contains_key(&key) && !force {
        return Err(format!(
            "{word} {name} is registered with a lease: if its process is gone, the registration ends with the lease. With \
             --force it is deleted now; if the process is alive, it fences itself and registers again"
        ));
    }
    let incarnation = Incarnation::registered_at(standing.create_revision);
    let owned = view.assignments.iter().filter(|(_, it)| {
        kind == RegistrationKind::Pod && it.value.owner == name && it.value.incarnation == incarnation
    });
    let partitions = owned.map(|(partition, _)| *partition).collect();
    let forgotten = ForgottenRegistration { kind, name: name.to_owned(), incarnation, partitions };
    Ok((key, standing.mod_revision, forgotten))
}

impl RegistrationKind {
    pub(super) fn word(self) -> &'static str {
        match self {
            RegistrationKind::Pod => "pod",
            RegistrationKind::Router => "router",
        }
    }
}

impl ForgottenRegistration {
    /// Returns the consequences of the deletion, for an operator who has not confirmed it.
    pub(super) fn question(&self) -> String {
        let (kind, name) = (self.kind.word(), &self.name);
        let consequence = match (self.kind, self.partitions.len()) {
            (RegistrationKind::Router, _) => {
                "handoffs no longer wait for it. If it still runs, a request that it sends to an old owner \
                                  may be lost or applied twice"
                    .to_owned()
            }
            (RegistrationKind::Pod, 0) => "it counts as dead. It owns no partition".to_owned(),
            (RegistrationKind::Pod, owned) => format!(
                "it counts as dead, and other pods take over its partitions ({owned}). If it still works on a request, two \
                 pods may write"
            ),
        };
        format!(
            "nothing was deleted: to forget {kind} {name} says that its process is gone and its work is over; {consequence}. \
             If that is so, confirm it with --yes"
        )
    }

    pub(super) fn in_words(&self) -> String {
        let name = &self.name;
        match (self.kind, self.partitions.len()) {
            (RegistrationKind::Router, _) => format!("router {name} is forgotten: handoffs no longer wait for it"),
            (RegistrationKind::Pod, 0) => format!("pod {name} is forgotten: it owned no partition"),
            (RegistrationKind::Pod, owned) => format!(
                "pod {name} is forgotten: it counts as dead from now on, and other pods take over its partitions ({owned})"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::LeaseId;
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{KeyValue, Snapshot};

    use super::*;

    const I3: Incarnation = Incarnation::registered_at(Revision::new(3));

    fn view(lease: Option<i64>, value: &str) -> View {
        let lease = lease.map(LeaseId::new);
        let entry = |key: &str, value: &str, lease| KeyValue {
            key: format!("/segue/default/{key}"),
            value: value.as_bytes().to_vec(),
            create_revision: Revision::new(3),
            mod_revision: Revision::new(8),
            lease,
        };
        let owned = |number| format!(r#"{{"partition":{number},"owner":"w","incarnation":3,"epoch":1}}"#);
        let entries = vec![
            entry("assignments/0", &owned(0), None),
            entry("assignments/4", &owned(4), None),
            entry("pods/w", value, lease),
            entry("routers/w", "{}", lease),
        ];
        View::from_snapshot(Keyspace::new("/segue/", "default"), Snapshot { revision: Revision::new(9), entries })
    }

    const POD: &str = r#"{"pod_name":"w","address":"127.0.0.1:1"}"#;

    #[test]
    fn a_registration_with_a_lease_is_left_to_it_unless_forced() {
        let refused = judge(&view(Some(1), POD), RegistrationKind::Pod, "w", false).unwrap_err();
        assert!(refused.contains("ends with the lease") && refused.contains("--force"), "{refused}");
        assert!(judge(&view(Some(1), POD), RegistrationKind::Pod, "w", true).is_ok());
    }

    #[test]
    fn a_registration_without_a_lease_or_that_cannot_be_read_is_forgotten_as_it_was_last_written() {
        for (lease, value) in [(None, POD), (Some(1), "{"), (None, "{")] {
            let (key, seen, forgotten) = judge(&view(lease, value), RegistrationKind::Pod, "w", false).unwrap();
            assert_eq!((key.as_str(), seen, forgotten.incarnation), ("/segue/default/pods/w", Revision::new(8), I3));
            assert_eq!(forgotten.partitions, [0, 4].map(PartitionId::new));
            assert!(forgotten.in_words().contains("take over its partitions (2)"));
        }
        let (key, _, forgotten) = judge(&view(Some(1), POD), RegistrationKind::Router, "w", false).unwrap();
        assert_eq!((key.as_str(), forgotten.partitions.len()), ("/segue/default/routers/w", 0), "unreadable");
    }

    #[test]
    fn there_is_nothing_to_forget_about_what_is_not_registered() {
        let refused = judge(&view(None, POD), RegistrationKind::Router, "nobody", true).unwrap_err();
        assert!(refused.contains("no router nobody is registered"), "{refused}");
    }
}
