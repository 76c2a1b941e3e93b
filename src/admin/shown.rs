//! The keyspaces that the admin endpoint shows. They may come and go while it serves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::StatusSource;
use super::api::{Api, WriteControl};
use super::on_demand::OnDemandReader;
use super::page;
use super::page::board::Board;
use super::page::feed::Feed;
use crate::operator::{Link, history};
use crate::process::shared_list::SharedList;

/// Age, in multiples of the time it took to make, at which a page is made again, but at the latest after
/// [`MAX_PAGE_AGE`]. Making pages takes at most a twentieth of the thread's time.
const PAGE_AGE_FACTOR: u32 = 20;
pub(super) const MAX_PAGE_AGE: Duration = Duration::from_secs(1);

/// A keyspace of this process, as the admin endpoint shows it.
pub(crate) struct AdminKeyspace {
    /// The sources of its status, beginning with the keyspace itself.
    pub(crate) sources: Vec<Arc<dyn StatusSource>>,
    /// The contents of the live page.
    pub(crate) board: Arc<Board>,
    /// The reader that puts the routers' reports on the board.
    pub(crate) on_demand: Arc<OnDemandReader>,
    /// The operators' way to the store.
    pub(crate) link: Link,
    /// Its series, unless they are among those of the process.
    pub(crate) registry: Option<Registry>,
}

/// The keyspaces that an endpoint shows, at first and from then on.
pub(crate) struct AdminKeyspaces {
    pub(crate) first: Vec<AdminKeyspace>,
    pub(crate) changes: mpsc::UnboundedReceiver<AdminChange>,
}

impl From<Vec<AdminKeyspace>> for AdminKeyspaces {
    /// Returns keyspaces that stay.
    fn from(first: Vec<AdminKeyspace>) -> Self {
        AdminKeyspaces { first, changes: mpsc::unbounded_channel().1 }
    }
}

/// A change of the keyspaces that a running endpoint shows.
pub(crate) enum AdminChange {
    /// Shows one more.
    Add(Box<AdminKeyspace>),
    /// No longer shows this one.
    Remove(String),
}

/// The status of a keyspace.
pub(super) struct StatusPage {
    pub(super) name: String,
    pub(super) sources: Vec<Arc<dyn StatusSource>>,
    pub(super) on_demand: Arc<OnDemandReader>,
    page: Page,
    pub(super) registry: Option<Registry>,
}

/// The parts of the endpoint that change with the keyspaces that are shown.
pub(super) struct ShownKeyspaces {
    pub(super) statuses: SharedList<Arc<StatusPage>>,
    pub(super) routes: SharedList<(String, Router)>,
    pub(super) apis: SharedList<Arc<Api>>,
    pub(super) control: Arc<WriteControl>,
    pub(super) end: CancellationToken,
    /// The feed of each page, and what ends its readers.
    pub(super) feeds: Vec<(String, CancellationToken, AbortOnDropHandle<()>)>,
}

impl ShownKeyspaces {
    pub(super) fn apply(&mut self, change: AdminChange) {
        match change {
            AdminChange::Add(keyspace) => self.add(*keyspace),
            AdminChange::Remove(name) => self.remove(&name),
        }
    }

    /// Shows a keyspace. Requires the runtime of the endpoint.
    pub(super) fn add(&mut self, AdminKeyspace { sources, board, on_demand, link, registry }: AdminKeyspace) {
        let name = link.keys().name().to_owned();
        let (wanted, end) = (on_demand.clone(), self.end.child_token());
        let looks = Box::new(move || wanted.want());
        let feed = Arc::new(Feed::new(board, summary(sources.clone()), looks, end.clone()));
        let routers = sources.iter().flat_map(|source| source.routers()).collect();
        let api = Arc::new(Api::new(link.clone(), self.control.clone(), routers));
        let status = Arc::new(StatusPage { name: name.clone(), sources, on_demand, page: Page::default(), registry });
        let own = Router::new()
            .route("/status", get(status_of_keyspace))
            .with_state(status.clone())
            .merge(page::stream(feed.clone()))
            .merge(api.clone().routes())
            .merge(history::routes(link.store().clone(), link.keys().clone()));
        self.routes.push((name.clone(), own));
        self.feeds.push((name, end, AbortOnDropHandle::new(tokio::spawn(async move { feed.run().await }))));
        self.apis.push(api);
        self.statuses.push(status);
    }

    fn remove(&mut self, name: &str) {
        self.routes.retain(|(shown, _)| shown != name);
        self.apis.retain(|api| api.keyspace() != name);
        self.statuses.retain(|status| status.name != name);
        self.feeds.retain(|(shown, end, _)| {
            let is_kept = shown != name;
            if !is_kept {
                end.cancel();
            }
            is_kept
        });
    }
}

impl StatusPage {
    pub(super) fn get(&self) -> Bytes {
        self.page.get(|| {
            let sources = self.sources.iter().map(|source| (source.name().to_owned(), source.status()));
            Value::Object(sources.collect::<Map<String, Value>>()).to_string().into_bytes()
        })
    }
}

/// A page that is made for one reader and serves the next ones while it is fresh.
#[derive(Default)]
pub(super) struct Page(Mutex<Option<CachedExposition>>);

struct CachedExposition {
    at: Instant,
    took: Duration,
    body: Bytes,
}

impl Page {
    pub(super) fn get(&self, make: impl FnOnce() -> Vec<u8>) -> Bytes {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) =
            made.as_ref().filter(|made| made.at.elapsed() < (made.took * PAGE_AGE_FACTOR).min(MAX_PAGE_AGE))
        {
            return made.body.clone();
        }
        let began = Instant::now();
        let body = Bytes::from(make());
        *made = Some(CachedExposition { at: Instant::now(), took: began.elapsed(), body: body.clone() });
        body
    }
}

async fn status_of_keyspace(State(status): State<Arc<StatusPage>>) -> Response {
    status.on_demand.fresh().await;
    ([(header::CONTENT_TYPE, "application/json")], status.get()).into_response()
}

/// Returns a function that reads the figures of all roles for the live page.
fn summary(sources: Vec<Arc<dyn StatusSource>>) -> page::feed::Summary {
    Box::new(move || {
        let numbers = sources.iter().filter_map(|source| Some((source.name().to_owned(), source.summary()?)));
        Value::Object(numbers.collect())
    })
}
