// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closes descriptors that a peer has sent, on threads that no caller waits for. The peer can delay a close, for
//! example by serving the file (FUSE) or by a lingering socket. There are only a few such threads, so delayed
//! descriptors stay in a queue.

use super::socket;
use super::workqueue::{Work, WorkQueue};
use rustix::net::AddressFamily;
use rustix::net::sockopt::{set_socket_linger, socket_domain};
use std::os::fd::{AsFd, OwnedFd};

/// Number of waiting descriptors from which callers should accept no more from any peer.
const MAX_WAITING: usize = 256;
/// Largest number of packets that are read from one discarded socket.
const MAX_PACKETS: usize = 256;

static CLOSERS: WorkQueue = WorkQueue::new("gdrfab-close", 4);

/// Closes descriptors at some later time.
pub fn discard(fds: Vec<OwnedFd>) {
    CLOSERS.give(fds.into_iter().map(|fd| Box::new(move || close(fd)) as Work));
}

/// True if too many descriptors are waiting.
pub fn is_full() -> bool {
    CLOSERS.waiting() >= MAX_WAITING
}

fn close(fd: OwnedFd) {
    // Unsent data of the socket is the peer's concern, so the close does not linger.
    let _ = set_socket_linger(&fd, None);
    if socket_domain(&fd).is_ok_and(|of| of == AddressFamily::UNIX) {
        drain(&fd, discard);
    }
}

/// Passes on the descriptors in the unread packets of an AF_UNIX socket. Otherwise the socket's close would close these
/// descriptors on this thread.
pub fn drain(socket: impl AsFd, mut each: impl FnMut(Vec<OwnedFd>)) {
    for _ in 0..MAX_PACKETS {
        match socket::recv_any(socket.as_fd(), &mut [0; 8]) {
            Ok((socket::Received::Packet { fds, .. }, _)) if fds.is_empty() => {}
            Ok((socket::Received::Packet { fds, .. }, _)) => each(fds),
            _ => return,
        }
    }
}
