//! Streams of renewals of leases.
//!
//! # Invariants
//!
//! * A renewal without a response says so of its connection, whoever gave up first.

use std::sync::Arc;

use etcd_client::{Error, LeaseKeepAliveResponse, LeaseKeepAliveStream, LeaseKeeper, ResponseHeader};
use segue_protocol::ids::LeaseId;
use tokio::time::Instant;

use super::connection::Response;
use super::endpoints::EtcdConnection;

/// A stream of renewals without one in flight. A renewal takes the stream out of its slot, and puts it back with the
/// response. An abandoned renewal thereby drops its stream. Its late response would otherwise be taken for that of the
/// next renewal, and the lease be trusted for longer than etcd has said.
pub(super) struct RenewalStream {
    pub(super) connection: Arc<EtcdConnection>,
    requests: LeaseKeeper,
    responses: LeaseKeepAliveStream,
}

impl RenewalStream {
    /// Opens a stream for a lease, which renews it.
    pub(super) async fn open(connection: Arc<EtcdConnection>, lease: LeaseId) -> Result<NewRenewalStream, Error> {
        let in_flight = RenewalInFlight::over(&connection);
        // etcd-client sends the first request itself and waits for its response.
        let opened = connection.lease.clone().keep_alive(lease.get()).await;
        in_flight.has_ended();
        let (requests, responses) = opened?;
        let mut stream = RenewalStream { connection, requests, responses };
        // The first response's header is known to etcd-client alone.
        match stream.renew().await {
            Some(response) => Ok(NewRenewalStream { stream, response }),
            None => Err(Error::LeaseKeepAliveError("the stream of renewals has ended".to_owned())),
        }
    }

    /// Returns the response to a renewal, with a TTL of 0 if the lease is gone. `None` if the stream has ended.
    pub(super) async fn renew(&mut self) -> Option<LeaseKeepAliveResponse> {
        let in_flight = RenewalInFlight::over(&self.connection);
        let response = async {
            self.requests.keep_alive().await.ok()?;
            self.responses.message().await.ok()?
        };
        let response = response.await;
        in_flight.has_ended();
        response
    }
}

/// A new stream, and the response to a renewal over it.
pub(super) struct NewRenewalStream {
    pub(super) stream: RenewalStream,
    pub(super) response: LeaseKeepAliveResponse,
}

impl Response for NewRenewalStream {
    const OF_QUORUM: bool = false;

    fn header(&self) -> Option<&ResponseHeader> {
        self.response.header()
    }
}

/// A renewal that waits for its response. It is given up when it is dropped.
struct RenewalInFlight {
    connection: Option<Arc<EtcdConnection>>,
    sent: Instant,
}

impl RenewalInFlight {
    fn over(connection: &Arc<EtcdConnection>) -> Self {
        RenewalInFlight { connection: Some(Arc::clone(connection)), sent: Instant::now() }
    }

    fn has_ended(mut self) {
        self.connection = None;
    }
}

impl Drop for RenewalInFlight {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && connection.liveness().is_gone_for_leases(self.sent, Instant::now())
        {
            connection.broken.cancel();
        }
    }
}
