//! What finished handoffs left behind: `segue history` and `GET /v1/history`.
//!
//! # Invariants
//!
//! * Nobody pays for the history who does not read it: it is read from the store on request.
//! * The admin endpoint reads it at most once a second, however many ask.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use segue_coordination::session::unix_millis;
use segue_coordination::store::{Store, StoreError};
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::HistoryEntry;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long a reading serves further readers of the admin endpoint.
const FRESH: Duration = Duration::from_secs(1);

/// The finished handoffs that the store still has.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct History {
    /// The handoffs, the newest first.
    pub handoffs: Vec<HistoryEntry>,
    /// Number of entries that this version cannot read.
    pub unreadable: usize,
}

impl History {
    /// Reads the history of a keyspace, or that of one partition.
    pub async fn read(store: &dyn Store, keys: &Keyspace, partition: Option<PartitionId>) -> Result<Self, StoreError> {
        let range = partition.map_or_else(|| keys.history(), |partition| keys.history_of(partition));
        let entries = store.snapshot(&range).await?.entries;
        let read = entries.iter().filter_map(|entry| serde_json::from_slice(&entry.value).ok());
        let mut handoffs: Vec<HistoryEntry> = read.collect();
        handoffs.sort_by_key(|it| Reverse((it.handoff, it.partition)));
        Ok(History { unreadable: entries.len() - handoffs.len(), handoffs })
    }

    /// Keeps the newest `count` handoffs.
    pub fn newest(mut self, count: usize) -> Self {
        self.handoffs.truncate(count);
        self
    }

    /// Returns a table, with ages as of `now` in Unix milliseconds.
    pub fn table(&self, now: u64) -> String {
        let head = ["AGE", "PARTITION", "MOVE", "RESULT", "TOOK", "PAUSE", "HELD", "SEVERED", "WHY"].map(str::to_owned);
        let lines: Vec<[String; 9]> = self.handoffs.iter().map(|handoff| line(handoff, now)).collect();
        let rows = || std::iter::once(&head).chain(&lines);
        let width = |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 9] = std::array::from_fn(width);
        let mut text = String::new();
        for row in rows() {
            for (cell, width) in row.iter().zip(widths) {
                let _ = write!(text, "{cell:width$}  ");
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        if self.unreadable > 0 {
            let _ = writeln!(text, "{} more cannot be read by this version", self.unreadable);
        }
        text
    }
}

fn line(handoff: &HistoryEntry, now: u64) -> [String; 9] {
    let from = handoff.from.as_deref().unwrap_or("nobody");
    let why = match handoff.end_reason.as_str() {
        "" => handoff.reason.clone(),
        end => format!("{end} ({})", handoff.reason),
    };
    [
        age(now.saturating_sub(handoff.ended_at)),
        handoff.partition.to_string(),
        format!("{from} → {}", handoff.to),
        handoff.result.as_str().to_owned(),
        took(handoff),
        pause(handoff).unwrap_or_else(|| "-".to_owned()),
        handoff.held.to_string(),
        handoff.severed.to_string(),
        why,
    ]
}

/// Returns a handoff in one line, for a list that names its partition elsewhere.
pub fn in_words(handoff: &HistoryEntry, now: u64) -> String {
    let from = handoff.from.as_deref().unwrap_or("nobody");
    let pause = pause(handoff).map_or(String::new(), |pause| format!(", longest pause {pause}"));
    let (to, result, age) = (&handoff.to, handoff.result.as_str(), age(now.saturating_sub(handoff.ended_at)));
    let end = if handoff.end_reason.is_empty() { String::new() } else { format!(": {}", handoff.end_reason) };
    format!("{age} ago: {from} → {to} {result} in {}{pause}{end} ({})", took(handoff), handoff.reason)
}

/// Returns the duration of a handoff, with the phase that took longest.
fn took(handoff: &HistoryEntry) -> String {
    let whole = millis(handoff.ended_at.saturating_sub(handoff.begun_at));
    match handoff.phases.iter().max_by_key(|phase| phase.ms).filter(|phase| phase.ms > 0) {
        Some(longest) => format!("{whole} ({} {})", longest.phase.as_str(), millis(longest.ms)),
        None => whole,
    }
}

/// Returns the longest pause of a router, and the router.
fn pause(handoff: &HistoryEntry) -> Option<String> {
    let (micros, router) =
        handoff.routers.iter().filter_map(|part| Some((part.pause_us?, &part.router))).max_by_key(|part| part.0)?;
    Some(format!("{:.1} ms on {router}", micros as f64 / 1e3))
}

fn millis(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{:.1} s", ms as f64 / 1e3) }
}

/// Returns a time span with its two largest units.
fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// The history as the admin endpoint serves it.
struct Reader {
    store: Arc<dyn Store>,
    keys: Keyspace,
    /// Where the store is called: its connections must outlive the admin endpoint.
    runtime: Handle,
    last: Mutex<Option<(Instant, Arc<History>)>>,
}

#[derive(Debug, Deserialize)]
struct Asked {
    partition: Option<PartitionId>,
    limit: Option<usize>,
}

/// Returns the route `GET /v1/history?partition=N&limit=N`. Must be called within the runtime that calls the store.
pub fn routes(store: Arc<dyn Store>, keys: Keyspace) -> Router {
    let reader = Reader { store, keys, runtime: Handle::current(), last: Mutex::default() };
    Router::new().route("/v1/history", get(answer)).with_state(Arc::new(reader))
}

async fn answer(State(reader): State<Arc<Reader>>, Query(asked): Query<Asked>) -> Response {
    match reader.read().await {
        Ok(history) => {
            let is_asked_for = |it: &&HistoryEntry| asked.partition.is_none_or(|partition| it.partition == partition);
            let handoffs = history.handoffs.iter().filter(is_asked_for).take(asked.limit.unwrap_or(usize::MAX));
            let handoffs: Vec<&HistoryEntry> = handoffs.collect();
            let now = unix_millis();
            Json(json!({ "now": now, "handoffs": handoffs, "unreadable": history.unreadable })).into_response()
        }
        Err(error) => {
            let body = json!({ "error": format!("the history cannot be read: {error}"), "reason": "store" });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

impl Reader {
    async fn read(&self) -> Result<Arc<History>, StoreError> {
        let mut last = self.last.lock().await;
        if let Some((_, history)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(history.clone());
        }
        let (store, keys) = (self.store.clone(), self.keys.clone());
        let reading = self.runtime.spawn(async move { History::read(store.as_ref(), &keys, None).await });
        let history = reading.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))?;
        let history = Arc::new(history);
        *last = Some((Instant::now(), history.clone()));
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handoff(text: &str) -> HistoryEntry {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_table_names_the_longest_phase_the_slowest_router_and_the_reason_of_the_end() {
        let handoffs = vec![
            handoff(
                r#"{"handoff":70,"partition":7,"from":"w-0","to":"w-1","epoch":60,"result":"completed","reason":"balance",
                "begun_at":1000,"ended_at":2500,"phases":[{"phase":"Warming","ms":1400},{"phase":"Ready","ms":4}],
                "routers":[{"router":"r-0","pause_us":900},{"router":"r-1","pause_us":4200}],"held":3}"#,
            ),
            handoff(
                r#"{"handoff":9,"partition":8,"to":"w-1","epoch":9,"result":"cancelled","reason":"first placement",
                "end_reason":"the new owner is dead","begun_at":1000,"ended_at":1010,"news":1}"#,
            ),
        ];
        let table = History { handoffs, unreadable: 1 }.table(92_500);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("AGE    PARTITION  MOVE"), "{table}");
        assert!(
            lines[1].starts_with("1m30s  7") && lines[1].contains("1.5 s (Warming 1.4 s)  4.2 ms on r-1"),
            "{table}"
        );
        assert!(
            lines[2].contains("nobody → w-1") && lines[2].ends_with("the new owner is dead (first placement)"),
            "{table}"
        );
        assert_eq!(lines[3], "1 more cannot be read by this version");
    }

    #[test]
    fn ages_have_two_units() {
        let ages = [0, 59_999, 60_000, 7_260_000, 180_000_000].map(age);
        assert_eq!(ages, ["0s", "59s", "1m0s", "2h1m", "2d2h"]);
    }
}
