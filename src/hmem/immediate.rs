// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A [`Stream`] for vendors without asynchronous copies.

use super::interface::Interface;
use super::memory::Dir;
use super::stream::Stream;
use crate::error::Result;

/// Each copy is done when `post` returns.
pub struct ImmediateStream {
    interface: &'static dyn Interface,
    device: u32,
    count: u64,
}

impl ImmediateStream {
    pub fn new(interface: &'static dyn Interface, device: u32) -> ImmediateStream {
        ImmediateStream { interface, device, count: 0 }
    }
}

impl Stream for ImmediateStream {
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64> {
        // SAFETY: the caller promises that both sides stay valid until the copy is done, which is when this call
        // returns.
        unsafe { self.interface.copy(self.device, dir, to, from, len)? };
        self.count += 1;
        Ok(self.count)
    }

    fn done(&mut self) -> Result<u64> {
        Ok(self.count)
    }
}
