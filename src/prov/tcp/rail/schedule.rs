// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sending over several rails: the ring of unacknowledged bytes, the choice of the rail for each segment, and segments
//! that a fast rail sends again because a slow rail holds them up.

use super::connection::Rail;
use super::set::{NO_RAIL, RailSlot, Rails, SentSegment};
use crate::error::Result;
use crate::prov::fault::Plan;
use crate::prov::tcp::wire::segment::{SEGMENT, SEGMENTS, SegmentHead, SegmentKind, WINDOW};
use crate::sys::health::Health;
use crate::sys::iov::Iov;
use crate::sys::stream::Moved;
use crate::sys::time;
use std::os::fd::AsFd;

/// Least time between two queries of a rail's state in the kernel.
const ASK_NS: u64 = 2_000_000;
/// Fault injection loses a rail only while another rail has been up for this long.
const LASTS_NS: u64 = 200_000_000;
/// Number of the oldest unacknowledged segments that `find_late` examines.
const LATE_MOST: usize = 256;

impl Rails {
    /// Offset in the ring of the byte at stream position `from`.
    pub fn ring_offset(&self, from: u64) -> usize {
        ((from - self.origin) % WINDOW) as usize
    }

    /// Stream position of the oldest byte that the ring still needs.
    pub fn oldest(&self) -> u64 {
        self.unacked.front().map_or(self.next, |k| k.from)
    }

    /// Bytes that fit into the next segment; 0: the window is full.
    pub fn room(&self) -> usize {
        let used = self.next - self.oldest();
        if used + SEGMENT as u64 > WINDOW || self.unacked.len() >= SEGMENTS {
            return 0;
        }
        SEGMENT.min(WINDOW as usize - self.ring_offset(self.next))
    }

    /// Adds a segment of the `len` bytes that were put into the ring.
    fn append_segment(&mut self, len: usize) {
        if len > 0 {
            self.unacked.push_back(SentSegment { from: self.next, len, on: NO_RAIL, again: false });
            self.unassigned.push_back(self.next);
            self.next += len as u64;
        }
    }

    /// Copies the first of `bytes` into a new segment, and returns the number of copied bytes.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room());
        let at = self.ring_offset(self.next);
        self.ring.bytes_mut()[at..at + n].copy_from_slice(&bytes[..n]);
        self.append_segment(n);
        n
    }

    /// As `put`, from pieces of together at most `room` bytes, whose memory may have been unmapped.
    pub fn gather(&mut self, pieces: &[Iov]) -> Result<Moved> {
        let moved = self.ring.gather(self.ring_offset(self.next), pieces)?;
        if let Moved::Bytes(n) = moved {
            self.append_segment(n);
        }
        Ok(moved)
    }

    /// True if this layer has nothing to send.
    pub fn is_out(&self) -> bool {
        self.unassigned.is_empty()
            && !self.ack_due
            && self.lost_reports.is_empty()
            && !self.slots.iter().flat_map(|b| &b.up).any(Rail::is_sending)
    }

    /// True if the peer has acknowledged everything.
    pub fn all_taken(&self) -> bool {
        self.acked == self.next
    }

    /// True if the peer, or at least its kernel, has received everything. Reads from the rails first.
    pub fn is_settled(&mut self) -> bool {
        self.begin_turn();
        if self.fill(usize::MAX).is_err() || self.all_taken() {
            return true;
        }
        let up = self.slots.iter_mut().flat_map(|b| &mut b.up);
        up.into_iter().all(|rail| {
            rail.health.update(rail.socket.as_fd(), time::now_ns());
            rail.health.queued == 0
        })
    }

    /// Begins a turn: each rail may have room again.
    pub fn begin_turn(&mut self) {
        self.slots.iter_mut().flat_map(|b| &mut b.up).for_each(|rail| rail.blocked = false);
    }

    /// Picks the rail for the next segment: the first rail with room that is the fastest rail, or over which the segment
    /// arrives before the fastest rail could have sent the whole backlog. `None`: no rail should carry the segment now.
    fn choose(&mut self, now: u64) -> Option<usize> {
        let waits: u64 = self.backlog + self.next - self.unassigned.front().copied().unwrap_or(self.next);
        let free = |rail: &Rail| !rail.blocked && !rail.is_sending();
        let first = self.slots.iter().position(|b| b.up.as_ref().is_some_and(free))?;
        if self.count_up() == 1 {
            return Some(first);
        }
        let Some(fastest) = self.ask(now) else { return Some(first) };
        (first..self.slots.len()).find(|i| {
            let Some(rail) = self.slots.get(*i).and_then(|b| b.up.as_ref()).filter(|r| free(r)) else { return false };
            let late = rail.health.delay_ns(SEGMENT as u64);
            // The second bound: while a segment is on its way over a slow rail, segments of other rails must not fill the window.
            *i == fastest.0 || late <= fastest.1.delay_ns(waits).min(fastest.1.delay_ns(WINDOW / 2))
        })
    }

    /// Queries the kernel for the rails' speeds, where the last query is older than `ASK_NS`. Returns the fastest rail,
    /// if the speeds of at least two rails are known.
    fn ask(&mut self, now: u64) -> Option<(usize, Health)> {
        let mut fastest: Option<(usize, Health)> = None;
        let mut known = 0;
        for (i, rail) in self.slots.iter_mut().enumerate().filter_map(|(i, b)| Some((i, b.up.as_mut()?))) {
            if now.wrapping_sub(rail.asked) > ASK_NS {
                rail.ask(now);
            }
            known += usize::from(rail.health.rate > 0);
            if rail.health.rate > fastest.as_ref().map_or(0, |(_, h)| h.rate) {
                fastest = Some((i, rail.health));
            }
        }
        fastest.filter(|_| known > 1)
    }

    /// Sends segments as far as the rails have room; true: a further segment could be put and sent.
    pub fn push(&mut self, short: usize) -> Result<bool> {
        let mut now = 0;
        for i in 0..self.slots.len() {
            if self.slots[i].up.as_ref().is_some_and(|rail| rail.is_sending() && !rail.blocked) {
                self.step(i, short);
            }
        }
        while !self.unassigned.is_empty() || !self.lost_reports.is_empty() {
            if now == 0 {
                now = time::now_ns();
            }
            let Some(i) = self.choose(now) else { break };
            let (word, at) = if let Some((rail, generation)) = self.lost_reports.pop_front() {
                (SegmentKind::Down { rail, generation }, 0)
            } else {
                let Some(from) = self.unassigned.pop_front() else { break };
                let found = self.unacked.partition_point(|k| k.from < from);
                let Some(unacked) = self.unacked.get_mut(found).filter(|k| k.from == from) else { continue };
                unacked.on = i as u8;
                self.begun = self.begun.max(from + unacked.len as u64);
                (SegmentKind::Data { from, len: unacked.len }, self.ring_offset(from))
            };
            self.begin(i, word, at, now);
            self.step(i, short);
            self.inject_loss(i, now);
        }
        while self.unassigned.is_empty()
            && let Some((found, i)) = self.find_late(time::now_ns())
            && let Some(unacked) = self.unacked.get_mut(found)
        {
            (unacked.on, unacked.again) = (i as u8, true);
            let (from, len) = (unacked.from, unacked.len);
            self.begin(i, SegmentKind::Data { from, len }, self.ring_offset(from), time::now_ns());
            self.step(i, short);
        }
        if self.ack_due && self.unassigned.is_empty() {
            self.send_ack(short);
        }
        if self.asleep {
            self.arm();
        }
        if let Some(why) = self.end() {
            return Err(why);
        }
        let free = self.slots.iter().flat_map(|b| &b.up).any(|rail| !rail.blocked && !rail.is_sending());
        Ok(self.unassigned.is_empty() && free && self.room() > 0)
    }

    /// Fault injection (`GDRFAB_FAULT`): loses a rail that has carried the given number of segments, if another rail
    /// has been up long enough for the peer to know that rail.
    fn inject_loss(&mut self, i: usize, now: u64) {
        let Some(slot) = self.slots.get_mut(i) else { return };
        slot.begun += 1;
        let due = self.injected_losses.get(i).is_some_and(|most| (1..=slot.begun).contains(most));
        let lasts = |b: &RailSlot| b.up.is_some() && now.saturating_sub(b.since) > LASTS_NS;
        if due && self.slots.iter().enumerate().any(|(other, b)| other != i && lasts(b)) {
            self.lose(i, &Plan::rail_gone());
        }
    }

    /// Sends an acknowledgement without data, preferably over the rail on which something arrived last.
    fn send_ack(&mut self, short: usize) {
        let free = |b: &RailSlot| b.up.as_ref().is_some_and(|rail| !rail.blocked && !rail.is_sending());
        let last = Some(self.last).filter(|i| self.slots.get(*i).is_some_and(free));
        if let Some(i) = last.or_else(|| self.slots.iter().position(free)) {
            self.begin(i, SegmentKind::Data { from: 0, len: 0 }, 0, time::now_ns());
            self.step(i, short);
        }
    }

    /// Begins to send a segment over rail `i`. The segment's head carries the current acknowledgement.
    pub fn begin(&mut self, i: usize, word: SegmentKind, at: usize, now: u64) {
        let head = SegmentHead { word, taken: self.incoming.expected };
        (self.ack_sent, self.segments_since_ack, self.ack_due) = (self.incoming.expected, 0, false);
        if let Some(slot) = self.slots.get_mut(i)
            && let Some(rail) = &mut slot.up
        {
            if let SegmentKind::Data { len, .. } = word {
                slot.carried.0 += len as u64;
            }
            rail.begin(head, at, now);
        }
    }

    /// Sends the segment that rail `i` has begun, as far as the socket has room.
    pub fn step(&mut self, i: usize, short: usize) {
        let Some(rail) = self.slots.get_mut(i).and_then(|b| b.up.as_mut()) else { return };
        match rail.send(self.ring.bytes(), short) {
            Ok(true) => self.release(),
            Ok(false) => {}
            Err(e) => self.lose(i, &e),
        }
    }

    /// Frees the ring's bytes that the peer has acknowledged, and forgets their segments.
    pub fn release(&mut self) {
        while self.unacked.front().is_some_and(|k| k.from + k.len as u64 <= self.acked) {
            self.unacked.pop_front();
        }
        let oldest = self.oldest();
        for rail in self.slots.iter_mut().flat_map(|b| &mut b.up) {
            rail.save(oldest, self.ring.bytes());
        }
        while self.unassigned.front().is_some_and(|from| *from < oldest) {
            self.unassigned.pop_front();
        }
        if self.unacked.is_empty() {
            self.origin = self.next;
        }
    }

    /// If the fastest rail is idle, finds the oldest segment that a slow rail holds up. Returns the segment's index in
    /// `unacked` and the number of the fastest rail.
    fn find_late(&mut self, now: u64) -> Option<(usize, usize)> {
        if self.unacked.is_empty() || self.count_up() < 2 || (self.backlog > 0 && self.room() > 0) {
            return None;
        }
        let (fastest, health) = self.ask(now)?;
        let free = |rail: &Rail| !rail.blocked && !rail.is_sending();
        self.slots.get(fastest).and_then(|b| b.up.as_ref()).filter(|rail| free(rail))?;
        let late = |unacked: &SentSegment| {
            let rail = self.slots.get(usize::from(unacked.on)).and_then(|b| b.up.as_ref());
            let slow = rail.filter(|_| !unacked.again && usize::from(unacked.on) != fastest);
            slow.is_some_and(|rail| rail.health.queued > 0 && rail.health.delay_ns(0) > 2 * health.delay_ns(unacked.len as u64))
        };
        self.unacked.iter().take(LATE_MOST).position(late).map(|found| (found, fastest))
    }
}
