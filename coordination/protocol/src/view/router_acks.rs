//! The acknowledgements of routers in a view that does not follow them, for whoever wants to show who is waited for.

use super::{Acks, View, ViewDelta};
use crate::txn::KeyValue;

impl View {
    /// Shows these acknowledgements of routers, and no others. The view must not follow them.
    pub fn show_router_acks(&mut self, acks: Vec<KeyValue>) {
        let apart = self.keys.router_acks();
        self.malformed.retain(|key, _| !apart.contains(key));
        self.unreadable.retain(|key, _| !apart.contains(key));
        self.acks.retain(|_, acks| {
            (acks.drained, acks.cutover) = Default::default();
            !Acks::is_empty(acks)
        });
        let mut touched = ViewDelta::default();
        acks.into_iter().filter(|ack| apart.contains(&ack.key)).for_each(|ack| self.apply_put(ack, &mut touched));
    }
}
