//! Connections that misbehave: raw bytes, and HTTP/2 frames that no library would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// What every request begins its head with.
pub(crate) const H: &str = "host: h\r\nx-partition: 0\r\n";

/// The attackers' address, by its last byte.
pub(crate) const ATTACKER: u8 = 2;

fn socket(client: u8) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // A port that rests from an earlier connection may be used again.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from(([127, 0, 0, client], 0)))?;
    Ok(socket)
}

/// A connection.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
}

/// What came back, and whether the router hung up.
#[derive(Debug, Default, Clone)]
pub(crate) struct Came {
    pub(crate) bytes: Vec<u8>,
    pub(crate) closed: bool,
}

impl Came {
    /// The statuses of the answers, in order, as far as they begin a line.
    pub(crate) fn statuses(&self) -> Vec<u16> {
        let text = String::from_utf8_lossy(&self.bytes);
        let heads = text.match_indices("HTTP/1.1 ").map(|(at, _)| &text[at + 9..]);
        heads.filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
    }

    pub(crate) fn says(&self, what: &str) -> bool {
        String::from_utf8_lossy(&self.bytes).contains(what)
    }
}

impl Raw {
    /// From the attackers' address, which no well-behaved client has.
    pub(crate) async fn connect(to: SocketAddr) -> std::io::Result<Self> {
        Self::connect_from(ATTACKER, to).await
    }

    /// From an address of this machine, by its last byte.
    pub(crate) async fn connect_from(client: u8, to: SocketAddr) -> std::io::Result<Self> {
        let socket = socket(client)?;
        let stream = timeout(Duration::from_secs(5), socket.connect(to)).await??;
        stream.set_nodelay(true)?;
        Ok(Raw { stream })
    }

    /// With a window that takes hardly anything.
    pub(crate) async fn connect_narrow(to: SocketAddr) -> std::io::Result<Self> {
        let socket = socket(ATTACKER)?;
        socket.set_recv_buffer_size(4 << 10)?;
        Ok(Raw { stream: timeout(Duration::from_secs(5), socket.connect(to)).await?? })
    }

    /// False: the router takes no more, or nothing for a while.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>, patience: Duration) -> bool {
        matches!(timeout(patience, self.stream.write_all(bytes.as_ref())).await, Ok(Ok(())))
    }

    /// Reads until the router hangs up, or says nothing for so long, or has sent so much.
    pub(crate) async fn read(&mut self, patience: Duration, most: usize) -> Came {
        let mut came = Came::default();
        let mut buffer = vec![0; 64 << 10];
        while came.bytes.len() < most {
            match timeout(patience, self.stream.read(&mut buffer)).await {
                Err(_) => break,
                Ok(Ok(0) | Err(_)) => {
                    came.closed = true;
                    break;
                }
                Ok(Ok(length)) => came.bytes.extend_from_slice(&buffer[..length]),
            }
        }
        came
    }

    /// Reads until the router has answered or reset a stream of HTTP/2, ends the connection, or says nothing for so long.
    pub(crate) async fn read_answer(&mut self, patience: Duration) -> Said {
        let mut bytes = Vec::new();
        loop {
            let came = self.read(patience, 1).await;
            bytes.extend_from_slice(&came.bytes);
            let said = said(&bytes);
            let is_answered = said.answers + said.resets > 0 || said.goaway.is_some();
            if is_answered || came.closed || came.bytes.is_empty() {
                return said;
            }
        }
    }

    pub(crate) async fn ask(&mut self, bytes: impl AsRef<[u8]>, patience: Duration) -> Came {
        self.send(bytes, patience).await;
        self.read(patience, 1 << 20).await
    }
}

/// Types of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const ACK: u8 = 1;
/// Settings.
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The preface and the first settings.
pub(crate) fn preface(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> =
        settings.iter().flat_map(|(key, value)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &payload));
    bytes
}

/// A header block, every field as a literal that is never indexed, so that HPACK shrinks nothing.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            integer(&mut bytes, 0, 7, text.len());
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// An integer of HPACK behind the bits that say what it is.
pub(crate) fn integer(bytes: &mut Vec<u8>, what: u8, bits: u32, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        return bytes.push(what | value as u8);
    }
    bytes.push(what | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        bytes.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    bytes.push(rest as u8);
}

/// The fields of a request.
pub(crate) fn request<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields =
        vec![(":method", method), (":scheme", "http"), (":authority", "h"), (":path", path), ("x-partition", "0")];
    fields.extend(more);
    fields
}

/// The frames of a request without a body.
pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(&request("GET", path, &[])))
}

/// What a router has said on a connection.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) answers: usize,
    /// Answers with 200.
    pub(crate) ok: usize,
    pub(crate) resets: usize,
    /// The last error code of a reset.
    pub(crate) reset: Option<u32>,
    /// The error code, of the last one.
    pub(crate) goaway: Option<u32>,
    pub(crate) data: usize,
}

/// What the frames in these bytes say. What is cut off at the end is left out.
pub(crate) fn said(mut bytes: &[u8]) -> Said {
    let mut said = Said::default();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(payload) = rest.get(..length) else { break };
        let code =
            |at: usize| payload.get(at..at + 4).map(|code| u32::from_be_bytes([code[0], code[1], code[2], code[3]]));
        match head[3] {
            HEADERS => {
                said.answers += 1;
                // The static table's entry for `:status: 200`, perhaps behind a change of the table's size.
                said.ok += usize::from(payload.iter().take(3).any(|byte| *byte == 0x88));
            }
            DATA => said.data += length,
            RST_STREAM => {
                said.resets += 1;
                said.reset = code(0);
            }
            GOAWAY => said.goaway = code(4),
            _ => {}
        }
        bytes = &rest[length..];
    }
    said
}

/// The name of an error code of HTTP/2.
pub(crate) fn code(code: Option<u32>) -> &'static str {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    match code {
        None => "none",
        Some(code) => NAMES.get(code as usize).unwrap_or(&"unknown"),
    }
}
