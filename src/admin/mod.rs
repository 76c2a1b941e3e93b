//! The admin endpoint: `/health`, `/ready`, `/metrics`, `/status`, the live page with its stream, and operators' `/v1`.
//!
//! The endpoint shows what the process's status sources report and decides nothing. It has a thread of its own, so that
//! requests to it take nothing from the threads that renew leases. Elsewhere: its connections (`connections`), and who
//! may change something ([`api`]).
//!
//! # Invariants
//!
//! * The number of open connections is bounded, and idle or stuck ones are closed.
//! * Who names another host than this endpoint is shown nothing (`hosts`).
//! * Readers share a page: frequent requests make no more pages, however many partitions these list.

pub(crate) mod api;
mod connections;
mod exposition;
mod hosts;
pub(crate) mod keyspace;
mod on_demand;
pub(crate) mod page;
mod shown;
pub(crate) mod token_file;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use segue_proxy::tls::{ClientTls, ServerTls};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::api::{KeyspaceRoutes, OwnPod, OwnProcess, WriteControl, WritePermission};
use self::exposition::Format;
use self::hosts::Hosts;
pub(crate) use self::shown::{AdminChange, AdminKeyspace, AdminKeyspaces};
use self::shown::{Page, ShownKeyspaces, StatusPage};
use crate::operator::top::OwnRouter;
use crate::process::shared_list::SharedList;
use crate::process::socket_path::SocketPath;
use crate::telemetry::exemplars::Exemplars;
use crate::telemetry::metrics::process_registry;

/// The configuration key of the endpoint's Unix socket.
pub(crate) const SOCKET_KEY: &str = "admin.socket";

/// A role of this process, as the admin endpoint sees it.
pub(crate) trait StatusSource: Send + Sync + 'static {
    /// Returns the source's name in `/status`: the name of its section of the file.
    fn name(&self) -> &'static str;
    /// Returns whether the role can do its work; otherwise the reason in words.
    fn ready(&self) -> Result<(), String>;
    /// Returns what whoever asks whether the role is ready should know, though it is.
    fn note(&self) -> Option<String> {
        None
    }
    /// Returns the present state.
    fn status(&self) -> Value;
    /// Returns the figures of the current state that the live page shows, if there are any.
    fn summary(&self) -> Option<Value> {
        None
    }
    /// Returns the routers of the source, each with its name and its table.
    fn routers(&self) -> Vec<OwnRouter> {
        Vec::new()
    }
    /// Updates gauges that nothing else updates.
    fn refresh(&self) {}
}

/// What the endpoint shows of all keyspaces.
struct AdminState {
    keyspaces: SharedList<Arc<StatusPage>>,
    routes: SharedList<(String, Router)>,
    registries: [Registry; 2],
    exemplars: Exemplars,
    classic: Page,
    open_metrics: Page,
    /// The status of several keyspaces.
    status: Page,
}

/// A bound admin endpoint.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: StdListener,
    tls: Option<ServerTls>,
    socket: Option<SocketPath>,
    exemplars: Exemplars,
    peers: Option<ClientTls>,
    hosts: Hosts,
}

impl Admin {
    /// Binds the address, so that one in use is found before anything is started. With `taken_over`, adopts that
    /// listener instead.
    pub(crate) fn bind(address: SocketAddr, taken_over: Option<StdListener>) -> anyhow::Result<Self> {
        let bind = || StdListener::bind(address).with_context(|| format!("admin.listen: cannot listen on {address}"));
        let listener = taken_over.map_or_else(bind, Ok)?;
        listener.set_nonblocking(true)?;
        Ok(Admin {
            listener,
            tls: None,
            socket: None,
            exemplars: Exemplars::default(),
            peers: None,
            hosts: Hosts::default(),
        })
    }

    /// Answers to these names of hosts, beside addresses and `localhost`.
    pub(crate) fn with_hosts(self, names: Vec<String>) -> Self {
        Admin { hosts: Hosts::new(names), ..self }
    }

    /// Serves by TLS.
    pub(crate) fn with_tls(self, tls: Option<ServerTls>) -> Self {
        Admin { tls, ..self }
    }

    /// Asks the admin endpoints of other processes by TLS.
    pub(crate) fn with_peers(self, peers: Option<ClientTls>) -> Self {
        Admin { peers, ..self }
    }

    /// Shows these exemplars in `/metrics`.
    pub(crate) fn with_exemplars(self, exemplars: Exemplars) -> Self {
        Admin { exemplars, ..self }
    }

    /// Listens at a Unix socket as well, unless it does already. Replaces a socket that is there.
    pub(crate) fn open_socket(&mut self, path: &Path) -> anyhow::Result<()> {
        if self.socket.is_none() {
            self.socket = Some(SocketPath::claim(SOCKET_KEY, path)?);
        }
        Ok(())
    }

    /// Returns a duplicate of the listener, for a process that takes it over.
    pub(crate) fn duplicate(&self) -> io::Result<StdListener> {
        self.listener.try_clone()
    }

    /// Serves these keyspaces and those that come and go, on a thread of its own, until `shutdown` or until this is dropped.
    /// Those whom `write` names may change something. `pod` is that of this process, if it is a sidecar.
    pub(crate) async fn serve(
        mut self,
        keyspaces: impl Into<AdminKeyspaces>,
        registry: Registry,
        (write, pod): (WritePermission, Option<OwnPod>),
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        let AdminKeyspaces { first, mut changes } = keyspaces.into();
        let end = shutdown.child_token();
        let control = Arc::new(WriteControl::new(write, self.peers.take()));
        let (statuses, routes, apis) = (SharedList::default(), SharedList::default(), SharedList::default());
        let shared = AdminState {
            keyspaces: statuses.clone(),
            routes: routes.clone(),
            registries: [registry, process_registry()],
            exemplars: std::mem::take(&mut self.exemplars),
            classic: Page::default(),
            open_metrics: Page::default(),
            status: Page::default(),
        };
        let all = Router::new()
            .route("/health", get(|| async { "alive\n" }))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .fallback(of_keyspace)
            .with_state(Arc::new(shared))
            .merge(page::files())
            .merge(OwnProcess::new(control.clone(), apis.clone(), pod).routes())
            .layer(middleware::from_fn_with_state(std::mem::take(&mut self.hosts), hosts::admit))
            .layer(middleware::map_response(without_sniffing));
        let _end_when_dropped = end.clone().drop_guard();
        let (done, served) = oneshot::channel();
        std::thread::Builder::new().name("segue-admin".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let serving = async {
                let mut shown = ShownKeyspaces { statuses, routes, apis, control, end: end.clone(), feeds: Vec::new() };
                first.into_iter().for_each(|keyspace| shown.add(keyspace));
                let mut accepting = std::pin::pin!(connections::accept(self, all, end));
                loop {
                    tokio::select! {
                        accepted = &mut accepting => break accepted,
                        Some(change) = changes.recv() => shown.apply(change),
                    }
                }
            };
            let _ = done.send(runtime.and_then(|runtime| runtime.block_on(serving)));
        })?;
        served.await.unwrap_or_else(|_| Err(io::Error::other("the admin endpoint's thread has panicked")))
    }
}

/// Tells browsers to take no text for a page.
async fn without_sniffing(mut response: Response) -> Response {
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn ready(State(shared): State<Arc<AdminState>>) -> Response {
    let (mut reasons, mut notes, keyspaces) = (String::new(), BTreeSet::new(), shared.keyspaces.all());
    for keyspace in &keyspaces {
        let of = if keyspaces.len() > 1 { format!("keyspace {}: ", keyspace.name) } else { String::new() };
        for source in &keyspace.sources {
            if let Err(reason) = source.ready() {
                reasons += &format!("{of}{}: {reason}\n", source.name());
            }
            notes.extend(source.note());
        }
    }
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let first = if reasons.is_empty() { "ready\n".to_owned() } else { reasons };
    let text = notes.iter().fold(first, |text, note| text + note + "\n");
    (status, text).into_response()
}

async fn metrics(State(shared): State<Arc<AdminState>>, request: HeaderMap) -> Response {
    let format = Format::of(&request);
    let page = match format {
        Format::Classic => &shared.classic,
        Format::OpenMetrics => &shared.open_metrics,
    };
    let body = page.get(|| {
        let keyspaces = shared.keyspaces.all();
        keyspaces.iter().flat_map(|keyspace| &keyspace.sources).for_each(|source| source.refresh());
        let [own, process] = &shared.registries;
        let of_keyspaces = keyspaces.iter().filter_map(|keyspace| keyspace.registry.as_ref());
        let registries: Vec<_> = [own].into_iter().chain(of_keyspaces).chain([process]).collect();
        format.page(&registries, &shared.exemplars).into_bytes()
    });
    ([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")], body).into_response()
}

/// Responds to a request about a keyspace, or about the status of all of several.
async fn of_keyspace(State(shared): State<Arc<AdminState>>, request: Request) -> Response {
    let routes = KeyspaceRoutes::new(shared.routes.all());
    if request.uri().path() != "/status" || !routes.means_all(request.uri()) {
        return routes.pass(request).await;
    }
    let statuses = shared.keyspaces.all();
    join_all(statuses.iter().map(|status| status.on_demand.fresh())).await;
    let body = shared.status.get(|| {
        let names = json!(routes.names());
        let parts =
            statuses.iter().map(|status| [json!(status.name).to_string().as_bytes(), b":", &status.get()].concat());
        let parts: Vec<Vec<u8>> = parts.collect();
        [format!("{{\"keyspaces\":{names},\"by_keyspace\":{{").as_bytes(), &parts.join(&b','), b"}}"].concat()
    });
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    use segue_coordination::store::MemoryStore;
    use segue_protocol::keys::Keyspace;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;

    use super::connections::{IO_TIMEOUT, MAX_CONNECTIONS};
    use super::on_demand::OnDemandReader;
    use super::page::board::Board;
    use super::*;
    use crate::operator::Link;

    /// A source whose status takes long to make.
    #[derive(Default)]
    struct Slow {
        made: AtomicUsize,
        elsewhere: AtomicUsize,
    }

    impl StatusSource for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn ready(&self) -> Result<(), String> {
            Ok(())
        }

        fn status(&self) -> Value {
            self.made.fetch_add(1, SeqCst);
            self.elsewhere.fetch_add(usize::from(std::thread::current().name() != Some("segue-admin")), SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            Value::from("x".repeat(1 << 20))
        }
    }

    fn start() -> (SocketAddr, Arc<Slow>, tokio::task::JoinHandle<io::Result<()>>, CancellationToken) {
        let admin = Admin::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None).unwrap();
        let (address, source, end) =
            (admin.listener.local_addr().unwrap(), Arc::<Slow>::default(), CancellationToken::new());
        let serving = {
            let keys = Keyspace::new("/segue/", "default");
            let board = Arc::new(Board::new(keys.clone(), 0));
            let link = Link::new(Arc::new(MemoryStore::new()), keys.clone(), None);
            let on_demand = Arc::new(OnDemandReader::new());
            let (reader, store, shown) = (on_demand.clone(), link.store().clone(), board.clone());
            tokio::spawn(async move { reader.run(store, keys, shown, true).await });
            let keyspace = AdminKeyspace { sources: vec![source.clone()], board, on_demand, link, registry: None };
            tokio::spawn(admin.serve(vec![keyspace], Registry::default(), (WritePermission::Nobody, None), end.clone()))
        };
        (address, source, serving, end)
    }

    async fn ask(address: SocketAddr, path: &str) -> io::Result<String> {
        answer_to(address, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await
    }

    async fn answer_to(address: SocketAddr, request: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    #[tokio::test]
    async fn a_crowd_of_readers_shares_a_page_and_takes_nothing_from_other_threads() {
        let (address, source, _serving, _end) = start();
        let mut readers = JoinSet::new();
        let began = Instant::now();
        for _ in 0..1000 {
            readers.spawn(async move { ask(address, "/status").await.unwrap_or_default() });
        }
        let answers = readers.join_all().await;
        let served = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count();
        let made = source.made.load(SeqCst);
        assert!(served >= MAX_CONNECTIONS, "{served} were served");
        assert!(made <= 1 + began.elapsed().as_secs() as usize, "{made} pages were made for {served} readers");
        assert_eq!(source.elsewhere.load(SeqCst), 0);
    }

    #[tokio::test]
    async fn one_connection_too_many_is_told_so_and_idle_ones_make_room() {
        let (address, _, serving, end) = start();
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        // Connections are accepted in the order of arrival, so all of those have places.
        let refused = ask(address, "/health").await.unwrap();
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        let mut first = idle.swap_remove(0);
        tokio::time::timeout(2 * IO_TIMEOUT, first.read_u8()).await.expect("an idle connection is closed").unwrap_err();
        let answer = tokio::time::timeout(IO_TIMEOUT, async {
            loop {
                match ask(address, "/health").await {
                    Ok(answer) if answer.starts_with("HTTP/1.1 200") => break answer,
                    _ => tokio::task::yield_now().await,
                }
            }
        });
        assert!(answer.await.expect("an answer").ends_with("alive\n"));
        end.cancel();
        serving.await.unwrap().unwrap();
        TcpStream::connect(address).await.unwrap_err();
    }

    #[tokio::test]
    async fn who_names_another_host_is_shown_nothing() {
        let (address, _, _serving, _end) = start();
        for path in ["/", "/health", "/ready", "/metrics", "/status", "/events", "/v1/history", "/nothing"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
            let answer = answer_to(address, &request).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
            let text = "{\"error\":\"\\\"evil.example\\\" is no name of this endpoint; names are listed in admin.hosts\",\
                        \"reason\":\"host\"}";
            assert!(answer.ends_with(text) && answer.contains("x-content-type-options: nosniff"), "{answer}");
        }
        assert!(answer_to(address, "GET /health HTTP/1.0\r\n\r\n").await.unwrap().ends_with("alive\n"));
    }

    #[tokio::test]
    async fn an_open_page_does_not_delay_the_end() {
        let (address, _, serving, end) = start();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut read = String::new();
        while !read.contains("event: state\ndata: {") {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).await.unwrap();
            assert!(count > 0, "{read}");
            read += &String::from_utf8_lossy(&bytes[..count]);
        }
        end.cancel();
        tokio::time::timeout(IO_TIMEOUT / 2, serving).await.expect("the end of the stream").unwrap().unwrap();
    }
}
