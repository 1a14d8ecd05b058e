// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closes descriptors that a peer has sent where nobody waits for it: whoever serves a file (FUSE), or has a socket linger,
//! holds up who closes it. A few threads do that and no more, so what is held up stays in a list.

use super::socket;
use parking_lot::Mutex;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{set_socket_linger, socket_domain};
use std::os::fd::{AsFd, OwnedFd};

/// Threads that close, each of which one descriptor may hold up.
const THREADS: usize = 4;
/// With so many descriptors that wait, no more should be taken from anybody.
const MOST: usize = 256;
/// Packets that are read from one socket of those.
const PACKETS: usize = 256;

struct List {
    waiting: Vec<OwnedFd>,
    threads: usize,
    /// The process that has the threads: a child of fork() has none.
    process: u32,
}

static LIST: Mutex<List> = Mutex::new(List { waiting: Vec::new(), threads: 0, process: 0 });

/// Closes descriptors, some time.
#[cold]
pub fn discard(fds: Vec<OwnedFd>) {
    let mut list = LIST.lock();
    let here = std::process::id();
    if std::mem::replace(&mut list.process, here) != here {
        list.threads = 0;
    }
    list.waiting.extend(fds);
    if list.threads < THREADS && std::thread::Builder::new().name("gdrfab-close".into()).spawn(run).is_ok() {
        list.threads += 1;
    }
}

/// Whether too many wait.
pub fn is_full() -> bool {
    LIST.lock().waiting.len() >= MOST
}

fn run() {
    loop {
        let mut list = LIST.lock();
        let Some(fd) = list.waiting.pop() else {
            list.threads -= 1;
            return;
        };
        drop(list);
        close(fd);
    }
}

fn close(fd: OwnedFd) {
    // What a socket has not sent yet is the peer's affair.
    let _ = set_socket_linger(&fd, None);
    if socket_domain(&fd).is_ok_and(|of| of == AddressFamily::UNIX) {
        drain(&fd, discard);
    }
}

/// Hands out the descriptors that a socket of the AF_UNIX family holds unread: its end would close them.
pub fn drain(socket: impl AsFd, mut each: impl FnMut(Vec<OwnedFd>)) {
    for _ in 0..PACKETS {
        match socket::recv_any(socket.as_fd(), &mut [0; 8]) {
            Ok((socket::Received::Packet { fds, .. }, _)) if fds.is_empty() => {}
            Ok((socket::Received::Packet { fds, .. }, _)) => each(fds),
            _ => return,
        }
    }
}
