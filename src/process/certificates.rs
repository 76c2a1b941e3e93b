//! The certificates of a process: loaded before any address is bound, and reloaded when their files change.
//!
//! Not for: their use (`segue_proxy::tls`). Those of the store are loaded here to be checked and watched; the store
//! reads them once more when it connects.
//!
//! # Invariants
//!
//! * A problem names the configuration key of the unusable file.
//! * A reload never removes a certificate that is in use.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use segue_config::{Config, LocatedConfig, Problem};
use segue_proxy::tls::{
    ClientFiles, ClientTls, File, Material, RefreshOutcome, ServerFiles, ServerTls, TlsError, Validity,
};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

/// Time between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// A certificate that expires within this time deserves a warning. The alert SegueCertificateExpires has the same time.
const SOON_DAYS: u64 = 14;
const SOON: Duration = Duration::from_secs(SOON_DAYS * 24 * 3600);

/// All certificates of a process, by their use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Certificates {
    /// `router.tls`.
    pub router: Option<ServerTls>,
    /// `router.upstream.tls`.
    pub upstream: Option<ClientTls>,
    /// `pod.tls`.
    pub pod: Option<ServerTls>,
    /// `pod.upstream_tls`.
    pub service: Option<ClientTls>,
    /// `coordinator.tls`.
    pub coordinator: Option<ServerTls>,
    /// `store.tls`.
    pub store: Option<ClientTls>,
    /// `admin.tls`.
    pub admin: Option<ServerTls>,
    /// `admin.peers_tls`.
    pub peers: Option<ClientTls>,
}

const ROUTER: &str = "router.tls";
const UPSTREAM: &str = "router.upstream.tls";
const POD: &str = "pod.tls";
const SERVICE: &str = "pod.upstream_tls";
const COORDINATOR: &str = "coordinator.tls";
const STORE: &str = "store.tls";
const ADMIN: &str = "admin.tls";
const PEERS: &str = "admin.peers_tls";

impl Certificates {
    /// Reads the files that a configuration names.
    ///
    /// # Errors
    ///
    /// A problem for every unusable file, at the place in the configuration that names it.
    pub(crate) fn load(located: &LocatedConfig) -> Result<Self, Vec<Problem>> {
        let Config { store, router, pod, coordinator, admin, .. } = &located.config;
        let server = |files: &ServerFiles| ServerTls::load(files.clone());
        let client = |files: &ClientFiles| ClientTls::load(files.clone());
        let (upstream, router) = match router {
            Some(router) => (router.upstream.tls.as_ref(), router.tls.as_ref()),
            None => (None, None),
        };
        let service = pod.as_ref().and_then(|pod| pod.upstream_tls.as_ref());
        let pod = pod.as_ref().and_then(|pod| pod.tls.as_ref());
        let coordinator = coordinator.as_ref().and_then(|coordinator| coordinator.tls.as_ref());
        let peers = admin.as_ref().and_then(|admin| admin.peers_tls.as_ref());
        let admin = admin.as_ref().and_then(|admin| admin.tls.as_ref());
        let mut faults = Vec::new();
        let loaded = Certificates {
            router: keep(ROUTER, router.map(server), &mut faults),
            upstream: keep(UPSTREAM, upstream.map(client), &mut faults),
            pod: keep(POD, pod.map(server), &mut faults),
            service: keep(SERVICE, service.map(client), &mut faults),
            coordinator: keep(COORDINATOR, coordinator.map(server), &mut faults),
            store: keep(STORE, store.tls.as_ref().map(client), &mut faults),
            admin: keep(ADMIN, admin.map(server), &mut faults),
            peers: keep(PEERS, peers.map(client), &mut faults),
        };
        let problem = |(section, error): (&str, TlsError)| {
            let fact = format!("{}: {}", error.path.display(), error.fact);
            located.problem(&format!("{section}.{}", error.file.key()), fact, error.expected)
        };
        if faults.is_empty() { Ok(loaded) } else { Err(faults.into_iter().map(problem).collect()) }
    }

    /// Returns a problem for each expired certificate. A process starts with them all the same: they may be renewed at
    /// any moment.
    pub(crate) fn expired(&self, located: &LocatedConfig, now: SystemTime) -> Vec<Problem> {
        let expired = self.validities().filter(|(_, validity)| validity.not_after <= now);
        let problem = |(section, validity): (&str, Validity)| {
            let fact = format!("{} was valid until {}", which(&validity), validity.until());
            located.problem(&format!("{section}.{}", validity.file.key()), fact, "expected one that is valid")
        };
        expired.map(problem).collect()
    }

    /// Returns a warning for each certificate that expires soon.
    pub(crate) fn expiring(&self, located: &LocatedConfig, now: SystemTime) -> Vec<Problem> {
        let soon = now + SOON;
        let expiring = self.validities().filter(|(_, validity)| validity.not_after > now && validity.not_after <= soon);
        let problem = |(section, validity): (&str, Validity)| {
            let until = validity.until();
            let fact = format!("{} is valid for less than {SOON_DAYS} days, until {until}", which(&validity));
            located.problem(&format!("{section}.{}", validity.file.key()), fact, "expected a renewal before")
        };
        expiring.map(problem).collect()
    }

    fn validities(&self) -> impl Iterator<Item = (&'static str, Validity)> {
        let all = self.all().into_iter();
        all.flat_map(|(section, material)| material.validities().into_iter().map(move |validity| (section, validity)))
    }

    fn all(&self) -> Vec<(&'static str, Arc<dyn Material>)> {
        let server = |section, tls: &Option<ServerTls>| tls.as_ref().map(|tls| (section, tls.material()));
        let client = |section, tls: &Option<ClientTls>| tls.as_ref().map(|tls| (section, tls.material()));
        let all = [
            server(ROUTER, &self.router),
            client(UPSTREAM, &self.upstream),
            server(POD, &self.pod),
            client(SERVICE, &self.service),
            server(COORDINATOR, &self.coordinator),
            client(STORE, &self.store),
            server(ADMIN, &self.admin),
            client(PEERS, &self.peers),
        ];
        all.into_iter().flatten().collect()
    }

    /// Checks the files periodically and on request.
    pub(crate) fn watch(&self, registry: &mut Registry) -> CertificateWatch {
        let watch = WatchedMaterial { all: self.all(), ends: Family::default() };
        registry.register(
            "certificate_not_after_seconds",
            "Until when the certificate in use is valid, in seconds since 1970",
            watch.ends.clone(),
        );
        watch.all.iter().for_each(|(section, material)| watch.in_use(section, material.as_ref()));
        let now = Arc::new(Notify::new());
        let told = now.clone();
        let task = tokio::spawn(async move {
            let watch = Arc::new(watch);
            loop {
                tokio::select! {
                    () = told.notified() => {}
                    () = tokio::time::sleep(CHECK_INTERVAL) => {}
                }
                let watch = watch.clone();
                // The files may be on a slow disk.
                let _ = tokio::task::spawn_blocking(move || watch.look()).await;
            }
        });
        CertificateWatch { now, _task: AbortOnDropHandle::new(task) }
    }
}

/// Returns the loaded certificate, or adds its error to `faults`.
fn keep<T>(
    section: &'static str,
    loaded: Option<Result<T, TlsError>>,
    faults: &mut Vec<(&'static str, TlsError)>,
) -> Option<T> {
    loaded?.map_err(|error| faults.push((section, error))).ok()
}

/// Returns what a problem calls a certificate whose key it stands at.
fn which(validity: &Validity) -> String {
    match validity.file {
        File::OtherCert => validity.path.display().to_string(),
        _ => "its certificate".to_owned(),
    }
}

/// Returns the client of a command that is given an authority's file and nothing else.
pub(crate) fn trusting(ca: &Path) -> Result<ClientTls, TlsError> {
    ClientTls::load(ClientFiles { ca: ca.to_owned(), identity: None, server_name: None })
}

/// A watch of the files. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct CertificateWatch {
    now: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl CertificateWatch {
    /// Checks the files at once.
    pub(crate) fn look(&self) {
        self.now.notify_one();
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SectionLabel {
    section: &'static str,
}

struct WatchedMaterial {
    all: Vec<(&'static str, Arc<dyn Material>)>,
    ends: Family<SectionLabel, Gauge>,
}

impl WatchedMaterial {
    fn look(&self) {
        for (section, material) in &self.all {
            match material.refresh() {
                RefreshOutcome::Same => {}
                RefreshOutcome::Replaced => self.in_use(section, material.as_ref()),
                RefreshOutcome::Refused(problem) => {
                    error!(section, %problem, "new certificates cannot be used; keeping the previous ones");
                }
            }
        }
    }

    fn in_use(&self, section: &'static str, material: &dyn Material) {
        let Some(first) = material.expires_first() else {
            return info!(section, "certificate authorities loaded");
        };
        let seconds = first.not_after.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.ends.get_or_create(&SectionLabel { section }).set(i64::try_from(seconds).unwrap_or(i64::MAX));
        for validity in material.validities() {
            let (valid_until, file) = (validity.until(), validity.path.display());
            if validity.not_after <= SystemTime::now() {
                warn!(section, %file, valid_until, "certificate has expired");
            } else {
                info!(section, %file, valid_until, "certificate loaded");
            }
        }
    }
}
