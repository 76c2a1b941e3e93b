//! Clients of which something arrives that TLS cannot open before more does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::front::plain_pod;
use super::{Authorities, fixture};
use crate::support::{Fixture, GET, P0, soon};

const KIB: usize = 1 << 10;
/// What all heads of a worker that have not ended take up at most.
const MOST: usize = 16 << 20;

/// A router that gives heads more time than the tests have.
fn patient(authorities: &Authorities) -> Fixture {
    fixture(Some(authorities.server(None)), None, |settings| {
        settings.forward.limits.header_read_timeout = Duration::from_secs(600);
    })
}

fn connector(authorities: &Authorities, protocol: &str) -> TlsConnector {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&authorities.ours.file).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = if protocol.is_empty() { Vec::new() } else { vec![protocol.as_bytes().to_vec()] };
    TlsConnector::from(Arc::new(config))
}

async fn shake_hands(connector: &TlsConnector, stream: TcpStream) -> TlsStream<TcpStream> {
    soon(connector.connect(ServerName::try_from("localhost").unwrap(), stream)).await.unwrap()
}

async fn connect(connector: &TlsConnector, fixture: &Fixture) -> TlsStream<TcpStream> {
    shake_hands(connector, TcpStream::connect(fixture.address).await.unwrap()).await
}

/// Sends a request and reads the answer.
async fn is_served(stream: &mut TlsStream<TcpStream>) {
    stream.write_all(GET.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"https 0") {
        assert_ne!(soon(stream.read_buf(&mut answer)).await.unwrap(), 0, "{}", answer.escape_ascii());
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", answer.escape_ascii());
}

/// A part of a record that holds as much as it may.
fn unfinished_record() -> Vec<u8> {
    [&[23, 3, 3, 0x40, 0][..], &[b'z'; 16_300]].concat()
}

#[tokio::test]
async fn hellos_that_do_not_end_are_bounded_over_all_clients() {
    let (authorities, pod) = (Authorities::new(), plain_pod().await);
    let fixture = patient(&authorities);
    fixture.route(P0, pod.address, 1);
    let silent = TcpStream::connect(fixture.address).await.unwrap();
    let message = [&[1, 0, 0xff, 0xf0, 3, 3][..], &[b'a'; 60_000]].concat();
    let records: Vec<u8> = message
        .chunks(16_000)
        .flat_map(|part| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat())
        .collect();
    let clients = 400;
    let mut ends: FuturesUnordered<_> = (0..clients)
        .map(|_| async {
            let mut client = TcpStream::connect(fixture.address).await.unwrap();
            // The router may have closed before it has read all of it.
            let _ = client.write_all(&records).await;
            let _ = client.read_to_end(&mut Vec::new()).await;
        })
        .collect();
    for _ in 0..clients - MOST / (64 * KIB) {
        soon(ends.next()).await.unwrap();
    }
    is_served(&mut shake_hands(&connector(&authorities, "http/1.1"), silent).await).await;
}

#[tokio::test]
async fn records_that_do_not_end_are_bounded_over_all_clients() {
    for (protocol, first) in
        [("", ""), ("http/1.1", ""), ("h2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")]
    {
        let (authorities, pod) = (Authorities::new(), plain_pod().await);
        let fixture = patient(&authorities);
        fixture.route(P0, pod.address, 1);
        let mut idle = connect(&connector(&authorities, "http/1.1"), &fixture).await;
        is_served(&mut idle).await;
        let connector = connector(&authorities, protocol);
        let clients = MOST / (32 * KIB) + 40;
        let mut ends = FuturesUnordered::new();
        for _ in 0..clients {
            let mut client = connect(&connector, &fixture).await;
            client.write_all(first.as_bytes()).await.unwrap();
            client.flush().await.unwrap();
            client.get_mut().0.write_all(&unfinished_record()).await.unwrap();
            ends.push(async move {
                let _ = client.read_to_end(&mut Vec::new()).await;
            });
        }
        for _ in 0..clients - MOST / (32 * KIB) {
            soon(ends.next()).await.unwrap();
        }
        is_served(&mut idle).await;
    }
}

#[tokio::test]
async fn a_record_that_does_not_end_has_as_long_as_a_head() {
    let authorities = Authorities::new();
    let fixture = fixture(Some(authorities.server(None)), None, |settings| {
        settings.forward.limits.header_read_timeout = Duration::from_millis(200);
    });
    let mut client = connect(&connector(&authorities, "http/1.1"), &fixture).await;
    client.get_mut().0.write_all(&unfinished_record()).await.unwrap();
    let mut answer = String::new();
    let _ = soon(client.read_to_string(&mut answer)).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[tokio::test]
async fn a_client_by_tls_that_leaves_is_noticed_wherever_its_bytes_end() {
    let authorities = Authorities::new();
    let fixture = patient(&authorities);
    let connector = connector(&authorities, "http/1.1");
    for behind in [0, 10, 50_000] {
        for says_so in [true, false] {
            let mut client = connect(&connector, &fixture).await;
            client.write_all(GET.as_bytes()).await.unwrap();
            fixture.held(P0, 1).await;
            client.write_all(&vec![b'x'; behind]).await.unwrap();
            client.flush().await.unwrap();
            if says_so {
                client.shutdown().await.unwrap();
            }
            drop(client);
            fixture.held(P0, 0).await;
        }
    }
}
