//! Asks participants what they do: those that a handoff waits for about its partition, and a pod about itself.
//!
//! Each is asked at the admin address in its registration. A pod that uses the gRPC service has none: the coordinator that
//! serves its stream is asked in its place. One that cannot be asked is part of the explanation, and no failure.

use std::time::Duration;

use anyhow::ensure;
use futures_util::future::join_all;
use segue_coordination::store::StoreError;
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::records::PodStream;
use segue_protocol::txn::Keys;
use segue_proxy::tls::ClientTls;

use super::explain::AskedParticipant;
use super::process_status::{ProcessStatus, Work};
use super::{Link, process};

/// How long a participant may take to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Most participants that are asked.
const MOST: usize = 8;

/// Notes which coordinators serve the pods among these that have no admin address of their own.
pub(super) async fn find_streams(awaited: &mut [AskedParticipant], link: &Link) -> Result<(), StoreError> {
    for pod in awaited.iter_mut().filter(|one| one.kind == "pod" && one.admin.is_none()).take(MOST) {
        let found = link.store.snapshot(&Keys::One(link.keys.pod_stream(&pod.name))).await?;
        let stream = found.entries.first().and_then(|entry| serde_json::from_slice::<PodStream>(&entry.value).ok());
        pod.by_stream = stream.is_some();
        pod.admin = stream.and_then(|stream| stream.admin);
    }
    Ok(())
}

/// Asks the first few of these participants about a partition. Their admin endpoints are asked by TLS if `tls` is given.
/// Returns what helps those whose writes the store refuses.
pub(super) async fn ask(
    awaited: &mut [AskedParticipant],
    partition: PartitionId,
    tls: Option<&ClientTls>,
    keyspace: Option<&str>,
) -> Vec<String> {
    let asked = awaited.iter_mut().take(MOST).map(|one| async move {
        let (refused, status) = answer(one, status(one, tls, keyspace).await);
        let said = status.and_then(|status| status.of_partition(one, partition));
        one.says = Some(said.unwrap_or_else(|error| unasked(&error)));
        refused
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// Whether routers route a partition as the store says.
#[derive(Debug, Default)]
pub(super) struct RouterAgreement {
    /// The routers that route it in another way.
    pub(super) differing: Vec<String>,
    /// The routers that could not be asked.
    unasked: Vec<String>,
}

impl RouterAgreement {
    /// Returns why it is not known that all of these routers agree. `None` if they do.
    pub(super) fn doubt(&self, routers: &[AskedParticipant]) -> Option<String> {
        match self.unasked.as_slice() {
            _ if routers.is_empty() => Some("segue status --routers asks its routers".to_owned()),
            [] if routers.len() > MOST => Some(format!("{MOST} of {} routers were asked", routers.len())),
            [] => None,
            [first, ..] => Some(format!("router {first} could not be asked")),
        }
    }
}

/// Asks the first few of these routers about a partition that rests. `expected` is its living owner.
pub(super) async fn ask_routers(
    routers: &mut [AskedParticipant],
    partition: PartitionId,
    expected: Option<(&str, Epoch)>,
    tls: Option<&ClientTls>,
    keyspace: Option<&str>,
) -> RouterAgreement {
    let asked = routers.iter_mut().take(MOST).map(|router| async move {
        let status = status(router, tls, keyspace).await;
        let agrees = status.as_ref().ok().and_then(|status| status.routes_to(partition, expected));
        let says = status.and_then(|status| status.of_partition(router, partition));
        router.says = Some(says.unwrap_or_else(|error| unasked(&error)));
        (router.name.clone(), agrees)
    });
    let mut agreement = RouterAgreement::default();
    for (router, agrees) in join_all(asked).await {
        match agrees {
            Some(true) => {}
            Some(false) => agreement.differing.push(router),
            None => agreement.unasked.push(router),
        }
    }
    agreement
}

/// The answer of a pod's process.
#[derive(Debug)]
pub(super) struct PodAnswer {
    /// The work that the pod has not finished.
    pub(super) work: Vec<Work>,
    /// What helps if the store refuses its writes.
    pub(super) refused: Option<String>,
    /// Why nothing is known of it.
    pub(super) doubt: Option<String>,
}

/// Asks the process of a pod about the pod.
pub(super) async fn ask_pod(pod: &mut AskedParticipant, tls: Option<&ClientTls>, keyspace: Option<&str>) -> PodAnswer {
    let (refused, status) = answer(pod, status(pod, tls, keyspace).await);
    match status.and_then(|status| status.of_pod(pod)) {
        Ok((says, work)) => {
            pod.says = Some(says);
            PodAnswer { work, refused, doubt: None }
        }
        Err(error) => {
            pod.says = Some(unasked(&error));
            PodAnswer { work: Vec::new(), refused, doubt: Some("its process cannot be asked".to_owned()) }
        }
    }
}

/// Returns what helps a participant whose writes the store refuses, and the status of its process.
fn answer(
    one: &AskedParticipant,
    status: anyhow::Result<ProcessStatus>,
) -> (Option<String>, anyhow::Result<ProcessStatus>) {
    let words = status.as_ref().ok().and_then(ProcessStatus::refusal);
    let step = words.map(|words| {
        let AskedParticipant { kind, name, .. } = one;
        format!("let the store accept the writes of {kind} {name}, which it refuses: {words}")
    });
    (step, status)
}

async fn status(
    one: &AskedParticipant,
    tls: Option<&ClientTls>,
    keyspace: Option<&str>,
) -> anyhow::Result<ProcessStatus> {
    let is_reachable = !one.by_stream || one.admin.is_some();
    ensure!(is_reachable, "the coordinator that serves it has no admin address: set [admin] advertise in its file");
    process::status(one.admin.as_deref(), tls, keyspace, RESPONSE_TIMEOUT).await
}

fn unasked(error: &anyhow::Error) -> String {
    format!("cannot be asked: {error:#}")
}
