// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A further rail of a connection: a queue pair on another port, that carries parts of long RMA, and a few words while the first
//! rail is lost. It comes and goes while the connection stays. Each side makes its queue pair and tells the peer (OFFER); who
//! knows both connects its own and says so (READY); then a write of nothing tries the way. Connecting is the work of a thread
//! that nobody waits for, since the kernel looks for the peer's address meanwhile. A side that loses a rail destroys its queue
//! pair at once and says so (GONE); what the rail had not finished goes over others only when the peer has said the same, so
//! that no late packet of it reaches memory any more. Each queue pair of a rail has a number, its life, by which these words
//! name it.

use super::rail_port::RailPort;
use crate::error::Result;
use crate::prov::verbs::memory::registered::Buffer;
use crate::prov::verbs::queue::qp::{Qp, RemoteQp};
use crate::prov::verbs::queue::tag::Tag;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Work requests that a rail can have with the device.
pub const DEPTH: usize = 256;
/// Bytes under way from which on a rail gets no more.
pub const WINDOW: usize = 8 << 20;
/// When a rail is to be moved on that is being connected: at the next occasion.
pub const SOON: u64 = 1;
/// Until the next attempt, after the first and after many that failed.
const SOON_NS: u64 = 10_000_000;
const LATE_NS: u64 = 5_000_000_000;
/// Losses from which a rail may recover at once, and how long it takes until there is one more: it comes and goes three times in
/// a second at most, if it does so for long.
const QUICK: u32 = 128;
const SECOND_NS: u64 = 1_000_000_000;
/// Over so long a rail's speed is measured at least.
const MEASURE_NS: u64 = 20_000;

/// What the peer says of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailOffer {
    pub life: u32,
    pub gid: [u8; 16],
    pub lid: u16,
    pub qpn: u32,
    pub mtu: u32,
    pub reads: u8,
}

impl RailOffer {
    pub fn remote(&self, card: &RailPort, psn: u32, service_level: u8, traffic_class: u8) -> RemoteQp {
        let (gid, lid, qpn, mtu) = (self.gid, self.lid, self.qpn, self.mtu.min(card.mtu));
        RemoteQp { gid, lid, qpn, psn, mtu, service_level, traffic_class, hop_limit: 64, reads: self.reads }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailStage {
    /// No queue pair; when the next one is made.
    Down {
        again: u64,
    },
    /// The peer was told of one.
    Offered,
    /// A thread has it, and connects it to the peer's.
    Joining,
    /// It is connected to the peer's; the peer's may not be yet.
    Ready,
    /// A write of nothing is under way.
    Tried,
    Up,
    /// Lost: there is none, and the peer's of this life may still be there.
    Lost {
        peer: u32,
    },
}

/// A queue pair that a thread connects, and how that went once it has.
pub type ConnectingQp = Arc<Mutex<Option<(Qp, Result<()>)>>>;

/// A part that the device has.
pub struct InFlightPart {
    pub seq: u32,
    /// Of which operation; 0: of none, the write that tries the way.
    pub stripe: u64,
    pub part: u16,
    pub len: usize,
    pub requests: usize,
}

/// How fast a rail is, measured while it has something to do.
pub struct SpeedEstimate {
    /// Bytes in a microsecond; and as the port says.
    pub speed: f64,
    nominal: f64,
    /// Bytes under way.
    pub in_flight: usize,
    since: u64,
    done: usize,
}

impl SpeedEstimate {
    pub fn new(bits_per_second: u64) -> SpeedEstimate {
        let nominal = (bits_per_second as f64 / 8e6).max(1.0);
        SpeedEstimate { speed: nominal, nominal, in_flight: 0, since: 0, done: 0 }
    }

    /// One that was found slow and is idle may be faster by now, and is only measured if it gets something.
    pub fn drift_up(&mut self) {
        if self.in_flight == 0 && self.speed < self.nominal {
            self.speed += (self.nominal - self.speed) / 256.0;
        }
    }

    pub fn begin(&mut self, len: usize, now: u64) {
        if self.in_flight == 0 {
            (self.since, self.done) = (now, 0);
        }
        self.in_flight += len;
    }

    pub fn end(&mut self, len: usize, now: u64) {
        self.in_flight = self.in_flight.saturating_sub(len);
        self.done += len;
        let took = now.saturating_sub(self.since);
        if took >= MEASURE_NS {
            let seen = self.done as f64 * 1e3 / took as f64;
            self.speed = (self.speed * 0.75 + seen * 0.25).max(1.0);
            (self.since, self.done) = (now, 0);
        }
    }

    /// Microseconds until so many bytes more are through.
    pub fn until(&self, len: usize) -> f64 {
        (self.in_flight + len) as f64 / self.speed
    }

    pub fn stop(&mut self) {
        self.in_flight = 0;
    }
}

/// How long a rail stays down, longer after each attempt that failed. One that comes and goes without end is treated so too:
/// a peer has a say in how often, and each time is told of.
struct Backoff {
    attempts: u32,
    /// Losses that it may recover from at once, and since when no second's was added.
    quick: u32,
    since: u64,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { attempts: 0, quick: QUICK, since: 0 }
    }

    fn next(&mut self) -> u64 {
        let wait = (SOON_NS << (2 * self.attempts.min(8))).min(LATE_NS);
        self.attempts += 1;
        wait
    }

    fn came_up(&mut self, now: u64) {
        let seconds = now.saturating_sub(self.since) / SECOND_NS;
        if seconds > 0 {
            (self.quick, self.since) = (QUICK.min(self.quick.saturating_add(seconds as u32)), now);
        }
        if self.quick > 0 {
            (self.quick, self.attempts) = (self.quick - 1, 0);
        }
    }
}

pub struct Rail {
    pub card: Arc<RailPort>,
    pub tag: Tag,
    /// Destroyed before whatever it reaches.
    pub qp: Option<Qp>,
    /// It instead, as long as a thread connects it.
    pub joining: Option<ConnectingQp>,
    /// Where the peer's words arrive that this rail carries.
    pub message_buffer: Option<Buffer>,
    pub stage: RailStage,
    /// The number of its queue pair, or of the last one.
    pub life: u32,
    pub peer: Option<RailOffer>,
    /// The peer's is connected to this life.
    pub peer_ready: bool,
    pub in_flight: VecDeque<InFlightPart>,
    next: u32,
    pub requests: usize,
    /// Parts that go over other rails as soon as the peer's queue pair is gone.
    pub lost: Vec<(u64, u16)>,
    pub speed: SpeedEstimate,
    /// Bytes out and in.
    pub carried: (u64, u64),
    pub losses: u64,
    /// It was up before.
    pub was_up: bool,
    pauses: Backoff,
    /// Parts after which it is lost on demand (of a first one, work requests), 0: never; and those so far.
    pub fault_every: u64,
    pub parts_begun: u64,
}

impl Rail {
    pub fn new(card: Arc<RailPort>, tag: Tag, breaks: u64) -> Rail {
        let pace = SpeedEstimate::new(card.speed);
        Rail {
            card,
            tag,
            qp: None,
            joining: None,
            message_buffer: None,
            stage: RailStage::Down { again: 1 },
            life: 0,
            peer: None,
            peer_ready: false,
            in_flight: VecDeque::new(),
            next: 0,
            requests: 0,
            lost: Vec::new(),
            speed: pace,
            carried: (0, 0),
            losses: 0,
            was_up: false,
            pauses: Backoff::new(),
            fault_every: breaks,
            parts_begun: 0,
        }
    }

    pub fn is_up(&self) -> bool {
        self.stage == RailStage::Up
    }

    /// It has a queue pair.
    pub fn has_pair(&self) -> bool {
        self.qp.is_some() || self.joining.is_some()
    }

    /// When it is to be moved on; 0: not by itself.
    pub fn due(&self) -> u64 {
        match self.stage {
            RailStage::Down { again } => again,
            RailStage::Offered if self.peer.is_some() => SOON,
            RailStage::Joining => SOON,
            _ => 0,
        }
    }

    /// The sequence of the next work requests; by a few bits of the life those of an earlier one are known.
    pub fn seq(&self) -> u32 {
        self.life << 24 | self.next & 0xff_ffff
    }

    pub fn begin(&mut self, flight: InFlightPart, now: u64) {
        self.next = self.next.wrapping_add(1);
        self.requests += flight.requests;
        self.speed.begin(flight.len, now);
        self.in_flight.push_back(flight);
    }

    /// The flight that ended.
    pub fn end(&mut self, seq: u32, now: u64) -> Option<InFlightPart> {
        self.in_flight.front().filter(|f| f.seq == seq)?;
        let flight = self.in_flight.pop_front()?;
        self.requests -= flight.requests;
        self.speed.end(flight.len, now);
        Some(flight)
    }

    /// When the next attempt is due.
    pub fn back_off(&mut self, now: u64) -> RailStage {
        RailStage::Down { again: now + self.pauses.next() }
    }

    /// Its port is active again.
    pub fn retry_now(&mut self, now: u64) {
        self.pauses.attempts = 0;
        if let RailStage::Down { again } = &mut self.stage {
            *again = (*again).min(now);
        }
    }

    pub fn came_up(&mut self, now: u64) {
        self.stage = RailStage::Up;
        self.pauses.came_up(now);
    }

    /// Its queue pair is destroyed, and with it all that the device had; what it had of operations is kept for other rails.
    #[cold]
    #[inline(never)]
    pub fn destroy(&mut self) {
        // What a thread still has goes with that: it has carried nothing, since the peer was told of no READY.
        (self.qp, self.joining) = (None, None);
        self.peer_ready = false;
        self.lost.extend(self.in_flight.drain(..).filter(|f| f.stripe != 0).map(|f| (f.stripe, f.part)));
        self.requests = 0;
        self.speed.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_comes_and_goes_without_end_does_so_once_in_a_while() {
        let (mut pauses, mut now, mut rounds) = (Backoff::new(), 1 << 60, 0);
        assert_eq!((pauses.next(), pauses.next()), (SOON_NS, 4 * SOON_NS));
        let until = now + 600 * SECOND_NS;
        while now < until {
            pauses.came_up(now);
            now += pauses.next();
            rounds += 1;
        }
        assert!((QUICK..QUICK + 3 * 600).contains(&rounds), "{rounds}");
        // Peace makes up for it.
        pauses.came_up(now + 2 * u64::from(QUICK) * SECOND_NS);
        assert!(pauses.quick == QUICK - 1 && pauses.next() == SOON_NS);
    }

    #[test]
    fn a_pace_follows_what_is_seen() {
        let mut pace = SpeedEstimate::new(8_000_000_000);
        assert_eq!(pace.speed, 1000.0);
        let mut now = 1_000_000;
        for _ in 0..60 {
            pace.begin(1 << 20, now);
            now += 100_000;
            pace.end(1 << 20, now);
        }
        assert!((pace.speed - 10_485.76).abs() < 1.0, "{}", pace.speed);
        // Several that end at once are measured together, and what is idle not at all.
        now += 1_000_000_000;
        (0..4).for_each(|_| pace.begin(1 << 20, now));
        (0..4).for_each(|_| pace.end(1 << 20, now + 400_000));
        assert!((pace.speed - 10_485.76).abs() < 4_000.0 && pace.in_flight == 0, "{}", pace.speed);
    }
}
