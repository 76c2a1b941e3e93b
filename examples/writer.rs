//! A writer pod as a process of its own.
//!
//! ```text
//! etcd &
//! cargo run --release --example writer -- --name writer-0 --listen 127.0.0.1:8181 --log-dir /tmp/segue-log &
//! cargo run --release --example writer -- --name writer-1 --listen 127.0.0.1:8182 --log-dir /tmp/segue-log &
//! segue run --config …            # a router and a coordinator of the same keyspace
//! curl -X PUT -H 'x-partition: 7' -H 'x-request-id: 1' -H 'x-sequence: 1' -d hello 127.0.0.1:8080/keys/a
//! curl -H 'x-partition: 7' 127.0.0.1:8080/keys/a
//! ```
//!
//! # How a service takes part in handoffs
//!
//! 1. The service implements [`HandoffHandler`] with a callback for each step: `warm` copies the state while the old
//!    owner still serves, `sync` reads what the old owner has written since (requests wait meanwhile), `drain` ends
//!    work that outlives its request, and `release` drops the state. Here the state is the last value of each key, read
//!    from a log that all pods share. `checkpoint` saves the state, so that the next owner need not read the whole log.
//! 2. [`PodHandle::start`] registers the pod and calls the callbacks when they are due.
//! 3. [`PodHandle::layer`] goes in front of the HTTP service. It passes requests for partitions that the pod owns at
//!    the request's epoch and answers the others with `421`, so that the router tries again. It also counts the
//!    requests in flight to report "drained". The service itself never checks who owns a partition.
//! 4. On SIGTERM [`PodHandle::shutdown`] hands all partitions over before the process ends, so a restart loses no
//!    request.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use clap::Parser;
use segue_coordination::pod::{HandlerError, HandoffContext, HandoffHandler, Owned, PodHandle, PodSettings};
use segue_coordination::store::{EtcdCredentials, EtcdOptions, EtcdStore};
use segue_demo::{clock, log::Log, log::Tail, record::LogRecord};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::keys::Keyspace;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

/// A writer pod that keeps the last value of each key.
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value = "http://127.0.0.1:2379", help = "A client URL of etcd; may be given several times")]
    etcd: Vec<String>,
    #[arg(long, requires = "etcd_password_file", help = "The user, for an etcd with authentication")]
    etcd_user: Option<String>,
    #[arg(long, requires = "etcd_user", help = "The file with the user's password")]
    etcd_password_file: Option<std::path::PathBuf>,
    #[arg(long, default_value = "default", help = "The keyspace")]
    keyspace: String,
    #[arg(long, default_value = "/segue/", help = "What the keyspace's keys begin with")]
    prefix: String,
    #[arg(long, help = "This pod's name, unique in the keyspace")]
    name: String,
    #[arg(long, help = "Where routers reach it")]
    listen: String,
    #[arg(long, help = "The folder with the logs, which all writers of the keyspace share")]
    log_dir: std::path::PathBuf,
    #[arg(long, help = "The log refuses writes of epochs that are over: needed where a process may be suspended")]
    fence: bool,
    #[arg(long, default_value_t = 0, help = "How long it works on a request, in milliseconds, give or take a half")]
    service_time: u64,
    #[arg(long, default_value_t = 0, help = "How long getting warm takes besides reading the log, in milliseconds")]
    warm_time: u64,
    #[arg(long, default_value_t = 5, help = "The life of its registration without renewal, in seconds")]
    lease_ttl: u64,
    #[arg(long, default_value_t = 30, help = "How long it may take to hand over when it is told to end, in seconds")]
    patience: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let arguments = Arguments::parse();
    let open = if arguments.fence { Log::fenced_in_directory } else { Log::in_directory };
    let log = open(&arguments.log_dir).context("--log-dir")?;
    let listener = TcpListener::bind(&arguments.listen).await.context("--listen")?;
    let mut options = EtcdOptions::new(arguments.etcd.clone());
    let credentials = arguments.etcd_user.clone().zip(arguments.etcd_password_file.clone());
    options.credentials = credentials.map(|(username, password_file)| EtcdCredentials { username, password_file });
    let store = EtcdStore::connect(options).context("--etcd")?;

    // Register under this name. From here on the handle calls the handler.
    let mut settings = PodSettings::new(&arguments.name, listener.local_addr()?.to_string());
    settings.lease_ttl = Duration::from_secs(arguments.lease_ttl);
    settings.capabilities.checkpoint = true;
    let writer = Arc::new(Writer { arguments, log, partitions: Mutex::default() });
    let Arguments { keyspace, prefix, patience, .. } = &writer.arguments;
    let pod = PodHandle::start(Arc::new(store), keyspace, Keyspace::new(prefix, keyspace), settings, writer.clone());

    // Serve behind the layer that refuses what this pod does not own.
    let routes = Router::new().route("/keys/{key}", axum::routing::get(read).put(write).post(write)).layer(pod.layer());
    let stop = tokio_util::sync::CancellationToken::new();
    let server = axum::serve(listener, routes.with_state((writer.clone(), pod.clone())));
    let server = tokio::spawn(server.with_graceful_shutdown(stop.clone().cancelled_owned()).into_future());

    // Hand all partitions over, then stop serving.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tracing::info!("handing over what this pod has");
    pod.shutdown(Duration::from_secs(*patience)).await;
    stop.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    Ok(())
}

/// The service: a log, and the state that was read from it.
struct Writer {
    arguments: Arguments,
    log: Log,
    /// The state of the partitions that this pod owns or is about to own, by partition and epoch.
    partitions: Mutex<HashMap<(PartitionId, Epoch), SharedPartition>>,
}

/// The state of a partition: the content of its log up to an offset. A checkpoint is this, in a file beside the logs.
#[derive(Default, Serialize, Deserialize)]
struct Partition {
    /// The highest sequence number and the last value of each key.
    #[serde(rename = "entries")]
    values: HashMap<Box<str>, (u64, Box<str>)>,
    read_to: u64,
    /// Whether earlier epochs are shut out of the log.
    #[serde(skip)]
    claimed: bool,
}

#[async_trait]
impl HandoffHandler for Writer {
    /// Copies the state while the old owner still serves. May take as long as it takes.
    async fn warm(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        if let Some(name) = &part.checkpoint {
            let saved: Partition = serde_json::from_slice(&fs::read(self.arguments.log_dir.join(name))?)?;
            self.partitions.lock().await.insert((part.partition, part.epoch), Arc::new(Mutex::new(saved)));
        }
        self.read_log(part).await?;
        tokio::time::sleep(Duration::from_millis(self.arguments.warm_time)).await;
        Ok(())
    }

    /// The old owner has stopped for good: what it wrote since is the last that was missing. Clients wait meanwhile.
    async fn sync(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        Ok(self.read_log(part).await?)
    }

    /// Nothing outlives a request here: the log has each write before its answer.
    async fn drain(&self, _: &HandoffContext) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Another pod has it now, or it never came.
    async fn release(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.partitions.lock().await.remove(&(part.partition, part.epoch));
        Ok(())
    }

    /// Saves the state while requests go on. The next owner reads the log from there.
    async fn checkpoint(&self, part: &HandoffContext) -> Result<Option<String>, HandlerError> {
        let known = self.partitions.lock().await.get(&(part.partition, part.epoch)).cloned();
        let Some(state) = known else { return Ok(None) };
        let saved = serde_json::to_vec(&*state.lock().await)?;
        let name = format!("{}-{}.checkpoint", part.partition, part.epoch);
        let (path, new) = (self.arguments.log_dir.join(&name), self.arguments.log_dir.join(format!("{name}.new")));
        fs::write(&new, saved)?;
        // A reader sees the whole file or the one before.
        fs::rename(new, path)?;
        Ok(Some(name))
    }
}

impl Writer {
    /// Reads what the log has beyond the state that there is for this epoch.
    async fn read_log(&self, part: &HandoffContext) -> io::Result<()> {
        let state = self.partitions.lock().await.entry((part.partition, part.epoch)).or_default().clone();
        state.lock().await.read_on(&self.log, part.partition)
    }

    /// Returns the state for a request. The first request of an epoch shuts earlier epochs out of the log and reads
    /// what they wrote until then.
    async fn enter(&self, owned: &Owned) -> Result<SharedPartition, Failure> {
        let known = self.partitions.lock().await.get(&(owned.partition, owned.epoch)).cloned();
        let shared = known.ok_or_else(|| failed(io::Error::other("no state of this partition")))?;
        let mut partition = shared.lock().await;
        if !partition.claimed {
            self.log.claim(owned.partition, owned.epoch).map_err(failed)?;
            partition.read_on(&self.log, owned.partition).map_err(failed)?;
            partition.claimed = true;
        }
        drop(partition);
        Ok(shared)
    }

    async fn do_half_of_the_work(&self) {
        if self.arguments.service_time > 0 {
            let half = Duration::from_millis(self.arguments.service_time).mul_f64(rand::random_range(0.25..0.75));
            tokio::time::sleep(half).await;
        }
    }

    fn answer(&self, epoch: Epoch, sequence: u64, value: &str) -> Response {
        let (epoch, sequence, name) = (epoch.to_string(), sequence.to_string(), self.arguments.name.clone());
        ([("x-epoch", epoch), ("x-sequence", sequence), ("x-writer", name)], value.to_owned()).into_response()
    }
}

impl Partition {
    fn read_on(&mut self, log: &Log, partition: PartitionId) -> io::Result<()> {
        self.apply(log.read(partition, self.read_to)?);
        Ok(())
    }

    fn apply(&mut self, tail: Tail) {
        for record in tail.records {
            let (highest, value) = self.values.entry(record.key.as_ref().into()).or_default();
            (*highest, *value) = (record.sequence.max(*highest), record.value.as_ref().into());
        }
        self.read_to = tail.end;
    }
}

type SharedPartition = Arc<Mutex<Partition>>;
type Service = State<(Arc<Writer>, PodHandle)>;
type Failure = (StatusCode, String);
type Answer = Result<Response, Failure>;

async fn read(State((writer, _)): Service, Path(key): Path<String>, owned: Extension<Owned>) -> Answer {
    let partition = writer.enter(&owned).await?;
    writer.do_half_of_the_work().await;
    let (sequence, value) = partition.lock().await.values.get(key.as_str()).cloned().unwrap_or_default();
    Ok(writer.answer(owned.epoch, sequence, &value))
}

async fn write(
    State((writer, pod)): Service,
    Path(key): Path<String>,
    owned: Extension<Owned>,
    headers: HeaderMap,
    value: String,
) -> Answer {
    let number = |name| -> Option<u64> { headers.get::<&str>(name)?.to_str().ok()?.parse().ok() };
    let (Some(request), Some(sequence)) = (number("x-request-id"), number("x-sequence")) else {
        return Err((StatusCode::BAD_REQUEST, "a write has x-request-id and x-sequence\n".to_owned()));
    };
    let shared = writer.enter(&owned).await?;
    let accepted_at = clock::now();
    writer.do_half_of_the_work().await;
    let record = LogRecord {
        partition: owned.partition,
        epoch: owned.epoch,
        pod: writer.arguments.name.as_str().into(),
        incarnation: pod.status().borrow().incarnation,
        request,
        key: key.into(),
        sequence,
        accepted_at,
        value: value.into(),
        offset: 0, // The log sets this field and the next one.
        appended_at: 0,
    };
    // The state stays locked during the append, so that it changes in the order of the log.
    let mut partition = shared.lock().await;
    let (record, end) = writer.log.append(record).map_err(failed)?;
    partition.apply(Tail { records: vec![record], end });
    drop(partition);
    writer.do_half_of_the_work().await;
    Ok(writer.answer(owned.epoch, sequence, ""))
}

fn failed(error: io::Error) -> Failure {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
}
