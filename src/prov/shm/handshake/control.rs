// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket of a connection, and the end of listeners. Closing a socket also closes the unread descriptors
//! that the peer has sent over the socket, and closing a peer's descriptor can take arbitrarily long. So a socket is
//! emptied before it is closed, and a background thread (`sys::discard`) closes the descriptors.

use crate::sys::process;
use crate::sys::{discard, socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections that may wait in the kernel's queue of a listener.
pub const BACKLOG: i32 = 128;

/// One end of a control socket. The drop empties the socket first.
pub struct Control(OwnedFd);

impl From<OwnedFd> for Control {
    fn from(fd: OwnedFd) -> Control {
        Control(fd)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        socket::end_receiving(&self.0);
        discard::drain(&self.0, close_descriptors);
    }
}

/// Takes all waiting connections from a listener that is about to be closed, and closes them as [`Control`]s.
pub fn empty(listener: BorrowedFd<'_>) {
    socket::end_receiving(listener);
    for _ in 0..=BACKLOG {
        match socket::accept(listener) {
            Ok(Some(socket)) => drop(Control::from(socket)),
            _ => return,
        }
    }
}

/// Closes received descriptors: here if the kernel closes all of their kinds at once (memory files, pidfds, devices,
/// dma-bufs), else on a background thread.
fn close_descriptors(fds: Vec<OwnedFd>) {
    if !fds.iter().all(process::is_kernel_file) {
        discard::discard(fds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::errno;
    use crate::prov::shm::wire::frame;
    use crate::prov::shm::wire::frame::{Frame, MAX};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    /// A socket whose close waits for twenty seconds, and the listener that keeps its other end open.
    fn lingering() -> (OwnedFd, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(20))).unwrap();
        // More bytes than the other end takes without reading, so that a close has unsent bytes to wait for.
        lingers.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &lingers, &[0; 65536]).is_ok() {}
        (lingers.into(), listener)
    }

    #[test]
    fn sockets_that_linger_keep_nobody() {
        let wake = Frame::Wake.encode();
        let (lingers, _other) = lingering();
        let (mine, theirs) = socket::pair().unwrap();
        let mine = Control::from(mine);
        let (outer, inner) = socket::pair().unwrap();
        socket::send(outer.as_fd(), &wake, &[lingers.as_fd()]).unwrap();
        // Three packets that `recv` takes (with a descriptor, with one hidden in another socket, too long), and one
        // left unread.
        socket::send(theirs.as_fd(), &wake, &[lingers.as_fd()]).unwrap();
        socket::send(theirs.as_fd(), &wake, &[inner.as_fd()]).unwrap();
        socket::send(theirs.as_fd(), &[0; 2 * MAX], &[lingers.as_fd()]).unwrap();
        socket::send(theirs.as_fd(), &wake, &[lingers.as_fd()]).unwrap();
        drop((lingers, inner));
        let begun = Instant::now();
        for _ in 0..3 {
            assert!(frame::recv(&mine, &mut [0; MAX]).is_err_and(|e| e.errno == errno::EPROTO));
        }
        drop(mine);
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(socket::send(theirs.as_fd(), &wake, &[]).is_err());
    }

    #[test]
    fn a_listener_that_ends_waits_for_no_caller() {
        let (lingers, _other) = lingering();
        let name = format!("gdrfab-test-{}-ends", std::process::id());
        let listener = socket::listen(&name, BACKLOG).unwrap();
        let Ok(socket::Connect::Done(caller)) = socket::connect(&name) else { panic!("nobody listens") };
        socket::send(caller.as_fd(), &Frame::Wake.encode(), &[lingers.as_fd()]).unwrap();
        drop(lingers);
        let begun = Instant::now();
        empty(listener.as_fd());
        drop(listener);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
