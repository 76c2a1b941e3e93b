//! What finished handoffs left behind: `segue history` and `GET /v1/history`.
//!
//! # Invariants
//!
//! * Nobody pays for the history who does not read it: it is read from the store on request.
//! * The admin endpoint reads it at most once a second, however many ask, and a reading ends with its client.
//! * Responses share their content, and only a few are sent at a time, so that slow clients do not keep many readings.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use futures_util::stream;
use segue_config::readable;
use segue_coordination::session::unix_millis;
use segue_coordination::store::{Store, StoreError};
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::HistoryEntry;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::resting::{ActiveBackOff, resting};
use super::{lasting, no_partition};

/// How long a reading serves further readers of the admin endpoint.
const FRESH: Duration = Duration::from_secs(1);
/// Most responses at a time. Each keeps a reading until its client has taken it.
const MAX_RESPONSES: usize = 8;

/// The finished handoffs that the store still has.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct HandoffHistory {
    /// The handoffs, the newest first.
    pub handoffs: Vec<HistoryEntry>,
    /// Number of entries that this version cannot read.
    pub unreadable: usize,
    /// What rests after failed moves, also of handoffs that are left out.
    #[serde(default)]
    pub resting: Vec<ActiveBackOff>,
}

impl HandoffHistory {
    /// Reads the history of a keyspace, or that of one partition.
    pub(crate) async fn read(
        store: &dyn Store,
        keys: &Keyspace,
        partition: Option<PartitionId>,
    ) -> Result<Self, StoreError> {
        let range = partition.map_or_else(|| keys.history(), |partition| keys.history_of(partition));
        let entries = store.snapshot(&range).await?.entries;
        let read = entries.iter().filter_map(|entry| serde_json::from_slice(&entry.value).ok());
        let mut handoffs: Vec<HistoryEntry> = read.collect();
        handoffs.sort_by_key(|it| Reverse((it.handoff, it.partition)));
        let resting = resting(&handoffs, unix_millis());
        Ok(HandoffHistory { unreadable: entries.len() - handoffs.len(), handoffs, resting })
    }

    /// Keeps the newest `count` handoffs.
    pub(crate) fn newest(mut self, count: usize) -> Self {
        self.handoffs.truncate(count);
        self
    }

    /// Returns a table, with ages as of `now` in Unix milliseconds.
    pub(crate) fn table(&self, now: u64) -> String {
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
        lasting(now.saturating_sub(handoff.ended_at)),
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
pub(crate) fn in_words(handoff: &HistoryEntry, now: u64) -> String {
    let from = handoff.from.as_deref().unwrap_or("nobody");
    let pause = pause(handoff).map_or(String::new(), |pause| format!(", longest pause {pause}"));
    let (to, result, age) = (&handoff.to, handoff.result.as_str(), lasting(now.saturating_sub(handoff.ended_at)));
    let end = if handoff.end_reason.is_empty() { String::new() } else { format!(": {}", handoff.end_reason) };
    format!("{age} ago: {from} → {to} {result} in {}{pause}{end} ({})", took(handoff), handoff.reason)
}

/// Returns the duration of a handoff, with the phase that took longest.
fn took(handoff: &HistoryEntry) -> String {
    let whole = lasting(handoff.ended_at.saturating_sub(handoff.begun_at));
    match handoff.phases.iter().max_by_key(|phase| phase.ms).filter(|phase| phase.ms > 0) {
        Some(longest) => format!("{whole} ({} {})", longest.phase.as_str(), lasting(longest.ms)),
        None => whole,
    }
}

/// Returns the longest pause of a router, and the router.
fn pause(handoff: &HistoryEntry) -> Option<String> {
    let (micros, router) =
        handoff.routers.iter().filter_map(|part| Some((part.pause_us?, &part.router))).max_by_key(|part| part.0)?;
    Some(format!("{} on {router}", readable(Duration::from_micros(micros))))
}

/// The history as the admin endpoint serves it.
struct HistoryReader {
    store: Arc<dyn Store>,
    keys: Keyspace,
    /// Where the store is called: its connections must outlive the admin endpoint.
    runtime: Handle,
    places: Arc<Semaphore>,
    last: Mutex<Option<Arc<HistoryPage>>>,
}

/// A history as responses contain it. The text of an entry exists once, however many responses have it.
struct HistoryPage {
    at: Instant,
    /// The handoffs, the newest first, each with its JSON after a comma.
    handoffs: Vec<(PartitionId, Bytes)>,
    /// Number of partitions of the keyspace.
    partitions: u32,
    unreadable: usize,
    /// What rests after failed moves, as JSON.
    resting: String,
}

#[derive(Debug, Deserialize)]
struct HistoryQuery {
    partition: Option<PartitionId>,
    limit: Option<usize>,
}

/// Returns the route `GET /v1/history?partition=N&limit=N`. Must be called within the runtime that calls the store.
pub(crate) fn routes(store: Arc<dyn Store>, keys: Keyspace) -> Router {
    let places = Arc::new(Semaphore::new(MAX_RESPONSES));
    let reader = HistoryReader { store, keys, runtime: Handle::current(), places, last: Mutex::default() };
    let routes = Router::new().route("/v1/history", get(answer));
    routes.method_not_allowed_fallback(method_not_allowed).with_state(Arc::new(reader))
}

async fn answer(
    State(reader): State<Arc<HistoryReader>>,
    asked: Result<Query<HistoryQuery>, QueryRejection>,
) -> Response {
    let Query(asked) = match asked {
        Ok(asked) => asked,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, "bad-request", error.body_text()),
    };
    let Ok(place) = reader.places.clone().try_acquire_owned() else {
        return unavailable("busy", format!("{MAX_RESPONSES} clients are reading the history; try again"));
    };
    match reader.read().await {
        Ok(reading) => match asked.partition.filter(|partition| reading.lacks(*partition)) {
            Some(partition) => refusal(StatusCode::NOT_FOUND, "not-found", no_partition(partition, reading.partitions)),
            None => ([(header::CONTENT_TYPE, "application/json")], reading.body(&asked, place)).into_response(),
        },
        Err(error) => unavailable("store-unavailable", format!("the history cannot be read: {error}")),
    }
}

async fn method_not_allowed() -> Response {
    refusal(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "the path does not have this method".to_owned())
}

fn unavailable(reason: &str, error: String) -> Response {
    ([(header::RETRY_AFTER, "1")], refusal(StatusCode::SERVICE_UNAVAILABLE, reason, error)).into_response()
}

fn refusal(status: StatusCode, reason: &str, error: String) -> Response {
    (status, Json(json!({ "error": error, "reason": reason }))).into_response()
}

impl HistoryReader {
    /// Returns a reading that is fresh. It ends early if its client does.
    async fn read(&self) -> Result<Arc<HistoryPage>, StoreError> {
        let mut last = self.last.lock().await;
        if let Some(reading) = last.as_ref().filter(|reading| reading.at.elapsed() < FRESH) {
            return Ok(reading.clone());
        }
        let (store, keys) = (self.store.clone(), self.keys.clone());
        let reading = self.runtime.spawn(async move {
            let history = HandoffHistory::read(store.as_ref(), &keys, None).await?;
            let config = store.snapshot(&Keys::One(keys.config())).await?;
            Ok(HistoryPage::of(&history, View::from_snapshot(keys, config).partitions()))
        });
        let page = AbortOnDropHandle::new(reading).await;
        let page = page.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string().into())))?;
        let reading = Arc::new(page);
        *last = Some(reading.clone());
        Ok(reading)
    }
}

impl HistoryPage {
    fn of(history: &HandoffHistory, partitions: u32) -> Self {
        let text = |entry: &HistoryEntry| (entry.partition, Bytes::from(format!(",{}", json!(entry))));
        let handoffs = history.handoffs.iter().map(text).collect();
        let resting = json!(history.resting).to_string();
        HistoryPage { at: Instant::now(), handoffs, partitions, unreadable: history.unreadable, resting }
    }

    /// Returns whether there is no such partition, and no handoff of one.
    fn lacks(&self, partition: PartitionId) -> bool {
        partition.get() >= self.partitions && self.handoffs.iter().all(|(of, _)| *of != partition)
    }

    /// Returns a body with the handoffs that are asked for. It keeps its place until it has been sent.
    fn body(self: Arc<Self>, asked: &HistoryQuery, place: OwnedSemaphorePermit) -> Body {
        let (partition, limit) = (asked.partition, asked.limit.unwrap_or(usize::MAX));
        let head = Bytes::from(format!("{{\"now\":{},\"handoffs\":[", unix_millis()));
        let tail = Bytes::from(format!("],\"unreadable\":{},\"resting\":{}}}", self.unreadable, self.resting));
        let mut next = 0;
        let chosen = std::iter::from_fn(move || {
            let rest = &self.handoffs[next..];
            let at = rest.iter().position(|(of, _)| partition.is_none_or(|partition| *of == partition))?;
            next += at + 1;
            Some(rest[at].1.clone())
        });
        let without_comma = |(number, text): (usize, Bytes)| if number == 0 { text.slice(1..) } else { text };
        let handoffs = chosen.take(limit).enumerate().map(without_comma);
        let pieces = once(head).chain(handoffs).chain(once(tail)).map(move |piece| {
            let _held = &place;
            Ok::<_, Infallible>(piece)
        });
        Body::from_stream(stream::iter(pieces))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::body::to_bytes;
    use axum::http::Request;
    use futures_util::{FutureExt as _, StreamExt as _};
    use segue_coordination::store::{Fault, FaultyStore, MemoryStore};
    use segue_protocol::ids::{HandoffId, Revision};
    use segue_protocol::txn::{Op, Txn};
    use tokio::time::timeout;
    use tower::ServiceExt as _;

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
        let table = HandoffHistory { handoffs, unreadable: 1, resting: Vec::new() }.table(92_500);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("AGE     PARTITION  MOVE"), "{table}");
        assert!(
            lines[1].starts_with("90.0 s  7") && lines[1].contains("1.5 s (Warming 1.4 s)  4.2 ms on r-1"),
            "{table}"
        );
        assert!(
            lines[2].contains("nobody → w-1") && lines[2].ends_with("the new owner is dead (first placement)"),
            "{table}"
        );
        assert_eq!(lines[3], "1 more cannot be read by this version");
    }

    fn keys() -> Keyspace {
        Keyspace::new("/segue/", "default")
    }

    fn ask(routes: &Router, query: &str) -> impl Future<Output = Response> + use<> {
        let request = Request::get(format!("/v1/history{query}")).body(Body::empty()).unwrap();
        routes.clone().oneshot(request).map(|answer| answer.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_ends_with_its_client() {
        let waiting = Arc::new(());
        let waits = waiting.clone();
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        store.set_rule(move |_| {
            let waits = waits.clone();
            Fault::hold(async move {
                let _waits = waits;
                pending().await
            })
        });
        let routes = routes(store.clone(), keys());
        for _ in 0..3 {
            timeout(Duration::from_secs(1), ask(&routes, "")).await.unwrap_err();
        }
        assert_eq!(store.count(|_| true), 3);
        tokio::task::yield_now().await;
        // The rule has the other one.
        assert_eq!(Arc::strong_count(&waiting), 2, "readings without a client");
    }

    #[tokio::test]
    async fn responses_share_their_content_and_only_a_few_are_sent_at_a_time() {
        let store = MemoryStore::new();
        let put = async |key, value: String| {
            let then = vec![Op::Put { key, value: value.into(), lease: None }];
            store.commit(Txn { then, ..Txn::default() }).await.unwrap();
        };
        put(keys().config(), r#"{"partitions":8}"#.to_owned()).await;
        for number in 1..=20_u32 {
            let text =
                format!(r#"{{"handoff":{number},"partition":{},"to":"w","epoch":1,"result":"completed"}}"#, number % 2);
            let key =
                keys().history_entry(PartitionId::new(number % 2), HandoffId::created_at(Revision::new(number.into())));
            put(key, text).await;
        }
        let routes = routes(Arc::new(store.clone()), keys());
        let numbers = async |query: &str| {
            let body = to_bytes(ask(&routes, query).await.into_body(), 1 << 20).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let handoffs = body["handoffs"].as_array().unwrap();
            handoffs.iter().map(|handoff| handoff["handoff"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(numbers("").await, (1..=20).rev().collect::<Vec<_>>());
        assert_eq!(numbers("?partition=1&limit=2").await, [19, 17]);
        assert_eq!(numbers("?partition=7").await, [0; 0]);
        let absent = ask(&routes, "?partition=8").await;
        assert_eq!(absent.status(), StatusCode::NOT_FOUND);
        let said = to_bytes(absent.into_body(), 1 << 10).await.unwrap();
        let expected = json!({ "error": "there is no partition 8: the keyspace has 8", "reason": "not-found" });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&said).unwrap(), expected);
        let refused = ask(&routes, "?limit=-1").await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!(refused.headers()["content-type"], "application/json");

        let mut unread = Vec::new();
        for _ in 0..MAX_RESPONSES {
            unread.push(ask(&routes, "").await);
        }
        assert_eq!(ask(&routes, "").await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let pieces =
            async |response: Response| response.into_body().into_data_stream().map(Result::unwrap).collect().await;
        let (one, other): (Vec<Bytes>, Vec<Bytes>) = (pieces(unread.remove(0)).await, pieces(unread.remove(0)).await);
        assert_eq!(one[1].as_ptr(), other[1].as_ptr(), "the same text");
        assert_eq!(ask(&routes, "").await.status(), StatusCode::OK, "there is room again");
    }
}
