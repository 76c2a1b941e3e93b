//! `segue run`: starts the roles of a file, waits for a signal, and ends the roles in the order that loses nothing.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use prometheus_client::registry::Registry;
use sd_notify::NotifyState;
use segue_config::{AdminWrite, Config, LogFormat, LogLevel};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, reload};

use super::store::open;
use super::{Failure, load_with_certificates, runtime};
use crate::admin::{Admin, StatusSource};
use crate::api::{Api, Write};
use crate::certificates::{Certificates, Watching};
use crate::files;
use crate::history;
use crate::hot_restart::{Exit, Server as HotRestart, Startup};
use crate::keyspace::KeyspaceStatusSource;
use crate::metrics::{HotRestartMetrics, MeteredStore, ParticipantMetrics, register_build_info};
use crate::operator::Link;
use crate::otlp::Exporter;
use crate::page::board::Board;
use crate::roles::coordinator::{BoundCoordinator, CoordinatorRole};
use crate::roles::pod::{BoundPod, PodRole};
use crate::roles::router::{BoundRouterRole, JoiningRouterRole, Leaving, RouterRole};
use crate::supervise::Ended;

type LevelHandle = reload::Handle<LevelFilter, tracing_subscriber::Registry>;

/// The configuration.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration file; environment variables SEGUE__SECTION__KEY override its keys.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (mut located, certificates) = load_with_certificates(&args.config)?;
    let level = start_logging(&located.config);
    let files = files::raise_limit();
    files::fit(&mut located.config, files)?;
    match runtime()?.block_on(serve(located.config, files, certificates, args, &level))? {
        0 => Ok(()),
        code => Err(Failure::Exit(ExitCode::from(code))),
    }
}

/// What of a configuration listens before anything runs.
struct Bound {
    admin: Option<Admin>,
    coordinator: Option<BoundCoordinator>,
    router: Option<BoundRouterRole>,
    pod: Option<BoundPod>,
}

/// Binds all sockets of a configuration, or adopts those that another process hands over.
async fn bind(
    config: &Config,
    startup: &mut Startup,
    files: usize,
    certificates: &Certificates,
) -> anyhow::Result<Bound> {
    let admin = match &config.admin {
        Some(section) => {
            let mut admin = Admin::bind(section.listen, startup.admin_listener())?.with_tls(certificates.admin.clone());
            // The socket of a process that still serves stays where it is.
            if let Some(path) = section.socket.as_ref().filter(|_| !startup.takes_over()) {
                admin.open_socket(path)?;
            }
            Some(admin)
        }
        None => None,
    };
    let advertised = config.admin.as_ref().and_then(|section| section.advertise.clone());
    let coordinator = match &config.coordinator {
        Some(section) => Some(BoundCoordinator::bind(section, certificates).await?),
        None => None,
    };
    let listeners = startup.router_listeners();
    let router = match &config.router {
        Some(section) => Some(BoundRouterRole::bind(section, advertised.clone(), certificates, listeners)?),
        None => None,
    };
    let pod = match &config.pod {
        Some(section) => {
            let files = files::share(config, files);
            Some(BoundPod::bind(section, files, advertised, certificates).await?)
        }
        None => None,
    };
    Ok(Bound { admin, coordinator, router, pod })
}

/// Returns how a hot restart ended or how the service did, or neither after a signal.
async fn wait_for_end(
    signalled: impl Future<Output = ()>,
    hot_restart: &mut HotRestart,
    pod: Option<&PodRole>,
) -> (Option<Exit>, Option<Ended>) {
    let service_ended = async {
        match pod {
            Some(pod) => pod.service_ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signalled => (None, None),
        exit = hot_restart.run() => (Some(exit), None),
        ended = service_ended => {
            error!(code = ended.code, "service exited; the sidecar exits as well");
            cut_off_at_signal(1);
            (None, Some(ended))
        }
    }
}

/// Stops the roles. A pod hands over while router and coordinator still run, and the router ends with its last request.
async fn stop(
    pod: Option<PodRole>,
    router: Option<RouterRole>,
    coordinator: Option<CoordinatorRole>,
    exporter: Option<Exporter>,
    service_ended: bool,
    leaving: Leaving,
) {
    if let Some(pod) = pod {
        info!("handing partitions over");
        pod.stop(service_ended).await;
    }
    if let Some(router) = router {
        info!("finishing requests");
        router.stop(leaving).await;
    }
    if let Some(coordinator) = coordinator {
        coordinator.stop().await;
    }
    // The roles have recorded their last spans.
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
}

/// Returns the code to exit with.
async fn serve(
    mut config: Config,
    files: usize,
    certificates: Certificates,
    args: &Args,
    level: &LevelHandle,
) -> anyhow::Result<u8> {
    // Everything that can be refused is refused before anything runs.
    let mut startup = Startup::begin(&mut config).await?;
    let Bound { admin, coordinator, router, pod } = bind(&config, &mut startup, files, &certificates).await?;
    let mut sockets = router.as_ref().map_or_else(|| Ok(Vec::new()), BoundRouterRole::duplicates)?;
    sockets.extend(admin.as_ref().map(Admin::duplicate).transpose()?);
    startup.open_socket()?;
    let mut signals = Signals::new()?;
    let (store, keys) = open(&config)?;

    let mut registry = Registry::with_prefix("segue");
    register_build_info(&mut registry);
    let store: Arc<dyn Store> = Arc::new(MeteredStore::new(store, &mut registry));
    let participants = ParticipantMetrics::new(&mut registry);
    let hot_restarts = HotRestartMetrics::new(&mut registry);
    let watching = certificates.watch(&mut registry);
    let exporter = Exporter::start(&config, &mut registry);
    let tracer = exporter.as_ref().map(Exporter::tracer);
    let keyspace = &config.keyspace;
    let coordinator = coordinator.map(|coordinator| {
        coordinator.start(store.clone(), keyspace, keys.clone(), &mut registry, participants.clone(), tracer)
    });
    let hot_restart = startup.status();
    let router = router.map(|router| {
        let router = router.traced(tracer);
        router.start(store.clone(), keyspace, keys.clone(), &mut registry, participants.clone(), hot_restart)
    });
    let router = match router {
        Some(router) => match let_in(router, &mut startup, signals.ending(args, level, &watching)).await {
            Ok(router) => Some(router),
            Err(error) => return Err(given_up(coordinator, error).await),
        },
        None => None,
    };
    let pod =
        pod.map(|pod| pod.start(store.clone(), keyspace, keys.clone(), &mut registry, &participants)).transpose()?;

    let api = api(&config, store.clone(), keys.clone(), pod.as_ref());
    let admin =
        admin.map(|admin| with_socket(admin, &config).with_routes(history::routes(store.clone(), keys.clone())));
    let followed = KeyspaceStatusSource::start(store, keys);
    let (board, sources) = sources(followed, router.as_ref(), coordinator.as_ref(), pod.as_ref());
    let end_admin = CancellationToken::new();
    let admin = admin.map(|admin| tokio::spawn(admin.serve(sources, board, registry, api, end_admin.clone())));
    let mut hot_restart = startup.serving(sockets, hot_restarts).await;
    info!(keyspace, "running");
    notify_service_manager(&NotifyState::Ready);

    let ending = signals.ending(args, level, &watching);
    let (exit, service) = wait_for_end(ending, &mut hot_restart, pod.as_ref()).await;
    // This also closes the duplicates of the sockets: clients can connect while one is open.
    match exit {
        None => hot_restart.shutdown(),
        Some(_) => {
            cut_off_at_signal(2);
            drop(hot_restart);
            end_admin.cancel();
        }
    }
    let leaving = if exit.is_some() { Leaving::Replaced } else { Leaving::Ends };
    stop(pod, router, coordinator, exporter, service.is_some(), leaving).await;
    end_admin.cancel();
    ended(admin).await?;
    match exit {
        Some(Exit::Replaced(successor)) => successor.ended().await,
        Some(Exit::Withdrawn(reason)) => bail!("hot restart withdrawn; the old process keeps serving: {reason}"),
        None => {}
    }
    info!("ended");
    Ok(service.map_or(0, |ended| ended.code))
}

/// Stops the coordinator because the router does not start. Returns why that does not.
async fn given_up(coordinator: Option<CoordinatorRole>, error: anyhow::Error) -> anyhow::Error {
    if let Some(coordinator) = coordinator {
        coordinator.stop().await;
    }
    error
}

/// Tells systemd, or whoever has set `NOTIFY_SOCKET`.
fn notify_service_manager(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        info!(%error, "the service manager cannot be notified");
    }
}

/// Opens the Unix socket of the admin endpoint if another process has had it so far.
fn with_socket(mut admin: Admin, config: &Config) -> Admin {
    if let Some(path) = config.admin.as_ref().and_then(|section| section.socket.as_ref())
        && let Err(error) = admin.open_socket(path)
    {
        error!("the unix socket of the admin endpoint is unavailable: {error:#}");
    }
    admin
}

/// Returns what operators can do by the admin endpoint.
fn api(config: &Config, store: Arc<dyn Store>, keys: Keyspace, pod: Option<&PodRole>) -> Api {
    let policy = config.coordinator.as_ref().map(|coordinator| coordinator.policy.clone());
    let write = match config.admin.as_ref().map(|section| &section.write) {
        Some(AdminWrite::Token(file)) => Write::Token(file.clone()),
        Some(AdminWrite::ClientCert) => Write::Certified,
        Some(AdminWrite::None) | None => Write::Nobody,
    };
    Api::new(Link::new(store, keys, policy), pod.map(PodRole::own_pod), write)
}

/// Returns the board of the live page, and the sources of `/status`.
fn sources(
    keyspace: KeyspaceStatusSource,
    router: Option<&RouterRole>,
    coordinator: Option<&CoordinatorRole>,
    pod: Option<&PodRole>,
) -> (Arc<Board>, Vec<Arc<dyn StatusSource>>) {
    let board = keyspace.board();
    let mut sources: Vec<Arc<dyn StatusSource>> = vec![Arc::new(keyspace)];
    sources.extend(router.map(RouterRole::status_source));
    sources.extend(coordinator.map(CoordinatorRole::status_source));
    sources.extend(pod.map(PodRole::status_source));
    (board, sources)
}

/// How long the admin endpoint may take to end.
const ADMIN_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for the end of the admin endpoint, but not for a client that stops in the middle of its request or response.
async fn ended(admin: Option<JoinHandle<std::io::Result<()>>>) -> anyhow::Result<()> {
    if let Some(admin) = admin
        && let Ok(ended) = tokio::time::timeout(ADMIN_END_TIMEOUT, admin).await
    {
        ended.context("the admin endpoint failed")??;
    }
    Ok(())
}

/// Starts to accept clients. If another process still serves them, waits until this one could.
async fn let_in(
    router: JoiningRouterRole,
    startup: &mut Startup,
    ending: impl Future<Output = ()>,
) -> anyhow::Result<RouterRole> {
    let joined = tokio::select! {
        joined = startup.until(router.ready()) => joined,
        () = ending => Err(anyhow!("told to end before it had taken over")),
    };
    match joined {
        Ok(()) => router.accept().await,
        Err(error) => {
            let reason = router.not_ready().map(|reason| format!(" (this one: {reason})")).unwrap_or_default();
            router.give_up().await;
            Err(anyhow!("{error:#}{reason}"))
        }
    }
}

/// Ends the process at the `number`th signal from now on.
fn cut_off_at_signal(number: usize) {
    tokio::spawn(async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            return;
        };
        for left in (0..number).rev() {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if left > 0 {
                info!("already shutting down; the next signal exits at once");
            }
        }
        error!("second signal; exiting without finishing requests in flight");
        std::process::exit(1);
    });
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Returns when the process has to end gracefully. A second signal then ends it at once.
    async fn ending(&mut self, args: &Args, level: &LevelHandle, certificates: &Watching) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
                _ = self.hang_up.recv() => {
                    reload(args, level);
                    certificates.look();
                }
            }
        }
        info!("shutting down gracefully; a second signal exits at once");
        // A process that is replaced does not say so: its unit goes on with the new one.
        notify_service_manager(&NotifyState::Stopping);
        cut_off_at_signal(1);
    }
}

/// Applies the changes of the file that are possible while running: the log level. An invalid file changes nothing.
fn reload(args: &Args, level: &LevelHandle) {
    match segue_config::load(&args.config) {
        Ok(located) => {
            let wanted = level_filter(located.config.log.level);
            if level.modify(|filter| *filter = wanted).is_ok() {
                info!(level = %wanted, "configuration reloaded; settings other than the log level and certificates need a restart");
            }
        }
        Err(problems) => warn!("configuration reload rejected: {problems}"),
    }
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn start_logging(config: &Config) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(level_filter(config.log.level));
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let layer = match config.log.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json().boxed(),
    };
    // The filter is the innermost layer, so it also limits the logs of libraries.
    tracing_subscriber::registry().with(filter).with(layer).init();
    handle
}
