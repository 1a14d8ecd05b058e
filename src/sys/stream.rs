// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends and receives on a connected stream socket, from and to pieces of memory. No call waits.

use super::cancel::raw;
use super::iov::Iov;
use crate::error::{Error, Result, errno};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    Bytes(usize),
    /// Nothing to read, or no room to write.
    Blocked,
    /// The peer has sent its last byte.
    Ended,
    /// Some of the memory is not mapped.
    Fault,
}

#[inline]
pub(super) fn outcome(n: isize, doing: &'static str) -> Result<Moved> {
    if n >= 0 {
        return Ok(Moved::Bytes(n as usize));
    }
    // SAFETY: errno is this thread's. Read directly, because a poll loop mostly ends here.
    match unsafe { *libc::__errno_location() } {
        errno::EAGAIN | errno::EINTR => Ok(Moved::Blocked),
        errno::EFAULT => Ok(Moved::Fault),
        e => Err(Error::new(e, format!("{doing}: {}", errno::words(e)))),
    }
}

const SENDING: &str = "sending to the peer";
const RECEIVING: &str = "receiving from the peer";
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

#[inline]
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<Moved> {
    // SAFETY: the slice is readable.
    outcome(unsafe { raw!(SYS_sendto, fd.as_raw_fd(), bytes.as_ptr(), bytes.len(), SEND_FLAGS, 0usize, 0usize) }, SENDING)
}

/// Sends the bytes of the pieces in one call.
pub fn send_pieces(fd: BorrowedFd<'_>, pieces: &[Iov]) -> Result<Moved> {
    // SAFETY: zeros are a valid empty message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the header is live. The pieces may be read (`Iov::new`), and the kernel checks that they are mapped.
    outcome(unsafe { raw!(SYS_sendmsg, fd.as_raw_fd(), &raw const message, SEND_FLAGS) }, SENDING)
}

#[inline]
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<Moved> {
    // SAFETY: the slice is writable.
    let n = unsafe { raw!(SYS_recvfrom, fd.as_raw_fd(), into.as_mut_ptr(), into.len(), libc::MSG_DONTWAIT, 0usize, 0usize) };
    if n == 0 && !into.is_empty() { Ok(Moved::Ended) } else { outcome(n, RECEIVING) }
}

/// Receives into the pieces in one call.
pub fn receive_pieces(fd: BorrowedFd<'_>, pieces: &[Iov]) -> Result<Moved> {
    // SAFETY: zeros are a valid empty message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the header is live. The pieces may be written (`Iov::new`), and the kernel checks that they are mapped.
    match unsafe { raw!(SYS_recvmsg, fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) } {
        0 => Ok(Moved::Ended),
        n => outcome(n, RECEIVING),
    }
}

/// Ends the sending direction; the peer sees the end of the stream.
pub fn finish(fd: BorrowedFd<'_>) {
    // Fails only if the peer is gone, which needs no end of stream.
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
}

/// Waits until the socket accepts bytes again, for at most `ms` milliseconds.
pub fn wait_for_room(fd: BorrowedFd<'_>, ms: u64) {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::OUT)];
    let limit = rustix::event::Timespec { tv_sec: (ms / 1000) as _, tv_nsec: (ms % 1000 * 1_000_000) as _ };
    let _ = rustix::event::poll(&mut fds, Some(&limit));
}

/// Waits until a descriptor of an epoll set is ready, for at most `ms` milliseconds.
pub fn wait_for_any(set: BorrowedFd<'_>, ms: u64) {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(set, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: (ms / 1000) as _, tv_nsec: (ms % 1000 * 1_000_000) as _ };
    let _ = rustix::event::poll(&mut fds, Some(&limit));
}
