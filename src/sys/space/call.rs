// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two system calls that copy between this process and another.

use crate::error::errno;
use crate::sys::iov::Iov;

/// A piece of another process's memory: address and length.
pub type Piece = libc::iovec;

pub fn piece(addr: u64, len: usize) -> Piece {
    Piece { iov_base: addr as *mut libc::c_void, iov_len: len }
}

/// Direction of a copy, seen from this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attach {
    Read,
    Write,
}

impl Attach {
    pub fn name(self) -> &'static str {
        match self {
            Attach::Read => "process_vm_readv",
            Attach::Write => "process_vm_writev",
        }
    }
}

/// Pieces of one call on each side (UIO_MAXIOV).
pub const PIECES: usize = 1024;

/// Copies between this process and the process of thread `tid`. Returns the number of bytes moved, or an errno if none
/// was. The kernel looks the address space up once, and handles the other process's pieces in order.
#[inline]
pub fn attach(tid: i32, how: Attach, local: &[Iov], remote: &[Piece]) -> Result<usize, i32> {
    let ours = local.as_ptr().cast::<libc::iovec>();
    // SAFETY: the arrays are live, have the given lengths and the layout of `iovec`; the local pieces are memory
    // (`Iov::new`), and the kernel checks them.
    let got = unsafe {
        match how {
            Attach::Read => libc::process_vm_readv(tid, ours, local.len() as _, remote.as_ptr(), remote.len() as _, 0),
            Attach::Write => libc::process_vm_writev(tid, ours, local.len() as _, remote.as_ptr(), remote.len() as _, 0),
        }
    };
    usize::try_from(got).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EIO))
}
