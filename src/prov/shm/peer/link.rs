// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What two connected endpoints share: both segments, the peer's region table, its process, and the
//! socket between them. The domain keeps links too, to find out who may be inside a closing region, and keeps
//! those whose endpoint is over until the peer can reach nothing through them any more.

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
    /// The peer's memory, if cross-memory attach worked when connecting.
    pub space: Result<Arc<AddressSpace>>,
    /// The endpoint is over on this side.
    torn: AtomicBool,
    /// What the peer has exported, if it is a domain of this process.
    pub exports: Option<Arc<Exports>>,
    /// None if neither kernel nor a number here gives it.
    pidfd: Option<Arc<OwnedFd>>,
    /// A pidfd of the process that makes the peer's device copies, if it has one: those of a peer that ended are over when
    /// both have.
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

    /// With what the peer sent to tell when its device copies are over after its own end.
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

    /// Whether the peer's process has ended, so that nothing of it can still copy.
    pub fn peer_ended(&self) -> bool {
        match self.pidfd() {
            Some(fd) => process::ended(fd),
            // A peer of another pid namespace has no number here: before Linux 6.5 only its socket tells.
            None => self.pid > 0 && !process::exists(self.pid),
        }
    }

    /// Says that this side's endpoint is over.
    pub fn tear(&self) {
        self.torn.store(true, Ordering::Release);
    }

    pub fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Acquire)
    }

    /// Tells the peer that nothing of this process touches its memory any more, nor ever will by this link.
    pub fn leave(&self) {
        socket::end_sending(&self.socket);
    }

    /// Whether no CPU of the peer touches memory of ours any more, nor ever will by this link: it has left, or its
    /// process has ended.
    pub fn peer_left(&self) -> bool {
        socket::hung_up(&self.socket) || self.peer_ended()
    }

    /// Whether no device copies for the peer any more: its process has ended, and the one that copies for it.
    pub fn is_quiet(&self) -> bool {
        let ended = if self.pidfd.is_some() || self.pid > 0 { self.peer_ended() } else { socket::hung_up(&self.socket) };
        ended && self.copier.as_ref().is_none_or(process::ended)
    }

    /// Where the peer runs, in words for reports: its number here, and the namespaces that are not this process's as far as
    /// the kernel tells.
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

    /// Who may still copy, in words.
    pub fn who(&self) -> String {
        match self.copier.as_ref().filter(|_| self.peer_ended()).map(process::pid_of) {
            None if self.pid <= 0 => "a process of another pid namespace".into(),
            None => format!("process {}", self.pid),
            Some(Some(pid)) => format!("process {pid} (gdrfab-copier of process {}, which has ended)", self.pid),
            Some(None) => format!("the gdrfab-copier of process {}, which has ended,", self.pid),
        }
    }

    /// Wakes the peer if it sleeps; called after anything that it may wait for was stored.
    #[inline]
    pub fn nudge(&self) {
        if self.must_wake() {
            self.wake();
        }
    }

    /// Whether the peer sleeps, so that `wake` is owed to it; asked at the same place as `nudge`.
    #[inline(always)]
    pub fn must_wake(&self) -> bool {
        sleep::must_wake(self.peer.sleeping(), self.fences)
    }

    #[cold]
    pub fn wake(&self) {
        // A full socket wakes it as well.
        let _ = socket::send(self.socket.as_fd(), &crate::prov::shm::wire::frame::wake(), &[]);
    }

    /// Marks this side asleep. After the barrier, either our next look finds what the peer stored, or
    /// the peer finds the mark. [`Link::may_sleep`] comes last.
    pub fn sleep(&self) {
        sleep::mark(self.mine.sleeping());
    }

    /// The same where a thread sleeps already, and another one has taken what was to wake it. A look comes next.
    pub fn renew_sleep(&self) {
        self.sleep();
        if let Err(e) = gate::barrier(self.fences) {
            crate::log!(Error, "a thread that sleeps on this endpoint may miss a wake-up: {e}");
        }
    }

    pub fn awake(&self) {
        sleep::clear(self.mine.sleeping());
    }

    /// After the last look: false if a waker came before or during it, whose packet may be gone.
    pub fn may_sleep(&self) -> bool {
        sleep::is_marked(self.mine.sleeping())
    }
}
