//! Compares every router's table with the store.
//!
//! A router's table is read at its admin endpoint and follows the store with a delay. A difference is therefore
//! reported only if every look at that router shows it, while the partition rests.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures_util::stream::{self, StreamExt as _};
use segue_protocol::handoff::router::{Route, Target, Trust, route};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::view::View;
use segue_proxy::tls::ClientTls;
use serde::{Deserialize, Serialize};

use super::{Link, OperatorError, process};

/// How long a router may take to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most routers that are asked at a time. The table of a large keyspace takes megabytes, and none is kept.
const MOST_AT_A_TIME: usize = 8;
/// Number of looks at a router that differs.
const LOOKS: usize = 3;
/// Time between two looks. An admin endpoint may serve a status that is a second old.
const LOOK_INTERVAL: Duration = Duration::from_millis(1500);

/// The comparison of all routers with the store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RouterComparison {
    routers: Vec<RouterLine>,
}

/// A router, compared with the store.
#[derive(Debug, Serialize, Deserialize)]
struct RouterLine {
    router: String,
    /// The address of the router's admin endpoint.
    admin: Option<String>,
    /// Why the router's table is not known.
    error: Option<String>,
    differences: Vec<Difference>,
}

/// A partition that a router does not route as the store says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Difference {
    partition: PartitionId,
    /// The destination that the store says, in words.
    store: String,
    /// The destination that the router has, in words.
    router: String,
}

/// The part of a process's status that is compared.
#[derive(Debug, Deserialize)]
struct ComparedStatus {
    router: Option<RouterTable>,
}

#[derive(Debug, Deserialize)]
struct RouterTable {
    name: String,
    partitions: Vec<TableLine>,
}

#[derive(Debug, Deserialize)]
struct TableLine {
    partition: PartitionId,
    stage: String,
    pod: Option<String>,
    epoch: Option<Epoch>,
}

/// Compares the tables of all routers with the store. Their admin endpoints are asked by TLS if `tls` is given.
pub(super) async fn compare(link: &Link, tls: Option<&ClientTls>) -> Result<RouterComparison, OperatorError> {
    let mut before = link.view().await?;
    let mut lines: BTreeMap<String, RouterLine> = BTreeMap::new();
    for number in 0..LOOKS {
        let is_open =
            |name: &&String| lines.get(*name).is_none_or(|line| line.error.is_none() && !line.differences.is_empty());
        let open: Vec<String> = before.routers.keys().filter(is_open).cloned().collect();
        let looked = look(&before, open, tls, link.keys().name()).await;
        let after = link.view().await?;
        for mut line in looked {
            line.differences.retain(|difference| has_rested(&before, &after, difference.partition));
            match lines.get_mut(&line.router).filter(|_| line.error.is_none()) {
                Some(known) => known.differences.retain(|seen| line.shows(seen)),
                None => drop(lines.insert(line.router.clone(), line)),
            }
        }
        before = after;
        if number + 1 < LOOKS && lines.values().any(|line| !line.differences.is_empty()) {
            tokio::time::sleep(LOOK_INTERVAL).await;
            before = link.view().await?;
        }
    }
    // A router that has gone meanwhile routes nothing.
    lines.retain(|name, _| before.routers.contains_key(name));
    Ok(RouterComparison { routers: lines.into_values().collect() })
}

/// Looks at these routers once. Their differences are candidates, until the partitions are known to have rested.
async fn look(view: &View, names: Vec<String>, tls: Option<&ClientTls>, keyspace: &str) -> Vec<RouterLine> {
    let questions: Vec<_> = names.into_iter().map(|name| ask(view, name, tls, keyspace)).collect();
    let mut asked = stream::iter(questions).buffer_unordered(MOST_AT_A_TIME);
    let mut lines = Vec::new();
    while let Some((name, table)) = asked.next().await {
        lines.push(judge(view, name, table));
        // Other tasks of this thread, such as one that renews a lease, come in between two large tables.
        tokio::task::yield_now().await;
    }
    lines
}

async fn ask(
    view: &View,
    name: String,
    tls: Option<&ClientTls>,
    keyspace: &str,
) -> (String, anyhow::Result<RouterTable>) {
    let table = table(view, &name, tls, keyspace).await;
    (name, table)
}

/// Reads the table of a router.
async fn table(view: &View, name: &str, tls: Option<&ClientTls>, keyspace: &str) -> anyhow::Result<RouterTable> {
    let admin = view.routers.get(name).and_then(|router| router.value.admin.as_deref());
    let status: ComparedStatus = process::status(admin, tls, Some(keyspace), RESPONSE_TIMEOUT).await?;
    let table = status.router.context("the process at its admin address runs no router")?;
    match table.name == name {
        true => Ok(table),
        false => Err(anyhow!("router {} responds at its admin address", table.name)),
    }
}

/// Compares a table with the store as it was before the table was read.
fn judge(view: &View, name: String, table: anyhow::Result<RouterTable>) -> RouterLine {
    let admin = view.routers.get(&name).and_then(|router| router.value.admin.clone());
    let (error, differences) = match table {
        Ok(table) => (None, differences(view, &table)),
        Err(error) => (Some(format!("{error:#}")), Vec::new()),
    };
    RouterLine { router: name, admin, error, differences }
}

/// Returns the differences of the partitions that rest in this view, in the order of the partitions.
fn differences(view: &View, table: &RouterTable) -> Vec<Difference> {
    let lines: BTreeMap<PartitionId, &TableLine> = table.partitions.iter().map(|line| (line.partition, line)).collect();
    let resting = PartitionId::all(view.partitions()).filter(|partition| is_at_rest(view, *partition));
    let compared = resting.filter_map(|partition| {
        let expected = route(view, partition, Trust::Held);
        let line = lines.get(&partition);
        let agrees = match (&expected, line) {
            (Route::To(target), Some(line)) => line.goes_to(target),
            (Route::Hold(_), Some(line)) => line.stage == "held" || line.stage == "draining",
            (_, None) => false,
        };
        let router = line.map_or("no such partition".to_owned(), ToString::to_string);
        (!agrees).then(|| Difference { partition, store: in_words(&expected), router })
    });
    compared.collect()
}

/// Returns whether the partition rested between two views. One that moves, or has moved meanwhile, is routed one way or
/// the other.
fn has_rested(before: &View, after: &View, partition: PartitionId) -> bool {
    let is_same = || route(before, partition, Trust::Held) == route(after, partition, Trust::Held);
    is_at_rest(before, partition) && is_at_rest(after, partition) && is_same()
}

fn is_at_rest(view: &View, partition: PartitionId) -> bool {
    !view.handoffs.contains_key(&partition) && !view.is_malformed(partition)
}

fn in_words(route: &Route) -> String {
    match route {
        Route::To(target) => format!("{} at epoch {}", target.pod, target.epoch),
        Route::Hold(_) => "nowhere".to_owned(),
    }
}

impl RouterLine {
    /// Returns whether this difference is one of the router's.
    fn shows(&self, seen: &Difference) -> bool {
        let found = self.differences.binary_search_by_key(&seen.partition, |difference| difference.partition);
        found.is_ok_and(|at| self.differences[at] == *seen)
    }
}

impl TableLine {
    /// Returns whether requests go to this target, or to it first once a refusal has been waited out.
    fn goes_to(&self, target: &Target) -> bool {
        let is_it = self.pod.as_ref() == Some(&target.pod) && self.epoch == Some(target.epoch);
        is_it && matches!(self.stage.as_str(), "open" | "flushing" | "draining")
    }
}

impl fmt::Display for TableLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pod, self.epoch) {
            (Some(pod), Some(epoch)) => write!(out, "{pod} at epoch {epoch}, {}", self.stage),
            _ => out.write_str(&self.stage),
        }
    }
}

impl RouterComparison {
    /// Returns whether every router responded and routes as the store says.
    pub(crate) fn is_equal(&self) -> bool {
        self.routers.iter().all(|line| line.error.is_none() && line.differences.is_empty())
    }
}

impl fmt::Display for RouterComparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.routers.is_empty() {
            return writeln!(out, "no router is registered");
        }
        for RouterLine { router, admin, error, differences } in &self.routers {
            let at = admin.as_deref().unwrap_or("no address");
            match error {
                Some(error) => writeln!(out, "UNKNOWN  {router} at {at}: {error}")?,
                None if differences.is_empty() => writeln!(out, "same     {router} at {at}")?,
                None => writeln!(out, "DIFFERS  {router} at {at}: {} partitions", differences.len())?,
            }
            for Difference { partition, store, router } in differences {
                writeln!(out, "  {partition:>5}  store: {store}; router: {router}")?;
            }
        }
        Ok(())
    }
}
