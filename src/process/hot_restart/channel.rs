//! The connection between the old and the new process: a Unix socket that carries messages, and open files beside them.
//!
//! # Invariants
//!
//! * Only processes of this user and of root take part.
//! * A partly read line survives when reading is cancelled.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::message::{MAX_LINE_BYTES, Message};

/// How long the other process may take for a step without preparation.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    /// The part of the next line that has been read.
    partial: Vec<u8>,
    /// The process at the other end.
    pub(super) pid: i32,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> anyhow::Result<Self> {
        let peer =
            stream.peer_cred().context("cannot tell which process is at the other end of the hot restart socket")?;
        let own = rustix::process::geteuid().as_raw();
        ensure!(
            peer.uid() == own || peer.uid() == 0,
            "the process at the other end of the hot restart socket runs as user {}, this one as user {own}",
            peer.uid()
        );
        Ok(Channel { stream, partial: Vec::new(), pid: peer.pid().unwrap_or(0) })
    }

    pub(super) async fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        let line = message.encode()?;
        timeout(STEP_TIMEOUT, self.stream.write_all(line.as_bytes()))
            .await
            .with_context(|| format!("process {} does not read", self.pid))?
            .with_context(|| format!("process {} is gone", self.pid))
    }

    /// Returns the next message, or `None` if the other process has closed the connection. Waits without a limit.
    pub(super) async fn receive(&mut self) -> anyhow::Result<Option<Message>> {
        loop {
            // Byte by byte: a socket arrives with the byte after a line, and a plain read of that byte would lose it.
            match self.stream.read_u8().await {
                Ok(b'\n') => return Message::decode(&std::mem::take(&mut self.partial)).map(Some),
                Ok(byte) => self.partial.push(byte),
                Err(_) => return Ok(None),
            }
            ensure!(self.partial.len() < MAX_LINE_BYTES, "process {} sent what is not a hot restart message", self.pid);
        }
    }

    /// Like [`receive`](Self::receive), for a message that is due at once.
    pub(super) async fn receive_soon(&mut self) -> anyhow::Result<Option<Message>> {
        timeout(STEP_TIMEOUT, self.receive()).await.with_context(|| format!("process {} sends nothing", self.pid))?
    }

    /// Sends open files, each beside a byte of its own.
    pub(super) async fn send_files(&self, files: &[impl AsFd]) -> anyhow::Result<()> {
        let all = async {
            for file in files {
                self.stream.async_io(Interest::WRITABLE, || self.send_file(file.as_fd())).await?;
            }
            std::io::Result::Ok(())
        };
        timeout(STEP_TIMEOUT, all).await?.with_context(|| format!("cannot send open files to process {}", self.pid))
    }

    fn send_file(&self, file: BorrowedFd<'_>) -> std::io::Result<()> {
        let rights = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&rights));
        sendmsg(&self.stream, &[IoSlice::new(b"s")], &mut beside, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives this many sockets, or `None` if the other process has closed the connection. An error if one of them
    /// does not listen.
    pub(super) async fn receive_sockets(&self, count: usize) -> anyhow::Result<Option<Vec<TcpListener>>> {
        let Some(files) = self.receive_files(count).await? else { return Ok(None) };
        for file in &files {
            let listens = rustix::net::sockopt::socket_acceptconn(file).unwrap_or(false);
            ensure!(listens, "process {} sent a socket that does not listen", self.pid);
        }
        Ok(Some(files.into_iter().map(TcpListener::from).collect()))
    }

    /// Receives this many open files, or `None` if the other process has closed the connection.
    pub(super) async fn receive_files(&self, count: usize) -> anyhow::Result<Option<Vec<OwnedFd>>> {
        let all = async {
            let mut files = Vec::new();
            while files.len() < count {
                match self.stream.async_io(Interest::READABLE, || self.receive_file()).await {
                    Ok((_, Some(file))) => files.push(file),
                    Ok((0, None)) | Err(_) => return Ok(None),
                    Ok((_, None)) => anyhow::bail!("process {} sent no open file where one was expected", self.pid),
                }
            }
            Ok(Some(files))
        };
        timeout(STEP_TIMEOUT, all).await.with_context(|| format!("process {} sends no open files", self.pid))?
    }

    fn receive_file(&self) -> std::io::Result<(usize, Option<OwnedFd>)> {
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
