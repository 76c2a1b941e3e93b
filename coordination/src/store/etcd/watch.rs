//! One watch: a stream of its own, and the task that reads it.
//!
//! HTTP/2's flow control cannot make etcd wait for a slow reader. Unread data of one stream counts against the window
//! that all calls on the connection share, and h2 closes the whole connection after some 16,000 small frames
//! ("too_many_data_frames"), leases and all. A watch whose reader is behind therefore gives its stream up, waits, and
//! continues from etcd's history with a new one.
//!
//! There are no progress requests here to find out whether a quiet stream is alive: since 3.5.8 etcd leaves those
//! unanswered until the revision that the watch begins at, which in a quiet keyspace is the one after the newest. Pings
//! and the calls that share the connection detect that instead: see `broken` in `connection`.
//!
//! # Invariants
//!
//! * The task ends with its [`Watch`](super::super::Watch) and drops the stream, which ends the watch in etcd too.
//! * A batch consists of whole revisions (no fragments are requested, and etcd splits none by itself).
//! * The stream is always read at once.

use std::sync::Arc;

use etcd_client::{Event, ResponseHeader, WatchResponse, WatchStream};
use segue_protocol::ids::Revision;
use segue_protocol::txn::{Batch, Keys};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::StoreError;
use super::connection::{Connections, Repeat, Response};
use super::convert;
use super::endpoints::EtcdConnection;
use super::failure::EtcdFailure;

/// Most batches that wait for their reader.
const BUFFERED_BATCHES: usize = 64;

/// The sending side of a watch.
type WatchSender = mpsc::Sender<Result<Batch, StoreError>>;

/// A watch that etcd has confirmed.
struct ConfirmedWatch {
    connection: Arc<EtcdConnection>,
    stream: WatchStream,
}

/// Opens a watch and starts the task that feeds it.
pub(super) async fn start(
    connections: Arc<Connections>,
    keys: Keys,
    from: Revision,
) -> Result<mpsc::Receiver<Result<Batch, StoreError>>, StoreError> {
    let open = open(&connections, &keys, from).await?;
    let (out, batches) = mpsc::channel(BUFFERED_BATCHES);
    tokio::spawn(async move {
        if let Err(error) = feed(connections, keys, from, open, &out).await {
            let _ = out.send(Err(error)).await;
        }
    });
    Ok(batches)
}

async fn open(connections: &Connections, keys: &Keys, from: Revision) -> Result<ConfirmedWatch, StoreError> {
    let opened = connections.call(connections.deadline(), Repeat::AtNextEndpoint, |connection| async move {
        if connections.endpoints.options.credentials.is_some() {
            // etcd refuses a watch with a void token by the words for a user without the permission. A read tells.
            let (key, options) = convert::range(keys);
            let options = options.with_serializable().with_limit(1).with_keys_only();
            connection.kv.clone().get(key, Some(options)).await?;
        }
        let (key, options) = convert::watch(keys, from);
        let mut stream = connection.watch.clone().watch(key, Some(options)).await?;
        // The first message says whether the watch was created. Changes come later.
        let first = stream.message().await?;
        Ok(OpenedWatch { open: ConfirmedWatch { connection, stream }, first })
    });
    let OpenedWatch { open, first } = opened.await?;
    match first {
        Some(first) => read(connections, &open.connection, &first, from)?,
        None => return Err(connections.unavailable("etcd has ended the watch")),
    };
    Ok(open)
}

/// A new watch, and its first message.
struct OpenedWatch {
    open: ConfirmedWatch,
    first: Option<WatchResponse>,
}

impl Response for OpenedWatch {
    const OF_QUORUM: bool = false;

    fn header(&self) -> Option<&ResponseHeader> {
        self.first.as_ref()?.header()
    }
}

/// Feeds the watch until it is dropped (`Ok`) or fails.
async fn feed(
    connections: Arc<Connections>,
    keys: Keys,
    mut next: Revision,
    mut watch: ConfirmedWatch,
    out: &WatchSender,
) -> Result<(), StoreError> {
    loop {
        let ConfirmedWatch { connection, stream } = &mut watch;
        let response = tokio::select! {
            biased;
            () = out.closed() => return Ok(()),
            () = connection.broken.cancelled() => Err(connections.unavailable("the watch's connection is lost")),
            message = stream.message() => match message {
                Ok(Some(response)) => read(&connections, connection, &response, next),
                Ok(None) => Err(connections.unavailable("etcd has ended the watch")),
                Err(error) => Err(match EtcdFailure::of(error) {
                    EtcdFailure::Answered(error) => error,
                    EtcdFailure::Broken(failure)
                    | EtcdFailure::NotSent(failure)
                    | EtcdFailure::Unauthenticated(failure) => connections.unavailable(failure),
                }),
            },
        };
        if matches!(response, Err(StoreError::Unavailable(_))) {
            connection.broken.cancel();
        }
        let Some(batch) = response? else { continue };
        watch.connection.liveness().is_in_step(Instant::now());
        next = batch.revision.next();
        match out.try_send(Ok(batch)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => return Ok(()),
            Err(mpsc::error::TrySendError::Full(batch)) => {
                drop(watch);
                // Half the buffer, so that a constantly slow reader does not cost a new stream per batch.
                let Ok(mut room) = out.reserve_many(BUFFERED_BATCHES / 2).await else {
                    return Ok(());
                };
                if let Some(first) = room.next() {
                    first.send(batch);
                }
                drop(room);
                watch = open(&connections, &keys, next).await?;
            }
        }
    }
}

/// Returns the content of a response: changes, nothing (the watch was created; progress), or why the watch is over.
fn read(
    connections: &Connections,
    connection: &EtcdConnection,
    response: &WatchResponse,
    next: Revision,
) -> Result<Option<Batch>, StoreError> {
    let oldest = response.compact_revision();
    if oldest > 0 {
        return Err(StoreError::Compacted { requested: next, oldest: convert::unsigned(oldest) });
    }
    if response.canceled() {
        let reason = response.cancel_reason();
        return Err(if reason.contains("permission denied") {
            StoreError::Refused(reason.into())
        } else {
            connections.unavailable(format!("etcd has cancelled the watch: {reason}"))
        });
    }
    let revision = |event: &Event| event.kv().map_or(Revision::ZERO, |kv| convert::unsigned(kv.mod_revision()));
    let (events, old): (Vec<&Event>, Vec<&Event>) = response.events().iter().partition(|event| revision(event) >= next);
    if !old.is_empty() {
        // A member that had not reached the requested revision and then caught up by a snapshot of its leader sends what it
        // missed meanwhile (etcd issues 15271, 19487 and 20221).
        let endpoint = connections.endpoint(connection);
        tracing::warn!(endpoint, events = old.len(), %next, "etcd sent changes of before the watch; ignoring them");
    }
    // Not the response's header: for a watch that is behind it contains etcd's newest revision, not that of these
    // events.
    Ok(events.last().map(|last| Batch {
        revision: revision(last),
        events: events.iter().filter_map(|event| convert::event(event)).collect(),
    }))
}
