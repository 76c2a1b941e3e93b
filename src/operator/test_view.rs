//! Views for tests of what operators are shown.

use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{KeyValue, Snapshot};
use segue_protocol::view::View;

/// Returns the keyspace `default` at revision 9 with these keys and values. Its lives began at revision 3; registrations and what
/// their owners write have a lease.
pub(super) fn view(entries: &[(&str, &str)]) -> View {
    let is_leased = |key: &str| ["pods/", "routers/", "coordinator/", "~"].iter().any(|own| key.starts_with(own));
    let entry = |(key, value): &(&str, &str)| KeyValue {
        key: format!("/segue/default/{key}"),
        value: value.as_bytes().to_vec(),
        create_revision: Revision::new(3),
        mod_revision: Revision::new(8),
        lease: is_leased(key).then(|| LeaseId::new(1)),
    };
    let entries = entries.iter().map(entry).collect();
    View::from_snapshot(Keyspace::new("/segue/", "default"), Snapshot { revision: Revision::new(9), entries })
}
