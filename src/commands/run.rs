//! `segue run`: starts the roles of a file, waits for a signal, and ends the roles in the order that loses nothing.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use prometheus_client::registry::Registry;
use segue_config::{AdminWrite, Config, ConfigSource, LoadError};
use segue_coordination::store::{HorizonStore, Store};
use segue_protocol::keys::Keyspace;
use segue_proxy::open_files;
use segue_proxy::spans::Tracer;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::logging::{self, Log, start_logging};
use super::reload::{Changeable, Reloader};
use super::store::open;
use super::{CommandFailure, runtime, service_manager, with_certificates};
use crate::admin::api::WritePermission;
use crate::admin::token_file::TokenFile;
use crate::admin::{Admin, AdminKeyspaces};
use crate::process::any_address;
use crate::process::certificates::{CertificateWatch, Certificates};
use crate::process::files;
use crate::process::hot_restart::{Exit, HotRestartServer as HotRestart, Startup};
use crate::process::supervise::UnexpectedExit;
use crate::roles::bound::{BoundRoles, bind};
use crate::roles::keyspace::RoleKeyspace;
use crate::roles::keyspace_follower::{KeyspaceFollower, ShownChanges};
use crate::roles::pod::{PodRole, uncoordinated};
use crate::roles::router::{BoundRouterRole, JoiningRouterRole, RouterRole, Succession};
use crate::roles::running::RunningRoles;
use crate::telemetry::metrics::{
    HotRestartMetrics, MeteredStore, StoreHealth, register_build_info, register_dropped_lines,
    register_failed_handshakes, register_store_went_back, tell_outages,
};
use crate::telemetry::otlp::Exporter;

/// The configuration.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration file; environment variables SEGUE__SECTION__KEY override its keys.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let bad_input = |error: LoadError| CommandFailure::BadInput(error.to_string());
    let source = ConfigSource::read(&args.config).map_err(bad_input)?;
    let located = source.locate(&[]).map_err(|errors| bad_input(errors.into()))?;
    let (mut located, certificates) = with_certificates(located)?;
    let log = start_logging(&located.config);
    if let Some(doubt) = located.unnamed_keyspace() {
        warn!("{doubt}");
    }
    let reloading = Reloader::new(&args.config, log.level.clone(), located.written().clone());
    let files = open_files::raise_limit();
    files::fit(&mut located.config, files)?;
    any_address::fit(&mut located.config);
    let follower = located.config.follow_keyspaces.then(|| KeyspaceFollower::new(source, &located.config));
    match run_to_end(runtime()?, serve((located.config, follower), files, certificates, (&reloading, &log)))? {
        0 => Ok(()),
        code => Err(CommandFailure::Exit(ExitCode::from(code))),
    }
}

/// How long the process may take for work that cannot be cancelled, once everything else has ended.
const LAST_WORK_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs `work` to its end, and the runtime with it. A look-up of the collector's name may still be waiting for an
/// answer then. The runtime would wait for it when dropped.
pub(super) fn run_to_end<T>(runtime: Runtime, work: impl Future<Output = T>) -> T {
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_WORK_TIMEOUT);
    result
}

/// Why a process ends that was not told to.
#[derive(Default)]
struct ExitCause {
    exit: Option<Exit>,
    service: Option<UnexpectedExit>,
    /// Its pod has nobody to coordinate it.
    error: Option<anyhow::Error>,
}

/// Says that the process serves. Returns why it ends, or nothing of that after a signal.
async fn wait_for_end(
    signalled: impl Future<Output = ()>,
    hot_restart: &mut HotRestart,
    service_ended: impl Future<Output = UnexpectedExit>,
    (config, store): (&Config, &Arc<dyn Store>),
) -> ExitCause {
    let names: Vec<_> = config.keyspaces.iter().map(|keyspace| &*keyspace.name).collect();
    info!(keyspace = names.join(","), "running");
    service_manager::serves();
    hot_restart.continue_log();
    let waits_for_others = config.pod.is_some() && config.coordinator.is_none() && !config.follow_keyspaces;
    let keyspaces = config.keyspaces.iter().filter(|_| waits_for_others);
    let keyspaces: Vec<_> = keyspaces.map(|keyspace| Keyspace::new(&config.store.prefix, &keyspace.name)).collect();
    tokio::select! {
        () = signalled => ExitCause::default(),
        exit = hot_restart.run() => ExitCause { exit: Some(exit), ..ExitCause::default() },
        ended = service_ended => {
            error!(code = ended.code, "service exited; the sidecar exits as well");
            cut_off_at_signal(1);
            ExitCause { service: Some(ended), ..ExitCause::default() }
        }
        () = uncoordinated(store, &keyspaces) => {
            cut_off_at_signal(1);
            let error = anyhow!(
                "keyspace {} has no settings, and no coordinator to create them; start a process with a section \
                 [coordinator], or add one to this file",
                names.join(", ")
            );
            ExitCause { error: Some(error), ..ExitCause::default() }
        }
    }
}

/// Takes the keyspaces that the store lists into the configuration of a process that follows them.
async fn begin_to_follow(config: &mut Config, follower: &mut Option<KeyspaceFollower>, store: &Arc<dyn Store>) {
    if let Some(follower) = follower {
        follower.begin(config, store).await;
    }
}

/// Follows the keyspaces of the store, if the process does, until `ends` completes.
async fn follow_until<T>(
    ends: impl Future<Output = T>,
    follower: Option<KeyspaceFollower>,
    roles: &mut RunningRoles,
    changes: &ShownChanges,
) -> T {
    match follower {
        None => ends.await,
        Some(follower) => tokio::select! {
            ended = ends => ended,
            never = follower.run(roles, changes) => match never {},
        },
    }
}

/// Returns what the admin endpoint shows of the keyspaces, and how it is told of others.
fn shown(
    keyspaces: Vec<RoleKeyspace>,
    roles: &RunningRoles,
    store: (Arc<dyn Store>, Arc<StoreHealth>),
    plans: bool,
) -> (AdminKeyspaces, ShownChanges) {
    let (admin, changes) = mpsc::unbounded_channel();
    let shown = |keyspace: RoleKeyspace| {
        let sources = roles.sources(&keyspace.section.name);
        keyspace.shown((&store.0, &store.1), sources, plans)
    };
    let first = keyspaces.into_iter().map(shown).collect();
    (AdminKeyspaces { first, changes }, ShownChanges { store, plans, admin })
}

/// Returns the code to exit with.
async fn serve(
    (mut config, mut follower): (Config, Option<KeyspaceFollower>),
    files: usize,
    certificates: Certificates,
    (reloading, log): (&Reloader<'_>, &Log),
) -> anyhow::Result<u8> {
    let store = open(&config)?;
    begin_to_follow(&mut config, &mut follower, &store).await;
    // Everything that can be refused is refused before anything runs.
    let mut startup = Startup::begin(&mut config, service_manager::is_successor()).await?;
    let BoundRoles { admin, coordinator, router, pod } = bind(&config, &mut startup, files, &certificates).await?;
    let mut sockets = router.as_ref().map_or_else(|| Ok(Vec::new()), BoundRouterRole::duplicates)?;
    sockets.extend(admin.as_ref().map(Admin::duplicate).transpose()?);
    startup.open_socket()?;
    let mut signals = Signals::new()?;

    let mut registry = Registry::with_prefix("segue");
    register_of_process(log, &mut registry);
    let (store, health) = metered(store, &mut registry);
    let mut keyspaces = RoleKeyspace::all(&config, &mut registry);
    let hot_restarts = HotRestartMetrics::new(&mut registry);
    let watching = certificates.watch(&mut registry);
    let exporter = Exporter::start(&config, &mut registry);
    let tracer = exporter.as_ref().map(Exporter::tracer);
    reloading.reach(changeable(&config, router.as_ref(), tracer));
    let (mut roles, grows) = (RunningRoles::default(), follower.is_some());
    if let Some(coordinator) = coordinator {
        roles.coordinator = Some(coordinator.start(&store, (&mut keyspaces, grows), &mut registry, tracer));
    }
    if let Some(router) = router {
        let router = router.traced(tracer).start(&store, &mut keyspaces, &mut registry, &startup.status());
        match let_in(router, &mut startup, signals.ending(reloading, &watching)).await {
            Ok(router) => roles.router = Some(router),
            Err(error) => {
                roles.stop(false, Succession::Ends).await;
                return Err(error);
            }
        }
    }
    roles.pod = pod.map(|pod| pod.start(&store, (&mut keyspaces, grows), &mut registry)).transpose()?;

    let mut hot_restart = startup.serving(sockets, hot_restarts).await;
    let (withdrawn, is_ending) = succeed(&mut hot_restart, signals.ending(reloading, &watching)).await;
    let exemplars = exporter.as_ref().map(Exporter::exemplars).unwrap_or_default();
    let admin = admin.filter(|_| withdrawn.is_none());
    let admin = admin.map(|admin| with_socket(admin, &config).with_exemplars(exemplars));
    keyspaces.iter().for_each(|keyspace| roles.tell_readiness(keyspace));
    let (shown, changes) = shown(keyspaces, &roles, (store.clone(), health), config.coordinator.is_some());
    let operators = (write(&config), roles.pod.as_ref().map(PodRole::own_pod));
    let end_admin = CancellationToken::new();
    let admin = admin.map(|admin| tokio::spawn(admin.serve(shown, registry, operators, end_admin.clone())));
    let ExitCause { exit, service, error } = match withdrawn {
        Some(exit) => ExitCause { exit: Some(exit), ..ExitCause::default() },
        None if is_ending => ExitCause::default(),
        None => {
            let signalled = signals.ending(reloading, &watching);
            let ends = wait_for_end(signalled, &mut hot_restart, roles.service_ended(), (&config, &store));
            follow_until(ends, follower, &mut roles, &changes).await
        }
    };
    // This also closes the duplicates of the sockets: clients can connect while one is open.
    let_go(hot_restart, exit.is_some(), &end_admin);
    let leaving = if exit.is_some() { Succession::Replaced } else { Succession::Ends };
    roles.stop(service.is_some(), leaving).await;
    // The roles have recorded their last spans.
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
    end_admin.cancel();
    ended(admin).await?;
    error.map_or(Ok(()), Err)?;
    match exit {
        Some(Exit::Replaced(successor)) => successor.ended().await,
        Some(Exit::Withdrawn(reason)) => bail!("hot restart withdrawn; the old process keeps serving: {reason}"),
        None => {}
    }
    info!("ended");
    Ok(service.map_or(0, |ended| ended.code))
}

/// Registers what every process has, and begins to tell of lines that its log lacks.
pub(super) fn register_of_process(log: &Log, registry: &mut Registry) {
    register_build_info(registry);
    register_failed_handshakes(registry);
    let dropped = log.dropped.clone();
    register_dropped_lines(registry, move || dropped.count());
    tokio::spawn(logging::tell_dropped_lines(log.dropped.clone()));
}

/// Returns the store with its metrics, and what is known of it. From now on its outages are told, and that it goes back.
pub(super) fn metered(store: Arc<dyn Store>, registry: &mut Registry) -> (Arc<dyn Store>, Arc<StoreHealth>) {
    let store = MeteredStore::new(store, registry);
    let health = store.health();
    tokio::spawn(tell_outages(health.clone()));
    let store = HorizonStore::new(Arc::new(store));
    register_store_went_back(registry, store.shared().clone());
    (Arc::new(store), health)
}

/// Returns what of the roles takes settings over while it runs.
fn changeable(config: &Config, router: Option<&BoundRouterRole>, tracer: Option<&Tracer>) -> Changeable {
    let names = config.keyspaces.iter().filter(|keyspace| keyspace.routing.is_some()).map(|it| it.name.clone());
    let tables = router.into_iter().flat_map(BoundRouterRole::tables);
    let key_limiters = router.into_iter().flat_map(BoundRouterRole::key_limiters);
    let limiter = |(name, limiter): (String, Option<_>)| Some((name, limiter?));
    Changeable {
        key_limiters: names.clone().zip(key_limiters).filter_map(limiter).collect(),
        tables: names.zip(tables.cloned()).collect(),
        drain_timeout: config.router.as_ref().map(|section| section.drain.timeout),
        tracer: tracer.cloned(),
    }
}

/// Waits until the old process has left, if there is one. Returns the exit if this process must not continue, and
/// whether it was told to end meanwhile.
async fn succeed(hot_restart: &mut HotRestart, ending: impl Future<Output = ()>) -> (Option<Exit>, bool) {
    tokio::select! {
        withdrawn = hot_restart.succeed() => (withdrawn, false),
        () = ending => (None, true),
    }
}

/// Ends this process's part in hot restarts.
fn let_go(hot_restart: HotRestart, is_replaced: bool, end_admin: &CancellationToken) {
    if is_replaced {
        cut_off_at_signal(2);
        drop(hot_restart);
        tokio::spawn(end_soon(end_admin.clone()));
    } else {
        hot_restart.shutdown();
    }
}

/// Opens the Unix socket of the admin endpoint if another process has had it so far. That process has left, or does not
/// respond.
fn with_socket(mut admin: Admin, config: &Config) -> Admin {
    if let Some(path) = config.admin.as_ref().and_then(|section| section.socket.as_ref())
        && let Err(error) = admin.open_socket(path)
    {
        error!("the unix socket of the admin endpoint is unavailable: {error:#}");
    }
    admin
}

/// Returns who may change something by the admin endpoint.
fn write(config: &Config) -> WritePermission {
    match config.admin.as_ref().map(|section| &section.write) {
        Some(AdminWrite::Token(file)) => WritePermission::Token(TokenFile::new(file)),
        Some(AdminWrite::ClientCert) => WritePermission::Certified,
        Some(AdminWrite::None) | None => WritePermission::Nobody,
    }
}

/// How long the admin endpoint of a replaced process goes on. Its successor puts a socket of its own in place of this
/// one's meanwhile, so that one of them responds.
const ADMIN_OVERLAP: Duration = Duration::from_millis(250);

async fn end_soon(end_admin: CancellationToken) {
    tokio::time::sleep(ADMIN_OVERLAP).await;
    end_admin.cancel();
}

/// How long the admin endpoint may take to end.
const ADMIN_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for the end of the admin endpoint, but not for a client that stops in the middle of its request or response.
pub(super) async fn ended(admin: Option<JoinHandle<std::io::Result<()>>>) -> anyhow::Result<()> {
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
pub(super) fn cut_off_at_signal(number: usize) {
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
        logging::finish();
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
    async fn ending(&mut self, reloading: &Reloader<'_>, certificates: &CertificateWatch) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
                _ = self.hang_up.recv() => {
                    reloading.reload();
                    certificates.look();
                }
            }
        }
        info!("shutting down gracefully; a second signal exits at once");
        // A process that is replaced does not say so: its unit goes on with the new one.
        service_manager::ends();
        cut_off_at_signal(1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_name_that_is_still_being_looked_up_does_not_hold_up_the_end() {
        let (answer, awaited) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        thread::spawn(move || {
            let work = async {
                tokio::task::spawn_blocking(move || awaited.recv());
                7
            };
            ended.send(run_to_end(runtime().unwrap(), work))
        });
        assert_eq!(end.recv_timeout(20 * LAST_WORK_TIMEOUT), Ok(7));
        drop(answer);
    }
}
