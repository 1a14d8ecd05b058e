// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Epoll sets. A [`Poller`] only tells that some descriptor in it is ready, or that a thread of this process called
//! `wake`. A blocking wait sleeps on the set's descriptor, and a caller may poll that descriptor itself. An [`Edges`]
//! set tells which descriptors are ready.

pub use super::cancel::Woken;
use super::cancel::{self, SleepRequest};
use super::fd;
use crate::error::{Error, Result, errno};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Poller {
    set: OwnedFd,
    wake: OwnedFd,
    timer: Option<OwnedFd>,
    /// True if the timer runs or has expired.
    timed: AtomicBool,
}

impl Poller {
    pub fn new() -> Result<Poller> {
        let set = epoll::create(CreateFlags::CLOEXEC).and_then(fd::own).map_err(|e| Error::os("creating a wait object (epoll)", e))?;
        let wake = wake_event().map_err(|e| Error::os("creating a wait object (eventfd)", e))?;
        let poller = Poller { set, wake, timer: None, timed: AtomicBool::new(false) };
        poller.add(poller.wake.as_fd())?;
        Ok(poller)
    }

    /// Like `new`, but `set_timer` works.
    pub fn with_timer() -> Result<Poller> {
        let mut poller = Poller::new()?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .and_then(fd::own)
            .map_err(|e| Error::os("creating a wait object (timerfd)", e))?;
        poller.add(timer.as_fd())?;
        poller.timer = Some(timer);
        Ok(poller)
    }

    /// Makes the set ready while `fd` is readable or hung up (level-triggered). Closing `fd` removes it.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        match epoll::add(&self.set, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::RDHUP) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(Error::os("adding a descriptor to a wait object", e)),
        }
    }

    /// Like `add`; with `write` also while `fd` is writable. Replaces what was set for `fd` before.
    pub fn watch(&self, fd: BorrowedFd<'_>, write: bool) -> Result<()> {
        self.watch_for(fd, true, write)
    }

    /// Like `watch`; without `read`, readable data does not count, only a hang-up.
    pub fn watch_for(&self, fd: BorrowedFd<'_>, read: bool, write: bool) -> Result<()> {
        let mut wanted = EventFlags::RDHUP;
        wanted.set(EventFlags::IN, read);
        wanted.set(EventFlags::OUT, write);
        let result = match epoll::add(&self.set, fd, EventData::new_u64(0), wanted) {
            Err(rustix::io::Errno::EXIST) => epoll::modify(&self.set, fd, EventData::new_u64(0), wanted),
            result => result,
        };
        result.map_err(|e| Error::os("adding a descriptor to a wait object", e))
    }

    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // Removing a descriptor that was never added is no error.
        let _ = epoll::delete(&self.set, fd);
    }

    /// Makes the current or next wait return.
    pub fn wake(&self) {
        // EAGAIN means that the counter is full, and thus already readable.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes the set readable once `ns` nanoseconds have passed; `None`: never. Called by one thread at a time.
    pub fn set_timer(&self, ns: Option<u64>) -> Result<()> {
        if ns.is_none() && !self.timed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let timer = self.timer.as_ref().ok_or(Error::fixed(errno::EINVAL, "internal error: the wait object has no timer"))?;
        self.timed.store(ns.is_some(), Ordering::Relaxed);
        let ns = ns.map_or(0, |n| n.max(1));
        let value = Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec).map(|_| ()).map_err(|e| Error::os("setting a timer", e))
    }

    /// Clears pending wake-ups.
    pub fn drain(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    /// Sleeps until a descriptor is ready, `wake` is called, or `timeout_ns` nanoseconds have passed (`None` = for
    /// ever).
    pub fn wait(&self, timeout_ns: Option<u64>) -> Woken {
        cancel::sleep(SleepRequest { fds: [self.raw_fd(), -1], ns: timeout_ns.unwrap_or(u64::MAX) })
    }

    /// The descriptor for a caller's own loop.
    pub fn raw_fd(&self) -> i32 {
        self.set.as_raw_fd()
    }
}

/// An eventfd: a write makes it readable, and a read clears it.
pub fn wake_event() -> std::result::Result<OwnedFd, rustix::io::Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).and_then(fd::own)
}

/// Opens a descriptor that the caller keeps in reserve, and closes when it needs another descriptor more.
pub fn placeholder() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).and_then(fd::own).map_err(|e| Error::os("keeping a descriptor in reserve (eventfd)", e))
}

/// A set can be an element of another set.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// A set of many descriptors that reports which are ready.
pub struct Edges(OwnedFd);

impl Edges {
    pub fn new() -> Result<Edges> {
        epoll::create(CreateFlags::CLOEXEC).and_then(fd::own).map(Edges).map_err(|e| Error::os("creating a set of sockets (epoll)", e))
    }

    /// Reports `number` at each arrival of data (edge-triggered). Closing `fd` removes it.
    pub fn add(&self, fd: BorrowedFd<'_>, number: u64) -> Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(number), EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)
            .map_err(|e| Error::os("adding a socket to a set (epoll)", e))
    }

    /// Reports `number` once, as soon as `fd` has data or is hung up; at once if `fd` already has or is. Replaces what
    /// was set before.
    pub fn add_once(&self, fd: BorrowedFd<'_>, number: u64) -> Result<()> {
        let (data, wanted) = (EventData::new_u64(number), EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT);
        let result = match epoll::modify(&self.0, fd, data, wanted) {
            Err(rustix::io::Errno::NOENT) => epoll::add(&self.0, fd, data, wanted),
            result => result,
        };
        result.map_err(|e| Error::os("adding a socket to a set (epoll)", e))
    }

    /// Calls `each` with the numbers of the ready descriptors. Does not wait.
    pub fn poll(&self, mut each: impl FnMut(u64)) {
        const MOST: usize = 64;
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(MOST);
        loop {
            events.clear();
            // After an interruption, the next call sees the events.
            let found = epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&zero)).unwrap_or(0);
            events.iter().for_each(|e: &epoll::Event| each(e.data.u64()));
            if found < MOST {
                return;
            }
        }
    }
}

/// A set can be an element of another set.
impl AsFd for Edges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
