//! The address at which a sidecar's service opens its stream.
//!
//! # Invariants
//!
//! * Only processes of this host can connect: the stream has neither TLS nor a token.

use std::net::SocketAddr;

use super::router::MAX_SOCKET_PATH_BYTES;
use crate::error::{Wrong, quoted};
use crate::reader::{ConfigReader, text};
use crate::validated::StreamListen;

pub(super) const KEY: &str = "pod.stream";

/// The hooks that the stream's tasks replace.
const HOOKS: [&str; 10] = [
    "pod.hooks.warm.url",
    "pod.hooks.sync.url",
    "pod.hooks.leaving.url",
    "pod.hooks.drain.url",
    "pod.hooks.release.url",
    "pod.hooks.checkpoint.url",
    "pod.hooks.load.url",
    "pod.warm_url",
    "pod.sync_url",
    "pod.release_url",
];

pub(super) fn read(r: &mut ConfigReader<'_>) -> Option<StreamListen> {
    let listen = r.read(KEY, |value| {
        const EXPECTED: &str = "expected a loopback address and a port, such as \"127.0.0.1:7071\", or unix: and an \
                                absolute path, such as \"unix:/run/segue/pod.sock\"";
        let text = text(value, EXPECTED)?;
        let wrong = |fact: &str| Wrong::new(format!("{} {fact}", quoted(text)), EXPECTED);
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                path if !path.starts_with('/') => Err(wrong("does not name a socket by an absolute path")),
                path if path.len() > MAX_SOCKET_PATH_BYTES => Err(wrong("names a socket by too long a path")),
                path => Ok(StreamListen::Unix(path.into())),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| wrong("is not an address to listen at"))?;
        if !address.ip().is_loopback() {
            return Err(wrong("can be reached from other hosts"));
        }
        Ok(StreamListen::Tcp(address))
    });
    if let Some(hook) = HOOKS.into_iter().find(|hook| r.is_given(KEY) && r.is_given(hook)) {
        let fact = format!("given in addition to {KEY} ({})", r.origin(KEY));
        r.report_key(hook, Wrong::new(fact, "expected one of them: the service gets its tasks by the stream"));
    }
    listen
}
