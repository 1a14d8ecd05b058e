// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors of the library. None is 0, 1 or 2: a program that closed these prints and reads all the same, and what it prints must
//! not go into a socket or a memory file.

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsRawFd, OwnedFd};

/// The first descriptor that is no standard one.
const FIRST: i32 = 3;

/// The same file by a descriptor that the library may have.
#[inline]
pub fn own(made: OwnedFd) -> Result<OwnedFd, Errno> {
    if made.as_raw_fd() >= FIRST { Ok(made) } else { above(made) }
}

#[cold]
fn above(made: OwnedFd) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(&made, FIRST)
}
