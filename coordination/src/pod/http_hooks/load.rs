//! The hook by which a service reports the load and the keys of its partitions.
//!
//! The service is asked in the background, at most once per second and only while heartbeats want to know: a heartbeat
//! has what the service said to the call before.
//!
//! # Invariants
//!
//! * At most one call runs.
//! * A service that does not respond as expected has reported nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use segue_protocol::ids::PartitionId;
use serde_json::Value;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::client::HookClient;
use super::settings::HookUrl;
use crate::pod::LoadReport;

/// Least time between two calls.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The hook, and the last report of its service.
#[derive(Debug, Clone)]
pub(super) struct LoadHook {
    url: HookUrl,
    client: HookClient,
    keyspace: String,
    reported: Arc<Mutex<ReportedPartitions>>,
}

#[derive(Debug, Default)]
struct ReportedPartitions {
    partitions: BTreeMap<PartitionId, LoadReport>,
    asked: Option<Instant>,
    is_asking: bool,
}

impl LoadHook {
    pub(super) fn new(url: HookUrl, client: HookClient, keyspace: &str) -> Self {
        LoadHook { url, client, keyspace: keyspace.to_owned(), reported: Arc::default() }
    }

    /// Returns what the service has said of a partition, and asks it again if that is due.
    pub(super) fn of(&self, partition: PartitionId) -> LoadReport {
        let mut reported = self.lock();
        if !reported.is_asking && reported.asked.is_none_or(|asked| asked.elapsed() >= MIN_INTERVAL) {
            reported.is_asking = true;
            let hook = self.clone();
            tokio::spawn(async move {
                let answer = hook.ask().await;
                let partitions = answer.unwrap_or_else(|why| {
                    debug!(url = %hook.url, why, "service reports no load");
                    BTreeMap::new()
                });
                *hook.lock() = ReportedPartitions { partitions, asked: Some(Instant::now()), is_asking: false };
            });
        }
        reported.partitions.get(&partition).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, ReportedPartitions> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self) -> Result<BTreeMap<PartitionId, LoadReport>, String> {
        let body = serde_json::json!({ "keyspace": self.keyspace });
        let posted = timeout(TIMEOUT, self.client.post(&self.url, &body, true)).await;
        let (status, text) =
            posted.map_err(|_| "no response in time".to_owned())?.map_err(|error| error.to_string())?;
        if status.is_success() { read(&text) } else { Err(format!("it responds {status}")) }
    }
}

/// Reads a response: `{"partitions":{"7":{"keys":1200,"load":3.5}}}`.
fn read(text: &Bytes) -> Result<BTreeMap<PartitionId, LoadReport>, String> {
    let answer: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let partitions = answer["partitions"].as_object().ok_or("a body without the object `partitions`")?;
    let report = |(partition, said): (&String, &Value)| {
        let wrong = || format!("it cannot be read what is said of partition {partition}");
        let number = partition.parse().map_err(|_| wrong())?;
        let load = said["load"].as_f64().filter(|load| *load >= 0.0);
        let keys = said["keys"].as_u64();
        let is_read = |name: &str, is_there: bool| is_there || said[name].is_null();
        if !said.is_object() || !is_read("load", load.is_some()) || !is_read("keys", keys.is_some()) {
            return Err(wrong());
        }
        Ok((PartitionId::new(number), LoadReport { load, keys }))
    };
    partitions.iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_names_the_keys_and_the_load_of_partitions_and_any_other_reports_nothing() {
        let of = |text: &'static str| read(&Bytes::from_static(text.as_bytes()));
        let expected = [
            (PartitionId::new(7), LoadReport { load: Some(3.5), keys: Some(1200) }),
            (PartitionId::new(9), LoadReport { load: None, keys: Some(0) }),
        ];
        let both = r#"{"partitions":{"7":{"keys":1200,"load":3.5},"9":{"keys":0,"news":1}}}"#;
        assert_eq!(of(both), Ok(expected.into()));
        assert_eq!(of(r#"{"partitions":{}}"#), Ok(BTreeMap::new()));
        for bad in [
            "",
            "{}",
            r#"{"partitions":{"x":{}}}"#,
            r#"{"partitions":{"7":{"load":-1}}}"#,
            r#"{"partitions":{"7":3}}"#,
            "[]",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
