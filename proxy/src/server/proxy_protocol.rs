//! Reads the PROXY protocol, versions 1 and 2, by which a load balancer names the client of a connection.
//!
//! It precedes all other bytes of the connection, those of a TLS handshake too.
//!
//! # Invariants
//!
//! * No byte behind the header is read.
//! * A header is at most [`MAX_BYTES`] long. Whatever is none by the rules ends the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt as _};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The fixed part of a header of version 2.
const FIXED_BYTES: usize = 16;
/// The shortest header of version 1: `PROXY UNKNOWN` and its end of line.
const SHORTEST_LINE_BYTES: usize = 15;
/// The longest header of version 1.
const LONGEST_LINE_BYTES: usize = 107;
/// Most bytes of a header of version 2 behind its fixed part. Balancers add some hundred bytes of their own.
const MAX_BYTES: usize = 4 << 10;

/// Why a header cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    /// The bytes are no header.
    #[error("the connection does not begin with a header of the PROXY protocol")]
    Malformed,
    /// The header is too long.
    #[error("the header of the PROXY protocol is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// The connection has ended in the midst of it.
    #[error("the connection ended before the header of the PROXY protocol was complete")]
    Ended(#[from] std::io::Error),
}

use HeaderError::{Malformed, TooLong};

/// Reads the header. Returns the client's address, unless the connection is the balancer's own, such as a health check, or
/// its client's address is none of IP.
pub(super) async fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<IpAddr>, HeaderError> {
    let mut header = vec![0; SHORTEST_LINE_BYTES];
    stream.read_exact(&mut header).await?;
    if !header.starts_with(SIGNATURE) {
        if !header.starts_with(b"PROXY ") {
            return Err(Malformed);
        }
        // Byte by byte, because what follows the line belongs to the client.
        while !header.ends_with(b"\n") {
            if header.len() == LONGEST_LINE_BYTES {
                return Err(Malformed);
            }
            header.push(stream.read_u8().await?);
        }
        return read_line(&header);
    }
    header.push(stream.read_u8().await?);
    let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
    if length > MAX_BYTES {
        return Err(TooLong);
    }
    header.resize(FIXED_BYTES + length, 0);
    stream.read_exact(&mut header[FIXED_BYTES..]).await?;
    read_binary(&header)
}

/// Reads a header of version 1.
fn read_line(line: &[u8]) -> Result<Option<IpAddr>, HeaderError> {
    let text = std::str::from_utf8(line).ok().and_then(|line| line.strip_suffix("\r\n")).ok_or(Malformed)?;
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        ["PROXY", family, source, destination, source_port, destination_port] => {
            let ip = |text: &str| text.parse::<IpAddr>().map_err(|_| Malformed);
            let (source, destination) = (ip(source)?, ip(destination)?);
            let are_ports = [source_port, destination_port].iter().all(|port| port.parse::<u16>().is_ok());
            let is_family = match family {
                "TCP4" => source.is_ipv4() && destination.is_ipv4(),
                "TCP6" => source.is_ipv6() && destination.is_ipv6(),
                _ => false,
            };
            if is_family && are_ports { Ok(Some(source)) } else { Err(Malformed) }
        }
        _ => Err(Malformed),
    }
}

/// Reads a header of version 2, complete.
fn read_binary(header: &[u8]) -> Result<Option<IpAddr>, HeaderError> {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    let (fixed, addresses) = header.split_at_checked(FIXED_BYTES).ok_or(Malformed)?;
    match (fixed[12], fixed[13] >> 4) {
        (LOCAL, _) => Ok(None),
        // Two addresses and two ports.
        (PROXY, 1) if addresses.len() >= 12 => {
            let source = addresses.first_chunk::<4>().ok_or(Malformed)?;
            Ok(Some(Ipv4Addr::from(*source).into()))
        }
        (PROXY, 2) if addresses.len() >= 36 => {
            let source = addresses.first_chunk::<16>().ok_or(Malformed)?;
            Ok(Some(Ipv6Addr::from(*source).into()))
        }
        // No address, or one of a Unix socket.
        (PROXY, 0 | 3) => Ok(None),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns what the header says, and what is left behind it.
    fn read(bytes: &[u8]) -> (Result<Option<IpAddr>, HeaderError>, Vec<u8>) {
        let mut stream = bytes;
        let read = futures_util::FutureExt::now_or_never(read_header(&mut stream)).unwrap();
        (read, stream.to_vec())
    }

    fn binary(command: u8, family: u8, behind: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[command, family], &(behind.len() as u16).to_be_bytes(), behind].concat()
    }

    #[test]
    fn headers_name_their_client_and_leave_what_follows() {
        let v4 = [&[203, 0, 113, 7, 10, 0, 0, 1, 0x12, 0x67, 0, 80][..], b"\x03\0\x01x"].concat();
        let v6: Vec<u8> = [[0x20; 16], [1; 16]].concat().into_iter().chain([0, 1, 0, 2]).collect();
        let v6_address = IpAddr::from([0x20; 16]);
        for (header, expected) in [
            (b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 80\r\n".to_vec(), Some([203, 0, 113, 7].into())),
            (b"PROXY TCP6 2001:db8::7 ::1 4711 80\r\n".to_vec(), Some("2001:db8::7".parse().unwrap())),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), Some([203, 0, 113, 7].into())),
            (binary(0x21, 0x21, &v6), Some(v6_address)),
            (binary(0x20, 0, b""), None),
            (binary(0x20, 0x11, &v4), None),
            (binary(0x21, 0, b""), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            let (address, left) = read(&[&header[..], b"GET /"].concat());
            assert_eq!(address.unwrap(), expected, "{}", header.escape_ascii());
            assert_eq!(left, b"GET /");
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for bytes in [
            b"GET / HTTP/1.1\r\nhost: h\r\n\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 4711\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 80\nx".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 65536\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
            b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n".to_vec(),
            [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(),
            binary(0x21, 0x11, &[0; 11]),
            binary(0x21, 0x21, &[0; 35]),
            binary(0x22, 0x11, &[0; 12]),
            binary(0x11, 0x11, &[0; 12]),
            binary(0x21, 0x11, &vec![0; MAX_BYTES + 1]),
            binary(0x21, 0x11, &[0; 12])[..20].to_vec(),
            b"PROXY".to_vec(),
        ] {
            assert!(read(&bytes).0.is_err(), "{}", bytes.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, behind: Vec<u8>) {
            let _ = read(&bytes);
            let _ = read(&[b"PROXY TCP4 ", &bytes[..]].concat());
            let _ = read(&[&SIGNATURE[..], &bytes].concat());
            let _ = read_line(&bytes);
            let _ = read_binary(&binary(0x21, 0x11, &behind));
        }
    }
}
