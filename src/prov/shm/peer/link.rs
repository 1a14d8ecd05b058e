// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link: this side's view of the state that two connected endpoints share. A link has both segments, the peer's
//! region table, the peer's process, and the control socket.
//!
//! The domain also holds every link, to find the peers that may copy in a region that is being closed. The domain keeps
//! the link of an ended endpoint until the peer can reach no memory by the link any more.

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
    /// The peer's pid in this process's pid namespace; 0: the peer has none here.
    pub pid: i32,
    pub fences: Fences,
    /// The peer's address space; `Err`: the reason why cross-memory attach did not work when the endpoints connected.
    pub space: Result<Arc<AddressSpace>>,
    /// True once this side's endpoint has ended.
    torn: AtomicBool,
    /// The peer's device allocations, if the peer is a domain of this process.
    pub exports: Option<Arc<Exports>>,
    /// `None`: the kernel gives no pidfd of the peer, or the peer had ended before the link was made.
    pidfd: Option<Arc<OwnedFd>>,
    /// A pidfd of the peer's copier process, which makes the peer's device copies, if there is one. After the peer's
    /// end, its device copies are over once the copier process has ended too.
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

    /// Adds the pidfd of the peer's copier process, which the peer has sent.
    pub fn with_copier(self, copier: Option<OwnedFd>) -> Link {
        Link { copier, ..self }
    }

    /// The reason why cross-memory attach does not reach the peer's memory; `None`: it does.
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
            // A peer of another pid namespace has no pid here. Before Linux 6.5 there is no pidfd either, and only the
            // hang-up of the socket shows the peer's end.
            None => self.pid > 0 && !process::exists(self.pid),
        }
    }

    /// Notes that this side's endpoint has ended.
    pub fn tear(&self) {
        self.torn.store(true, Ordering::Release);
    }

    pub fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Acquire)
    }

    /// Tells the peer, by a half-close of the socket, that this process touches the peer's memory by this link no more.
    pub fn leave(&self) {
        socket::end_sending(&self.socket);
    }

    /// True if no CPU of the peer touches this side's memory by this link any more: the peer has half-closed the
    /// socket, or the peer's process has ended.
    pub fn peer_left(&self) -> bool {
        socket::hung_up(&self.socket) || self.peer_ended()
    }

    /// True if no device copies for the peer any more: the peer's process and its copier process have ended. For a peer
    /// without pidfd and pid, the hang-up of the socket stands for the end of its process.
    pub fn is_quiet(&self) -> bool {
        let ended = if self.pidfd.is_some() || self.pid > 0 { self.peer_ended() } else { socket::hung_up(&self.socket) };
        ended && self.copier.as_ref().is_none_or(process::ended)
    }

    /// The peer's process in words, for reports: its pid here, and the namespaces that differ from this process's, as
    /// far as the kernel shows them.
    pub fn place(&self) -> String {
        if self.pid <= 0 {
            return "a process in another pid namespace".into();
        }
        let other: Vec<&str> = ["ipc", "net", "user"].into_iter().filter(|kind| process::is_in_other_namespace(self.pid, kind)).collect();
        match other.as_slice() {
            [] => format!("process {}", self.pid),
            some => format!("process {} in another {} namespace", self.pid, some.join(", ")),
        }
    }

    /// The process that may still copy, in words: the peer's or, after the peer's end, its copier process.
    pub fn who(&self) -> String {
        match self.copier.as_ref().filter(|_| self.peer_ended()).map(process::pid_of) {
            None if self.pid <= 0 => "a process in another pid namespace".into(),
            None => format!("process {}", self.pid),
            Some(Some(pid)) => format!("process {pid} (the gdrfab-copier of process {}, which has ended)", self.pid),
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
        // A failure to send means that the peer is gone, or that its socket is full; the packets in a full socket wake
        // the peer.
        let _ = socket::send(self.socket.as_fd(), &crate::prov::shm::wire::frame::wake(), &[]);
    }

    /// Marks this side as asleep (the protocol is in `sync::sleep`). The caller then runs the barrier, looks once more
    /// for news of the peer, and calls [`Link::may_sleep`] last. After the barrier, either that look finds the peer's
    /// news, or the peer finds the mark.
    pub fn sleep(&self) {
        sleep::mark(self.mine.sleeping());
    }

    /// Marks this side as asleep again and runs the barrier, for a thread that still sleeps although another thread has
    /// taken the wake packet. The caller looks once more for news afterwards.
    pub fn renew_sleep(&self) {
        self.sleep();
        if let Err(e) = gate::barrier(self.fences) {
            crate::log!(Error, "a thread that waits on this endpoint may miss a wake-up: {e}");
        }
    }

    /// Clears the mark of [`Link::sleep`].
    pub fn end_sleep(&self) {
        sleep::clear(self.mine.sleeping());
    }

    /// True if this side may sleep: the mark still stands after the last look. False: the peer has sent a wake packet
    /// before or during the look, and the look may have taken that packet.
    pub fn may_sleep(&self) -> bool {
        sleep::is_marked(self.mine.sleeping())
    }
}
