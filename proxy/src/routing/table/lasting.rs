//! The exchanges of each partition that have lasted for a moment: since when, of what kind, of which request, and the token
//! that severs each.
//!
//! Most exchanges end before they are listed here. One that lasts is listed by its permit, in the list of its worker,
//! until it ends. Plain data. Elsewhere: the lists of a table ([`lists`](super::lists)).

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use segue_protocol::ids::PartitionId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::routing::request_summary::RequestSummary;

/// The place of an exchange among those of its partition in its worker's list. Small, because every permit has room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LastingId(NonZeroU32);

/// One worker's list.
#[derive(Debug, Default)]
pub(super) struct LastingExchanges {
    /// The number of the last exchange. The numbers begin anew after 2^32.
    last: u32,
    by_partition: HashMap<PartitionId, BTreeMap<LastingId, LastingExchange>>,
}

#[derive(Debug)]
pub(super) struct LastingExchange {
    pub(super) since: Instant,
    pub(super) is_stream: bool,
    pub(super) request: Option<Arc<RequestSummary>>,
    pub(super) severed: CancellationToken,
}

/// The exchanges of a partition that have lasted for a moment, as operators see them.
#[derive(Debug, Clone, Default)]
pub struct ExchangeAges {
    /// How many of them are streams.
    pub streams: usize,
    /// The one that has lasted for longest.
    pub oldest: Option<OldestExchange>,
}

/// The exchange of a partition that has lasted for longest.
#[derive(Debug, Clone)]
pub struct OldestExchange {
    /// When the exchange began.
    pub since: Instant,
    /// Its request, if it is known.
    pub request: Option<Arc<RequestSummary>>,
}

impl LastingExchanges {
    /// Lists an exchange of the partition.
    pub(super) fn insert(&mut self, partition: PartitionId, exchange: LastingExchange) -> LastingId {
        let LastingExchanges { last, by_partition } = self;
        let exchanges = by_partition.entry(partition).or_default();
        let id = loop {
            *last = last.wrapping_add(1);
            match NonZeroU32::new(*last).map(LastingId) {
                Some(id) if !exchanges.contains_key(&id) => break id,
                _ => {}
            }
        };
        exchanges.insert(id, exchange);
        id
    }

    /// Takes an exchange off the list.
    pub(super) fn remove(&mut self, partition: PartitionId, id: LastingId) {
        if let Some(exchanges) = self.by_partition.get_mut(&partition) {
            exchanges.remove(&id);
            if exchanges.is_empty() {
                self.by_partition.remove(&partition);
            }
        }
    }

    pub(super) fn get_mut(&mut self, partition: PartitionId, id: LastingId) -> Option<&mut LastingExchange> {
        self.by_partition.get_mut(&partition)?.get_mut(&id)
    }

    /// Returns all that are no streams: the partition of each, and since when it has lasted.
    pub(super) fn all(&self) -> impl Iterator<Item = (PartitionId, Instant)> {
        self.by_partition.iter().flat_map(|(partition, exchanges)| {
            let exchanges = exchanges.values().filter(|exchange| !exchange.is_stream);
            exchanges.map(|exchange| (*partition, exchange.since))
        })
    }

    pub(super) fn of(&self, partition: PartitionId) -> impl Iterator<Item = &LastingExchange> {
        self.by_partition.get(&partition).into_iter().flat_map(BTreeMap::values)
    }
}
