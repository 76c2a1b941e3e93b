//! What a configuration needs of the machine beside files to read: folders for its sockets, and the program, folder and user
//! of its service.
//!
//! `segue check` warns of what is missing. It refuses nothing, as the machine and the user may not be those that will run the
//! file, and systemd creates folders only when a unit starts. Not here: what happens when a socket cannot be placed
//! (`socket_path`), or goes while the process runs.

use std::env;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;
use segue_config::{Config, Exec, LocatedConfig, Problem};

use super::socket_path::folder_of;
use super::users::Account;

/// Returns a warning for each socket that could not be placed here, and for a service that could not be started.
pub(crate) fn lacking(located: &LocatedConfig) -> Vec<Problem> {
    let socket = |(key, path): (&'static str, &Path)| {
        let (fact, expected) = of_socket(path)?;
        Some(located.problem(key, fact, expected))
    };
    let service = located.config.pod.iter().filter_map(|pod| pod.exec.as_ref()).flat_map(of_service);
    let service = service.map(|(key, fact, expected)| located.problem(key, fact, expected));
    sockets(&located.config).into_iter().filter_map(socket).chain(service).collect()
}

/// Returns what keeps a service from being started: each with its key, the fact and what was expected.
fn of_service(exec: &Exec) -> Vec<(&'static str, String, &'static str)> {
    let cwd = exec.cwd.as_deref();
    let program = exec.command.first().and_then(|program| of_program(program, cwd));
    let program = program.map(|(fact, expected)| ("pod.exec", fact, expected));
    let folder = cwd
        .filter(|cwd| !cwd.is_dir())
        .map(|cwd| ("pod.exec_cwd", format!("{} is no folder here", cwd.display()), "expected a folder that exists"));
    let user = exec.user.as_ref().and_then(|user| match Account::of(user) {
        Err(unknown) => {
            Some(("pod.exec_user", unknown.to_string(), "expected a user of this machine, or a number with its group"))
        }
        Ok(account) if account.may_be_assumed() => None,
        Ok(_) => Some((
            "pod.exec_user",
            format!("this process may not start processes of {user} and end them"),
            "expected root, or CAP_SETUID, CAP_SETGID and CAP_KILL",
        )),
    });
    program.into_iter().chain(folder).chain(user).collect()
}

/// Returns the paths of sockets, each with its key.
fn sockets(config: &Config) -> Vec<(&'static str, &Path)> {
    let Config { router, pod, admin, .. } = config;
    let stream = pod.iter().filter_map(|pod| pod.stream.as_ref()?.unix()).map(|path| ("pod.stream", path));
    let admin = admin.iter().filter_map(|admin| Some(("admin.socket", admin.socket.as_deref()?)));
    let restart = router.iter().filter_map(|router| router.hot_restart_socket.as_deref());
    restart.map(|path| ("router.hot_restart_socket", path)).chain(stream).chain(admin).collect()
}

/// Returns why no socket can be placed at this path, and what was expected. `None` if one can, as far as it shows.
fn of_socket(path: &Path) -> Option<(String, &'static str)> {
    let folder = folder_of(path);
    let name = folder.display();
    let there = match fs::metadata(folder) {
        Ok(there) => there,
        Err(error) => {
            let expected =
                "expected a folder that exists when the process starts, such as by RuntimeDirectory of systemd";
            return Some((format!("{name} cannot be used here: {error}"), expected));
        }
    };
    if !there.is_dir() {
        return Some((format!("{name} is no folder"), "expected a path in a folder"));
    }
    // Root checks files for others.
    let is_foreign = ![0, geteuid().as_raw()].contains(&there.uid()) && !geteuid().is_root();
    if is_foreign || access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let expected = "expected a folder of the user of the process, or one of root to which it may write";
        return Some((format!("this user can put no socket into {name}"), expected));
    }
    let is_other = fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket());
    is_other.then(|| (format!("{} is not a socket", path.display()), "expected a path of its own; remove the file"))
}

/// Returns why this program cannot be started in a folder, and what was expected. `None` if it can, as far as it shows.
pub(crate) fn of_program(program: &str, cwd: Option<&Path>) -> Option<(String, &'static str)> {
    let may_run = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if program.contains('/') {
        let fact = || format!("{program} does not exist here, or this user cannot execute it");
        let path = cwd.map_or_else(|| program.into(), |cwd| cwd.join(program));
        return (!may_run(&path)).then(|| (fact(), "expected a program"));
    }
    let folders: Vec<PathBuf> = env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let is_found = folders.iter().any(|folder| may_run(&folder.join(program)));
    (!is_found).then(|| (format!("{program} is in no folder of PATH here"), "expected a program, or its whole path"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn said(text: &str) -> Vec<String> {
        let located = segue_config::locate("segue.toml", text, [], "h").unwrap();
        lacking(&located).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_socket_whose_folder_is_missing_is_named_by_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let pod = "[pod]\nlisten = \"127.0.0.1:1\"\nupstream = \"127.0.0.1:2\"\nstream = ";
        for key in ["router.hot_restart_socket", "admin.socket", "pod.stream"] {
            let at = |path: &Path| {
                let path = path.display();
                match key {
                    "router.hot_restart_socket" => format!("[router]\nhot_restart_socket = \"{path}\"\n"),
                    "admin.socket" => format!("[router]\n[admin]\nsocket = \"{path}\"\n"),
                    _ => format!("{pod}\"unix:{path}\"\n"),
                }
            };
            assert_eq!(said(&at(&folder.path().join("s"))), [""; 0], "{key}");
            let missing = said(&at(&folder.path().join("none/s")));
            assert!(missing[0].contains(key) && missing[0].contains("none cannot be used here"), "{missing:?}");
            let file = folder.path().join("file");
            fs::write(&file, "").unwrap();
            assert!(said(&at(&file))[0].contains("is not a socket"), "{key}");
            assert!(said(&at(&file.join("s")))[0].contains(key), "{key}");
        }
    }

    #[test]
    fn a_folder_to_which_this_user_may_not_write_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
        let is_refused = of_socket(&folder.path().join("s")).is_some();
        assert_eq!(is_refused, !geteuid().is_root());
    }

    #[test]
    fn a_service_that_cannot_be_started_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("service");
        fs::write(&program, "").unwrap();
        let runs = |program: &str| of_program(program, None).is_none();
        assert!(!runs(program.to_str().unwrap()), "it is no program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(runs(program.to_str().unwrap()) && runs("sh") && !runs("segue-has-no-such-program"));
        let exec =
            "[pod]\nlisten = \"127.0.0.1:1\"\nupstream = \"127.0.0.1:2\"\nexec = [\"/nowhere/service\", \"-v\"]\n";
        let warning = said(exec);
        assert!(
            warning[0].contains("segue.toml:4:8: pod.exec") && warning[0].contains("/nowhere/service"),
            "{warning:?}"
        );
        let (cwd, name) = (folder.path().to_str().unwrap(), "./service");
        assert!(of_program(name, Some(folder.path())).is_none() && of_program(name, None).is_some());
        let with = |more: &str| said(&format!("[pod]\nexec = [\"sh\"]\n{more}\n"));
        assert_eq!(with(&format!("exec_cwd = \"{cwd}\"\nexec_user = \"{}\"", geteuid().as_raw())), [""; 0]);
        let warning = with("exec_cwd = \"/nowhere\"\nexec_user = \"segue-nobody\"");
        assert!(warning[0].starts_with("segue.toml:3:12: pod.exec_cwd: /nowhere is no folder here"), "{warning:?}");
        assert!(warning[1].starts_with("segue.toml:4:13: pod.exec_user: there is no user segue-nobody"), "{warning:?}");
        assert_eq!(with("exec_user = \"0:0\"").is_empty(), geteuid().is_root());
    }
}
