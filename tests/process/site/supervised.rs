//! Sidecars with services in processes of their own, which log each write.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::ports::free_address;
use segue_tests::process::Process;

use crate::service::{self, Settings};

/// How the end of a service's work is ensured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Nothing,
    Exec,
    Lease,
    Bound(u32),
}

/// A sidecar and, unless the sidecar runs it, its service.
pub(crate) struct Pod {
    pub(crate) sidecar: Process,
    pub(crate) service: Option<Process>,
    pub(crate) listen: SocketAddr,
    pub(crate) upstream: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// Returns the log that all services of a cluster write to.
pub(crate) fn log(cluster: &TestCluster) -> PathBuf {
    cluster.path().join("writes.log")
}

/// Starts a service of this kind with its sidecar, whose file `config` has the beginning of.
pub(crate) fn pod(cluster: &TestCluster, config: Config, name: &str, by: By, kind: &str) -> Pod {
    let (listen, upstream, admin) = (free_address(), free_address(), free_address());
    let settings = Settings { name, kind, listen: upstream, log: &log(cluster) };
    let config = config.admin(admin).pod(name, listen, upstream).quick();
    let config = match by {
        By::Nothing => config,
        By::Exec => config.set("pod.exec", service::command()),
        By::Lease => config.hooks(&format!("http://{upstream}"), &["lease"]),
        By::Bound(seconds) => config.set("pod.work_ends_within", format!("{seconds}s")),
    };
    let mut command = Command::new(cluster.segue());
    settings.set(command.arg("run").env("SEGUE__LOG__LEVEL", "debug"));
    let service = (by != By::Exec).then(|| start(cluster, &format!("{name}-service"), &settings));
    Pod { sidecar: cluster.run_with(name, &config, &mut command), service, listen, upstream, admin }
}

/// Starts a service that no sidecar starts.
pub(crate) fn start(cluster: &TestCluster, process: &str, settings: &Settings<'_>) -> Process {
    let words = service::command();
    let mut command = Command::new(&words[0]);
    settings.set(command.args(&words[1..]));
    Process::start(process, cluster.path(), &mut command)
}
