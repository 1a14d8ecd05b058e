// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One side of a connection at work: its receives, its polling, and waits with a time limit. `post` has the posting, `mail`
//! the control messages.

use crate::layout::Layout;
use crate::memory::{Memory, POISON};
use crate::provider::ProviderTraits;
use crate::socket::Control;
use crate::wire::{self, Kinds, MAIL_MAX, Mail, PeerMemory, Plan, peer_failed, silent};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::fabric::{Cq, Endpoint, PathAnswer, PathStats, Stats, UNSPEC};
use gdrfab::mr::Paths;
use gdrfab::prov::Completion;
use gdrfab::prov::flags;
use gdrfab::prov::op::Common;
use gdrfab::prov::queue::Taken;
use gdrfab::sys::time::ticks;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most control messages that are kept unread; a peer that sends more is no client of this program.
const MAIL_KEPT: usize = 256;
/// The number of looks at memory between two turns of progress, if bytes arrive without progress.
const LOOKS: u32 = 64;
/// From this size on, helping with a copy takes longer than a look at the queue.
const LARGE: usize = 64 << 10;

/// Counts turns of progress that found nothing, and now and then looks at the clock.
#[derive(Default)]
pub struct Spin {
    turns: u32,
    since: u64,
}

struct Arrival {
    lane: usize,
    place: usize,
    len: usize,
    control: Option<u64>,
}

/// The context of an outgoing control message; no endpoint has this number.
pub const LETTER: usize = usize::MAX;
/// The bits of a receive's context that hold the number of its endpoint.
const LANE_BITS: u32 = 6;
/// The tag of all messages, control messages too: both use the same receives.
const TAG: u64 = 7;

/// Completions that were read and not handled yet, as `sort` divides them.
#[derive(Default)]
struct Fresh {
    arrivals: Vec<Arrival>,
    letters: u64,
}

pub struct Link {
    /// The endpoints; the first carries all control messages.
    pub eps: Vec<Arc<Endpoint>>,
    pub cq: Arc<Cq>,
    pub memory: Memory,
    /// The memory in which control messages arrive, unless messages are under test, and from which they are sent if they have
    /// to lie in a region.
    pub mailbox: Memory,
    pub layout: Layout,
    pub peer: PeerMemory,
    pub desc: u64,
    pub mail_desc: u64,
    pub traits: ProviderTraits,
    /// The tag of messages; `None`: they have none.
    pub tag: Option<u64>,
    /// The length up to which an operation travels with its request, if the command line says so.
    pub inline: usize,
    /// The time limit of an operation; 0: none. Receives have none, since they wait for as long as the test takes.
    pub timeout_ns: u64,
    /// The ticks that a wait for the peer may last.
    pub patience: u64,
    /// The tick at which the peer's time is over.
    pub until: u64,
    /// The tick of the peer's last sign of life.
    pub heard: u64,
    /// The socket over which addresses were exchanged, open as long as the peer's process lives.
    pub control: Option<Control>,
    pub yields: bool,
    /// The requested completions of this side's operations, in all and for each endpoint.
    pub done: u64,
    pub ends: Vec<u64>,
    /// The number of this side's control messages that were sent from the mailbox.
    pub letters: u64,
    /// The number of messages under test that this side sent.
    pub sent: u64,
    /// The number of messages received that are no control messages, and the place of the last.
    pub arrived: u64,
    pub last: usize,
    /// The places of messages received since the list was emptied, if a test needs them.
    pub places: Option<Vec<usize>>,
    fresh: Fresh,
    pub mail: VecDeque<Mail>,
    counted: Stats,
}

impl Link {
    /// `descs` are the descriptors of the memory under test and of the memory for control messages.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        cq: Arc<Cq>,
        memory: Memory,
        mailbox: Memory,
        plan: &Plan,
        descs: (u64, u64),
        traits: ProviderTraits,
        patience: u64,
    ) -> Link {
        Link {
            eps: Vec::new(),
            cq,
            memory,
            mailbox,
            layout: Layout::of(plan),
            peer: PeerMemory::default(),
            desc: descs.0,
            mail_desc: descs.1,
            traits,
            tag: plan.tagged.then_some(TAG),
            timeout_ns: plan.deadline_ms.saturating_mul(1_000_000),
            inline: plan.inline.unwrap_or(0),
            patience,
            until: u64::MAX,
            heard: ticks(),
            control: None,
            yields: plan.yields,
            done: 0,
            ends: Vec::new(),
            letters: 0,
            sent: 0,
            arrived: 0,
            last: 0,
            places: plan.verify.then(Vec::new),
            fresh: Fresh { arrivals: Vec::with_capacity(64), letters: 0 },
            mail: VecDeque::new(),
            counted: Stats::default(),
        }
    }

    /// Adds an endpoint and posts its receives. From then on the first endpoint always has a receive for a control message.
    pub fn add(&mut self, ep: Arc<Endpoint>, receives: usize) -> Result<()> {
        self.eps.push(ep);
        self.ends.push(0);
        let lane = self.eps.len() - 1;
        (0..receives).try_for_each(|i| {
            let (place, len) = self.layout.inbox(lane, i);
            self.post_receive(lane, place, len)
        })
    }

    fn post_receive(&self, lane: usize, place: usize, len: usize) -> Result<()> {
        let desc = if self.layout.messages { self.desc } else { self.mail_desc };
        let common = Common { context: place << LANE_BITS | lane, desc, peer: UNSPEC, ..Common::default() };
        let (ep, local) = (&self.eps[lane], [self.inbox().iov(place, len)]);
        match self.tag {
            None => ep.recv(&local, &common, &[common.desc]),
            Some(tag) => ep.trecv(&local, &common, &[common.desc], tag, 0),
        }
    }

    /// The memory of the receives, and its descriptor.
    fn inbox(&self) -> &Memory {
        if self.layout.messages { &self.memory } else { &self.mailbox }
    }

    /// The number of control messages from the mailbox that are not complete.
    pub fn letters_under_way(&self) -> u64 {
        self.letters - self.fresh.letters
    }

    /// Makes progress once, and handles its completions.
    #[inline]
    pub fn poll(&mut self) -> Result<()> {
        let Link { cq, fresh, done, ends, .. } = self;
        let taken = cq.read(32, |_, c| sort(c, fresh, done, ends));
        self.digest(taken)
    }

    /// The same, but sleeps until something arrives or `ms` have passed.
    pub fn nap(&mut self, ms: i32) -> Result<()> {
        let Link { cq, fresh, done, ends, .. } = self;
        match cq.sread(32, ms, |_, c| sort(c, fresh, done, ends)) {
            Ok(taken) => self.digest(taken),
            Err(e) if e.errno == errno::EINTR => Ok(()),
            Err(e) => Err(e),
        }
    }

    #[inline]
    fn digest(&mut self, taken: Taken) -> Result<()> {
        if taken == Taken::ErrorFirst {
            return Err(self.failure());
        }
        if !self.fresh.arrivals.is_empty() {
            self.take_in()?;
        }
        Ok(())
    }

    fn take_in(&mut self) -> Result<()> {
        let mut fresh = std::mem::take(&mut self.fresh.arrivals);
        for a in fresh.drain(..) {
            let control = if self.traits.data { a.control } else { self.enveloped(&a) };
            match control {
                None => {
                    self.arrived += 1;
                    self.last = a.place;
                    if let Some(places) = self.places.as_mut().filter(|p| !p.contains(&a.place)) {
                        places.push(a.place);
                    }
                }
                Some(_) if a.lane > 0 => return Err(Error::fixed(errno::EPROTO, "the peer sent a control message on a wrong endpoint")),
                Some(data) => self.file(data, &a)?,
            }
            let room = self.layout.inbox(a.lane, 0).1;
            match self.post_receive(a.lane, a.place, room) {
                // The peer said goodbye and left; its last message still counts.
                Err(e) if e.errno == errno::ESHUTDOWN => {}
                other => other?,
            }
        }
        self.fresh.arrivals = fresh;
        Ok(())
    }

    fn file(&mut self, data: u64, a: &Arrival) -> Result<()> {
        let kind =
            Kinds::from_data(data).ok_or_else(|| Error::new(errno::EPROTO, format!("the peer sent a control message of kind {data}")))?;
        let envelope = if self.traits.data { 0 } else { wire::ENVELOPE };
        let bytes = self.inbox().copy_out(a.place + envelope, a.len.min(MAIL_MAX) - envelope);
        self.heard = ticks();
        if kind != Kinds::Tick && self.mail.len() == MAIL_KEPT {
            return Err(Error::fixed(errno::EPROTO, "the peer sends more control messages than it waits for"));
        }
        if kind != Kinds::Tick {
            self.mail.push_back(Mail { kind, bytes });
        }
        // The message has overwritten the bytes that lay there.
        if self.layout.messages
            && a.len > 0
            && let Some(places) = &mut self.places
        {
            places.retain(|p| *p != a.place);
            self.memory.set(a.place, a.len, POISON);
        }
        Ok(())
    }

    /// The kind of a control message that has it in its first bytes.
    fn enveloped(&self, a: &Arrival) -> Option<u64> {
        if a.len < wire::ENVELOPE || a.len > MAIL_MAX {
            return None;
        }
        wire::open_envelope(&self.inbox().copy_out(a.place, wire::ENVELOPE))
    }

    /// The reason of the error in the queue.
    #[cold]
    fn failure(&mut self) -> Error {
        if let Some(said) = self.mail.iter().find(|m| m.kind == Kinds::Fail) {
            return peer_failed(said);
        }
        let Some((entry, failure)) = self.cq.read_error() else {
            return Error::fixed(errno::EIO, "the completion queue announced an error and has none");
        };
        let what = match entry.flags {
            f if f & flags::READ != 0 => "a read",
            f if f & flags::WRITE != 0 => "a write",
            f if f & flags::SEND != 0 => "a message",
            _ => "waiting for the peer",
        };
        if failure.error.code == Code::PeerGone { failure.error } else { failure.error.context(what) }
    }

    /// The reason that the peer gave for leaving, if it gave one: an operation may fail before that last message is read.
    #[cold]
    pub fn last_words(&mut self, e: Error) -> Error {
        if e.errno != errno::ESHUTDOWN {
            return e;
        }
        // The failure is known already.
        let _ = self.poll();
        self.mail.iter().find(|m| m.kind == Kinds::Fail).map_or(e, peer_failed)
    }

    /// Yields the CPU, if both sides run on the same one.
    #[inline]
    pub fn give_way(&self) {
        if self.yields {
            std::thread::yield_now();
        }
    }

    /// Handles a turn that found nothing. Fails if the wait lasts too long.
    #[inline]
    pub fn idle(&mut self, spin: &mut Spin, what: &str) -> Result<()> {
        self.give_way();
        spin.turns = spin.turns.wrapping_add(1);
        if spin.turns & 255 == 0 { self.look_at_clock(spin, what) } else { Ok(()) }
    }

    /// Fails if the peer's process is gone and no message of it is left to be read.
    pub fn look_at_peer(&mut self, now: u64) -> Result<()> {
        match self.control.as_mut().map_or(Ok(()), |control| control.look(now)) {
            Ok(()) => Ok(()),
            Err(gone) => {
                // Its last message may have arrived since this side looked.
                let polled = self.poll();
                if self.mail.is_empty() { polled.and(Err(gone)) } else { Ok(()) }
            }
        }
    }

    #[cold]
    fn look_at_clock(&mut self, spin: &mut Spin, what: &str) -> Result<()> {
        let now = ticks();
        if spin.since == 0 {
            spin.since = now;
        }
        self.look_at_peer(now)?;
        if now.saturating_sub(spin.since.max(self.heard)) > self.patience {
            return Err(silent(what));
        }
        self.check_time(now)
    }

    /// Fails if the peer has used up its time.
    #[inline]
    pub fn check_time(&self, now: u64) -> Result<()> {
        if now > self.until {
            return Err(Error::coded(
                errno::ETIMEDOUT,
                Code::Deadline,
                "the client stayed for as long as this server lets it (--max-time)",
            ));
        }
        Ok(())
    }

    pub fn wait(&mut self, what: &str, ready: impl Fn(&Link) -> bool) -> Result<()> {
        let mut spin = Spin::default();
        while !ready(self) {
            self.poll()?;
            self.idle(&mut spin, what)?;
        }
        Ok(())
    }

    /// Posts an operation, making progress until there is room.
    #[inline]
    pub fn must(&mut self, what: &str, post: impl Fn(&Link) -> Result<bool>) -> Result<()> {
        let mut spin = Spin::default();
        while !post(self)? {
            self.poll()?;
            self.idle(&mut spin, what)?;
        }
        Ok(())
    }

    /// Waits until the byte at `offset` is `want` (true), or a control message has arrived (false).
    #[inline]
    pub fn await_byte(&mut self, offset: usize, want: u8, looks: u32) -> Result<bool> {
        let mut spin = Spin::default();
        loop {
            for _ in 0..looks {
                if self.memory.load(offset) == want {
                    return Ok(true);
                }
                // With pauses, memory that a device writes is seen later; and an emulated CPU does much else during one.
                if !self.traits.nic {
                    std::hint::spin_loop();
                }
            }
            self.poll()?;
            if self.has_mail() {
                return Ok(self.memory.load(offset) == want);
            }
            self.idle(&mut spin, "write of the peer")?;
        }
    }

    /// The number of looks at memory before making progress; few if nothing arrives without progress.
    pub fn looks(&self, size: usize, incoming: Paths) -> u32 {
        let idle = Paths::STAGED | Paths::SOCKET;
        if incoming.is_empty() || incoming.intersects(idle) || size >= LARGE { 1 } else { LOOKS }
    }

    /// The path to the peer's region. The library may have to fetch the peer's memory file first.
    pub fn path(&mut self) -> Result<PathAnswer> {
        let mut spin = Spin::default();
        let until = ticks().saturating_add(self.patience.min(1 << 31));
        loop {
            match self.eps[0].query(0, self.peer.key, self.desc) {
                Err(e) if e.errno == errno::ENOTCONN && self.traits.rdm && ticks() <= until => {}
                Ok(answer) if answer.path.is_empty() && ticks() <= until => {}
                settled => return settled,
            }
            self.poll()?;
            self.idle(&mut spin, "path to the peer's memory")?;
        }
    }

    /// The counts of the endpoints since the last call.
    pub fn stats(&mut self) -> Stats {
        let now = self.eps.iter().map(|ep| ep.stats()).fold(Stats::default(), |a, b| each(a, b, u64::wrapping_add));
        each(now, std::mem::replace(&mut self.counted, now), u64::wrapping_sub)
    }
}

/// The counts that tell which path bytes took.
fn each(a: Stats, b: Stats, of: fn(u64, u64) -> u64) -> Stats {
    Stats {
        by_path: std::array::from_fn(|i| PathStats {
            ops: of(a.by_path[i].ops, b.by_path[i].ops),
            bytes: of(a.by_path[i].bytes, b.by_path[i].bytes),
        }),
        bytes_helped: of(a.bytes_helped, b.bytes_helped),
        ..a
    }
}

#[inline]
fn sort(c: &Completion, fresh: &mut Fresh, done: &mut u64, ends: &mut [u64]) {
    if c.flags & flags::RECV != 0 {
        let control = (c.flags & flags::REMOTE_CQ_DATA != 0).then_some(c.data);
        let lane = c.context & ((1 << LANE_BITS) - 1);
        fresh.arrivals.push(Arrival { lane, place: c.context >> LANE_BITS, len: c.len, control });
    } else if let Some(end) = ends.get_mut(c.context) {
        *done += 1;
        *end += 1;
    } else {
        fresh.letters += 1;
    }
}
