//! The settings of a sidecar's hooks, and the addresses at which a service can be called.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::header::HeaderName;
use segue_protocol::handoff::pod_reconcile::Callback;

/// The header that carries the content of `pod.hooks.secret_file`.
pub const SECRET_HEADER: HeaderName = HeaderName::from_static("segue-hook-secret");

const UNIX: &str = "unix";

/// Longest path of a socket, in bytes: Linux's limit without the terminating zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// The hooks of a service. `None` means that the service needs no call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookSettings {
    /// Get ready to own a partition.
    pub warm: Option<Hook>,
    /// Catch up with the old owner's last writes. With this hook the pod has the capability `sync`.
    pub sync: Option<Hook>,
    /// End the streams of a partition whose requests routers have stopped sending.
    pub leaving: Option<Hook>,
    /// End what outlives requests, before the partition moves away.
    pub drain: Option<Hook>,
    /// Release a partition.
    pub release: Option<Hook>,
    /// Make a checkpoint of a partition. With this hook the pod has the capability `checkpoint`.
    pub checkpoint: Option<Hook>,
    /// Report the load and the keys of partitions; called for heartbeats.
    pub load: Option<HookUrl>,
    /// Learn until when the service may write; called every few seconds.
    pub lease: Option<HookUrl>,
    /// The file with the secret that each call carries in the header [`SECRET_HEADER`]. Read for each call.
    pub secret_file: Option<PathBuf>,
}

impl HookSettings {
    /// Returns the hook for a callback.
    pub fn of(&self, callback: Callback) -> Option<&Hook> {
        match callback {
            Callback::Warm => self.warm.as_ref(),
            Callback::Sync => self.sync.as_ref(),
            Callback::Leaving => self.leaving.as_ref(),
            Callback::Drain => self.drain.as_ref(),
            Callback::Release => self.release.as_ref(),
            Callback::Checkpoint => self.checkpoint.as_ref(),
        }
    }
}

/// One hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The address of the hook.
    pub url: HookUrl,
    /// How long a call may take until the service is done, including all responses that report progress.
    pub timeout: Duration,
}

impl Hook {
    /// Returns the timeout of a hook that sets none: `warm` copies state, `sync`, `leaving` and `drain` are short because
    /// requests are held meanwhile, `release` frees the state, and nothing waits for `checkpoint` longer than
    /// `coordinator.checkpoint_timeout`.
    pub fn default_timeout(callback: Callback) -> Duration {
        Duration::from_secs(match callback {
            Callback::Warm => 300,
            Callback::Sync | Callback::Leaving | Callback::Drain => 30,
            Callback::Release | Callback::Checkpoint => 60,
        })
    }
}

/// The address of a hook: `http://host:port/path` or, on a unix socket, `unix:/socket:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookUrl(Arc<HookAddress>);

#[derive(Debug, PartialEq, Eq)]
struct HookAddress {
    text: String,
    /// A unix address has the scheme `unix` and the hexadecimal digits of its socket as authority. Other addresses are
    /// as written.
    uri: Uri,
}

impl HookUrl {
    fn new(text: &str, uri: Uri) -> Self {
        HookUrl(Arc::new(HookAddress { text: text.to_owned(), uri }))
    }

    /// Returns the URI for the client.
    pub(super) fn uri(&self) -> &Uri {
        &self.0.uri
    }
}

/// Why a text is not the address of a hook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookUrlError {
    /// Neither a URL with `http://` and a host nor a unix address.
    #[error("it is neither http://HOST:PORT/PATH nor unix:/SOCKET:/PATH")]
    Form,
    /// It has a user's name or password.
    #[error("it has credentials, which no request carries; use secret_file")]
    Credentials,
    /// The path of the socket does not begin with a slash.
    #[error("the path of its socket is not absolute")]
    RelativeSocket,
    /// The path of the socket is too long for the kernel.
    #[error("the path of its socket has more than {MAX_SOCKET_PATH} bytes")]
    LongSocket,
}

impl FromStr for HookUrl {
    type Err = HookUrlError;

    fn from_str(text: &str) -> Result<Self, HookUrlError> {
        let Some(unix) = text.strip_prefix("unix:") else {
            let uri: Uri = text.parse().map_err(|_| HookUrlError::Form)?;
            // A password in a URL would be printed in logs, and no request would carry it.
            if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
                return Err(HookUrlError::Credentials);
            }
            let is_usable = uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty());
            return is_usable.then(|| HookUrl::new(text, uri)).ok_or(HookUrlError::Form);
        };
        // As curl and Docker write it: unix:///socket.
        let unix = unix.strip_prefix("//").unwrap_or(unix);
        let (socket, path) = unix.split_once(":/").unwrap_or((unix, ""));
        if !socket.starts_with('/') {
            return Err(HookUrlError::RelativeSocket);
        }
        if socket.len() > MAX_SOCKET_PATH {
            return Err(HookUrlError::LongSocket);
        }
        // The pool distinguishes connections by their authority, so the authority contains the encoded socket.
        let authority: String = socket.bytes().map(|byte| format!("{byte:02x}")).collect();
        let uri = format!("{UNIX}://{authority}/{path}").parse().map_err(|_| HookUrlError::Form)?;
        Ok(HookUrl::new(text, uri))
    }
}

impl fmt::Display for HookUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.text)
    }
}

/// Returns the path of the socket that this URI stands for; `None` if it names a host.
pub(super) fn socket_of(uri: &Uri) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let encoded = uri.host().filter(|_| uri.scheme_str() == Some(UNIX))?;
    let bytes = (0..encoded.len() / 2).map(|at| u8::from_str_radix(encoded.get(2 * at..2 * at + 2)?, 16).ok());
    Some(std::ffi::OsString::from_vec(bytes.collect::<Option<_>>()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_address_names_a_socket_and_a_path_on_it() {
        for (text, socket, path) in [
            ("unix:/run/a.sock:/segue/warm?x=1", "/run/a.sock", "/segue/warm?x=1"),
            ("unix:///run/a.sock:/v1/warm:run", "/run/a.sock", "/v1/warm:run"),
            ("unix:/run/a.sock", "/run/a.sock", "/"),
        ] {
            let url: HookUrl = text.parse().unwrap();
            assert_eq!(socket_of(url.uri()), Some(socket.into()), "{text}");
            assert_eq!(url.uri().path_and_query().unwrap(), path);
            assert_eq!(url.to_string(), text);
        }
    }

    #[test]
    fn a_host_is_no_socket_whatever_its_name() {
        assert_eq!(socket_of("http://2f61/".parse::<HookUrl>().unwrap().uri()), None);
    }

    #[test]
    fn an_address_that_cannot_be_called_is_refused() {
        for bad in ["https://host/", "/path", "ftp://host/", "http://", "host:80", ""] {
            assert_eq!(bad.parse::<HookUrl>(), Err(HookUrlError::Form), "{bad}");
        }
        assert_eq!("unix:run/a.sock:/x".parse::<HookUrl>(), Err(HookUrlError::RelativeSocket));
        assert_eq!("http://ann:secret@host/x".parse::<HookUrl>(), Err(HookUrlError::Credentials));
        let long = format!("unix:/{}", "x".repeat(MAX_SOCKET_PATH));
        assert_eq!(long.parse::<HookUrl>(), Err(HookUrlError::LongSocket));
    }
}
