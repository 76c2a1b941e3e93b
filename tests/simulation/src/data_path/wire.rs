//! HTTP/1.1 as the scripted clients and pods write and read it: whole messages, nothing lenient.

use std::io::{self, ErrorKind};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A connection.
pub(super) struct Wire {
    stream: TcpStream,
    buffer: BytesMut,
}

/// The start line and the fields of a message.
pub(super) struct Head {
    start: String,
    fields: Vec<(String, String)>,
}

impl Head {
    /// Returns the value of a field, by its name in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Returns the second word of the start line: a status, or a target.
    pub(super) fn second(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    pub(super) fn closes(&self) -> bool {
        self.get("connection") == Some("close")
    }

    fn is_chunked(&self) -> bool {
        self.get("transfer-encoding") == Some("chunked")
    }
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Wire { stream, buffer: BytesMut::new() }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Ends the connection with a reset.
    pub(super) fn reset(self) {
        let _ = self.stream.set_zero_linger();
    }

    /// Reads the next head. `None`: the peer has closed before it.
    pub(super) async fn head(&mut self) -> io::Result<Option<Head>> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end;
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        };
        let head = self.buffer.split_to(end);
        self.buffer.advance(4);
        let text = std::str::from_utf8(&head).map_err(io::Error::other)?;
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let fields = lines.filter_map(|line| line.split_once(": "));
        Ok(Some(Head { start, fields: fields.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect() }))
    }

    /// Reads the body behind a head. Without a length there is none.
    pub(super) async fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        if head.is_chunked() {
            return self.chunks().await;
        }
        match head.get("content-length") {
            Some(length) => self.exactly(length.parse().map_err(io::Error::other)?).await,
            None => Ok(Vec::new()),
        }
    }

    /// Reads until the peer closes, for a while at most.
    pub(super) async fn rest(&mut self) {
        let all = async { while self.stream.read_buf(&mut self.buffer).await.is_ok_and(|read| read > 0) {} };
        let _ = tokio::time::timeout(Duration::from_secs(10), all).await;
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let length = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
            if length == 0 {
                while !self.line().await?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.exactly(length).await?);
            self.line().await?;
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|bytes| bytes == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.advance(end + 2);
                return Ok(line);
            }
            self.more().await?;
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            self.more().await?;
        }
        Ok(self.buffer.split_to(length).to_vec())
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Returns a body in one chunk or two.
pub(super) fn chunked(body: &[u8]) -> Vec<u8> {
    let (first, second) = body.split_at(body.len() / 2);
    let mut chunks = Vec::new();
    for piece in [first, second].into_iter().filter(|piece| !piece.is_empty()) {
        chunks.extend(format!("{:x}\r\n", piece.len()).into_bytes());
        chunks.extend(piece);
        chunks.extend(b"\r\n");
    }
    chunks.extend(b"0\r\n\r\n");
    chunks
}
