//! Notices by TCP that a peer's machine, or the way to it, has gone.
//!
//! HTTP/2 pings would notice it too, and a process that hangs besides. But servers of gRPC take a ping while nothing else is sent
//! for abuse, and end the connection with all of its exchanges at the third one. A process that hangs is left to the bounds on
//! its exchanges.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// How long what was sent may stay unacknowledged, or untaken by a peer that reads nothing. HTTP/2 has windows of its own, so its
/// servers always read.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes the kernel end an HTTP/2 connection whose peer is gone, within half a minute.
pub(crate) fn end_without_peer(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL).with_retries(PROBES);
    // Fails only for a socket that is gone.
    let _ = socket.set_tcp_keepalive(&probes);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
}
