// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several rails as one stream. What is sent is cut into segments, which are kept until the peer has told that it took them;
//! any rail that has room carries the next, and another carries again what a lost one may not have brought. The receiver puts
//! them in order by their numbers and takes each once, so frames, and all that they promise, know nothing of rails.

use super::connection::{Buf, HEADROOM, Rail, Received};
use super::reorder::Reorder;
use crate::error::{Code, Error, Result, errno};
use crate::prov::report::RailReport;
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::secure::seal::Window;
use crate::prov::tcp::wire::frame::protocol_error;
use crate::prov::tcp::wire::segment::{RAILS_MAX, SegmentHead, WINDOW, Word};
use crate::sys::epoll::Poller;
use crate::sys::stream::{self, Moved};
use crate::sys::usercopy::GatherBuffer;
use crate::sys::{tcp, time};
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes and segments that are taken before the sender is told without being asked.
const ACK_BYTES: u64 = 512 << 10;
const ACK_SEGMENTS: u32 = 256;
/// Segments that a rail is read for before the next one is.
const TURN: usize = 8;
/// Rails that are lost within so long are lost together.
const AT_ONCE_NS: u64 = 50_000_000;
/// News that may wait; beyond these a loss and the return after it are not told of.
const EVENTS_MAX: usize = 64;
/// Carries nothing now.
pub const NO_RAIL: u8 = u8::MAX;

/// A segment that is not known to have come.
pub struct SentSegment {
    pub from: u64,
    pub len: usize,
    pub on: u8,
    /// Sent over another rail as well, because that one may be sooner.
    pub again: bool,
}

/// A place for a rail, whether it is up or not.
#[derive(Default)]
pub struct RailSlot {
    pub up: Option<Rail>,
    /// Of this side and the peer's; not known before it came up for the first time.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// How often it came up, and when last.
    pub generation: u32,
    pub since: u64,
    /// Bytes of segments that it carried out and in, and how often it was lost.
    pub carried: (u64, u64),
    pub losses: u64,
    pub lost_at: u64,
    /// Segments out since it came up.
    pub begun: u64,
}

/// What became of a rail.
pub struct RailEvent {
    pub rail: usize,
    pub words: String,
    pub errno: i32,
    pub is_up: bool,
    pub at: u64,
}

pub struct Rails {
    pub set: Poller,
    pub slots: Vec<RailSlot>,
    /// What is sent and not known to have come: byte n of the stream lies at n minus `origin`, modulo the ring's length.
    pub ring: Landing,
    pub origin: u64,
    pub next: u64,
    pub acked: u64,
    /// What was begun to be sent ends here; the peer can have taken no more.
    pub begun: u64,
    pub unacked: VecDeque<SentSegment>,
    /// The first bytes of those that nobody carries.
    pub unassigned: VecDeque<u64>,
    /// To be told: of rails that are not read any more.
    pub downs: VecDeque<(usize, u32)>,
    /// Bytes behind what was put, as far as they are known.
    pub behind: u64,

    pub incoming: Reorder,
    /// What the sender was told of that.
    pub told: u64,
    pub segments_since_ack: u32,
    pub ack_due: bool,
    /// Over which rail something came last.
    pub last: usize,

    /// Segments after which each is lost on demand; 0: never.
    pub injected_losses: [u64; RAILS_MAX],
    /// Somebody sleeps until one of them has something.
    pub asleep: bool,
    pub events: Vec<RailEvent>,
    /// A lie of the peer's; or how the last of them was lost, and when.
    pub gone: Option<Error>,
    lost_at: u64,
    /// When the last was lost another had been for longer: it was being called already, and may be up at one side alone.
    is_repaired: bool,
    /// None is to come in the place of the last.
    pub is_over: bool,
}

fn lost(words: &str) -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, words.to_string())
}

impl Rails {
    pub fn new() -> Result<Rails> {
        Ok(Rails {
            set: Poller::new()?,
            slots: Vec::new(),
            ring: Landing::new(WINDOW as usize)?,
            origin: 0,
            next: 0,
            acked: 0,
            begun: 0,
            unacked: VecDeque::new(),
            unassigned: VecDeque::new(),
            downs: VecDeque::new(),
            behind: 0,
            incoming: Reorder::default(),
            told: 0,
            segments_since_ack: 0,
            ack_due: false,
            last: 0,
            injected_losses: [0; RAILS_MAX],
            asleep: false,
            events: Vec::new(),
            gone: None,
            lost_at: 0,
            is_repaired: false,
            is_over: false,
        })
    }

    /// A descriptor that is readable when a rail has something, or room.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.set
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EMFILE), "a descriptor of the rails"))
    }

    pub fn set(&self) -> &Poller {
        &self.set
    }

    /// The rail with this number is up, perhaps again; what the one before it had is sent anew.
    pub fn attach(&mut self, number: usize, generation: u32, link: Link) -> Result<()> {
        if self.is_over {
            return Err(Error::fixed(errno::ESHUTDOWN, "the connection is over"));
        }
        let ends = (tcp::local(link.socket.as_fd()), tcp::peer(link.socket.as_fd()));
        let ends = if let (Ok(own), Ok(peer)) = ends { Some((own.ip(), peer.ip())) } else { None };
        let now = time::now_ns();
        let rail = Rail::new(link, now)?;
        while self.slots.len() <= number.min(RAILS_MAX - 1) {
            self.slots.push(RailSlot::default());
        }
        if self.drop_rail(number) {
            self.tell(number, errno::ECONNRESET, false, "the peer has lost it, and calls again");
        }
        self.set.add(rail.socket.as_fd())?;
        let Some(slot) = self.slots.get_mut(number) else { return Ok(()) };
        let is_back = slot.generation > 0;
        (slot.up, slot.generation, slot.since, slot.ends, slot.begun) = (Some(rail), generation, now, ends, 0);
        // What was told over a rail that is gone may not have come.
        self.ack_due |= is_back;
        self.gone = self.gone.take().filter(|why| why.code == Code::PeerBroke);
        if is_back {
            self.tell(number, errno::EPERM, true, "is up again");
        }
        Ok(())
    }

    pub fn is_up(&self, number: usize) -> bool {
        self.slots.get(number).is_some_and(|b| b.up.is_some())
    }

    pub fn count_up(&self) -> usize {
        self.slots.iter().filter(|b| b.up.is_some()).count()
    }

    /// A rail in words.
    fn name(&self, number: usize) -> String {
        match self.slots.get(number).and_then(|b| b.ends) {
            Some((own, peer)) => format!("rail {number}, {own} to {peer}"),
            None => format!("rail {number}"),
        }
    }

    fn tell(&mut self, number: usize, errno: i32, is_up: bool, why: &str) {
        let words = format!("{}: {why}", self.name(number));
        if let Some(slot) = self.slots.get_mut(number) {
            slot.losses += u64::from(!is_up);
        }
        crate::log!(Debug, "{words}");
        let before = self.events.iter().rposition(|n| n.rail == number).filter(|_| self.events.len() >= EVENTS_MAX);
        if let Some(before) = before {
            self.events.remove(before);
        } else {
            self.events.push(RailEvent { rail: number, words, errno, is_up, at: time::now_ns() });
        }
    }

    /// Each rail in a line.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for (number, b) in self.slots.iter().enumerate() {
            let state = if b.up.is_some() { "up" } else { "down" };
            let (name, (out, incoming)) = (self.name(number), b.carried);
            let _ = writeln!(text, "  {name}: {state}, {out} bytes out, {incoming} in, lost {} times", b.losses);
        }
        text
    }

    /// The rail of this number as the caller sees it.
    pub fn report(&self, number: usize) -> Option<RailReport> {
        let report = |b: &RailSlot| RailReport { up: b.up.is_some(), losses: b.losses, bytes: b.carried, ends: b.ends };
        self.slots.get(number).map(report)
    }

    pub fn losses(&self) -> u64 {
        self.slots.iter().map(|b| b.losses).sum()
    }

    /// Takes a rail away; what it carried is for others to carry.
    fn drop_rail(&mut self, number: usize) -> bool {
        let Some(rail) = self.slots.get_mut(number).and_then(|b| b.up.take()) else { return false };
        self.set.remove(rail.socket.as_fd());
        drop(rail);
        let before = self.unassigned.len();
        for unacked in self.unacked.iter_mut().filter(|k| k.on as usize == number) {
            unacked.on = NO_RAIL;
            self.unassigned.push_back(unacked.from);
        }
        if self.unassigned.len() > before {
            self.unassigned.make_contiguous().sort_unstable();
        }
        self.ack_due |= self.incoming.expected > 0;
        self.release();
        true
    }

    /// A rail is lost: the peer learns it over another, so that neither side waits for it.
    pub fn lose(&mut self, number: usize, why: &Error) {
        if !self.drop_rail(number) {
            return;
        }
        if let Some(slot) = self.slots.get_mut(number) {
            slot.lost_at = time::now_ns();
        }
        let generation = self.slots.get(number).map_or(0, |b| b.generation);
        self.downs.retain(|(other, _)| *other != number);
        self.downs.push_back((number, generation));
        self.tell(number, why.errno, false, &why.words);
        if self.count_up() == 0 {
            self.gone.get_or_insert(lost(&format!("the last of its rails is lost: {}", why.words)));
            self.lost_at = time::now_ns();
            // A peer that died took all of them at once.
            let (now, known) = (self.lost_at, |b: &&RailSlot| b.generation > 0);
            self.is_repaired = self.slots.iter().filter(known).any(|b| now.saturating_sub(b.lost_at) > AT_ONCE_NS);
        }
    }

    /// Whether the last one is lost, and nobody has said yet whether another comes.
    pub fn is_undecided(&self) -> bool {
        self.gone.is_some() && self.count_up() == 0 && !self.is_over
    }

    /// Says so. One that comes, the peer may have taken for up: it is waited for, but not without end.
    pub fn decide(&mut self, comes: bool, now: u64, most_ms: u32) {
        let late = now.saturating_sub(self.lost_at) > u64::from(most_ms) * 1_000_000;
        self.is_over |= self.is_undecided() && (late || !(comes || self.is_repaired));
    }

    /// Nobody is there any more who would let another in.
    pub fn give_up(&mut self) {
        self.is_repaired = false;
    }

    /// Why nothing more goes and comes.
    pub fn end(&self) -> Option<Error> {
        self.gone.clone().filter(|_| self.is_over)
    }

    /// Gives the next bytes of the stream to a reader whose buffer this is.
    fn deliver(&mut self, buf: &mut Buf, window: &mut Window) -> bool {
        if !self.incoming.deliver(buf, window) {
            return false;
        }
        self.segments_since_ack += 1;
        self.ack_due |= self.incoming.expected - self.told >= ACK_BYTES || self.segments_since_ack >= ACK_SEGMENTS;
        true
    }

    /// Brings the reader more, if a rail has it. What is nothing new gives it its buffer as it was, so that its own turn, which
    /// is bounded, goes on.
    pub fn read(&mut self, buf: &mut Buf, window: &mut Window, short: usize) -> Result<Moved> {
        if window.1 - window.0 > HEADROOM {
            return Ok(Moved::Blocked);
        }
        if self.deliver(buf, window) || (self.fill(short)? && (self.deliver(buf, window) || self.count_up() > 0)) {
            return Ok(Moved::Bytes(window.1 - window.0));
        }
        self.end().map_or(Ok(Moved::Blocked), Err)
    }

    /// Takes segments from the rails; whether any came. Who asks again after a lie hears of it again.
    pub fn fill(&mut self, short: usize) -> Result<bool> {
        if let Some(lie) = self.gone.as_ref().filter(|why| why.code == Code::PeerBroke) {
            return Err(lie.clone());
        }
        let came = self.take_segments(short);
        if let Err(lie) = &came {
            self.gone = Some(lie.clone());
        }
        came
    }

    fn take_segments(&mut self, short: usize) -> Result<bool> {
        let mut came = false;
        for i in 0..self.slots.len() {
            for _ in 0..TURN {
                let Rails { slots, incoming, .. } = self;
                let Some(rail) = slots.get_mut(i).and_then(|b| b.up.as_mut()) else { break };
                match rail.receive(short, &mut || incoming.buffer()) {
                    Ok(Received::Segment(head, bytes)) => {
                        came = true;
                        self.last = i;
                        self.came(i, head, bytes)?;
                    }
                    Ok(Received::Nothing) => break,
                    Ok(Received::Ended) => self.lose(i, &lost("the peer closed it, or died")),
                    // What makes no sense is the peer's fault, and not the rail's.
                    Err(e) if e.code == Code::PeerBroke => return Err(e),
                    Err(e) => self.lose(i, &e),
                }
            }
        }
        Ok(came)
    }

    fn came(&mut self, number: usize, head: SegmentHead, bytes: Option<Buf>) -> Result<()> {
        if head.taken > self.begun {
            return Err(protocol_error("word that it took bytes which were never sent"));
        }
        if head.taken > self.acked {
            self.acked = head.taken;
            self.release();
        }
        let (from, len, bytes) = match (head.word, bytes) {
            (Word::Down { rail, generation }, _) => {
                if self.slots.get(rail).is_some_and(|b| b.up.is_some() && b.generation == generation) {
                    self.lose(rail, &lost("the peer has lost it"));
                }
                return Ok(());
            }
            (Word::Data { from, len }, Some(bytes)) if len > 0 => (from, len, bytes),
            _ => return Ok(()),
        };
        if let Some(slot) = self.slots.get_mut(number) {
            slot.carried.1 += len as u64;
        }
        // Again, over another rail: its sender cannot know that it came.
        self.ack_due |= !self.incoming.take(from, len, bytes)?;
        Ok(())
    }

    /// Whether something is here that no socket announces.
    pub fn holds_more(&self) -> bool {
        self.incoming.is_ready() || self.slots.iter().flat_map(|b| &b.up).any(Rail::holds_more)
    }

    /// Finds rails that are silent though something is on its way, and keeps those busy that have nothing to do. The last one
    /// has the connection's patience; 0: without end.
    pub fn look_after(&mut self, now: u64, silence_ms: u32, last_ms: u32) {
        let silence_ns = u64::from(silence_ms) * 1_000_000;
        for i in 0..self.slots.len() {
            let others = self.count_up() > 1;
            let Some(rail) = self.slots[i].up.as_mut() else { continue };
            rail.ask(now);
            let (patience, name) = if others { (silence_ms, "GDRFAB_TCP_RAIL_TIMEOUT_MS") } else { (last_ms, "GDRFAB_TCP_TIMEOUT_MS") };
            if patience > 0 && rail.health.is_silent_for(patience, now) {
                let why = format!("the path did not answer for {patience} ms ({name})");
                self.lose(i, &Error::new(errno::ETIMEDOUT, why));
            } else if others && !rail.is_sending() && !rail.blocked && now.saturating_sub(rail.spoke) > silence_ns {
                self.begin(i, Word::Data { from: 0, len: 0 }, 0, now);
                self.step(i, usize::MAX);
            }
        }
    }

    /// Somebody sleeps on them, or nobody does any more.
    pub fn sleep(&mut self, asleep: bool) {
        self.asleep = asleep;
        self.arm();
    }

    /// Watches for room as well where a sleeper waits for it.
    pub fn arm(&mut self) {
        for rail in self.slots.iter_mut().flat_map(|b| &mut b.up).filter(|rail| self.asleep && rail.blocked != rail.armed) {
            match self.set.watch(rail.socket.as_fd(), rail.blocked) {
                Ok(()) => rail.armed = rail.blocked,
                Err(e) => crate::log!(Warn, "{e}"),
            }
        }
    }

    /// How long a sleeper may sleep before they want to be looked at.
    pub fn nap_ns(&self, silence_ms: u32) -> u64 {
        let busy = !self.all_taken() || !self.is_out();
        if busy { 20_000_000 } else { u64::from(silence_ms) * 500_000 }
    }

    /// No more is sent; what was taken is told before.
    pub fn finish(&mut self) {
        self.ack_due = self.incoming.expected > 0;
        self.begin_turn();
        let _ = self.push(usize::MAX);
        self.slots.iter().flat_map(|b| &b.up).for_each(|rail| stream::finish(rail.socket.as_fd()));
    }
}
