//! The floor of the comparison: moves bytes between clients and backends, and reads no HTTP.
//!
//! One thread, one epoll, and for each piece of a request or response one read and one write: the system calls that no
//! proxy can do without. Each client gets a connection of its own to one of the backends, in turn.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};

/// Bytes that one read takes at most.
const BUFFER_BYTES: usize = 64 * 1024;
/// Event data of the listener. Sockets have their index.
const LISTENER: u64 = u64::MAX;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next();
    let backends: Vec<String> = arguments.collect();
    let (Some(listen), false) = (listen, backends.is_empty()) else {
        eprintln!("usage: byte-pump LISTEN BACKEND...");
        std::process::exit(2);
    };
    let listener = TcpListener::bind(listen)?;
    rustix::net::listen(&listener, 8192)?;
    listener.set_nonblocking(true)?;
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;

    // A client at each even index, its backend behind it.
    let mut sockets: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        events.clear();
        epoll::wait(&poll, spare_capacity(&mut events), None)?;
        for event in &events {
            if event.data.u64() != LISTENER {
                let from = usize::try_from(event.data.u64()).expect("an index into `sockets`");
                if !pump(&sockets, from, &mut buffer) {
                    (sockets[from], sockets[from ^ 1]) = (None, None);
                }
                continue;
            }
            while let Ok((client, _)) = listener.accept() {
                let backend = TcpStream::connect(&backends[sockets.len() / 2 % backends.len()])?;
                for socket in [client, backend] {
                    socket.set_nonblocking(true)?;
                    socket.set_nodelay(true)?;
                    epoll::add(&poll, &socket, EventData::new_u64(sockets.len() as u64), EventFlags::IN)?;
                    sockets.push(Some(socket));
                }
            }
        }
    }
}

/// Moves what there is to read from one socket to the other. Returns `false` if one of them is gone.
fn pump(sockets: &[Option<TcpStream>], from: usize, buffer: &mut [u8]) -> bool {
    let (Some(mut source), Some(mut target)) = (sockets[from].as_ref(), sockets[from ^ 1].as_ref()) else {
        // Its other half ended in the same round.
        return true;
    };
    let mut left = match source.read(buffer) {
        Ok(read) if read > 0 => &buffer[..read],
        Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
        _ => return false,
    };
    while !left.is_empty() {
        match target.write(left) {
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut writable = [PollFd::from_borrowed_fd(target.as_fd(), PollFlags::OUT)];
                if rustix::event::poll(&mut writable, None).is_err() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}
