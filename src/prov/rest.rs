// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle endpoints: who drives many endpoints does not visit those that have nothing to do, and asks here which of them have
//! something again, because a socket became readable or because a call posted to one.

use crate::error::Result;
use crate::sys::epoll::Edges;
use parking_lot::Mutex;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// One for each object that drives endpoints; it chooses the numbers by which they rest here.
pub struct Rest {
    sockets: Edges,
    called: Mutex<Vec<u64>>,
    /// Whether `called` has any, to be read without the lock.
    any: AtomicBool,
}

impl Rest {
    pub fn new() -> Result<Rest> {
        Ok(Rest { sockets: Edges::new()?, called: Mutex::default(), any: AtomicBool::new(false) })
    }

    /// Has `number` named once when the socket is readable or hung up, also if it is already.
    pub fn watch(&self, socket: BorrowedFd<'_>, number: u64) -> Result<()> {
        self.sockets.add_once(socket, number)
    }

    /// Endpoint `number` has something to do. This wakes nobody: if its driver may sleep, the caller wakes that.
    pub fn call(&self, number: u64) {
        let mut called = self.called.lock();
        called.push(number);
        // Under the lock, as where it is cleared.
        self.any.store(true, Ordering::Release);
    }

    /// Names those that have something to do since the last time; one of them may not rest any more.
    pub fn take(&self, mut each: impl FnMut(u64)) {
        self.sockets.poll(&mut each);
        if self.any.load(Ordering::Acquire) {
            let mut called = self.called.lock();
            self.any.store(false, Ordering::Relaxed);
            called.drain(..).for_each(each);
        }
    }
}

/// Readable while a watched socket has something, for a driver that sleeps; `call` does not make it so.
impl AsFd for Rest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}
