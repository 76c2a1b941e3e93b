//! The service: keeps the last value of each key, in a log that all pods of the keyspace share.
//!
//! The log has a file for each partition, a JSON object on each line, locked while it is written or read. Each accepted
//! write is appended without a comparison of epochs, so the log shows every mistake.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::clock::nanos;
use crate::membership::{Accepted, Membership, Service};

/// How long the service pretends to work.
pub(crate) struct Pace {
    pub(crate) warm: Duration,
    pub(crate) service: Duration,
}

/// A line of a partition's log.
#[derive(Serialize, Deserialize)]
struct Record {
    partition: u32,
    epoch: u64,
    pod: String,
    incarnation: u64,
    request: u64,
    key: String,
    sequence: u64,
    accepted_at: u64,
    appended_at: u64,
    value: String,
}

/// The content of a partition's log up to an offset. A checkpoint is this, in a file beside the logs.
#[derive(Default, Serialize, Deserialize)]
struct Partition {
    /// The highest sequence number and the last value of each key.
    #[serde(rename = "entries")]
    values: HashMap<String, (u64, String)>,
    read_to: u64,
}

impl Partition {
    fn put(&mut self, record: Record) {
        let (highest, value) = self.values.entry(record.key).or_default();
        (*highest, *value) = (record.sequence.max(*highest), record.value);
    }
}

pub(crate) struct Writer {
    folder: PathBuf,
    pace: Pace,
    partitions: Mutex<HashMap<u32, Partition>>,
}

impl Service for Writer {
    async fn warm(&self, partition: u32, checkpoint: Option<String>) -> io::Result<()> {
        let mut state = match checkpoint {
            Some(name) => serde_json::from_slice(&fs::read(self.folder.join(name))?)?,
            None => Partition::default(),
        };
        self.read_on(partition, &mut state)?;
        sleep(self.pace.warm).await;
        self.partitions().insert(partition, state);
        Ok(())
    }

    async fn sync(&self, partition: u32) -> io::Result<()> {
        let mut partitions = self.partitions();
        let state = partitions.get_mut(&partition).ok_or_else(|| io::Error::other("no state of this partition"))?;
        self.read_on(partition, state)
    }

    fn release(&self, partition: u32) {
        self.partitions().remove(&partition);
    }

    fn checkpoint(&self, partition: u32, epoch: u64) -> io::Result<String> {
        let saved = match self.partitions().get(&partition) {
            Some(state) => serde_json::to_vec(state)?,
            None => return Err(io::Error::other("no state of this partition")),
        };
        let name = format!("{partition}-{epoch}.checkpoint");
        let (path, new) = (self.folder.join(&name), self.folder.join(format!("{name}.new")));
        fs::write(&new, saved)?;
        // A reader sees the whole file or the one before.
        fs::rename(new, path)?;
        Ok(name)
    }
}

impl Writer {
    pub(crate) fn new(folder: PathBuf, pace: Pace) -> Self {
        Writer { folder, pace, partitions: Mutex::default() }
    }

    fn partitions(&self) -> MutexGuard<'_, HashMap<u32, Partition>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, partition: u32) -> PathBuf {
        self.folder.join(format!("{partition}.log"))
    }

    /// Reads what the log has beyond this state.
    fn read_on(&self, partition: u32, state: &mut Partition) -> io::Result<()> {
        let mut file = match File::open(self.path(partition)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        // Appends hold the lock, so no part of a line is visible.
        file.lock_shared()?;
        file.seek(SeekFrom::Start(state.read_to))?;
        for line in BufReader::new(file).lines() {
            let line = line?;
            state.read_to += line.len() as u64 + 1;
            state.put(serde_json::from_str(&line)?);
        }
        Ok(())
    }

    /// Appends a record to the log and to the state.
    fn append(&self, mut record: Record) -> io::Result<()> {
        let mut partitions = self.partitions();
        let state = partitions.get_mut(&record.partition);
        let state = state.ok_or_else(|| io::Error::other("no state of this partition"))?;
        let mut file = OpenOptions::new().append(true).create(true).open(self.path(record.partition))?;
        file.lock()?;
        record.appended_at = nanos();
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        // A single write: a process that dies leaves the whole record or nothing.
        file.write_all(&line)?;
        state.read_to = file.metadata()?.len();
        state.put(record);
        Ok(())
    }

    async fn do_half_of_the_work(&self) {
        sleep(self.pace.service.mul_f64(rand::random_range(0.25..0.75))).await;
    }
}

type Shared = (Arc<Writer>, Arc<Membership<Writer>>);

/// Serves PUT and GET of `/keys/{key}`, as a router sends them.
pub(crate) fn routes(writer: Arc<Writer>, membership: Arc<Membership<Writer>>) -> Router {
    Router::new().route("/keys/{key}", axum::routing::any(handle)).with_state((writer, membership))
}

/// Returns the number in a header that comes once.
fn number<N: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<N> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    value.to_str().ok()?.parse().ok()
}

async fn handle(
    State((writer, membership)): State<Shared>,
    Path(key): Path<String>,
    method: Method,
    headers: HeaderMap,
    value: String,
) -> Response {
    let keyspace = headers.get("segue-keyspace").is_some_and(|name| *name == *membership.identity().keyspace);
    let stamps = (number(&headers, "segue-partition"), number(&headers, "segue-epoch"));
    let (Some(partition), Some(epoch), true) = (stamps.0, stamps.1, keyspace) else { return misdirected() };
    let Some(accepted) = membership.accept(partition, epoch).await else { return misdirected() };
    let accepted_at = nanos();
    writer.do_half_of_the_work().await;
    let (sequence, value) = if method == Method::GET {
        let partitions = writer.partitions();
        let found = partitions.get(&partition).and_then(|state| state.values.get(&key));
        found.cloned().unwrap_or_default()
    } else {
        let sent = (number(&headers, "x-request-id"), number(&headers, "x-sequence"));
        let (Some(request), Some(sequence)) = sent else {
            return (StatusCode::BAD_REQUEST, "a write has x-request-id and x-sequence\n").into_response();
        };
        let pod = membership.identity().name.clone();
        let incarnation = accepted.life;
        let record =
            Record { partition, epoch, pod, incarnation, request, key, sequence, accepted_at, appended_at: 0, value };
        if let Err(response) = write(&writer, &accepted, record) {
            return response;
        }
        writer.do_half_of_the_work().await;
        (sequence, String::new())
    };
    let (epoch, sequence, name) = (epoch.to_string(), sequence.to_string(), membership.identity().name.clone());
    ([("x-epoch", epoch), ("x-sequence", sequence), ("x-writer", name)], value).into_response()
}

#[allow(clippy::result_large_err)]
fn write(writer: &Writer, accepted: &Accepted<Writer>, record: Record) -> Result<(), Response> {
    let lease_ended =
        || (StatusCode::INTERNAL_SERVER_ERROR, [("segue-reason", "lease-lost")], "the lease ended\n").into_response();
    let failed = |error: io::Error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response();
    if !accepted.may_write() {
        return Err(lease_ended());
    }
    writer.append(record).map_err(failed)?;
    // If the lease has ended meanwhile, the next owner may not have seen the record.
    if accepted.may_write() { Ok(()) } else { Err(lease_ended()) }
}

/// The promise that nothing was done: the router asks again.
fn misdirected() -> Response {
    (StatusCode::MISDIRECTED_REQUEST, [("segue-misdirected", "1")]).into_response()
}
