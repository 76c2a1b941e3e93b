//! The client: sends one request at a time on one connection.
//!
//! By HTTP/2 it uses HPACK's dynamic table as clients do: the first request adds its headers, and later ones refer to
//! them.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, ensure};

use crate::load::{BODY_BYTES, Load};
use crate::pod::{Frame, MAX_WINDOW_INCREMENT, TIMEOUT, content_length, encode, read_more, read_until};

const PATH: &str = "/256?id=1";
const AUTHORITY: &str = "localhost";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Sends `requests` requests to the router and reads the responses.
pub(crate) fn play(load: &Load, router: SocketAddr, requests: u32) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(router).with_context(|| format!("no router at {router}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    if load.http2 { by_http2(load, &mut stream, requests) } else { by_http1(load, &mut stream, requests) }
}

fn by_http1(load: &Load, stream: &mut TcpStream, requests: u32) -> anyhow::Result<()> {
    let mut request = format!("{} {PATH} HTTP/1.1\r\nhost: {AUTHORITY}\r\n", load.method());
    for (name, value) in load.headers() {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    if load.options {
        (0..80).for_each(|number| request.push_str(&format!("x-header-{number:02}: value\r\n")));
        let options: Vec<String> = (0..32).map(|number| format!("x-option-{number:02}")).collect();
        request.push_str(&format!("connection: {}\r\n", options.join(", ")));
    }
    if load.post {
        request.push_str(&format!("\r\n{}", "x".repeat(BODY_BYTES)));
    } else {
        request.push_str("\r\n");
    }
    for _ in 0..requests {
        stream.write_all(request.as_bytes())?;
        let mut read = Vec::new();
        let head = read_until(stream, &mut read, b"\r\n\r\n").context("a response")?;
        let text = std::str::from_utf8(&read[..head])?;
        ensure!(text.starts_with("HTTP/1.1 200 "), "expected a response with 200, got {text:?}");
        let length = content_length(text)?;
        ensure!(length == BODY_BYTES, "expected a response of {BODY_BYTES} bytes, got {text:?}");
        while read.len() < head + length {
            read_more(stream, &mut read).context("the rest of a response")?;
        }
    }
    Ok(())
}

fn by_http2(load: &Load, stream: &mut TcpStream, requests: u32) -> anyhow::Result<()> {
    let mut first = PREFACE.to_vec();
    first.extend(encode(Frame::SETTINGS, 0, 0, &[]));
    first.extend(encode(Frame::WINDOW_UPDATE, 0, 0, &MAX_WINDOW_INCREMENT));
    stream.write_all(&first)?;
    for (index, id) in (0..requests).map(|index| (index, 2 * index + 1)) {
        let block = head_block(load, index == 0);
        let mut request = if load.post {
            encode(Frame::HEADERS, Frame::END_HEADERS, id, &block)
        } else {
            encode(Frame::HEADERS, Frame::END_HEADERS | Frame::END_STREAM, id, &block)
        };
        if load.post {
            request.extend(encode(Frame::DATA, Frame::END_STREAM, id, &[b'x'; BODY_BYTES]));
        }
        stream.write_all(&request)?;
        let mut data = 0;
        loop {
            let frame = Frame::read(stream).context("a response")?;
            ensure!(frame.kind != Frame::RST_STREAM, "the router has reset the stream");
            ensure!(frame.kind != Frame::GOAWAY, "the router has ended the connection");
            if frame.kind == Frame::SETTINGS && frame.flags & Frame::ACK == 0 {
                stream.write_all(&encode(Frame::SETTINGS, Frame::ACK, 0, &[]))?;
            }
            if frame.kind == Frame::DATA {
                data += frame.payload.len();
            }
            if frame.stream == id && frame.ends_stream() {
                break;
            }
        }
        ensure!(data == BODY_BYTES, "expected a response of {BODY_BYTES} bytes, got {data}");
    }
    Ok(())
}

/// Encodes the head of a request. Only the first one adds its headers to the table.
fn head_block(load: &Load, is_first: bool) -> Vec<u8> {
    // Of the static table: the method, and the scheme `http`.
    let mut block = vec![if load.post { 0x83 } else { 0x82 }, 0x86];
    let fields = load.headers();
    if is_first {
        // With indexing: the names `:path` (4) and `:authority` (1), then new names.
        literal(&mut block, 0x44, &[PATH]);
        literal(&mut block, 0x41, &[AUTHORITY]);
        fields.iter().for_each(|(name, value)| literal(&mut block, 0x40, &[name, value]));
    } else {
        // The newest entry of the dynamic table is number 62.
        let entries = fields.len() as u8 + 2;
        block.extend((0..entries).rev().map(|newer| 0x80 | (62 + newer)));
    }
    block
}

fn literal(block: &mut Vec<u8>, first: u8, strings: &[&str]) {
    block.push(first);
    for string in strings {
        block.push(string.len() as u8);
        block.extend_from_slice(string.as_bytes());
    }
}
