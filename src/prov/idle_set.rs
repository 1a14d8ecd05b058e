// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The set of idle endpoints. A completion queue or a domain that drives many endpoints makes no progress on idle ones.
//! The object asks this set for the endpoints that have something to do again, because a socket became readable or
//! because a call posted to the endpoint.

use crate::error::Result;
use crate::sys::epoll::Edges;
use parking_lot::Mutex;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// One set belongs to one object that drives endpoints. The object chooses the numbers by which the set names its endpoints.
pub struct IdleSet {
    sockets: Edges,
    called: Mutex<Vec<u64>>,
    /// True while `called` is not empty, for reading without the lock.
    any: AtomicBool,
}

impl IdleSet {
    pub fn new() -> Result<IdleSet> {
        Ok(IdleSet { sockets: Edges::new()?, called: Mutex::default(), any: AtomicBool::new(false) })
    }

    /// Reports `number` once when the socket is readable or hung up, also if it is so already.
    pub fn watch(&self, socket: BorrowedFd<'_>, number: u64) -> Result<()> {
        self.sockets.add_once(socket, number)
    }

    /// Reports that endpoint `number` has something to do. The report wakes no thread: if the driving thread may sleep,
    /// the caller wakes it.
    pub fn call(&self, number: u64) {
        let mut called = self.called.lock();
        called.push(number);
        // Under the lock, so that `take` cannot clear the flag after this number was added.
        self.any.store(true, Ordering::Release);
    }

    /// Passes to `each` the numbers reported since the last call. An endpoint that is no longer in the set may be among them.
    pub fn take(&self, mut each: impl FnMut(u64)) {
        self.sockets.poll(&mut each);
        if self.any.load(Ordering::Acquire) {
            let mut called = self.called.lock();
            self.any.store(false, Ordering::Relaxed);
            called.drain(..).for_each(each);
        }
    }
}

/// Readable while a watched socket has something to read: for a driving thread that sleeps. `call` does not make it readable.
impl AsFd for IdleSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}
