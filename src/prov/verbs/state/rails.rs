// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rails of a connection: the first, which is the endpoint's own queue pair and carries all that is short or a message, and
//! the further ones; what is under way over several of them; and which keys of the peer's go together. What becomes of the first
//! when it is lost is in `first`.
//!
//! A part goes to the rail that will be through with it first, by what was measured, so each rail's share follows its speed. The
//! peer is asked for a key's fellows when an operation first names it, which does not wait for the answer: nothing here needs the
//! peer's CPU but the loss of a rail. Who closes a region tells those that were told of it; until they have forgotten, no other
//! region gets one of its keys, so what was kept too long is refused and never means other memory.

use super::rail::{Rail, RailStage, SpeedEstimate, WINDOW};
use super::rail_keys::RailKeys;
use super::stripe::Stripe;
use crate::error::Error;
use crate::prov::report::RailReport;
use crate::prov::verbs::queue::qp::Capacity;
use crate::prov::verbs::queue::service::Message;
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// While the first rail is lost.
pub struct Outage {
    pub why: Error,
    /// When that is the end of the connection; 0: never.
    pub until: u64,
    /// When the further rails are asked next whether the peer is there: nothing else may be under way.
    pub alive_check_at: u64,
    /// One beyond the last operation that the device was given; and how many of all those took a receive of the peer's, or will.
    pub end: u32,
    pub messages_given: u32,
    /// A completion has told which operations had ended before; and one that none is left with the device.
    pub first_failure_seen: bool,
    pub tx_drained: bool,
    /// One beyond the last receive that came back, and that the device was given.
    pub rx_returned: u32,
    pub rx_given: u32,
    /// What was said of it, and is said again over a rail that comes.
    pub announced: Vec<Message>,
    /// How many receives the peer has used, and of its service queue pair; and the number of that.
    pub peer: Option<[u32; 2]>,
    pub service: u32,
    /// This side's first receive, and words heard, when it was ready: what has come since tells that the peer is.
    pub baseline: (u32, u32),
}

/// The first operation and receive that waited when the first rail came back last, and when that loss was to be the end: if nothing
/// gets through, the rail may come back for ever, and each loss is still that one.
#[derive(Default)]
pub struct RecoveryLimit(Option<([u32; 2], u64)>);

impl RecoveryLimit {
    /// It came back; `waiting`: operations go again.
    pub fn record_return(&mut self, waiting: bool, first: [u32; 2], until: u64) {
        self.0 = waiting.then_some((first, until));
    }

    /// When the loss that begins now is the end; `patience`: of a new one.
    pub fn until(&mut self, first: [u32; 2], patience: u64) -> u64 {
        self.0.take().filter(|(began, _)| *began == first).map_or(patience, |(_, until)| until)
    }
}

/// An operation is cut if that saves so many microseconds, which is what it costs.
const MIN_SAVING_US: f64 = 8.0;
/// And if it has so many bytes; and whatever it saves from so many on, so that a speed is measured anew that was low once.
const MIN_STRIPED: usize = 128 << 10;
const ALWAYS_STRIPED: usize = 2 << 20;

pub struct Rails {
    /// While it is lost, with the next queue pair; else the endpoint has that.
    pub first: Rail,
    pub outage: Option<Box<Outage>>,
    pub tried: RecoveryLimit,
    /// Losses of the first so far; the operation that it said was wrong, last (none: of the service's).
    pub epoch: u32,
    pub blamed: Option<Option<u32>>,
    /// What its queue pair is to have.
    pub asked: Capacity,
    /// From the second on.
    pub further: Vec<Rail>,
    pub rail_keys: RailKeys,
    /// Operations that are under way, in the order of posting.
    pub active: VecDeque<Stripe>,
    last: u64,
    /// Bytes from which on an operation goes over several.
    pub min_striped: usize,
    /// The last operation of a lane that has ended and whose job waits for that.
    pub ended_job: u64,
    /// What the endpoint promises of order.
    pub order: u64,
    /// Pieces of a work request that every rail's device takes.
    pub pieces: u32,
}

fn address(gid: &[u8; 16], ip: Option<IpAddr>) -> IpAddr {
    let v6 = Ipv6Addr::from(*gid);
    ip.or(v6.to_ipv4_mapped().map(IpAddr::V4)).unwrap_or(IpAddr::V6(v6))
}

impl Rails {
    pub fn new(first: Rail, further: Vec<Rail>, asked: Capacity, order: u64, pieces: u32, stale: Arc<AtomicUsize>) -> Rails {
        let (outage, epoch, active, last, over, least) = (None, 0, VecDeque::new(), 0, 0, usize::MAX);
        let fellows = RailKeys::new(stale);
        Rails {
            first,
            outage,
            epoch,
            blamed: None,
            tried: RecoveryLimit::default(),
            asked,
            further,
            rail_keys: fellows,
            active,
            last,
            ended_job: over,
            min_striped: least,
            order,
            pieces,
        }
    }

    /// A further one carries words.
    pub fn can_send_messages(&self) -> bool {
        self.further.iter().any(Rail::can_send_messages)
    }

    /// The first is lost.
    pub fn is_failing_over(&self) -> bool {
        self.outage.is_some()
    }

    pub fn rail(&mut self, number: usize) -> Option<&mut Rail> {
        self.further.get_mut(number.checked_sub(1)?)
    }

    /// Rails that carry something now.
    pub fn up(&self) -> u8 {
        self.further.iter().enumerate().filter(|(_, r)| r.is_up()).fold(1, |mask, (i, _)| mask | 2 << i)
    }

    /// Rails came or went, or their speeds are other ones.
    #[inline(never)]
    pub fn update_threshold(&mut self) {
        let all: f64 = self.further.iter().filter(|r| r.is_up()).map(|r| r.speed.speed).sum();
        let saved = 1.0 / self.first.speed.speed - 1.0 / (self.first.speed.speed + all);
        self.min_striped = if all > 0.0 { ((MIN_SAVING_US / saved) as usize).clamp(MIN_STRIPED, ALWAYS_STRIPED) } else { usize::MAX };
    }

    /// The rail that will be through with so many bytes first; none if that one takes no more now.
    pub fn fastest(&mut self, mask: u8, len: usize, requests: usize, has_room: bool) -> Option<usize> {
        let fits = |pace: &SpeedEstimate| pace.in_flight == 0 || pace.in_flight + len <= WINDOW;
        let mut best = match self.is_failing_over() {
            true => (f64::INFINITY, 0, false),
            false => (self.first.speed.until(len), 0, has_room && fits(&self.first.speed)),
        };
        for (i, rail) in self.further.iter_mut().enumerate().filter(|(i, rail)| mask & 2 << i != 0 && rail.is_up()) {
            let until = rail.speed.until(len);
            rail.speed.drift_up();
            if until < best.0 {
                best = (until, i + 1, rail.requests + requests <= super::rail::DEPTH && fits(&rail.speed));
            }
        }
        Some(best.1).filter(|_| best.2)
    }

    pub fn number(&mut self, mut stripe: Stripe) -> Stripe {
        self.last += 1;
        stripe.id = self.last;
        stripe
    }

    pub fn stripe(&mut self, id: u64) -> Option<&mut Stripe> {
        self.active.iter_mut().find(|s| s.id == id)
    }

    /// A rail in words.
    #[cold]
    pub fn name(&self, number: usize) -> String {
        let Some(rail) = number.checked_sub(1).and_then(|i| self.further.get(i)) else {
            return format!("rail {number}, {}", self.first.card.name);
        };
        let own = address(&rail.card.gid.raw, rail.card.gid.ip);
        match &rail.peer {
            Some(peer) => format!("rail {number}, {} {own} to {}", rail.card.name, address(&peer.gid, None)),
            None => format!("rail {number}, {} {own}", rail.card.name),
        }
    }

    /// Of what the first was lost by, and what comes of it.
    #[cold]
    pub fn first_lost_error(&self, why: &Error, what: &str) -> Error {
        Error::coded(why.errno, why.code, format!("{}: {}; {what}", self.name(0), why.words))
    }

    /// The rail of this number as the caller sees it.
    pub fn report(&self, number: usize, peer: Option<IpAddr>) -> Option<RailReport> {
        let Some(number) = number.checked_sub(1) else {
            let ends = peer.map(|peer| (address(&self.first.card.gid.raw, self.first.card.gid.ip), peer));
            return Some(RailReport { up: !self.is_failing_over(), losses: self.first.losses, bytes: self.first.carried, ends });
        };
        let rail = self.further.get(number)?;
        let ends = rail.peer.map(|peer| (address(&rail.card.gid.raw, rail.card.gid.ip), address(&peer.gid, None)));
        Some(RailReport { up: rail.is_up(), losses: rail.losses, bytes: rail.carried, ends })
    }

    /// Each rail in a line.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        let first = (!self.is_failing_over(), self.first.carried, self.first.losses);
        let all = std::iter::once(first).chain(self.further.iter().map(|r| (r.is_up(), r.carried, r.losses)));
        for (number, (is_up, (out, come), losses)) in all.enumerate() {
            let state = if is_up { "up" } else { "down" };
            let _ = writeln!(text, "  {}: {state}, {out} bytes out, {come} in, lost {losses} times", self.name(number));
        }
        if self.min_striped != usize::MAX {
            let _ = writeln!(text, "  rails: reads and writes of {} bytes and more go over several", self.min_striped);
        }
        text
    }

    /// When one of so many rails is to be moved on; 0: none is.
    pub fn due(&self, count: u8) -> u64 {
        let all = self.further.iter().take(usize::from(count).saturating_sub(1)).map(Rail::due);
        let first = self.outage.iter().flat_map(|outage| [outage.until, outage.alive_check_at, self.first.due()]);
        all.chain(first).filter(|due| *due != 0).min().unwrap_or(0)
    }

    /// Every further queue pair is destroyed: the connection ends.
    pub fn end(&mut self) {
        for rail in self.further.iter_mut().chain([&mut self.first]) {
            rail.destroy();
            rail.stage = RailStage::Down { again: u64::MAX };
        }
        self.min_striped = usize::MAX;
    }
}
