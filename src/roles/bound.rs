//! The roles of a configuration with bound sockets, before anything runs.
//!
//! # Invariants
//!
//! * An address that cannot be bound is found before any role takes part in anything.

use segue_config::Config;

use super::coordinator::BoundCoordinator;
use super::pod::BoundPod;
use super::router::BoundRouterRole;
use crate::admin::{Admin, SOCKET_KEY};
use crate::process::certificates::Certificates;
use crate::process::files;
use crate::process::hot_restart::Startup;
use crate::process::socket_path::ensure_nobody_listens;

/// What of a configuration listens before anything runs.
pub(crate) struct BoundRoles {
    pub(crate) admin: Option<Admin>,
    pub(crate) coordinator: Option<BoundCoordinator>,
    pub(crate) router: Option<BoundRouterRole>,
    pub(crate) pod: Option<BoundPod>,
}

/// Binds all sockets of a configuration, or adopts those that another process hands over.
pub(crate) async fn bind(
    config: &Config,
    startup: &mut Startup,
    files: usize,
    certificates: &Certificates,
) -> anyhow::Result<BoundRoles> {
    let mut admin = match &config.admin {
        Some(section) => {
            let admin = Admin::bind(section.listen, startup.admin_listener())?;
            let admin = admin.with_tls(certificates.admin.clone()).with_peers(certificates.peers.clone());
            Some(admin.with_hosts(section.hosts.clone()))
        }
        None => None,
    };
    let advertised = config.admin.as_ref().and_then(|section| section.advertise.clone());
    let coordinator = match &config.coordinator {
        Some(section) => Some(BoundCoordinator::bind(section, advertised.clone(), certificates).await?),
        None => None,
    };
    let listeners = startup.router_listeners();
    let router = match &config.router {
        Some(section) => Some(BoundRouterRole::bind(config, section, advertised.clone(), certificates, listeners)?),
        None => None,
    };
    let pod = match &config.pod {
        Some(section) => {
            let files = files::share(config, files);
            Some(BoundPod::bind(section, files, advertised, certificates).await?)
        }
        None => None,
    };
    // Last, because a process that cannot start must not take the path from one that serves. In a hot restart that one
    // keeps it until it has left.
    let socket = config.admin.as_ref().and_then(|section| section.socket.as_ref());
    if let (Some(admin), Some(path), false) = (&mut admin, socket, startup.takes_over()) {
        ensure_nobody_listens(SOCKET_KEY, path).await?;
        admin.open_socket(path)?;
    }
    Ok(BoundRoles { admin, coordinator, router, pod })
}
