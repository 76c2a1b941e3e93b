//! The limit of open files, and the number of clients that a router accepts under it.
//!
//! Every connection of a router is an open file: each client, and for each client up to one pod. A router without free
//! files can neither accept clients nor reach pods, its store or its admin endpoint, so it accepts fewer clients
//! instead. Not here: the behaviour when files run out all the same (`segue_proxy::server`).

use anyhow::ensure;
use segue_config::{Config, LocatedConfig, Problem, Router};
use segue_proxy::open_files;

/// Reserve for logs, the store's connections, certificates being read, and a hot restart.
const PROCESS_FILES: usize = 64;
/// Reserve per worker, for a listener and the runtime.
const FILES_PER_WORKER: usize = 4;
/// Reserve for idle connections to the pods of a keyspace.
const POD_FILES: usize = 64;
/// Reserve for the connections of the admin endpoint and its listener.
const ADMIN_FILES: usize = 88;

const MAX_CONNECTIONS: &str = "router.limits.max_connections";

/// Returns how many of these files a router, or a pod, may use: half of them if both are in one process.
pub(crate) fn share(config: &Config, files: usize) -> usize {
    if config.router.is_some() && config.pod.is_some() { files / 2 } else { files }
}

/// Lowers `max_connections` to what this many open files allow.
pub(crate) fn fit(config: &mut Config, files: usize) -> anyhow::Result<()> {
    let (has_admin, keyspaces) = (config.admin.is_some(), config.keyspaces.len());
    let files = share(config, files);
    let Some(router) = &mut config.router else { return Ok(()) };
    let (wanted, reserve) = (router.limits.max_connections, reserve(router, keyspaces, has_admin));
    let most = clients(files, reserve);
    ensure!(
        most > 0,
        "this process may open {files} files (`ulimit -Hn`), of which {reserve} are for its pods, its store and itself; \
         it needs two more for each client"
    );
    if most < wanted {
        router.limits.max_connections = most;
        if is_far_too_much(wanted, files) {
            tracing::warn!(
                files,
                "{MAX_CONNECTIONS} is {wanted}, which may take twice as many open files; accepting at most {most}. \
                 Raise the hard limit (LimitNOFILE of systemd, `ulimit -Hn`)"
            );
        } else {
            tracing::info!(files, reserve, "accepting at most {most} connections to keep files for everything else");
        }
    }
    Ok(())
}

/// Returns the warning of `segue check`: the machine it runs on may not be the one that will run the file.
pub(crate) fn doubt(located: &LocatedConfig) -> Option<Problem> {
    let router = located.config.router.as_ref()?;
    let (wanted, files) = (router.limits.max_connections, open_files::most());
    let is_doubtful = located.is_given(MAX_CONNECTIONS) && is_far_too_much(wanted, files);
    is_doubtful.then(|| {
        let fact = format!("{wanted} may take {} open files, and here a process may have {files}", 2 * wanted);
        located.problem(
            MAX_CONNECTIONS,
            fact,
            "the router will take fewer connections unless `ulimit -Hn` is higher there",
        )
    })
}

/// Returns whether the connections exceed the files even without a reserve.
fn is_far_too_much(connections: usize, files: usize) -> bool {
    connections.saturating_mul(2) > files
}

fn reserve(router: &Router, keyspaces: usize, has_admin: bool) -> usize {
    let workers = router.workers.or(std::thread::available_parallelism().ok()).map_or(1, usize::from);
    PROCESS_FILES + POD_FILES * keyspaces + FILES_PER_WORKER * workers + if has_admin { ADMIN_FILES } else { 0 }
}

/// Returns how many clients this many files allow: a file for each, and one for the pod that its request goes to.
fn clients(files: usize, reserve: usize) -> usize {
    files.saturating_sub(reserve) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(max_connections: usize) -> Config {
        let text = format!("[router]\nworkers = 2\n[router.limits]\nmax_connections = {max_connections}\n[admin]\n");
        segue_config::parse("segue.toml", &text, [], "h").unwrap()
    }

    fn fitted(max_connections: usize, files: usize) -> Option<usize> {
        let mut config = config(max_connections);
        fit(&mut config, files).ok()?;
        config.router.map(|router| router.limits.max_connections)
    }

    #[test]
    fn a_reserve_is_left_for_all_that_is_no_client() {
        let reserve = PROCESS_FILES + POD_FILES + ADMIN_FILES + 2 * FILES_PER_WORKER;
        assert_eq!(fitted(10_000, 20_000 + reserve), Some(10_000));
        assert_eq!(fitted(10_000, 20_000 + reserve - 2), Some(9_999));
        assert_eq!(fitted(10_000, usize::MAX), Some(10_000));
        assert_eq!(fitted(10_000, reserve + 3), Some(1));
        assert_eq!(fitted(10_000, reserve + 1), None);
        assert!(fitted(10_000, 256).is_some_and(|most| most > 0), "a limit of 256 files is enough for some");
    }

    #[test]
    fn each_keyspace_has_files_for_connections_to_its_pods() {
        let table = |name| format!("[[keyspaces]]\nname = {name:?}\npartition = {{ header = \"p\" }}\n");
        let tables = table("a") + "match = { host = \"a\" }\n" + &table("b");
        let text = format!("{tables}[router]\nworkers = 2\n[router.limits]\nmax_connections = 1000\n[admin]\n");
        let fits = |files| {
            let mut config = segue_config::parse("segue.toml", &text, [], "h").unwrap();
            fit(&mut config, files).unwrap();
            config.router.unwrap().limits.max_connections
        };
        let reserve = PROCESS_FILES + 2 * POD_FILES + ADMIN_FILES + 2 * FILES_PER_WORKER;
        assert_eq!((fits(2_000 + reserve), fits(2_000 + reserve - 2)), (1_000, 999));
    }

    #[test]
    fn a_router_and_a_pod_in_one_process_share_its_files() {
        let pod = "[pod]\nlisten = \"127.0.0.1:1\"\nupstream = \"127.0.0.1:2\"\nadvertise = \"127.0.0.1:1\"\n";
        let alone = segue_config::parse("segue.toml", "[router]\n", [], "h").unwrap();
        let both = segue_config::parse("segue.toml", &format!("[router]\n{pod}"), [], "h").unwrap();
        assert_eq!((share(&alone, 1000), share(&both, 1000)), (1000, 500));
    }

    #[test]
    fn the_reserve_alone_is_no_reason_to_doubt_a_file() {
        assert!(!is_far_too_much(10_000, 20_000));
        assert!(is_far_too_much(10_000, 19_999));
        assert!(is_far_too_much(usize::MAX, usize::MAX - 1));
    }
}
