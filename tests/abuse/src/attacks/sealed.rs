//! Bytes that the router's TLS cannot open, or need not yet. They cost memory below everything that looks at requests.

use std::time::Duration;

use anyhow::ensure;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{Got, LASTS, Target};
use crate::cluster::HEAD_TIMEOUT;
use crate::gauge::{Peak, rss_kib};
use crate::wire::{H, Raw};

const CLIENTS: usize = 2_000;
/// Fewer than one address may have in flight.
const ASKING: usize = 900;
/// What two workers may take for heads that have not ended, and half as much again for what goes with that.
const MOST_KIB: u64 = 48 << 10;
/// What new connections may take at their peak, while those beyond the bound are being closed. 60 to 100 MiB were measured, and
/// 143 MiB without a bound.
const PEAK_KIB: u64 = 120 << 10;
/// What requests in progress may take: each a read of 32 KiB, and the record of 16 KiB that it ends in. Of what clients send
/// behind them nothing more is read: 100 KB each would be 88 MiB.
const BEHIND_KIB: u64 = 48 * ASKING as u64;
/// How long all of them may take on a slow machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// How many connections are made at a time.
const AT_A_TIME: usize = 50;

/// Plays `attack`. Returns how much more memory the router took than before, in KiB.
async fn growth(target: &Target, attack: impl Future<Output = ()>) -> u64 {
    let before = rss_kib(target.secure_pid);
    let peak = Peak::watch(target.secure_pid);
    attack.await;
    peak.end().saturating_sub(before)
}

/// Makes connections whose handshake is complete.
async fn shaken(target: &Target, how_many: usize) -> anyhow::Result<Vec<TlsStream<TcpStream>>> {
    let one = async || {
        let name = ServerName::try_from("localhost")?;
        anyhow::Ok(target.connector.connect(name, Raw::connect(target.secure).await?.stream).await?)
    };
    let made = stream::iter(0..how_many).map(|_| one()).buffer_unordered(AT_A_TIME);
    let made: Vec<_> = made.filter_map(async |made| made.ok()).collect().await;
    ensure!(made.len() == how_many, "only {} of {how_many} handshakes", made.len());
    Ok(made)
}

/// Hellos that lack a little.
pub(super) async fn hellos(target: Target) -> anyhow::Result<Got> {
    let message = [&[1, 0, 0xff, 0xf0, 3, 3][..], &[b'a'; 60_000]].concat();
    let records: Vec<u8> = message
        .chunks(16_000)
        .flat_map(|part| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat())
        .collect();
    let mut closed = 0;
    let attack = async {
        let one = async || {
            let mut raw = Raw::connect(target.secure).await?;
            raw.send(&records, LASTS).await;
            anyhow::Ok(raw.read(HEAD_TIMEOUT / 2, 1 << 10).await.closed)
        };
        let ended = join_all((0..CLIENTS).map(|_| one())).await;
        closed = ended.into_iter().filter(|ended| matches!(ended, Ok(true))).count();
    };
    let grown = growth(&target, attack).await;
    let what = format!("{closed}/{CLIENTS} hellos of 60 KB closed before their time, {} MiB", grown >> 10);
    Ok(Got::new(closed > 0 && grown <= PEAK_KIB, what))
}

/// Records that lack a little, behind whole handshakes.
pub(super) async fn records(target: Target) -> anyhow::Result<Got> {
    let mut clients = shaken(&target, CLIENTS).await?;
    let record = [&[23, 3, 3, 0x40, 0][..], &[b'z'; 16_300]].concat();
    let mut closed = 0;
    let attack = async {
        let ended = join_all(clients.iter_mut().map(async |client| {
            let _ = timeout(LASTS, client.get_mut().0.write_all(&record)).await;
            timeout(HEAD_TIMEOUT / 2, client.read_to_end(&mut Vec::new())).await.is_ok()
        }));
        closed = ended.await.into_iter().filter(|closed| *closed).count();
    };
    let grown = growth(&target, attack).await;
    let what = format!("{closed}/{CLIENTS} records of 16 KB closed before their time, {} MiB", grown >> 10);
    Ok(Got::new(closed > 0 && grown <= MOST_KIB, what))
}

/// Requests in progress, and behind each of them more than the kernel takes at once.
pub(super) async fn behind(target: Target) -> anyhow::Result<Got> {
    let mut clients = shaken(&target, ASKING).await?;
    let request = format!("GET /poll HTTP/1.1\r\n{H}\r\n");
    for client in &mut clients {
        client.write_all(request.as_bytes()).await?;
    }
    let bytes = vec![b'x'; 100_000];
    let attack = async {
        let sent = clients.iter_mut().map(|client| timeout(Duration::from_secs(1), client.write_all(&bytes)));
        join_all(sent).await;
    };
    let grown = growth(&target, attack).await;
    let answered = join_all(clients.iter_mut().map(async |client| {
        let mut line = [0; 12];
        matches!(timeout(ANSWERED_WITHIN, client.read_exact(&mut line)).await, Ok(Ok(_)) if &line == b"HTTP/1.1 200")
    }));
    let answered = answered.await.into_iter().filter(|answered| *answered).count();
    let what = format!("{answered}/{ASKING} requests served with 100 KB behind each of them, {} MiB", grown >> 10);
    Ok(Got::new(answered == ASKING && grown <= BEHIND_KIB, what))
}
