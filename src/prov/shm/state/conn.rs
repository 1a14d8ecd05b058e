// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live connection: the sending end of the peer's ring, operations that wait for their turn, and operations that wait for the
//! peer's report in a slot.

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

/// Ticks after which the peer's process is checked again before an operation that touches the peer's memory.
const ALIVE_TICKS: u64 = 2_000_000;
/// Messages that go into the ring between two looks at the clock.
const SENDS: u64 = 24;
/// Ticks after which a look at the clock for a message also checks the peer's process.
const SENDS_TICKS: u64 = 20_000_000;

/// The state of a live connection.
pub struct Conn {
    pub link: Arc<Link>,
    pub tx: Producer<SegmentRef>,
    pub gate: Initiator,
    /// Address of this side's busy word.
    pub busy: usize,
    /// Stands before `remotes`, so that streams are dropped, and their copies over, before the mappings are.
    pub devices: DeviceStreams,
    pub remotes: RemoteRegions,
    pub slots: Slots,
    /// Operations that wait for their start, in the order of posting.
    pub backlog: VecDeque<Job>,
    /// Staged operations in flight, which direct copies must not overtake.
    pub staged: u32,
    /// Shared copies in flight, which no operation may overtake.
    pub coop: u32,
    /// Bytes offered for sharing since the target was last woken for them.
    pub offered: usize,
    /// 1 if entries come in the order of posting and operations are in flight; else 0.
    pub late: u32,
    /// Count of messages sent.
    pub sent: u64,
    /// Count of messages that the peer has matched, as this side last read it.
    pub credited: u64,
    /// Count of sent messages at which the window and the peer's process are checked again.
    pub sends_until: u64,
    /// Per slot of the peer: generation and first error of a staged write in progress.
    pub staged_in: Vec<(u16, u16)>,
    /// Staged reads of the peer whose bytes this side still has to send.
    pub reads_out: VecDeque<ReadOut>,
    /// The peer's operation that this side helps with.
    pub helping: Option<HelpedCopy>,
    /// Messages that arrive in fragments, by slot of the peer. The list grows as slots are used.
    pub rendezvous_in: Vec<Option<RendezvousIn>>,
    /// Ticks at which the peer's process was last known to live.
    seen_alive: u64,
    /// Cross-memory attach to the peer's memory.
    pub reach: Reach,
    /// True if the first message that the peer offers waits for pages of the peer to become present.
    pub offer_waits: bool,
    /// True if a copy has found that its path works no more. The operation is tried again, by another path.
    pub rerouted: bool,
    /// Bytes of a fragment: `FRAGMENT_BYTES`, or fewer by fault injection.
    pub fragment: usize,
}

impl Conn {
    pub fn new(link: Arc<Link>, allowed: Paths, fragment: Option<usize>) -> Conn {
        Conn {
            tx: Producer::new(link.peer.clone(), config::get().debug.area_max),
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

    /// Has the copier process copy device memory from now on; this process then calls no driver.
    pub fn copy_elsewhere(&mut self, copier: &'static Copier) {
        self.devices.copier = Some(copier);
        self.remotes.imports.copier = Some(copier);
    }

    /// True if this process may call drivers of devices.
    pub fn may_call_drivers(&self) -> bool {
        self.devices.copier.is_none()
    }

    /// True if a direct copy that runs now overtakes no earlier operation.
    #[inline(always)]
    pub fn is_clear(&self) -> bool {
        self.backlog.len() as u64 | u64::from(self.staged) | u64::from(self.coop) | u64::from(self.late) | self.devices.len() as u64 == 0
    }

    /// The count of operations that wait or are in flight, which `TX_SIZE` bounds.
    pub fn outstanding(&self) -> usize {
        self.backlog.len() + self.slots.active.len() + self.devices.len()
    }

    /// True if the peer's ring has room for a message with this header.
    pub fn room(&mut self, header: Header) -> Result<bool> {
        self.tx.room(header.lines()).map_err(broken)
    }

    /// Writes a message without bytes. The caller has checked the room.
    pub fn put_words(&mut self, kind: u8, flags: u8, words: &[u64]) {
        let header = Header { kind, flags, words: words.len() as u8, bytes: 0 };
        self.tx.write(header, words, &[]);
        self.link.nudge();
    }

    /// Asks the peer for memory files whose descriptors could not be fetched by pidfd.
    pub fn ask_for_files(&mut self) {
        while let Some(id) = self.remotes.imports.to_ask.last().copied() {
            match socket::send(self.link.socket.as_fd(), &Frame::FileAsk(id).encode(), &[]) {
                Ok(true) => {
                    self.remotes.imports.to_ask.pop();
                }
                // The socket is full or closed; the next look at the control socket shows which.
                _ => return,
            }
        }
    }

    /// The peer's region with its current path. `None`: the peer must first send a memory file. If `meanwhile` names
    /// paths, the region is reached by one of them instead of waiting: so for an inject call, which leaves no entry to
    /// wait for.
    pub fn reach(&mut self, key: u64, meanwhile: Paths) -> Result<Option<RemoteRegion>> {
        match self.remotes.resolve(&self.link, key)? {
            Resolved::Ready => self.remotes.cached(key).cloned().map(Some).ok_or_else(|| no_such_key(key)),
            Resolved::Wait => {
                self.ask_for_files();
                if meanwhile.is_empty() { Ok(None) } else { self.remotes.without_files(&self.link, key, meanwhile) }
            }
        }
    }

    /// Handles a failed copy, and returns the error with which the operation ends. If the path cma as such failed (code
    /// `Path`), sets `rerouted`: the operation is tried again, and the region is reached by another path from now on.
    #[cold]
    pub fn attach_failed(&mut self, region: &RemoteRegion, e: Error) -> Error {
        if e.code == Code::Path {
            if self.link.why_no_cma().is_some() {
                self.remotes.evict_all();
            } else {
                self.remotes.refuse(region, e.clone());
            }
            self.rerouted = true;
        }
        attach_error(e)
    }

    /// True if another message may be sent without a new check of the window and of the peer's process.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.sent < self.sends_until
    }

    /// Checks the peer's process if it is time, and permits some more messages. Called last in a call, when `may_send`
    /// is false.
    #[cold]
    #[inline(never)]
    pub fn look_at_peer(&mut self) {
        if self.check_recipient().is_ok() {
            self.renew_sends();
        }
    }

    /// As `check_alive`, but after more ticks (`SENDS_TICKS`): for messages, which do not touch the peer's own memory.
    #[inline(always)]
    pub fn check_recipient(&mut self) -> Result<()> {
        if time::ticks().wrapping_sub(self.seen_alive) > SENDS_TICKS { self.check_alive() } else { Ok(()) }
    }

    /// Permits up to `SENDS` more messages, as far as the window has room. False: the window is full.
    #[inline(always)]
    pub fn renew_sends(&mut self) -> bool {
        self.sends_until = (self.credited + WINDOW).min(self.sent + SENDS);
        self.sent < self.sends_until
    }

    /// Checks the peer's process if the last check is older than `ALIVE_TICKS`.
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

/// The error of an operation whose cross-memory copy failed.
pub fn attach_error(e: Error) -> Error {
    match (e.code, e.errno) {
        (Code::PeerGone, _) => e,
        (Code::Path, _) => Error::coded(errno::EOPNOTSUPP, Code::Path, e.words),
        (_, errno) => Error::coded(errno, Code::Fault, e.words),
    }
}
