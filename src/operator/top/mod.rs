//! What goes through a keyspace's routers now: by pod, by partition and by key.
//!
//! Each router measures its own traffic for a moment, and whoever asks adds the measurements up. Elsewhere: what is wrong
//! with it ([`troubles`](super::troubles)).

mod keyspace_traffic;
mod router_traffic;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use segue_proxy::routing::table::Table;
use segue_proxy::tls::ClientTls;
use tokio::sync::Semaphore;

use super::process::{self, Question};
use super::{Link, OperatorError};

pub(crate) use self::keyspace_traffic::KeyspaceTraffic;
pub(crate) use self::router_traffic::{ProcessTraffic, measure};
pub(crate) use self::tables::TrafficTable;

/// How long a router measures its traffic.
pub(crate) const MEASURED_FOR: Duration = Duration::from_secs(2);
/// How long a router may take to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(7);
/// Most routers that are asked at a time, in the whole process, and most bytes of an answer. Each takes as long as it measures,
/// and its answer is small.
const MOST_AT_A_TIME: usize = 64;
const MAX_RESPONSE: usize = 4 << 20;

static PLACES: Semaphore = Semaphore::const_new(MOST_AT_A_TIME);

/// A router of this process: its name and its table.
pub(crate) type OwnRouter = (String, Arc<Table>);

/// How the traffic of routers is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrafficQuestion<'a> {
    /// Whether the most frequent keys are wanted.
    pub(crate) keys: bool,
    /// How the admin endpoints are asked: by TLS, if it is given.
    pub(crate) tls: Option<&'a ClientTls>,
    /// The routers of this process, which are not asked by their admin endpoints.
    pub(crate) own: &'a [OwnRouter],
}

impl Link {
    /// Measures the traffic of all registered routers.
    pub(crate) async fn traffic(&self, question: TrafficQuestion<'_>) -> Result<KeyspaceTraffic, OperatorError> {
        let TrafficQuestion { keys, tls, own } = question;
        let registered = self.routers().await?;
        let measured = registered.into_iter().map(|(name, admin)| async move {
            let own = own.iter().find(|(router, _)| *router == name);
            let traffic = match own {
                Some((_, table)) => Ok(measure(&name, table, MEASURED_FOR, keys).await),
                None => self.ask(&name, admin.as_deref(), keys, tls).await,
            };
            (name, admin, traffic.map_err(|error| format!("{error:#}")))
        });
        Ok(KeyspaceTraffic::of(join_all(measured).await))
    }

    /// Returns the registered routers, each with the address of its admin endpoint. Nothing else of the keyspace is read.
    async fn routers(&self) -> Result<BTreeMap<String, Option<String>>, OperatorError> {
        let snapshot = self.store().snapshot(&Keys::Prefix(self.keys().routers())).await?;
        let view = View::from_snapshot(self.keys().clone(), snapshot);
        Ok(view.routers.into_iter().map(|(name, router)| (name, router.value.admin)).collect())
    }

    async fn ask(
        &self,
        router: &str,
        admin: Option<&str>,
        keys: bool,
        tls: Option<&ClientTls>,
    ) -> anyhow::Result<router_traffic::RouterTraffic> {
        let path = if keys { "/v1/traffic?keys=true" } else { "/v1/traffic" };
        let question =
            Question { path, keyspace: Some(self.keys().name()), within: RESPONSE_TIMEOUT, most_bytes: MAX_RESPONSE };
        let process: ProcessTraffic = process::ask(admin, tls, question, &PLACES).await?;
        let of_router = process.routers.into_iter().find(|traffic| traffic.router == router);
        of_router.context("another router responds at its admin address, or none")
    }
}
