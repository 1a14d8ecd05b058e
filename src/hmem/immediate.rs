// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An order of copies for vendors without asynchronous ones.

use super::interface::Interface;
use super::memory::Dir;
use super::stream::Stream;
use crate::error::Result;

/// For vendors without asynchronous copies: each is done when posted.
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
        // SAFETY: the caller says that both sides stay until the stream has passed the copy, which is when this returns.
        unsafe { self.interface.copy(self.device, dir, to, from, len)? };
        self.count += 1;
        Ok(self.count)
    }

    fn done(&mut self) -> Result<u64> {
        Ok(self.count)
    }
}
