//! A Unix socket at a path, which only the user of the process can connect to.
//!
//! # Invariants
//!
//! * The file belongs to one process, and a process removes only its own. The folder is locked from the comparison to the
//!   removal. A file is put there under the same lock where that can be had.
//! * Only the user of the process can connect to it, at any moment.
//! * It is replaced in one step, so there is always a process that can be asked.
//! * A file that somebody has removed is put back within seconds, or its absence is logged as an error.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{error, warn};

/// Most new processes that wait to be accepted.
const BACKLOG: i32 = 16;

/// How often, and how long apart, a process tries to lock the folder. Processes of this program hold the lock for the
/// time of two system calls.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// How often a process looks whether its file is still there.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// This process's socket, at its path.
#[derive(Debug)]
pub(crate) struct SocketPath {
    path: PathBuf,
    listener: UnixListener,
    identity: (u64, u64),
    look: Interval,
    /// The file has been removed and cannot be put back.
    is_missing: bool,
}

impl SocketPath {
    /// Puts a socket of this process at the path and replaces any socket that is there. `key` is the configuration key
    /// that names the path.
    pub(crate) fn claim(key: &str, path: &Path) -> anyhow::Result<Self> {
        ensure_free_or_socket(key, path)?;
        ensure_folder_is_trusted(key, path)?;
        Self::replace(path).with_context(|| format!("{key}: cannot put a socket at {}", path.display()))
    }

    fn replace(path: &Path) -> anyhow::Result<Self> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        remove_own_leftover(&temporary)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Linux creates the file with the mode of the socket, so it never has another one.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(&temporary)?)?;
        // The socket cannot be connected to before it listens, nor found before it is renamed.
        let placed = || -> anyhow::Result<Self> {
            let mode = fs::symlink_metadata(&temporary)?.mode();
            ensure!(mode & 0o077 == 0, "other users could connect to it: its mode is {:o}", mode & 0o777);
            let identity = identity(&temporary)?;
            listen(&socket, BACKLOG)?;
            let listener = UnixListener::from_std(StdListener::from(socket))?;
            // Without the lock, a process that ends at this moment may remove this file. That is better than not to start.
            let locked = lock_folder(path);
            if let Err(error) = &locked {
                warn!("placing {} without a lock: {error:#}", path.display());
            }
            fs::rename(&temporary, path)?;
            let mut look = interval(LOOK_EVERY);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            Ok(SocketPath { path: path.to_owned(), listener, identity, look, is_missing: false })
        };
        placed().inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// Accepts the next client. Puts the file back if somebody has removed it meanwhile.
    pub(crate) async fn accept(&mut self) -> std::io::Result<UnixStream> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => return Ok(accepted?.0),
                _ = self.look.tick() => self.restore(),
            }
        }
    }

    /// Puts the file back if there is none. A socket of another process, which has replaced this one's, is left alone, and so
    /// is any other file.
    fn restore(&mut self) {
        let restored = match fs::symlink_metadata(&self.path) {
            Ok(there) if there.file_type().is_socket() => {
                self.is_missing = false;
                return;
            }
            Ok(_) => Err(anyhow!("another file is in its place")),
            Err(_) => Self::replace(&self.path),
        };
        match restored {
            Ok(restored) => {
                warn!("{} had been removed; it is back", self.path.display());
                *self = restored;
            }
            Err(error) if !self.is_missing => {
                error!("{} has been removed, and cannot be put back: {error:#}", self.path.display());
                self.is_missing = true;
            }
            Err(_) => {}
        }
    }

    /// Removes the file, unless another process has replaced it. A file that stays behind does no harm: nobody listens.
    pub(crate) fn release(self) {
        let Ok(_locked) = lock_folder(&self.path) else { return };
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects to the process that listens at the path that `key` names, or returns `None` if no process listens: there is
/// no file, or a crash left it behind.
pub(crate) async fn connect(key: &str, path: &Path) -> anyhow::Result<Option<UnixStream>> {
    ensure_free_or_socket(key, path)?;
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{key}: cannot connect to {}", path.display())),
    }
}

/// Refuses a path at which a process listens.
pub(crate) async fn ensure_nobody_listens(key: &str, path: &Path) -> anyhow::Result<()> {
    match connect(key, path).await? {
        Some(_) => bail!("{key}: another process listens at {}; expected a path of its own", path.display()),
        None => Ok(()),
    }
}

fn ensure_free_or_socket(key: &str, path: &Path) -> anyhow::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => Ok(()),
        Ok(_) => {
            bail!("{key}: {} is not a socket; remove it, or name another path", path.display())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("{key}: cannot look at {}", path.display())),
    }
}

/// Locks the folder of a path until the file is dropped. Whoever may read the folder can hold the lock, so the wait has a
/// bound.
fn lock_folder(path: &Path) -> anyhow::Result<File> {
    let lock = || -> std::io::Result<File> {
        let folder = File::open(folder_of(path))?;
        let mut attempts = 1;
        while let Err(error) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            if attempts == LOCK_ATTEMPTS || error != Errno::WOULDBLOCK {
                return Err(error.into());
            }
            attempts += 1;
            thread::sleep(LOCK_RETRY);
        }
        Ok(folder)
    };
    lock().with_context(|| format!("cannot lock {}", folder_of(path).display()))
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a folder whose owner could replace the socket. Other users who may write to it can only interfere: they can
/// hide the socket, but neither connect to it nor, in a hot restart, take its place, because both sides ask the kernel
/// for the identity of the other.
fn ensure_folder_is_trusted(key: &str, path: &Path) -> anyhow::Result<()> {
    let folder = folder_of(path);
    // A missing folder fails later, with an error of its own.
    let Ok(there) = fs::metadata(folder) else { return Ok(()) };
    let is_trusted = there.uid() == 0 || there.uid() == rustix::process::geteuid().as_raw();
    let (folder, uid) = (folder.display(), there.uid());
    ensure!(is_trusted, "{key}: {folder} belongs to user {uid}; expected a folder of this user or of root");
    Ok(())
}

/// Removes a socket that an earlier process of this user with the same pid has left behind, and nothing else.
fn remove_own_leftover(temporary: &Path) -> anyhow::Result<()> {
    let there = match fs::symlink_metadata(temporary) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    let is_own = there.file_type().is_socket() && there.uid() == rustix::process::geteuid().as_raw();
    ensure!(is_own, "{} is not a socket of this user; remove it", temporary.display());
    Ok(fs::remove_file(temporary)?)
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const KEY: &str = "router.hot_restart_socket";

    fn claim(path: &Path) -> anyhow::Result<SocketPath> {
        SocketPath::claim(KEY, path)
    }

    async fn reach(path: &Path) -> anyhow::Result<Option<UnixStream>> {
        connect(KEY, path).await
    }

    #[tokio::test]
    async fn only_its_user_can_connect_and_only_its_own_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.sock");
        assert!(reach(&path).await.unwrap().is_none());
        let first = claim(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(reach(&path).await.unwrap().is_some());
        let second = claim(&path).unwrap();
        first.release();
        assert!(reach(&path).await.unwrap().is_some());
        second.release();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_file_that_is_not_its_own_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.sock");
        let temporary = folder.path().join(format!("r.sock.{}", std::process::id()));
        let precious = folder.path().join("precious");
        fs::write(&precious, "data").unwrap();
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
        for link in [true, false] {
            if link {
                symlink(&precious, &temporary).unwrap()
            } else {
                fs::write(&temporary, "data").unwrap()
            }
            let error = format!("{:#}", claim(&path).unwrap_err());
            assert!(error.contains("is not a socket of this user"), "{error}");
            fs::remove_file(&temporary).unwrap();
        }
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o644);
        // As in a container: a process with the same pid has crashed before it renamed its socket.
        drop(StdListener::bind(&temporary).unwrap());
        drop(claim(&path).unwrap());
    }

    #[tokio::test]
    async fn no_file_is_removed_while_another_process_compares_and_one_is_placed_without_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.sock");
        let (first, second) = (claim(&path).unwrap(), claim(&path).unwrap());
        // As another process holds it from its comparison to its removal.
        let comparing = lock_folder(&path).unwrap();
        second.release();
        assert!(path.exists(), "nobody knows whose file it is by now");
        let third = claim(&path).unwrap();
        assert!(reach(&path).await.unwrap().is_some());
        drop(comparing);
        third.release();
        assert!(!path.exists());
        first.release();
        claim(&path).unwrap().release();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_somebody_removes_comes_back_and_so_does_its_folder() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("run");
        let path = folder.join("r.sock");
        fs::create_dir(&folder).unwrap();
        let mut socket = claim(&path).unwrap();
        let accepting = async {
            loop {
                socket.accept().await.unwrap();
            }
        };
        let removing = async {
            let comes_back = async || {
                tokio::time::sleep(3 * LOOK_EVERY).await;
                assert!(reach(&path).await.unwrap().is_some());
            };
            fs::remove_file(&path).unwrap();
            comes_back().await;
            fs::remove_dir_all(&folder).unwrap();
            tokio::time::sleep(3 * LOOK_EVERY).await;
            fs::create_dir(&folder).unwrap();
            comes_back().await;
            let replacement = claim(&path).unwrap();
            tokio::time::sleep(3 * LOOK_EVERY).await;
            assert!(
                identity(&path).is_ok_and(|there| there == replacement.identity),
                "another process's is left alone"
            );
        };
        tokio::select! {
            () = accepting => {}
            () = removing => {}
        }
    }

    #[tokio::test]
    async fn a_socket_that_cannot_be_put_back_is_known_to_be_missing_until_it_is_back() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("run");
        let path = folder.join("r.sock");
        fs::create_dir(&folder).unwrap();
        let mut socket = claim(&path).unwrap();
        socket.restore();
        assert!(!socket.is_missing);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "data").unwrap();
        socket.restore();
        assert!(socket.is_missing, "another file is in its place");
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        socket.is_missing = false;
        socket.restore();
        assert!(socket.is_missing, "a file is in the place of its folder");
        fs::remove_file(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        socket.restore();
        assert!(!socket.is_missing && reach(&path).await.unwrap().is_some());
    }

    /// Only root can give a folder away.
    #[tokio::test]
    async fn a_folder_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(folder.path(), Some(12_345), None).is_err() {
            return;
        }
        let error = format!("{:#}", claim(&folder.path().join("r.sock")).unwrap_err());
        assert!(error.contains("belongs to user 12345"), "{error}");
    }

    #[tokio::test]
    async fn a_socket_that_a_crash_left_is_replaced_and_any_other_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(reach(&path).await.unwrap().is_none());
        drop(claim(&path).unwrap());
        assert!(reach(&path).await.unwrap().is_none());
        let file = folder.path().join("precious");
        fs::write(&file, "data").unwrap();
        for error in [reach(&file).await.unwrap_err(), claim(&file).unwrap_err()] {
            assert!(error.to_string().contains("precious is not a socket"), "{error:#}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "data");
        let nowhere = claim(&folder.path().join("no/r.sock")).unwrap_err();
        assert!(format!("{nowhere:#}").contains("router.hot_restart_socket: cannot put a socket at"), "{nowhere:#}");
    }
}
