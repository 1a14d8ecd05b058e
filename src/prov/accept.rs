// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The common part of the accept loops of shm and tcp: when to take connections from the kernel's queue, and how to turn
//! callers away while this process has no descriptor left.

use crate::error::{Error, Result, errno};
use crate::sys::epoll::{self, Poller};
use crate::sys::time;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The most connections that one turn of progress accepts.
pub const MOST: usize = 64;
/// The time for which the kernel's queue is left alone after a connection could not be taken from it.
const REST_NS: u64 = 100_000_000;

/// A listening socket, and the set of descriptors that a sleeping thread watches for it.
pub struct Acceptor {
    listener: OwnedFd,
    /// Watches the pending connections, the listener while there is room for more of them, and a timer for deadlines.
    /// The set is separate from other pollers. So a socket that becomes a connection only has to leave this set, and
    /// then wakes no thread that waits for connection requests.
    pub set: Poller,
    /// True while the listener is in `set`.
    listens: bool,
    /// The time to which the timer is set; 0: the timer is not set.
    alarm: u64,
    /// The time until which the kernel's queue is left alone.
    rest: u64,
    /// A descriptor in reserve. Closing the descriptor makes room to accept one caller, who is then told the reason of
    /// the refusal and dropped. `None`: callers wait in the kernel's queue.
    spare: Option<OwnedFd>,
    /// True if `spare` is to be reserved again after each use.
    tells: bool,
    /// The reason why connections cannot be accepted, until the owner takes the reason.
    trouble: Option<Error>,
    /// True if `trouble` was stored since a connection was last accepted, so that one failure is reported once.
    failing: bool,
}

/// The result of taking a connection.
pub enum AcceptOutcome<T> {
    One(T),
    /// There is no descriptor left for this connection: the owner tells the caller so, and drops it.
    TurnAway(T),
    Nobody,
}

impl Acceptor {
    /// Makes an acceptor of a listening socket. With `tells`, callers for whom no descriptor is left are turned away
    /// with a reason.
    pub fn new(listener: OwnedFd, tells: bool) -> Result<Acceptor> {
        let set = Poller::with_timer()?;
        set.add(listener.as_fd())?;
        let spare = if tells { Some(epoll::placeholder()?) } else { None };
        Ok(Acceptor { listener, set, listens: true, alarm: 0, rest: 0, spare, tells, trouble: None, failing: false })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// True if the timer is set, so that time alone may bring something to do.
    pub fn is_timed(&self) -> bool {
        self.alarm != 0
    }

    /// Takes the next connection by `accept`.
    pub fn take<T>(&mut self, now: u64, accept: impl Fn(BorrowedFd<'_>) -> Result<Option<T>>) -> AcceptOutcome<T> {
        if now < self.rest {
            return AcceptOutcome::Nobody;
        }
        if self.tells && self.spare.is_none() {
            self.spare = epoll::placeholder().ok();
        }
        match accept(self.listener.as_fd()) {
            Ok(Some(one)) => {
                self.failing = false;
                return AcceptOutcome::One(one);
            }
            Ok(None) => return AcceptOutcome::Nobody,
            Err(e) => self.fails(e),
        }
        if self.spare.take().is_some()
            && let Ok(Some(one)) = accept(self.listener.as_fd())
        {
            return AcceptOutcome::TurnAway(one);
        }
        // The queue stays as it is; another look at once would change nothing.
        self.rest = now + REST_NS;
        AcceptOutcome::Nobody
    }

    /// Notes that a connection could not be taken: logs the first failure, and keeps its reason for the owner.
    pub fn fails(&mut self, e: Error) {
        if !std::mem::replace(&mut self.failing, true) {
            crate::log!(Warn, "{e}");
            let words = match e.errno {
                errno::EMFILE => "this process has no free descriptor, so connection requests are refused; raise RLIMIT_NOFILE (ulimit -n)",
                errno::ENFILE => "this host has no free descriptor, so connection requests are refused; raise fs.file-max",
                _ => "connection requests have to wait",
            };
            self.trouble = Some(Error::coded(e.errno, e.code, format!("pep: {words}: {}", e.words)));
        }
    }

    /// Takes the reason why connections cannot be accepted, if the owner has not had it yet.
    pub fn trouble(&mut self) -> Option<Error> {
        self.trouble.take()
    }

    /// The time from which the kernel's queue may be looked at again.
    pub fn rest(&self) -> u64 {
        self.rest
    }

    #[cfg(test)]
    pub fn rest_until(&mut self, at: u64) {
        self.rest = at;
    }

    /// Sets which events wake a sleeping thread. The listener is in the set from time `room` on, when there is room for
    /// connections; the timer is set to that time or to `over`, the next deadline, whichever is sooner.
    pub fn sleep_well(&mut self, room: u64, over: Option<u64>) {
        let (now, room) = (time::now_ns(), room.max(self.rest));
        if self.listens != (room <= now) {
            self.listens = !self.listens;
            if !self.listens {
                self.set.remove(self.listener.as_fd());
            } else if let Err(e) = self.set.add(self.listener.as_fd()) {
                crate::log!(Warn, "{e}");
            }
        }
        let alarm = over.into_iter().chain(Some(room).filter(|at| *at > now)).min().unwrap_or(0);
        if alarm == self.alarm {
            return;
        }
        let after = (alarm != 0).then(|| alarm.saturating_sub(now));
        match self.set.set_timer(after) {
            Ok(()) => self.alarm = alarm,
            Err(e) => crate::log!(Warn, "{e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn without_descriptors_a_caller_is_turned_away_and_the_owner_told_once() {
        let mut acceptor = Acceptor::new(epoll::placeholder().unwrap(), true).unwrap();
        let lacking = || Err(Error::fixed(errno::EMFILE, "accepting a connection"));
        for _ in 0..3 {
            // Accepting works once the reserved descriptor is closed.
            let calls = Cell::new(0);
            let taken = acceptor.take(1, |_| {
                calls.set(calls.get() + 1);
                if calls.get() == 1 { lacking() } else { Ok(Some(7)) }
            });
            assert!(matches!(taken, AcceptOutcome::TurnAway(7)) && acceptor.rest() == 0);
        }
        assert!(acceptor.trouble().is_some_and(|e| e.errno == errno::EMFILE && e.words.contains("RLIMIT_NOFILE")));
        assert!(acceptor.trouble().is_none());
        // Another thread took the descriptor: the queue is left alone for a while.
        assert!(matches!(acceptor.take::<i32>(1, |_| lacking()), AcceptOutcome::Nobody) && acceptor.rest() > 1);
        assert!(matches!(acceptor.take(2, |_| Ok(Some(8))), AcceptOutcome::Nobody));
        let later = acceptor.rest();
        assert!(matches!(acceptor.take(later, |_| Ok(Some(8))), AcceptOutcome::One(8)));
        assert!(acceptor.trouble().is_none());
        acceptor.fails(Error::fixed(errno::ENFILE, "accepting a connection"));
        assert!(acceptor.trouble().is_some_and(|e| e.errno == errno::ENFILE), "a new trouble");
    }
}
