//! One conversation over a Unix socket: lines, and sockets beside them.
//!
//! What must stay true: nobody but this user and root takes part; a line that was begun is not lost when reading it is
//! given up.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::message::{LONGEST, Message};

/// How long the other process may take for what it does at once.
pub(super) const AT_ONCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Talk {
    stream: UnixStream,
    /// A line that has not ended yet.
    begun: Vec<u8>,
    /// The other process's number.
    pub(super) pid: i32,
}

impl Talk {
    pub(super) fn new(stream: UnixStream) -> anyhow::Result<Self> {
        let peer = stream.peer_cred().context("cannot tell who is at the hand-over's socket")?;
        let own = rustix::process::geteuid().as_raw();
        ensure!(
            peer.uid() == own || peer.uid() == 0,
            "the process at the hand-over's socket runs as user {}, this one as user {own}",
            peer.uid()
        );
        Ok(Talk { stream, begun: Vec::new(), pid: peer.pid().unwrap_or(0) })
    }

    pub(super) async fn say(&mut self, message: &Message) -> anyhow::Result<()> {
        let line = message.encode()?;
        timeout(AT_ONCE, self.stream.write_all(line.as_bytes()))
            .await
            .with_context(|| format!("process {} reads nothing", self.pid))?
            .with_context(|| format!("process {} is gone", self.pid))
    }

    /// What it says next; `None`: it is gone. Waits as long as it takes.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Message>> {
        loop {
            // Byte by byte: a socket comes with the byte behind a line, and is lost to who reads that without looking.
            match self.stream.read_u8().await {
                Ok(b'\n') => return Message::decode(&std::mem::take(&mut self.begun)).map(Some),
                Ok(byte) => self.begun.push(byte),
                Err(_) => return Ok(None),
            }
            ensure!(self.begun.len() < LONGEST, "process {} says what is no word of a hand-over", self.pid);
        }
    }

    /// The same for what is said at once.
    pub(super) async fn soon(&mut self) -> anyhow::Result<Option<Message>> {
        timeout(AT_ONCE, self.next()).await.with_context(|| format!("process {} says nothing", self.pid))?
    }

    /// Hands sockets over, each beside a byte of its own.
    pub(super) async fn give(&self, sockets: &[TcpListener]) -> anyhow::Result<()> {
        let all = async {
            for socket in sockets {
                self.stream.async_io(Interest::WRITABLE, || self.send(socket)).await?;
            }
            std::io::Result::Ok(())
        };
        timeout(AT_ONCE, all).await?.with_context(|| format!("process {} cannot be given the sockets", self.pid))
    }

    fn send(&self, socket: &TcpListener) -> std::io::Result<()> {
        let rights = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&rights));
        sendmsg(&self.stream, &[IoSlice::new(b"s")], &mut beside, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Takes so many sockets; `None`: the other process is gone. Each must be one that clients can connect to.
    pub(super) async fn take(&self, count: usize) -> anyhow::Result<Option<Vec<TcpListener>>> {
        let all = async {
            let mut sockets = Vec::new();
            while sockets.len() < count {
                match self.stream.async_io(Interest::READABLE, || self.receive()).await {
                    Ok((_, Some(socket))) => sockets.push(TcpListener::from(socket)),
                    Ok((0, None)) | Err(_) => return Ok(None),
                    Ok((_, None)) => anyhow::bail!("process {} sent no socket where one was due", self.pid),
                }
            }
            Ok(Some(sockets))
        };
        let sockets =
            timeout(AT_ONCE, all).await.with_context(|| format!("process {} sends no sockets", self.pid))??;
        for socket in sockets.iter().flatten() {
            let listens = rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false);
            ensure!(listens, "process {} gave something on which nobody listens", self.pid);
        }
        Ok(sockets)
    }

    fn receive(&self) -> std::io::Result<(usize, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received = recvmsg(&self.stream, &mut [IoSliceMut::new(&mut byte)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
        let rights = beside.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        Ok((received.bytes, rights.flatten().next()))
    }
}
