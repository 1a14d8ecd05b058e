// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resolves host names on threads of the library: a name server can take longer to answer than the caller has time, and the C
//! library's resolver cannot be interrupted.

use crate::error::{Error, Result, errno};
use crate::prov::tcp::wire::address::Address;
use crate::sys::epoll::Poller;
use crate::sys::workqueue::{Work, WorkQueue};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

/// The threads, at most 16. One name blocks at most one thread; further names wait for a free thread. A name whose
/// `Lookup` was dropped while it waited is not looked up.
static RESOLVERS: WorkQueue = WorkQueue::new("gdrfab-resolve", 16);

struct Answer {
    found: Mutex<Option<Result<Vec<SocketAddr>>>>,
    bell: Poller,
}

/// A name that is being resolved. Dropping the object discards the answer.
pub struct Lookup(Arc<Answer>);

impl Lookup {
    pub fn begin(of: &Address) -> Result<Lookup> {
        Lookup::begin_with(of, Address::resolve)
    }

    fn begin_with(of: &Address, resolve: impl FnOnce(&Address) -> Result<Vec<SocketAddr>> + Send + 'static) -> Result<Lookup> {
        let answer = Arc::new(Answer { found: Mutex::new(None), bell: Poller::new()? });
        let (wanted, of) = (Arc::downgrade(&answer), of.clone());
        let work = Box::new(move || {
            if wanted.strong_count() == 0 {
                return;
            }
            let found = resolve(&of);
            if let Some(answer) = Weak::upgrade(&wanted) {
                *answer.found.lock() = Some(found);
                answer.bell.wake();
            }
        }) as Work;
        match RESOLVERS.give([work]) {
            true => Ok(Lookup(answer)),
            false => Err(Error::fixed(errno::EAGAIN, "looking up a host name: cannot start a thread")),
        }
    }

    /// Takes the answer, once it is here.
    pub fn take(&self) -> Option<Result<Vec<SocketAddr>>> {
        self.0.found.lock().take()
    }

    /// Readable once the answer is here.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn an_answer_that_takes_long_holds_up_nobody() {
        let name: Address = "tcp://slow.example:7000".parse().unwrap();
        let (go, held) = channel::<()>();
        let slow = Lookup::begin_with(&name, move |_| {
            let _ = held.recv();
            Ok(Vec::new())
        })
        .unwrap();
        let quick = Lookup::begin(&"tcp://localhost:7000".parse().unwrap()).unwrap();
        let answer = loop {
            match quick.take() {
                Some(answer) => break answer.unwrap(),
                None => std::thread::yield_now(),
            }
        };
        assert!(answer.iter().all(|at| at.ip().is_loopback()), "{answer:?}");
        assert!(slow.take().is_none());
        drop(go);
        while slow.take().is_none() {
            std::thread::yield_now();
        }
    }
}
