//! The path at which a running process can be asked to hand over.
//!
//! What must stay true: the file belongs to one process; a process removes only its own; nobody but its user can connect
//! at any moment; it is exchanged in one step, so that there is always somebody to ask.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::{UnixListener, UnixStream};

use super::talk::Talk;

/// Newcomers that may wait to be heard.
const BACKLOG: i32 = 16;

/// A socket file of this process.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    listener: UnixListener,
    identity: (u64, u64),
}

impl Place {
    /// Puts a socket of this process at the path, in the place of whatever socket is there.
    pub(super) fn take(path: &Path) -> anyhow::Result<Self> {
        is_free_or_a_socket(path)?;
        Self::put(path).with_context(|| format!("router.handover: cannot put a socket at {}", path.display()))
    }

    fn put(path: &Path) -> anyhow::Result<Self> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{}", std::process::id()));
        let aside = PathBuf::from(aside);
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(&aside)?)?;
        // Nobody can connect before it listens, and nobody can find it before it has its name.
        let placed = || -> anyhow::Result<Self> {
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o600))?;
            let identity = identity(&aside)?;
            listen(&socket, BACKLOG)?;
            let listener = UnixListener::from_std(StdListener::from(socket))?;
            fs::rename(&aside, path)?;
            Ok(Place { path: path.to_owned(), listener, identity })
        };
        placed().inspect_err(|_| drop(fs::remove_file(&aside)))
    }

    /// Who comes next to ask.
    pub(super) async fn accept(&self) -> anyhow::Result<Talk> {
        let (stream, _) = self.listener.accept().await?;
        Talk::new(stream)
    }

    /// Removes the file, unless it is another process's by now.
    pub(super) fn leave(self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Who can be asked at the path; `None`: nobody, or a socket that a crash left behind.
pub(super) async fn ask(path: &Path) -> anyhow::Result<Option<Talk>> {
    is_free_or_a_socket(path)?;
    match UnixStream::connect(path).await {
        Ok(stream) => Talk::new(stream).map(Some),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("router.handover: cannot connect to {}", path.display())),
    }
}

fn is_free_or_a_socket(path: &Path) -> anyhow::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => Ok(()),
        Ok(_) => bail!("router.handover: {} is not a socket; remove it, or name another path", path.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("router.handover: cannot look at {}", path.display())),
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_its_user_can_connect_and_only_its_own_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.sock");
        assert!(ask(&path).await.unwrap().is_none());
        let first = Place::take(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(ask(&path).await.unwrap().is_some());
        let second = Place::take(&path).unwrap();
        first.leave();
        assert!(ask(&path).await.unwrap().is_some());
        second.leave();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn what_a_crash_left_is_replaced_and_what_is_no_socket_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(ask(&path).await.unwrap().is_none());
        drop(Place::take(&path).unwrap());
        assert!(ask(&path).await.unwrap().is_none());
        let file = folder.path().join("precious");
        fs::write(&file, "data").unwrap();
        for error in [ask(&file).await.unwrap_err(), Place::take(&file).unwrap_err()] {
            assert!(error.to_string().contains("precious is not a socket"), "{error:#}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "data");
        let nowhere = Place::take(&folder.path().join("no/r.sock")).unwrap_err();
        assert!(format!("{nowhere:#}").contains("router.handover: cannot put a socket at"), "{nowhere:#}");
    }
}
