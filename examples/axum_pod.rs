//! An axum service that takes part in handoffs: a counter for each partition, in a folder that all pods share.
//!
//! ```text
//! cargo run --example axum_pod -- http://127.0.0.1:2379 counter-0 127.0.0.1:8181 /tmp/counters
//! curl -X POST -H 'x-partition: 7' 127.0.0.1:8080/       # a router of the keyspace "default"
//! ```

use std::collections::HashMap;
use std::io::ErrorKind::NotFound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::{Extension, Router, extract::State, http::StatusCode, routing::post};
use segue_pod::{
    EtcdOptions, EtcdStore, HandlerError, HandoffContext, HandoffHandler, Keyspace, Owned, PartitionId, PodHandle,
    PodSettings, async_trait,
};

struct Counters {
    folder: PathBuf,
    counts: Mutex<HashMap<PartitionId, u64>>,
}

#[async_trait]
impl HandoffHandler for Counters {
    /// Reads the counter while the old owner, if there is one, still increments it.
    async fn warm(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        let count = match std::fs::read_to_string(self.folder.join(part.partition.to_string())) {
            Ok(text) => text.parse()?,
            Err(error) if error.kind() == NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).insert(part.partition, count);
        Ok(())
    }

    /// Reads the counter again after the old owner has stopped.
    async fn sync(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.warm(part).await
    }

    async fn release(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).remove(&part.partition);
        Ok(())
    }
}

/// Increments the counter and writes the file before it responds. The layer admits only partitions that this pod owns.
async fn count(State(counters): State<Arc<Counters>>, owned: Extension<Owned>) -> Result<String, StatusCode> {
    let mut counts = counters.counts.lock().unwrap_or_else(PoisonError::into_inner);
    let count = counts.get_mut(&owned.partition).ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    let next = (*count + 1).to_string();
    let (file, new) = (owned.partition.to_string(), format!("{}.new", owned.partition));
    let written = std::fs::write(counters.folder.join(&new), &next);
    let kept = written.and_then(|()| std::fs::rename(counters.folder.join(new), counters.folder.join(file)));
    kept.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    *count += 1;
    Ok(next)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [etcd, name, listen, folder] = &arguments[..] else { anyhow::bail!("usage: axum_pod ETCD NAME LISTEN FOLDER") };
    let counters = Arc::new(Counters { folder: folder.into(), counts: Mutex::default() });
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let store = Arc::new(EtcdStore::connect(EtcdOptions::new([etcd]))?);
    let keys = Keyspace::new("/segue/", "default");
    let pod = PodHandle::start(store, "default", keys, PodSettings::new(name, listen), counters.clone());
    let routes = Router::new().route("/", post(count)).layer(pod.layer()).with_state(counters);
    tokio::spawn(async move { axum::serve(listener, routes).await });
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?.recv().await;
    pod.shutdown(Duration::from_secs(30)).await;
    Ok(())
}
