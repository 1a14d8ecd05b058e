// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live connection: the transmitting end of the ring, operations that wait for their turn, and
//! operations that wait for the peer's report in a slot.

use super::arrivals::RendezvousIn;
use super::device_streams::DeviceStreams;
use super::in_flight::{HelpedCopy, ReadOut, Slots};
use super::job::Job;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::mr::Paths;
use crate::prov::shm::limits::WINDOW;
use crate::prov::shm::peer::link::Link;
use crate::prov::shm::peer::regions::{RemoteRegion, RemoteRegions, Resolved, no_such_key};
use crate::prov::shm::wire::frame::Frame;
use crate::prov::shm::wire::layout::{SLOTS, SegmentRef};
use crate::prov::shm::wire::message::{FRAGMENT_BYTES, broken};
use crate::sync::gate::Initiator;
use crate::sync::producer::Producer;
use crate::sync::ring::Header;
use crate::sys::space::Reach;
use crate::sys::{socket, time};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Ticks for which a look at the peer's process is good.
const ALIVE_TICKS: u64 = 2_000_000;
/// Messages that go to the ring before the clock is looked at, and ticks after which the peer's life is checked then.
const SENDS: u64 = 24;
const SENDS_TICKS: u64 = 20_000_000;

pub struct Conn {
    pub link: Arc<Link>,
    pub tx: Producer<SegmentRef>,
    pub gate: Initiator,
    /// Address of our busy word.
    pub busy: usize,
    /// Before the mappings, which must outlive the copies.
    pub devices: DeviceStreams,
    pub remotes: RemoteRegions,
    pub slots: Slots,
    pub backlog: VecDeque<Job>,
    /// Staged operations in flight: copies of our own must not overtake them.
    pub staged: u32,
    /// Shared copies in flight: nothing may overtake them.
    pub coop: u32,
    /// Bytes offered to be shared since the target may have been woken for them.
    pub offered: usize,
    /// 1: operations whose entries come in the order of posting are under way.
    pub late: u32,
    pub sent: u64,
    pub credited: u64,
    /// How many may be sent before the window and the peer's life are looked at again.
    pub sends_until: u64,
    /// Per slot of the peer: generation and first error of a staged write in progress.
    pub staged_in: Vec<(u16, u16)>,
    pub reads_out: VecDeque<ReadOut>,
    /// The peer's copy that this side shares.
    pub helping: Option<HelpedCopy>,
    /// By slot of the peer, as far as any was used.
    pub rendezvous_in: Vec<Option<RendezvousIn>>,
    /// When the peer's process was last known to live, in ticks.
    seen_alive: u64,
    /// The way to the peer's memory.
    pub reach: Reach,
    /// The first message that was offered waits for pages of the peer.
    pub offer_waits: bool,
    /// A copy has found that a path leads nowhere any more: whoever tries again takes another.
    pub rerouted: bool,
    /// Bytes of a fragment: `FRAGMENT_BYTES`, or less by a fault on demand.
    pub fragment: usize,
}

impl Conn {
    pub fn new(link: Arc<Link>, allowed: Paths, fragment: Option<usize>) -> Conn {
        Conn {
            tx: Producer::new(link.peer.clone(), config::get().area_max),
            gate: Initiator::new(link.fences),
            busy: std::ptr::from_ref(link.mine.busy()) as usize,
            devices: DeviceStreams::default(),
            remotes: RemoteRegions::new(allowed),
            slots: Slots::new(),
            backlog: VecDeque::new(),
            staged: 0,
            coop: 0,
            offered: 0,
            late: 0,
            sent: 0,
            credited: 0,
            sends_until: 0,
            staged_in: vec![(0, 0); SLOTS],
            reads_out: VecDeque::new(),
            helping: None,
            rendezvous_in: Vec::new(),
            seen_alive: time::ticks(),
            reach: Reach::new(link.space.clone()),
            offer_waits: false,
            rerouted: false,
            fragment: fragment.map_or(FRAGMENT_BYTES, |n| n.min(FRAGMENT_BYTES)),
            link,
        }
    }

    /// Device memory is copied by another process, and no driver is called in this one.
    pub fn copy_elsewhere(&mut self, copier: &'static Copier) {
        self.devices.copier = Some(copier);
        self.remotes.imports.copier = Some(copier);
    }

    /// Whether the drivers of devices may be called here.
    pub fn may_call_drivers(&self) -> bool {
        self.devices.copier.is_none()
    }

    /// Whether a copy of our own may run now without overtaking anything.
    #[inline(always)]
    pub fn is_clear(&self) -> bool {
        self.backlog.len() as u64 | u64::from(self.staged) | u64::from(self.coop) | u64::from(self.late) | self.devices.len() as u64 == 0
    }

    pub fn outstanding(&self) -> usize {
        self.backlog.len() + self.slots.active.len() + self.devices.len()
    }

    pub fn room(&mut self, header: Header) -> Result<bool> {
        self.tx.room(header.lines()).map_err(broken)
    }

    /// Writes a message without bytes, whose room was checked.
    pub fn put_words(&mut self, kind: u8, flags: u8, words: &[u64]) {
        let header = Header { kind, flags, words: words.len() as u8, bytes: 0 };
        self.tx.write(header, words, &[]);
        self.link.nudge();
    }

    /// Asks the peer for memory files that could not be fetched from outside.
    pub fn ask_for_files(&mut self) {
        while let Some(id) = self.remotes.imports.to_ask.last().copied() {
            match socket::send(self.link.socket.as_fd(), &Frame::FileAsk(id).encode(), &[]) {
                Ok(true) => {
                    self.remotes.imports.to_ask.pop();
                }
                // Full, or over: the next look at the socket tells.
                _ => return,
            }
        }
    }

    /// The peer's region, as it is reached now; `None`: once the peer has handed its memory over. What is injected goes by one of
    /// the paths `meanwhile`, as nobody may come back for it.
    pub fn reach(&mut self, key: u64, meanwhile: Paths) -> Result<Option<RemoteRegion>> {
        match self.remotes.resolve(&self.link, key)? {
            Resolved::Ready => self.remotes.cached(key).cloned().map(Some).ok_or_else(|| no_such_key(key)),
            Resolved::Wait => {
                self.ask_for_files();
                if meanwhile.is_empty() { Ok(None) } else { self.remotes.without_files(&self.link, key, meanwhile) }
            }
        }
    }

    /// A copy with a region has failed. Where only cross-memory attach is to blame, the region is reached by another path from now
    /// on; gives what the operation ends with otherwise.
    #[cold]
    pub fn attach_failed(&mut self, place: &RemoteRegion, e: Error) -> Error {
        if e.code == Code::Path {
            if self.link.why_no_cma().is_some() {
                self.remotes.evict_all();
            } else {
                self.remotes.refuse(place, e.clone());
            }
            self.rerouted = true;
        }
        attach_error(e)
    }

    /// Whether another message may go, as far as the window and the peer's life are known.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.sent < self.sends_until
    }

    /// Looks at the peer's life, if it is time, where no more may be sent: out of line, and last in a call.
    #[cold]
    #[inline(never)]
    pub fn look_at_peer(&mut self) {
        if self.check_recipient().is_ok() {
            self.renew_sends();
        }
    }

    /// As `check_alive`, less often: nothing is copied from or to the peer's own memory.
    #[inline(always)]
    pub fn check_recipient(&mut self) -> Result<()> {
        if time::ticks().wrapping_sub(self.seen_alive) > SENDS_TICKS { self.check_alive() } else { Ok(()) }
    }

    /// Lets some more messages go, as many as the window has; false: none.
    #[inline(always)]
    pub fn renew_sends(&mut self) -> bool {
        self.sends_until = (self.credited + WINDOW).min(self.sent + SENDS);
        self.sent < self.sends_until
    }

    /// Looks at the peer's process if the last look is too old.
    pub fn check_alive(&mut self) -> Result<()> {
        let now = time::ticks();
        if now.wrapping_sub(self.seen_alive) > ALIVE_TICKS {
            if self.link.peer_ended() {
                return Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer's process has ended"));
            }
            self.seen_alive = now;
        }
        Ok(())
    }
}

/// What a failed cross-memory copy means for the operation.
pub fn attach_error(e: Error) -> Error {
    match (e.code, e.errno) {
        (Code::PeerGone, _) => e,
        (Code::Path, _) => Error::coded(errno::EOPNOTSUPP, Code::Path, e.words),
        (_, errno) => Error::coded(errno, Code::Fault, e.words),
    }
}
