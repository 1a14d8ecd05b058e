// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AF_UNIX SOCK_SEQPACKET sockets in the abstract namespace, which leave nothing behind in a file system. The sockets
//! pass descriptors, and tell the peer's pid and user.

use super::{fd, fork};
use crate::error::{Error, Result, errno};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Descriptors that a packet of this library may carry.
pub const MAX_FDS: usize = 4;
/// Descriptors that a peer may put into one packet (SCM_MAX_FD). A receive has room for all of them, because the kernel
/// would close descriptors without room inside the receiving call.
const MOST_FDS: usize = 253;

/// Attempts, one per millisecond, for a name that is in use. The name of a closed listener stays in use while a thread
/// inside epoll_wait() still polls the socket.
const TRIES: u32 = 20;

/// A socket to listen on or to connect, which children do not inherit.
pub(super) fn fresh() -> Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .and_then(fd::own)
        .map_err(|e| Error::os("creating a local socket", e))?;
    fork::keep_from_children(fd.as_fd());
    Ok(fd)
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|e| Error::os(format_args!("forming the local address {name:?}"), e))
}

/// A non-blocking listener on the abstract name `name`; `EADDRINUSE` if the name is taken.
pub fn listen(name: &str, backlog: i32) -> Result<OwnedFd> {
    listen_within(TRIES, name, backlog)
}

fn listen_within(mut tries: u32, name: &str, backlog: i32) -> Result<OwnedFd> {
    let (fd, address) = (fresh()?, address(name)?);
    loop {
        match rustix::net::bind(&fd, &address) {
            Err(rustix::io::Errno::ADDRINUSE) if tries > 0 => tries -= 1,
            bound => break bound.map_err(|e| Error::os(format_args!("listening on {name:?}"), e))?,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::net::listen(&fd, backlog).map_err(|e| Error::os(format_args!("listening on {name:?}"), e))?;
    Ok(fd)
}

/// Immediate result of a connection attempt.
pub enum Connect {
    Done(OwnedFd),
    /// The listener's backlog is full: try again later.
    Busy,
}

pub fn connect(name: &str) -> Result<Connect> {
    let fd = fresh()?;
    match rustix::net::connect(&fd, &address(name)?) {
        Ok(()) => Ok(Connect::Done(fd)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Connect::Busy),
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => {
            Err(Error::new(errno::ECONNREFUSED, format!("nothing listens on {name:?} on this host (or only in another network namespace)")))
        }
        Err(e) => Err(Error::os(format_args!("connecting to {name:?}"), e)),
    }
}

/// The next connection, which children do not inherit, or none yet.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).and_then(fd::own) {
        Ok(fd) => {
            fork::keep_from_children(fd.as_fd());
            Ok(Some(fd))
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => Ok(None),
        Err(e) => Err(Error::os("accepting a connection", e)),
    }
}

/// Pid and user at the other end, as this process's namespaces show them; pid 0 if this namespace does not have the
/// process.
pub fn peer(fd: BorrowedFd<'_>) -> Result<(i32, u32)> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: cred and len are live, and len is cred's size.
    let rc = unsafe {
        libc::getsockopt(std::os::fd::AsRawFd::as_raw_fd(&fd), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)
    };
    if rc != 0 {
        return Err(Error::new(errno::EIO, "the kernel does not report the peer's process (SO_PEERCRED)"));
    }
    Ok((cred.pid, cred.uid))
}

/// A pidfd of the process at the other end, if the kernel (Linux 6.5) provides one and the process lives.
pub fn peer_process(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    const SO_PEERPIDFD: i32 = 77;
    let (mut raw, mut len) = (-1i32, size_of::<i32>() as libc::socklen_t);
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    // SAFETY: raw and len are live, and len is raw's size.
    let rc = unsafe { libc::getsockopt(number, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut raw).cast(), &raw mut len) };
    // SAFETY: the kernel has just made this descriptor, and no other code knows it.
    let made = (rc == 0 && raw >= 0).then(|| unsafe { std::os::fd::FromRawFd::from_raw_fd(raw) });
    made.and_then(|made| fd::own(made).ok())
}

/// Attempts to send a packet when the kernel lacks memory.
const SENDS: u32 = 3;

/// Sends one packet; false if the socket is full.
pub fn send(fd: BorrowedFd<'_>, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Error::fixed(errno::E2BIG, "internal error: too many descriptors for one packet"));
    }
    let mut left = SENDS;
    loop {
        left -= 1;
        match rustix::net::sendmsg(fd, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            // Another attempt is made, because a lost wake-up would leave the peer asleep.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::NOBUFS | rustix::io::Errno::NOMEM) if left > 0 => {}
            Err(e) => return Err(Error::os("sending to the peer", e)),
        }
    }
}

/// Result of receiving.
pub enum Received {
    Packet {
        len: usize,
        fds: Vec<OwnedFd>,
        /// More descriptors came than this process could open.
        lacking: bool,
    },
    Nothing,
    /// The peer closed or died.
    Closed,
}

/// Receives one packet into `buf`; a packet longer than `buf` is an error.
pub fn recv(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<Received> {
    match recv_any(fd, buf)? {
        (_, true) => Err(too_long()),
        (received, false) => Ok(received),
    }
}

pub fn too_long() -> Error {
    Error::fixed(errno::EPROTO, "the peer sent a packet that is too long")
}

/// Receives one packet. The flag is true if the packet was longer than `buf`.
pub fn recv_any(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<(Received, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buf)], &mut control, flags) {
        // The other end was closed with unread packets. This error comes once, before the packets that the other end
        // has sent.
        Err(rustix::io::Errno::CONNRESET) => rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buf)], &mut control, flags),
        result => result,
    };
    let message = match message {
        Ok(m) => m,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok((Received::Nothing, false)),
        Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => return Ok((Received::Closed, false)),
        Err(e) => return Err(Error::os("receiving from the peer", e)),
    };
    let (mut fds, mut lost) = (Vec::new(), false);
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            for one in rights {
                match fd::own(one) {
                    Ok(one) => fds.push(one),
                    Err(_) => lost = true,
                }
            }
        }
    }
    let cut = message.flags.contains(rustix::net::ReturnFlags::TRUNC);
    if message.bytes == 0 && fds.is_empty() && !cut {
        return Ok((Received::Closed, false));
    }
    let lacking = lost || message.flags.contains(rustix::net::ReturnFlags::CTRUNC) && fds.len() < MAX_FDS;
    Ok((Received::Packet { len: message.bytes, fds, lacking }, cut))
}

/// A pair of connected sockets, which child programs do not inherit.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .and_then(|(one, other)| Ok((fd::own(one)?, fd::own(other)?)))
        .map_err(|e| Error::os("creating a pair of sockets", e))
}

/// Sleeps until `fd` is readable or hung up, for at most `ms` milliseconds; a negative `ms` means no limit.
pub fn wait_readable(fd: impl AsFd, ms: i64) {
    let limit = rustix::event::Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let _ = rustix::event::poll(&mut fds, (ms >= 0).then_some(&limit));
}

/// Sleeps until one of the descriptors is readable or hung up.
pub fn wait_any(fds: &[BorrowedFd<'_>]) {
    let mut fds: Vec<_> = fds.iter().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)).collect();
    let _ = rustix::event::poll(&mut fds, None);
}

/// True if the other end was closed or has ended its sending. Packets may still be unread.
pub fn hung_up(fd: impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::RDHUP)];
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&zero)), Ok(n) if n > 0)
}

/// Refuses all further data from the other end; a listener refuses all further connections. Data that has arrived can
/// still be read.
pub fn end_receiving(fd: impl AsFd) {
    // Fails only if the other end is gone.
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Read);
}

/// Tells the other end that nothing more will be sent. Data of the other end still arrives.
pub fn end_sending(fd: impl AsFd) {
    // Fails only if the other end is closed already.
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
}

/// True if `fd` is readable or hung up right now.
pub fn readable(fd: impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&zero)), Ok(n) if n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_soon_after_its_listener_was_closed() {
        let name = format!("gdrfab/listen-again-{}", std::process::id());
        let first = listen(&name, 1).unwrap();
        assert!(listen(&name, 1).is_err_and(|e| e.errno == errno::EADDRINUSE));
        let asking = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            drop(first);
        });
        listen_within(10_000, &name, 1).unwrap();
        asking.join().unwrap();
    }
}
