// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A further rail of a connection: a queue pair on another port. A further rail carries parts of long reads and writes,
//! and a few messages while the first rail is lost. A further rail can be lost and made again while the connection
//! stays.
//!
//! Each side makes its queue pair and tells the peer about it (RAIL_OFFER). A side that knows both queue pairs connects
//! its own and tells the peer (RAIL_READY). A write of no bytes then probes the rail. A thread connects the queue pair,
//! because the kernel resolves the peer's address during that call, which can take long.
//!
//! A side that loses a rail destroys its queue pair at once and tells the peer (RAIL_GONE). The parts that the rail had
//! not finished go over other rails only after the peer has sent RAIL_GONE as well: from then on no late packet of the
//! old queue pair reaches memory. Each queue pair of a rail has a generation number, by which the messages name the
//! queue pair.

use super::rail_port::RailPort;
use crate::error::Result;
use crate::prov::verbs::memory::registered::Buffer;
use crate::prov::verbs::queue::qp::{Qp, RemoteQp};
use crate::prov::verbs::queue::tag::Tag;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Work requests that the device can hold for a rail.
pub const DEPTH: usize = 256;
/// Most bytes in flight on a rail, unless they are a single part.
pub const WINDOW: usize = 8 << 20;
/// The value of `due()` for a rail that is being connected: a time in the past, so each turn looks at the rail.
pub const SOON: u64 = 1;
/// Delay before the next attempt after the first failure. Each further failure multiplies the delay by 4.
const SOON_NS: u64 = 10_000_000;
/// Longest delay before the next attempt.
const LATE_NS: u64 = 5_000_000_000;
/// Number of times that a rail may come up and have its delay reset to `SOON_NS`. Each second (`SECOND_NS`) earns one
/// more, up to this number. A rail that keeps coming and going does so three times a second at most once the allowance
/// is used up.
const QUICK: u32 = 128;
const SECOND_NS: u64 = 1_000_000_000;
/// The shortest time over which a speed is measured.
const MEASURE_NS: u64 = 20_000;

/// The peer's queue pair of a rail, as RAIL_OFFER describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailOffer {
    pub generation: u32,
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
    /// There is no queue pair; the next one is made at `again`.
    Down {
        again: u64,
    },
    /// A queue pair was made, and the peer was told.
    Offered,
    /// A thread connects the queue pair to the peer's.
    Connecting,
    /// The queue pair is connected to the peer's; the peer's may not be yet.
    Ready,
    /// The probe, a write of no bytes, is in flight.
    Probing,
    Up,
    /// The rail was lost and its queue pair destroyed; the peer's queue pair of generation `peer` may still exist.
    Lost {
        peer: u32,
    },
}

/// A queue pair that a thread connects, with the result once the thread has finished.
pub type ConnectingQp = Arc<Mutex<Option<(Qp, Result<()>)>>>;

/// Work requests of a rail that the device holds: a part, the probe, or a message.
pub struct InFlightPart {
    pub seq: u32,
    /// The number of the striped operation; 0: none, because this is the probe or a message.
    pub stripe: u64,
    pub part: u16,
    pub len: usize,
    pub requests: usize,
}

/// The speed of a rail, measured while it has something in flight.
pub struct SpeedEstimate {
    /// Bytes per microsecond, as measured.
    pub speed: f64,
    /// Bytes per microsecond, as the port reports.
    nominal: f64,
    /// Bytes in flight.
    pub in_flight: usize,
    /// The beginning of the measurement, and the bytes that have ended since then.
    since: u64,
    done: usize,
}

impl SpeedEstimate {
    pub fn new(bits_per_second: u64) -> SpeedEstimate {
        let nominal = (bits_per_second as f64 / 8e6).max(1.0);
        SpeedEstimate { speed: nominal, nominal, in_flight: 0, since: 0, done: 0 }
    }

    /// Moves the estimate of an idle rail slowly towards the nominal speed. A rail that was measured as slow may be
    /// faster by now, but only a rail that gets a part is measured.
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

    /// Microseconds until `len` more bytes are done.
    pub fn until(&self, len: usize) -> f64 {
        (self.in_flight + len) as f64 / self.speed
    }

    pub fn stop(&mut self) {
        self.in_flight = 0;
    }
}

/// The time that a rail stays down, longer after each failed attempt. A rail that keeps coming and going is slowed down
/// too, because the peer can cause the losses and each loss is reported to the caller.
struct Backoff {
    attempts: u32,
    /// Number of times left that the rail may come up and have its delay reset.
    quick: u32,
    /// When `quick` last grew.
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
    pub port: Arc<RailPort>,
    pub tag: Tag,
    /// Declared before the fields that the queue pair uses, so that the queue pair is dropped first.
    pub qp: Option<Qp>,
    /// The queue pair while a thread connects it; `qp` is `None` then.
    pub joining: Option<ConnectingQp>,
    /// The buffer for messages of the peer that arrive by this rail.
    pub message_buffer: Option<Buffer>,
    pub stage: RailStage,
    /// The generation of the current queue pair, or of the last one.
    pub generation: u32,
    pub peer: Option<RailOffer>,
    /// The peer has connected its queue pair to this generation (RAIL_READY).
    pub peer_ready: bool,
    pub in_flight: VecDeque<InFlightPart>,
    /// The number of the next work requests (the lower bits of `seq()`).
    next: u32,
    /// Work requests in flight.
    pub requests: usize,
    /// Parts that go over other rails once the peer's queue pair is gone, as pairs of operation and part.
    pub lost: Vec<(u64, u16)>,
    pub speed: SpeedEstimate,
    /// Bytes written, and bytes read.
    pub carried: (u64, u64),
    pub losses: u64,
    /// The rail was up at some time before.
    pub was_up: bool,
    pauses: Backoff,
    /// Fault injection: the rail is lost after this many parts (the first rail: after this many work requests); 0:
    /// never.
    pub fault_every: u64,
    /// Parts begun so far.
    pub parts_begun: u64,
}

impl Rail {
    pub fn new(card: Arc<RailPort>, tag: Tag, fault_every: u64) -> Rail {
        let pace = SpeedEstimate::new(card.speed);
        Rail {
            port: card,
            tag,
            qp: None,
            joining: None,
            message_buffer: None,
            stage: RailStage::Down { again: 1 },
            generation: 0,
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
            fault_every,
            parts_begun: 0,
        }
    }

    pub fn is_up(&self) -> bool {
        self.stage == RailStage::Up
    }

    /// True if a queue pair exists, here or in a connecting thread.
    pub fn has_pair(&self) -> bool {
        self.qp.is_some() || self.joining.is_some()
    }

    /// The time at which the rail is to be advanced; 0: no time is set.
    pub fn due(&self) -> u64 {
        match self.stage {
            RailStage::Down { again } => again,
            RailStage::Offered if self.peer.is_some() => SOON,
            RailStage::Connecting => SOON,
            _ => 0,
        }
    }

    /// The sequence number of the next work requests. Its upper bits are the generation, so that completions of an earlier queue pair are
    /// recognised.
    pub fn seq(&self) -> u32 {
        self.generation << 24 | self.next & 0xff_ffff
    }

    pub fn begin(&mut self, flight: InFlightPart, now: u64) {
        self.next = self.next.wrapping_add(1);
        self.requests += flight.requests;
        self.speed.begin(flight.len, now);
        self.in_flight.push_back(flight);
    }

    /// Ends the part in flight with this sequence number and returns it.
    pub fn end(&mut self, seq: u32, now: u64) -> Option<InFlightPart> {
        self.in_flight.front().filter(|f| f.seq == seq)?;
        let flight = self.in_flight.pop_front()?;
        self.requests -= flight.requests;
        self.speed.end(flight.len, now);
        Some(flight)
    }

    /// The stage of a rail that waits for its next attempt.
    pub fn back_off(&mut self, now: u64) -> RailStage {
        RailStage::Down { again: now + self.pauses.next() }
    }

    /// The port is active again: the next attempt is made now.
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

    /// Destroys the queue pair, which ends the device's access to all buffers. Unfinished parts are remembered for
    /// other rails.
    #[cold]
    #[inline(never)]
    pub fn destroy(&mut self) {
        // If a thread still connects the queue pair, that thread drops it. That queue pair has carried nothing, since
        // the peer was not sent RAIL_READY.
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
        // A quiet time restores the allowance.
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
        // Parts that end together are measured together, and idle time does not count.
        now += 1_000_000_000;
        (0..4).for_each(|_| pace.begin(1 << 20, now));
        (0..4).for_each(|_| pace.end(1 << 20, now + 400_000));
        assert!((pace.speed - 10_485.76).abs() < 4_000.0 && pace.in_flight == 0, "{}", pace.speed);
    }
}
