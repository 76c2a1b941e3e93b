//! The files of a configuration that nobody but the process should read: tokens, passwords and keys.
//!
//! Not here: whether they can be used (`token_file`, `certificates`).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use segue_config::{AdminWrite, Config, LocatedConfig, Problem};
use segue_proxy::tls::{ClientFiles, ServerFiles};

/// The bits of a mode by which other users read a file, and pass through a folder.
const OTHERS_READ: u32 = 0o004;
const OTHERS_PASS: u32 = 0o001;

/// Returns a warning for each of them that other users of this machine can read, at the key that names it.
pub(crate) fn exposed(located: &LocatedConfig) -> Vec<Problem> {
    let secrets = secrets(&located.config).into_iter();
    secrets
        .filter(|(_, file)| others_can_read(file))
        .map(|(key, file)| {
            let fact = format!("every user of this machine can read {}", file.display());
            located.problem(key, fact, "expected a file of its own user's alone, of mode 600 or 640")
        })
        .collect()
}

/// Returns the files, each with its key.
fn secrets(config: &Config) -> Vec<(&'static str, &Path)> {
    let Config { store, router, coordinator, pod, admin, .. } = config;
    let mut found: Vec<(&'static str, Option<&Path>)> = vec![
        ("store.password_file", store.credentials.as_ref().map(|it| it.password_file.as_path())),
        ("store.tls.key", client_key(store.tls.as_ref())),
    ];
    if let Some(router) = router {
        found.push(("router.tls.key", server_key(router.tls.as_ref())));
        let others = router.tls.iter().flat_map(|files| &files.others);
        found.extend(others.map(|other| ("router.tls.certificates", Some(other.key.as_path()))));
        found.push(("router.upstream.tls.key", client_key(router.upstream.tls.as_ref())));
    }
    if let Some(coordinator) = coordinator {
        found.push(("coordinator.tls.key", server_key(coordinator.tls.as_ref())));
        found.push(("coordinator.token_file", coordinator.token_file.as_deref()));
    }
    if let Some(pod) = pod {
        found.push(("pod.tls.key", server_key(pod.tls.as_ref())));
        found.push(("pod.upstream_tls.key", client_key(pod.upstream_tls.as_ref())));
    }
    if let Some(admin) = admin {
        let token = if let AdminWrite::Token(file) = &admin.write { Some(file.as_path()) } else { None };
        found.push(("admin.token_file", token));
        found.push(("admin.tls.key", server_key(admin.tls.as_ref())));
        found.push(("admin.peers_tls.key", client_key(admin.peers_tls.as_ref())));
    }
    found.into_iter().filter_map(|(key, file)| Some((key, file?))).collect()
}

fn server_key(files: Option<&ServerFiles>) -> Option<&Path> {
    Some(&files?.key)
}

fn client_key(files: Option<&ClientFiles>) -> Option<&Path> {
    Some(&files?.identity.as_ref()?.key)
}

/// Returns whether users other than the file's own and those of its group can read it. A file that cannot be examined is no
/// case for this.
fn others_can_read(file: &Path) -> bool {
    let Ok(file) = fs::canonicalize(file) else { return false };
    let has = |path: &Path, bits| fs::metadata(path).is_ok_and(|metadata| metadata.mode() & bits == bits);
    has(&file, OTHERS_READ) && file.ancestors().skip(1).all(|folder| has(folder, OTHERS_PASS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_is_exposed_if_others_can_read_it_and_reach_it() {
        let folder = tempfile::tempdir().unwrap();
        let (token, link) = (folder.path().join("token"), folder.path().join("link"));
        fs::write(&token, "secret").unwrap();
        symlink(&token, &link).unwrap();
        for (folder_mode, file_mode, is_exposed) in
            [(0o755, 0o644, true), (0o711, 0o604, true), (0o755, 0o640, false), (0o700, 0o644, false)]
        {
            set_mode(folder.path(), folder_mode);
            set_mode(&token, file_mode);
            for path in [&token, &link] {
                assert_eq!(others_can_read(path), is_exposed, "{folder_mode:o} {file_mode:o}");
            }
        }
        assert!(!others_can_read(&folder.path().join("none")));
    }

    #[test]
    fn each_secret_is_named_by_its_key() {
        let text = "[store]\nusername = \"u\"\npassword_file = \"/password\"\n[coordinator]\n\
            listen = \"127.0.0.1:1\"\ntoken_file = \"/pods\"\ntls = { cert = \"/c\", key = \"/coordinator\" }\n\
            [router]\ntls = { cert = \"/c\", key = \"/router\", certificates = [{ cert = \"/c\", key = \"/sni\" }] }\n\
            [router.upstream]\n\
            tls = { ca = \"/c\", cert = \"/c\", key = \"/upstream\" }\n[admin]\nlisten = \"127.0.0.1:2\"\n\
            write = \"token\"\ntoken_file = \"/admin\"\n[pod]\ntls = { cert = \"/c\", key = \"/pod\" }\n\
            upstream_tls = { ca = \"/c\", cert = \"/c\", key = \"/service\" }\n";
        let config = segue_config::parse("segue.toml", text, [], "h").unwrap();
        let named = secrets(&config).into_iter().map(|(key, file)| (key, file.to_str().unwrap()));
        let expected = [
            ("store.password_file", "/password"),
            ("router.tls.key", "/router"),
            ("router.tls.certificates", "/sni"),
            ("router.upstream.tls.key", "/upstream"),
            ("coordinator.tls.key", "/coordinator"),
            ("coordinator.token_file", "/pods"),
            ("pod.tls.key", "/pod"),
            ("pod.upstream_tls.key", "/service"),
            ("admin.token_file", "/admin"),
        ];
        assert_eq!(named.collect::<Vec<_>>(), expected);
    }
}
