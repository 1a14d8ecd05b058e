// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All rails of one connection, seen as one stream. The sender cuts the stream into numbered segments and keeps each
//! segment until the peer has acknowledged it. Any rail with room carries the next segment. If a rail is lost, its
//! unacknowledged segments are sent again over another rail. The receiver puts segments into order by their positions
//! and takes each byte once, so the frames above are the same with one rail or several.
//!
//! This file holds the state, receiving, and the loss of rails; sending is in `schedule`, reordering in `reorder`.

use super::connection::{Buf, HEADROOM, Rail, Received};
use super::reorder::Reorder;
use crate::error::{Code, Error, Result, errno};
use crate::prov::report::RailReport;
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::secure::seal::Window;
use crate::prov::tcp::wire::frame::protocol_error;
use crate::prov::tcp::wire::segment::{RAILS_MAX, SegmentHead, SegmentKind, WINDOW};
use crate::sys::epoll::Poller;
use crate::sys::stream::{self, Moved};
use crate::sys::usercopy::GatherBuffer;
use crate::sys::{tcp, time};
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Number of received bytes after which an acknowledgement is sent at once.
const ACK_BYTES: u64 = 512 << 10;
/// Number of received segments after which an acknowledgement is sent at once.
const ACK_SEGMENTS: u32 = 256;
/// Most segments that are read from one rail before the next rail is read.
const TURN: usize = 8;
/// Rails that are lost within this time of one another are taken for losses with one cause.
const AT_ONCE_NS: u64 = 50_000_000;
/// Bound of `Rails::events`. In a full list, a rail's next event and its previous event cancel each other: neither is reported.
const EVENTS_MAX: usize = 64;
/// `SentSegment::on` of a segment that no rail carries now.
pub const NO_RAIL: u8 = u8::MAX;

/// A segment that the peer has not acknowledged.
pub struct SentSegment {
    pub from: u64,
    pub len: usize,
    pub on: u8,
    /// The segment was also sent over a faster rail, which may deliver it sooner.
    pub again: bool,
}

/// The record of one rail number, which outlives the rail's TCP connections.
#[derive(Default)]
pub struct RailSlot {
    pub up: Option<Rail>,
    /// Addresses of this side and of the peer; `None` until the rail first came up.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// Generation of the rail's last connection; 0: the rail has never been up.
    pub generation: u32,
    /// The time at which the rail last came up.
    pub since: u64,
    /// Bytes of segments sent and received over the rail.
    pub carried: (u64, u64),
    /// Number of times that the rail was lost.
    pub losses: u64,
    /// The time at which this side last found the rail lost.
    pub lost_at: u64,
    /// Number of segments whose sending began since the rail last came up.
    pub begun: u64,
}

/// The event of a rail that was lost or came back.
pub struct RailEvent {
    pub rail: usize,
    pub words: String,
    /// The error of the loss; without meaning if the rail came back.
    pub errno: i32,
    pub is_up: bool,
    pub at: u64,
}

/// All rails of one connection.
pub struct Rails {
    /// The epoll set of the rails' sockets.
    pub set: Poller,
    pub slots: Vec<RailSlot>,
    /// The ring of unacknowledged bytes. The byte at stream position n lies at offset (n - `origin`) modulo the ring's length.
    pub ring: GatherBuffer,
    pub origin: u64,
    /// Stream position of the next byte to be put into the ring.
    pub next: u64,
    /// Stream position up to which the peer has acknowledged everything.
    pub acked: u64,
    /// Stream position of the end of the last segment whose sending has begun. An acknowledgement beyond this position
    /// is a protocol error.
    pub begun: u64,
    pub unacked: VecDeque<SentSegment>,
    /// Stream positions of the segments that no rail carries, in order.
    pub unassigned: VecDeque<u64>,
    /// Numbers and generations of lost rails that the peer is still to be told of.
    pub lost_reports: VecDeque<(usize, u32)>,
    /// Number of bytes that wait in the layer above for room in the ring, as far as this layer has been told.
    pub backlog: u64,

    /// The receiving side: the segment that is next in the stream, and segments that arrived before their predecessors.
    pub incoming: Reorder,
    /// Stream position that the last acknowledgement named.
    pub ack_sent: u64,
    /// Number of segments that were delivered since the last acknowledgement.
    pub segments_since_ack: u32,
    /// An acknowledgement is to be sent, even without data.
    pub ack_due: bool,
    /// The rail over which something arrived last.
    pub last: usize,

    /// Fault injection: the number of segments after which each rail is lost; 0: never.
    pub injected_losses: [u64; RAILS_MAX],
    /// A thread sleeps until a rail has something.
    pub asleep: bool,
    pub events: Vec<RailEvent>,
    /// A violation of the protocol by the peer, or the reason for which the last rail was lost.
    pub gone: Option<Error>,
    /// The time at which the last rail was lost.
    lost_at: u64,
    /// Another rail had already been down for more than `AT_ONCE_NS` when the last rail was lost. The dialer was
    /// dialing that rail again, so it may be up at the peer already.
    is_repaired: bool,
    /// No rail will replace the last rail: the connection is over.
    pub is_over: bool,
}

/// The error for a rail that was lost.
fn lost(words: &str) -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, words.to_string())
}

impl Rails {
    pub fn new() -> Result<Rails> {
        Ok(Rails {
            set: Poller::new()?,
            slots: Vec::new(),
            ring: GatherBuffer::new(WINDOW as usize)?,
            origin: 0,
            next: 0,
            acked: 0,
            begun: 0,
            unacked: VecDeque::new(),
            unassigned: VecDeque::new(),
            lost_reports: VecDeque::new(),
            backlog: 0,
            incoming: Reorder::default(),
            ack_sent: 0,
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

    /// A descriptor that is readable when a rail is readable, or has room.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.set
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EMFILE), "a descriptor of the rails"))
    }

    pub fn set(&self) -> &Poller {
        &self.set
    }

    /// Brings the rail with this number up, for the first time or again. Segments that the rail's previous connection
    /// carried are sent again.
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
            self.push_event(number, errno::ECONNRESET, false, "the peer lost this rail and connects it again");
        }
        self.set.add(rail.socket.as_fd())?;
        let Some(slot) = self.slots.get_mut(number) else { return Ok(()) };
        let is_back = slot.generation > 0;
        (slot.up, slot.generation, slot.since, slot.ends, slot.begun) = (Some(rail), generation, now, ends, 0);
        // An acknowledgement that was sent over the lost connection may not have arrived.
        self.ack_due |= is_back;
        self.gone = self.gone.take().filter(|why| why.code == Code::PeerBroke);
        if is_back {
            self.push_event(number, errno::EPERM, true, "is up again");
        }
        Ok(())
    }

    pub fn is_up(&self, number: usize) -> bool {
        self.slots.get(number).is_some_and(|b| b.up.is_some())
    }

    pub fn count_up(&self) -> usize {
        self.slots.iter().filter(|b| b.up.is_some()).count()
    }

    /// The rail's number and addresses, for people.
    fn name(&self, number: usize) -> String {
        match self.slots.get(number).and_then(|b| b.ends) {
            Some((own, peer)) => format!("rail {number}, {own} to {peer}"),
            None => format!("rail {number}"),
        }
    }

    /// Queues the event of a rail, and counts the loss if it is one.
    fn push_event(&mut self, number: usize, errno: i32, is_up: bool, why: &str) {
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

    /// One line of text for each rail.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for (number, b) in self.slots.iter().enumerate() {
            let state = if b.up.is_some() { "up" } else { "down" };
            let (name, (out, incoming)) = (self.name(number), b.carried);
            let _ = writeln!(text, "  {name}: {state}, {out} bytes out, {incoming} in, lost {} times", b.losses);
        }
        text
    }

    /// The state of the rails for `gdrfab_ep_query()`.
    pub fn report(&self) -> Vec<RailReport> {
        let report = |b: &RailSlot| RailReport { up: b.up.is_some(), losses: b.losses, bytes: b.carried, ends: b.ends };
        self.slots.iter().map(report).collect()
    }

    /// Number of losses of all rails together.
    pub fn losses(&self) -> u64 {
        self.slots.iter().map(|b| b.losses).sum()
    }

    /// Removes a rail's connection, and queues its unacknowledged segments for other rails. False: the rail was down already.
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

    /// Gives a rail up. The peer is told of the loss over another rail, so that the peer does not wait for the lost rail either.
    pub fn lose(&mut self, number: usize, why: &Error) {
        if !self.drop_rail(number) {
            return;
        }
        if let Some(slot) = self.slots.get_mut(number) {
            slot.lost_at = time::now_ns();
        }
        let generation = self.slots.get(number).map_or(0, |b| b.generation);
        self.lost_reports.retain(|(other, _)| *other != number);
        self.lost_reports.push_back((number, generation));
        self.push_event(number, why.errno, false, &why.words);
        if self.count_up() == 0 {
            self.gone.get_or_insert(lost(&format!("the last rail of the connection is lost: {}", why.words)));
            self.lost_at = time::now_ns();
            // If another rail was lost much earlier, the peer's host did not die: all rails would have been lost together.
            let (now, known) = (self.lost_at, |b: &&RailSlot| b.generation > 0);
            self.is_repaired = self.slots.iter().filter(known).any(|b| now.saturating_sub(b.lost_at) > AT_ONCE_NS);
        }
    }

    /// True if the last rail is lost, and it is not known yet whether another rail replaces it.
    pub fn is_undecided(&self) -> bool {
        self.gone.is_some() && self.count_up() == 0 && !self.is_over
    }

    /// Decides the question of `is_undecided`. `comes`: a rail is being set up. A rail that was being dialed before the
    /// loss may be up at the peer alone; this side waits for such a rail, but at most `most_ms`.
    pub fn decide(&mut self, comes: bool, now: u64, most_ms: u32) {
        let late = now.saturating_sub(self.lost_at) > u64::from(most_ms) * 1_000_000;
        self.is_over |= self.is_undecided() && (late || !(comes || self.is_repaired));
    }

    /// Called when the peer refuses connections. The peer has then no rail up and will accept none, so nothing is left
    /// to wait for.
    pub fn give_up(&mut self) {
        self.is_repaired = false;
    }

    /// The reason for which the connection is over, if it is.
    pub fn end(&self) -> Option<Error> {
        self.gone.clone().filter(|_| self.is_over)
    }

    /// Puts the next segment into the reader's buffer, if the segment has arrived.
    fn deliver(&mut self, buf: &mut Buf, window: &mut Window) -> bool {
        if !self.incoming.deliver(buf, window) {
            return false;
        }
        self.segments_since_ack += 1;
        self.ack_due |= self.incoming.expected - self.ack_sent >= ACK_BYTES || self.segments_since_ack >= ACK_SEGMENTS;
        true
    }

    /// Puts the next segment into the reader's buffer, after reading from the rails if necessary. If only later
    /// segments arrived, `buf` and `window` stay as they are and the result is `Moved::Bytes` nevertheless, so that the
    /// caller's bounded turn goes on.
    pub fn read(&mut self, buf: &mut Buf, window: &mut Window, short: usize) -> Result<Moved> {
        if window.1 - window.0 > HEADROOM {
            return Ok(Moved::Blocked);
        }
        if self.deliver(buf, window) || (self.fill(short)? && (self.deliver(buf, window) || self.count_up() > 0)) {
            return Ok(Moved::Bytes(window.1 - window.0));
        }
        self.end().map_or(Ok(Moved::Blocked), Err)
    }

    /// Reads segments from the rails; true: at least one arrived. After a violation of the protocol every call returns
    /// the error of that violation.
    pub fn fill(&mut self, short: usize) -> Result<bool> {
        if let Some(violation) = self.gone.as_ref().filter(|why| why.code == Code::PeerBroke) {
            return Err(violation.clone());
        }
        let arrived = self.take_segments(short);
        if let Err(violation) = &arrived {
            self.gone = Some(violation.clone());
        }
        arrived
    }

    /// Reads up to `TURN` segments from each rail; true: at least one arrived.
    fn take_segments(&mut self, short: usize) -> Result<bool> {
        let mut arrived = false;
        for i in 0..self.slots.len() {
            for _ in 0..TURN {
                let Rails { slots, incoming, .. } = self;
                let Some(rail) = slots.get_mut(i).and_then(|b| b.up.as_mut()) else { break };
                match rail.receive(short, &mut || incoming.buffer()) {
                    Ok(Received::Segment(head, bytes)) => {
                        arrived = true;
                        self.last = i;
                        self.on_segment(i, head, bytes)?;
                    }
                    Ok(Received::Nothing) => break,
                    Ok(Received::Ended) => self.lose(i, &lost("the peer closed the rail's connection or died")),
                    // A violation of the protocol is the peer's fault: another rail would not help.
                    Err(e) if e.code == Code::PeerBroke => return Err(e),
                    Err(e) => self.lose(i, &e),
                }
            }
        }
        Ok(arrived)
    }

    /// Takes the acknowledgement in a segment's head, and the segment's data or its news of a lost rail.
    fn on_segment(&mut self, number: usize, head: SegmentHead, bytes: Option<Buf>) -> Result<()> {
        if head.taken > self.begun {
            return Err(protocol_error("an acknowledgement of bytes that this side never sent"));
        }
        if head.taken > self.acked {
            self.acked = head.taken;
            self.release();
        }
        let (from, len, bytes) = match (head.word, bytes) {
            (SegmentKind::Down { rail, generation }, _) => {
                if self.slots.get(rail).is_some_and(|b| b.up.is_some() && b.generation == generation) {
                    self.lose(rail, &lost("the peer reports the loss of this rail"));
                }
                return Ok(());
            }
            (SegmentKind::Data { from, len }, Some(bytes)) if len > 0 => (from, len, bytes),
            _ => return Ok(()),
        };
        if let Some(slot) = self.slots.get_mut(number) {
            slot.carried.1 += len as u64;
        }
        // The segment arrived before: the acknowledgement of the first copy was lost or is late, so another one is sent.
        self.ack_due |= !self.incoming.take(from, len, bytes)?;
        Ok(())
    }

    /// True if a complete segment, or bytes that were read ahead, wait here. No socket announces such bytes.
    pub fn holds_more(&self) -> bool {
        self.incoming.is_ready() || self.slots.iter().flat_map(|b| &b.up).any(Rail::holds_more)
    }

    /// Gives up rails on which data has been unacknowledged for `silence_ms`, and sends an empty segment on rails over
    /// which this side has sent nothing for `silence_ms`. For the only rail that is left, the connection's own limit
    /// counts, `last_ms`; 0: no limit.
    pub fn look_after(&mut self, now: u64, silence_ms: u32, last_ms: u32) {
        let silence_ns = u64::from(silence_ms) * 1_000_000;
        for i in 0..self.slots.len() {
            let others = self.count_up() > 1;
            let Some(rail) = self.slots[i].up.as_mut() else { continue };
            rail.ask(now);
            let (patience, name) = if others { (silence_ms, "GDRFAB_TCP_RAIL_TIMEOUT_MS") } else { (last_ms, "GDRFAB_TCP_TIMEOUT_MS") };
            if patience > 0 && rail.health.is_silent_for(patience, now) {
                let why = format!("the peer did not answer on this rail for {patience} ms ({name})");
                self.lose(i, &Error::new(errno::ETIMEDOUT, why));
            } else if others && !rail.is_sending() && !rail.blocked && now.saturating_sub(rail.spoke) > silence_ns {
                self.begin(i, SegmentKind::Data { from: 0, len: 0 }, 0, now);
                self.step(i, usize::MAX);
            }
        }
    }

    /// Notes that a thread begins or ends its sleep on the rails.
    pub fn sleep(&mut self, asleep: bool) {
        self.asleep = asleep;
        self.arm();
    }

    /// While a thread sleeps, the epoll set also watches blocked rails for room.
    pub fn arm(&mut self) {
        for rail in self.slots.iter_mut().flat_map(|b| &mut b.up).filter(|rail| self.asleep && rail.blocked != rail.armed) {
            match self.set.watch(rail.socket.as_fd(), rail.blocked) {
                Ok(()) => rail.armed = rail.blocked,
                Err(e) => crate::log!(Warn, "{e}"),
            }
        }
    }

    /// The time that a thread may sleep before `look_after` is due.
    pub fn sleep_limit_ns(&self, silence_ms: u32) -> u64 {
        let busy = !self.all_taken() || !self.is_out();
        if busy { 20_000_000 } else { u64::from(silence_ms) * 500_000 }
    }

    /// Ends sending, after a last acknowledgement.
    pub fn finish(&mut self) {
        self.ack_due = self.incoming.expected > 0;
        self.begin_turn();
        let _ = self.push(usize::MAX);
        self.slots.iter().flat_map(|b| &b.up).for_each(|rail| stream::finish(rail.socket.as_fd()));
    }
}
