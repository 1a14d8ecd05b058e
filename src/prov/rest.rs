// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where endpoints rest that have nothing to do of their own: who drives many of them visits none meanwhile, and asks here
//! which have something again.

use crate::error::Result;
use crate::sys::epoll::Edges;
use parking_lot::Mutex;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// One for each who drives endpoints; they rest in it by numbers of its own.
pub struct Rest {
    sockets: Edges,
    called: Mutex<Vec<u64>>,
    /// Some were called.
    any: AtomicBool,
}

impl Rest {
    pub fn new() -> Result<Rest> {
        Ok(Rest { sockets: Edges::new()?, called: Mutex::default(), any: AtomicBool::new(false) })
    }

    /// Calls `number` once when the socket has something or is hung up, even if it has been since before.
    pub fn watch(&self, socket: BorrowedFd<'_>, number: u64) -> Result<()> {
        self.sockets.add_once(socket, number)
    }

    /// This one has something to do. Who drives it may sleep: that is for the caller to end.
    pub fn call(&self, number: u64) {
        let mut called = self.called.lock();
        called.push(number);
        // Under the lock, as where it is cleared.
        self.any.store(true, Ordering::Release);
    }

    /// Names those that were called; one may be named that does not rest any more.
    pub fn take(&self, mut each: impl FnMut(u64)) {
        self.sockets.poll(&mut each);
        if self.any.load(Ordering::Acquire) {
            let mut called = self.called.lock();
            self.any.store(false, Ordering::Relaxed);
            called.drain(..).for_each(each);
        }
    }
}

/// Readable while a socket has called: for who sleeps.
impl AsFd for Rest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}
