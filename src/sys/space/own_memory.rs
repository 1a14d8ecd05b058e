// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies within this process by process_vm_readv, the system call of `call.rs`, which returns an error where memory is
//! not mapped.

use super::address_space::STEP;
use super::call::{Attach, attach, piece};
use crate::error::{Error, Result, errno};
use crate::sys::iov::Iov;
use crate::sys::process;

/// Copies between two pieces of this process's memory, either of which may be unmapped.
pub fn copy_own(from: Iov, to: Iov) -> Result<()> {
    let want = from.len().min(to.len());
    for at in (0..want).step_by(STEP) {
        let (n, there) = (STEP.min(want - at), piece(from.addr() as u64 + at as u64, STEP.min(want - at)));
        match attach(process::pid(), Attach::Read, &[to.part(at, n)], &[there]) {
            Ok(got) if got == n => {}
            Ok(_) => return Err(Error::fixed(errno::EFAULT, "process_vm_readv: memory of this process is not mapped")),
            Err(e) => return Err(Error::new(e, format!("process_vm_readv: {}", errno::words(e)))),
        }
    }
    Ok(())
}
