//! A pod that answers every request at once, and the frames of HTTP/2 that it and the client exchange.
//!
//! It reads only the header `content-length`, because the router is what is measured.

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::load::BODY_BYTES;

/// Longer than any response takes under callgrind.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Raises a connection's window from its first 65,535 bytes to the largest one.
pub(crate) const MAX_WINDOW_INCREMENT: [u8; 4] = (0x7fff_ffff_u32 - 0xffff).to_be_bytes();

/// Starts a pod that runs until this process ends. Returns its address.
pub(crate) fn start(http2: bool) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen for the pod")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                if let Err(error) = if http2 { by_http2(stream) } else { by_http1(stream) } {
                    eprintln!("instructions: a pod cannot answer: {error:#}");
                }
            });
        }
    });
    Ok(address)
}

/// Answers until the router closes the connection.
fn by_http1(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let response = format!(
        "HTTP/1.1 200 OK\r\nServer: pod/1.0\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: {BODY_BYTES}\r\nConnection: keep-alive\r\n\r\n{}",
        "y".repeat(BODY_BYTES)
    );
    let mut read = Vec::new();
    while stream.peek(&mut [0])? > 0 {
        let head = read_until(&mut stream, &mut read, b"\r\n\r\n")?;
        let text = std::str::from_utf8(&read[..head])?;
        ensure!(!text.contains("transfer-encoding"), "expected a body of known length, got {text:?}");
        let end = head + content_length(text)?;
        while read.len() < end {
            read_more(&mut stream, &mut read)?;
        }
        read.drain(..end);
        stream.write_all(response.as_bytes())?;
    }
    Ok(())
}

/// Answers until the router closes the connection.
fn by_http2(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    stream.read_exact(&mut [0; 24]).context("the preface")?;
    let mut first = encode(Frame::SETTINGS, 0, 0, &[]);
    first.extend(encode(Frame::WINDOW_UPDATE, 0, 0, &MAX_WINDOW_INCREMENT));
    stream.write_all(&first)?;
    // Of HPACK's static table: `:status: 200`, and the name `content-type`. All literals go without indexing.
    let head = [&[0x88, 0x0f, 0x10, 16][..], b"application/grpc"].concat();
    let trailers = [&[0, 11][..], b"grpc-status", &[1], b"0"].concat();
    while stream.peek(&mut [0])? > 0 {
        let read = Frame::read(&mut stream)?;
        if read.kind == Frame::SETTINGS && read.flags & Frame::ACK == 0 {
            stream.write_all(&encode(Frame::SETTINGS, Frame::ACK, 0, &[]))?;
        } else if read.kind == Frame::PING && read.flags & Frame::ACK == 0 {
            stream.write_all(&encode(Frame::PING, Frame::ACK, 0, &read.payload))?;
        } else if read.ends_stream() {
            let mut response = encode(Frame::HEADERS, Frame::END_HEADERS, read.stream, &head);
            response.extend(encode(Frame::DATA, 0, read.stream, &[b'y'; BODY_BYTES]));
            let flags = Frame::END_HEADERS | Frame::END_STREAM;
            response.extend(encode(Frame::HEADERS, flags, read.stream, &trailers));
            stream.write_all(&response)?;
        }
    }
    Ok(())
}

/// Reads until `end` has arrived. Returns the offset after it.
pub(crate) fn read_until(stream: &mut TcpStream, read: &mut Vec<u8>, end: &[u8]) -> anyhow::Result<usize> {
    loop {
        if let Some(at) = read.windows(end.len()).position(|window| window == end) {
            return Ok(at + end.len());
        }
        read_more(stream, read)?;
    }
}

/// Reads once.
pub(crate) fn read_more(stream: &mut TcpStream, read: &mut Vec<u8>) -> anyhow::Result<()> {
    let mut more = [0; 4096];
    let count = stream.read(&mut more)?;
    ensure!(count > 0, "the connection has been closed");
    read.extend_from_slice(&more[..count]);
    Ok(())
}

/// Returns the `content-length` of a head, or 0 if it has none.
pub(crate) fn content_length(head: &str) -> anyhow::Result<usize> {
    let stated = head.lines().filter_map(|line| line.split_once(':'));
    let mut stated = stated.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    stated.next().map_or(Ok(0), |(_, length)| length.trim().parse().with_context(|| format!("a length in {head:?}")))
}

/// A frame of HTTP/2.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;

    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;

    pub(crate) fn read(stream: &mut impl Read) -> anyhow::Result<Self> {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream_id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload)?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream_id), payload })
    }

    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, Self::DATA | Self::HEADERS) && self.flags & Self::END_STREAM != 0
    }
}

/// Encodes a frame.
pub(crate) fn encode(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
