// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closes descriptors that a peer has sent where nobody waits for it: whoever serves a file (FUSE), or has a socket linger,
//! holds up who closes it. A few threads do that and no more, so what is held up stays in a list.

use super::socket;
use super::workqueue::{Work, WorkQueue};
use rustix::net::AddressFamily;
use rustix::net::sockopt::{set_socket_linger, socket_domain};
use std::os::fd::{AsFd, OwnedFd};

/// With so many descriptors that wait, no more should be taken from anybody.
const MAX_WAITING: usize = 256;
/// Packets that are read from one socket of those.
const MAX_PACKETS: usize = 256;

static CLOSERS: WorkQueue = WorkQueue::new("gdrfab-close", 4);

/// Closes descriptors, some time.
pub fn discard(fds: Vec<OwnedFd>) {
    CLOSERS.give(fds.into_iter().map(|fd| Box::new(move || close(fd)) as Work));
}

/// Whether too many wait.
pub fn is_full() -> bool {
    CLOSERS.waiting() >= MAX_WAITING
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
    for _ in 0..MAX_PACKETS {
        match socket::recv_any(socket.as_fd(), &mut [0; 8]) {
            Ok((socket::Received::Packet { fds, .. }, _)) if fds.is_empty() => {}
            Ok((socket::Received::Packet { fds, .. }, _)) => each(fds),
            _ => return,
        }
    }
}
