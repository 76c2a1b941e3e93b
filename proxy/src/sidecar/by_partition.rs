//! The HTTP/2 connections to a service: each partition has its own.
//!
//! A stream that was reset counts until its connection has closed, and a connection closes once its last stream has ended.
//! If partitions shared one, the drain of a partition would wait for streams of others, which may never end.
//!
//! Not here: one partition's connection ([`http2`](super::http2)).
//!
//! # Invariants
//!
//! * No two partitions share a connection.
//! * At most [`MAX_IDLE`] partitions have a connection without an exchange, and none for much longer than [`IDLE_TIMEOUT`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use segue_protocol::ids::PartitionId;
use tokio::time::{Instant, sleep};

use super::faults::Faults;
use super::http2::Http2;
use super::upstream::Upstream;

/// How long a connection without an exchange is kept: as long as hyper-util's client keeps one by HTTP/1.1.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// Most connections without an exchange. One to a process on the same machine is soon made again.
const MAX_IDLE: usize = 256;

/// The connections of all partitions to one service.
#[derive(Debug, Clone)]
pub(super) struct ByPartition(Arc<ServiceConnections>);

#[derive(Debug)]
struct ServiceConnections {
    upstream: Upstream,
    faults: Faults,
    partitions: Mutex<Partitions>,
}

/// The connections. A task ([`sweep`]) runs while there is at least one.
#[derive(Debug, Default)]
struct Partitions {
    connections: HashMap<Option<PartitionId>, PartitionConnection>,
    /// How many of them have no exchange.
    idle: usize,
}

#[derive(Debug)]
struct PartitionConnection {
    http2: Http2,
    exchanges: usize,
    /// When its last exchange ended.
    used: Instant,
}

/// A partition's connection, with one exchange more until this is dropped.
#[derive(Debug)]
pub(super) struct PartitionLease {
    pub(super) http2: Http2,
    partition: Option<PartitionId>,
    shared: Arc<ServiceConnections>,
}

impl ByPartition {
    pub(super) fn new(upstream: Upstream) -> Self {
        ByPartition(Arc::new(ServiceConnections { upstream, faults: Faults::default(), partitions: Mutex::default() }))
    }

    /// Returns the connection for an exchange of the partition.
    pub(super) fn lease(&self, partition: Option<PartitionId>) -> PartitionLease {
        let shared = self.0.clone();
        let http2 = {
            let mut partitions = shared.partitions();
            let Partitions { connections, idle } = &mut *partitions;
            if connections.is_empty() {
                tokio::spawn(sweep(Arc::downgrade(&shared)));
            }
            let connection = connections.entry(partition).or_insert_with(|| {
                // It is idle until its exchange is counted below.
                *idle += 1;
                let http2 = Http2::new(shared.upstream.clone(), shared.faults.clone());
                PartitionConnection { http2, exchanges: 0, used: Instant::now() }
            });
            *idle -= usize::from(connection.exchanges == 0);
            connection.exchanges += 1;
            connection.http2.clone()
        };
        PartitionLease { http2, partition, shared }
    }
}

impl ServiceConnections {
    fn partitions(&self) -> MutexGuard<'_, Partitions> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PartitionLease {
    fn drop(&mut self) {
        let mut partitions = self.shared.partitions();
        let Some(connection) = partitions.connections.get_mut(&self.partition) else { return };
        connection.exchanges -= 1;
        connection.used = Instant::now();
        if connection.exchanges == 0 {
            partitions.idle += 1;
            partitions.bound_idle();
        }
    }
}

impl Partitions {
    /// Forgets the connection that has been idle for the longest time if there are too many.
    fn bound_idle(&mut self) {
        if self.idle <= MAX_IDLE {
            return;
        }
        let idle = self.connections.iter().filter(|(_, connection)| connection.exchanges == 0);
        if let Some(oldest) = idle.min_by_key(|(_, connection)| connection.used).map(|(partition, _)| *partition) {
            self.connections.remove(&oldest);
            self.idle -= 1;
        }
    }

    /// Forgets the connections that have been idle for [`IDLE_TIMEOUT`].
    fn forget_old(&mut self, now: Instant) {
        self.connections.retain(|_, connection| {
            connection.exchanges > 0 || now.saturating_duration_since(connection.used) < IDLE_TIMEOUT
        });
        self.idle = self.connections.values().filter(|connection| connection.exchanges == 0).count();
    }
}

/// Closes idle connections until there is no connection left.
async fn sweep(shared: Weak<ServiceConnections>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut partitions = shared.partitions();
        partitions.forget_old(Instant::now());
        if partitions.connections.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_partition() -> ByPartition {
        ByPartition::new(Upstream::at("127.0.0.1:1".parse().unwrap()))
    }

    fn leases(connections: &ByPartition, partitions: std::ops::Range<u32>) -> Vec<PartitionLease> {
        partitions.map(|partition| connections.lease(Some(PartitionId::new(partition)))).collect()
    }

    fn open(connections: &ByPartition) -> (usize, usize) {
        let partitions = connections.0.partitions();
        (partitions.connections.len(), partitions.idle)
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_after_a_while_and_others_are_not() {
        let connections = by_partition();
        let (busy, idle) = (leases(&connections, 0..1), leases(&connections, 1..3));
        drop(idle);
        sleep(IDLE_TIMEOUT - Duration::from_secs(1)).await;
        assert_eq!(open(&connections), (3, 2));
        sleep(SWEEP_INTERVAL + Duration::from_secs(1)).await;
        assert_eq!(open(&connections), (1, 0));
        drop(busy);
        sleep(IDLE_TIMEOUT + SWEEP_INTERVAL).await;
        assert_eq!(open(&connections), (0, 0));
        // The first exchange after that is swept as well.
        drop(leases(&connections, 0..1));
        sleep(IDLE_TIMEOUT + SWEEP_INTERVAL).await;
        assert_eq!(open(&connections), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_idle_connections_those_are_kept_that_were_used_last() {
        let connections = by_partition();
        let most = MAX_IDLE as u32;
        let busy = leases(&connections, 0..most + 2);
        assert_eq!(open(&connections), (MAX_IDLE + 2, 0), "what is in use is not bounded here");
        for lease in busy {
            drop(lease);
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(open(&connections), (MAX_IDLE, MAX_IDLE));
        let _again = leases(&connections, 0..3);
        assert_eq!(open(&connections), (MAX_IDLE + 2, MAX_IDLE - 1), "the first two were closed, the third was not");
    }
}
