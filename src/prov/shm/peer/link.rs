// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state that two connected endpoints share: both segments, the peer's region table, its process, and the control socket.
//!
//! The domain keeps all links too, to find the peers that may be inside a region that is being closed. It keeps the link of an ended
//! endpoint until the peer can reach no memory through it any more.

use crate::error::{Error, Result};
use crate::prov::shm::handshake::control::Control;
use crate::prov::shm::handshake::credentials;
use crate::prov::shm::memory::exports::Exports;
use crate::prov::shm::memory::table::Table;
use crate::prov::shm::wire::layout::SegmentRef;
use crate::sync::gate::{self, Fences};
use crate::sync::sleep;
use crate::sys::space::AddressSpace;
use crate::sys::{process, socket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Link {
    pub mine: SegmentRef,
    pub peer: SegmentRef,
    pub table: Table,
    pub socket: Arc<Control>,
    pub pid: i32,
    pub fences: Fences,
    /// The peer's address space, if cross-memory attach worked when connecting.
    pub space: Result<Arc<AddressSpace>>,
    /// The endpoint is over on this side.
    torn: AtomicBool,
    /// The peer's device allocations, if the peer is a domain of this process.
    pub exports: Option<Arc<Exports>>,
    /// None if the kernel gives none, and the peer has no process number here.
    pidfd: Option<Arc<OwnedFd>>,
    /// A pidfd of the process that makes the peer's device copies, if there is one. The copies of an ended peer are over when that
    /// process has ended too.
    copier: Option<OwnedFd>,
}

impl Link {
    pub fn new(
        mine: SegmentRef,
        peer: SegmentRef,
        table: Table,
        socket: Arc<Control>,
        pid: i32,
        fences: Fences,
        space: Result<Arc<AddressSpace>>,
    ) -> Link {
        let pidfd = credentials::process_of(socket.as_fd(), pid);
        let exports = table.exports_of(pid);
        Link { mine, peer, table, socket, pid, fences, space, torn: AtomicBool::new(false), exports, pidfd, copier: None }
    }

    /// Adds the pidfd that the peer sent of the process that copies for it.
    pub fn with_copier(self, copier: Option<OwnedFd>) -> Link {
        Link { copier, ..self }
    }

    /// Why the peer's memory is not reached by cross-memory attach.
    pub fn why_no_cma(&self) -> Option<&Error> {
        match &self.space {
            Ok(space) => space.why_over(),
            Err(e) => Some(e),
        }
    }

    pub fn pidfd(&self) -> Option<&OwnedFd> {
        self.pidfd.as_deref()
    }

    /// True if the peer's process has ended, so that it cannot copy any more.
    pub fn peer_ended(&self) -> bool {
        match self.pidfd() {
            Some(fd) => process::ended(fd),
            // A peer of another pid namespace has no number here; before Linux 6.5 only its socket tells that it ended.
            None => self.pid > 0 && !process::exists(self.pid),
        }
    }

    /// Notes that this side's endpoint is over.
    pub fn tear(&self) {
        self.torn.store(true, Ordering::Release);
    }

    pub fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Acquire)
    }

    /// Tells the peer that this process does not touch its memory any more, and never will by this link.
    pub fn leave(&self) {
        socket::end_sending(&self.socket);
    }

    /// True if no CPU of the peer touches this side's memory any more, nor ever will by this link: the peer said so, or its process
    /// has ended.
    pub fn peer_left(&self) -> bool {
        socket::hung_up(&self.socket) || self.peer_ended()
    }

    /// True if no device copies for the peer any more: its process and the process that copies for it have ended.
    pub fn is_quiet(&self) -> bool {
        let ended = if self.pidfd.is_some() || self.pid > 0 { self.peer_ended() } else { socket::hung_up(&self.socket) };
        ended && self.copier.as_ref().is_none_or(process::ended)
    }

    /// Where the peer runs, in words for reports: its process number here, and its namespaces that differ from this process's as far
    /// as the kernel tells.
    pub fn place(&self) -> String {
        if self.pid <= 0 {
            return "a process of another pid namespace".into();
        }
        let other: Vec<&str> = ["ipc", "net", "user"].into_iter().filter(|kind| process::is_in_other_namespace(self.pid, kind)).collect();
        match other.as_slice() {
            [] => format!("process {}", self.pid),
            some => format!("process {} of another {} namespace", self.pid, some.join(", ")),
        }
    }

    /// The process that may still copy, in words.
    pub fn who(&self) -> String {
        match self.copier.as_ref().filter(|_| self.peer_ended()).map(process::pid_of) {
            None if self.pid <= 0 => "a process of another pid namespace".into(),
            None => format!("process {}", self.pid),
            Some(Some(pid)) => format!("process {pid} (gdrfab-copier of process {}, which has ended)", self.pid),
            Some(None) => format!("the gdrfab-copier of process {}, which has ended,", self.pid),
        }
    }

    /// Wakes the peer if it sleeps. Call after storing anything that the peer may wait for.
    #[inline]
    pub fn nudge(&self) {
        if self.must_wake() {
            self.wake();
        }
    }

    /// True if the peer sleeps, so that the caller must call `wake`. Call where `nudge` would be called.
    #[inline(always)]
    pub fn must_wake(&self) -> bool {
        sleep::must_wake(self.peer.sleeping(), self.fences)
    }

    #[cold]
    pub fn wake(&self) {
        // A peer whose socket is full wakes as well.
        let _ = socket::send(self.socket.as_fd(), &crate::prov::shm::wire::frame::wake(), &[]);
    }

    /// Marks this side asleep. After the barrier, either this side's next look finds what the peer stored, or the peer finds the
    /// mark. The caller calls [`Link::may_sleep`] last.
    pub fn sleep(&self) {
        sleep::mark(self.mine.sleeping());
    }

    /// Marks this side asleep again for a thread that sleeps already, after another thread took its wake packet. The caller looks
    /// once more afterwards.
    pub fn renew_sleep(&self) {
        self.sleep();
        if let Err(e) = gate::barrier(self.fences) {
            crate::log!(Error, "a thread that sleeps on this endpoint may miss a wake-up: {e}");
        }
    }

    pub fn awake(&self) {
        sleep::clear(self.mine.sleeping());
    }

    /// After the last look: whether the mark still stands. False: a waker came before or during the look, and its packet may be gone.
    pub fn may_sleep(&self) -> bool {
        sleep::is_marked(self.mine.sleeping())
    }
}
