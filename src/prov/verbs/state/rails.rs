// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rails of a connection. The first rail is the endpoint's own queue pair: it carries messages and all short
//! operations. Further rails carry parts of long reads and writes. This file also holds the striped operations in
//! flight, and the state of a failover (`rail/failover.rs`).
//!
//! Each part goes to the rail that will finish the part first by its measured speed, so each rail's share follows its
//! speed. The peer's keys on the other rails are requested when an operation first names a key; that operation does not
//! wait for the answer and goes over the first rail alone. Apart from the loss of a rail, no striped operation waits
//! for the peer's CPU.
//!
//! A side that closes a region tells the peers that have its keys. Until these peers have confirmed the message, no
//! other region gets one of these keys, so an outdated key is refused and never names other memory.

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

/// The state of a failover: the first rail is lost.
pub struct Outage {
    pub why: Error,
    /// The time at which the connection ends if the rail is not back; 0: no limit.
    pub until: u64,
    /// The time at which the further rails next ask whether the peer still exists, unless something else is in flight.
    pub alive_check_at: u64,
    /// The number after the last operation that the device was given.
    pub end: u32,
    /// The number of operations up to `end`, since the beginning of the connection, that use a receive of the peer.
    pub messages_given: u32,
    /// The first failed completion has come, so all operations before it have ended.
    pub first_failure_seen: bool,
    /// The last completion of the stopped queue pair has come.
    pub tx_drained: bool,
    /// The number after the last receive that the device has returned.
    pub rx_returned: u32,
    /// The number after the last receive that the device was given.
    pub rx_given: u32,
    /// The messages about this loss, which are repeated over each rail that comes up.
    pub announced: Vec<Message>,
    /// The numbers of receives that the peer has used, from FIRST_LOST: of the connection, and of the service queue
    /// pair.
    pub peer: Option<[u32; 2]>,
    /// The number of the peer's service queue pair, from RAIL_OFFER.
    pub service: u32,
    /// The oldest receive, and the number of service messages received, when this side became ready. If either number
    /// changes, the peer is ready too.
    pub baseline: (u32, u32),
}

/// The oldest operation and receive when the first rail last came back, and the time limit of the loss before. If the
/// rail is lost again before either number has moved, the new loss counts as the same loss: a rail that comes back and
/// carries nothing does not extend the limit.
#[derive(Default)]
pub struct RecoveryLimit(Option<([u32; 2], u64)>);

impl RecoveryLimit {
    /// The rail is back. `waiting`: operations are posted again. `first`: the oldest operation and receive.
    pub fn record_return(&mut self, waiting: bool, first: [u32; 2], until: u64) {
        self.0 = waiting.then_some((first, until));
    }

    /// The time limit of a loss that begins now. `patience`: the limit if it counts as a new loss.
    pub fn until(&mut self, first: [u32; 2], patience: u64) -> u64 {
        self.0.take().filter(|(began, _)| *began == first).map_or(patience, |(_, until)| until)
    }
}

/// An operation is striped if striping saves at least this many microseconds, which is about the cost of striping.
const MIN_SAVING_US: f64 = 8.0;
/// Operations below `MIN_STRIPED` bytes are never striped. Operations of `ALWAYS_STRIPED` bytes or more always are, so
/// that a rail that was slow once is measured again.
const MIN_STRIPED: usize = 128 << 10;
const ALWAYS_STRIPED: usize = 2 << 20;

pub struct Rails {
    /// The first rail. During a failover it owns the replacement of its queue pair; otherwise the endpoint owns the
    /// queue pair.
    pub first: Rail,
    pub outage: Option<Box<Outage>>,
    pub tried: RecoveryLimit,
    /// Losses of the first rail so far.
    pub epoch: u32,
    /// The operation that the first rail last reported as faulty. `Some(None)`: a request of the service queue pair.
    pub blamed: Option<Option<u32>>,
    /// The sizes of the first rail's queue pair.
    pub asked: Capacity,
    /// The rails from the second on.
    pub further: Vec<Rail>,
    pub rail_keys: RailKeys,
    /// Striped operations in flight, in the order of posting.
    pub active: VecDeque<Stripe>,
    /// The number of the last striped operation.
    last: u64,
    /// Operations of this many bytes and more are striped.
    pub min_striped: usize,
    /// The number of the striped operation that was the last to end for a lane's job. The job finds its own number here
    /// and goes on.
    pub ended_job: u64,
    /// The order that the endpoint promises (`msg_order`).
    pub order: u64,
    /// Scatter/gather entries that a work request may have on every rail.
    pub pieces: u32,
}

/// The IP address of a port: `ip` if it is known, else the address in the GID.
fn address(gid: &[u8; 16], ip: Option<IpAddr>) -> IpAddr {
    let v6 = Ipv6Addr::from(*gid);
    ip.or(v6.to_ipv4_mapped().map(IpAddr::V4)).unwrap_or(IpAddr::V6(v6))
}

impl Rails {
    pub fn new(first: Rail, further: Vec<Rail>, asked: Capacity, order: u64, pieces: u32, stale: Arc<AtomicUsize>) -> Rails {
        let (outage, epoch, active, last, over, least) = (None, 0, VecDeque::new(), 0, 0, usize::MAX);
        let rail_keys = RailKeys::new(stale);
        Rails {
            first,
            outage,
            epoch,
            blamed: None,
            tried: RecoveryLimit::default(),
            asked,
            further,
            rail_keys,
            active,
            last,
            ended_job: over,
            min_striped: least,
            order,
            pieces,
        }
    }

    /// True if some further rail can carry messages.
    pub fn can_send_messages(&self) -> bool {
        self.further.iter().any(Rail::can_send_messages)
    }

    /// True if the first rail is lost and not back yet.
    pub fn is_failing_over(&self) -> bool {
        self.outage.is_some()
    }

    /// The further rail of this number, which counts from 1.
    pub fn rail(&mut self, number: usize) -> Option<&mut Rail> {
        self.further.get_mut(number.checked_sub(1)?)
    }

    /// A bit for each rail that is up. The bit of the first rail is always set.
    pub fn up(&self) -> u8 {
        self.further.iter().enumerate().filter(|(_, r)| r.is_up()).fold(1, |mask, (i, _)| mask | 2 << i)
    }

    /// Computes `min_striped` anew, because a rail came or went, or a speed has changed.
    #[inline(never)]
    pub fn update_threshold(&mut self) {
        let all: f64 = self.further.iter().filter(|r| r.is_up()).map(|r| r.speed.speed).sum();
        let saved = 1.0 / self.first.speed.speed - 1.0 / (self.first.speed.speed + all);
        self.min_striped = if all > 0.0 { ((MIN_SAVING_US / saved) as usize).clamp(MIN_STRIPED, ALWAYS_STRIPED) } else { usize::MAX };
    }

    /// The rail in `mask` that will finish `len` more bytes first. `None`: that rail has no room now. `has_room`: the
    /// queue of the first rail has room.
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

    /// Gives the next number to a striped operation.
    pub fn number(&mut self, mut stripe: Stripe) -> Stripe {
        self.last += 1;
        stripe.id = self.last;
        stripe
    }

    pub fn stripe(&mut self, id: u64) -> Option<&mut Stripe> {
        self.active.iter_mut().find(|s| s.id == id)
    }

    /// A rail's name for messages to the user.
    #[cold]
    pub fn name(&self, number: usize) -> String {
        let Some(rail) = number.checked_sub(1).and_then(|i| self.further.get(i)) else {
            return format!("rail {number}, {}", self.first.port.name);
        };
        let own = address(&rail.port.gid.raw, rail.port.gid.ip);
        match &rail.peer {
            Some(peer) => format!("rail {number}, {} {own} to {}", rail.port.name, address(&peer.gid, None)),
            None => format!("rail {number}, {} {own}", rail.port.name),
        }
    }

    /// The error for the loss of the first rail; `what` names the consequence.
    #[cold]
    pub fn first_lost_error(&self, why: &Error, what: &str) -> Error {
        Error::coded(why.errno, why.code, format!("{}: {}; {what}", self.name(0), why.words))
    }

    /// The state of the rails for `gdrfab_ep_query()`.
    pub fn report(&self, peer: Option<IpAddr>) -> Vec<RailReport> {
        let ends = peer.map(|peer| (address(&self.first.port.gid.raw, self.first.port.gid.ip), peer));
        let first = RailReport { up: !self.is_failing_over(), losses: self.first.losses, bytes: self.first.carried, ends };
        let further = self.further.iter().map(|rail| {
            let ends = rail.peer.map(|peer| (address(&rail.port.gid.raw, rail.port.gid.ip), address(&peer.gid, None)));
            RailReport { up: rail.is_up(), losses: rail.losses, bytes: rail.carried, ends }
        });
        std::iter::once(first).chain(further).collect()
    }

    /// A line of text for each rail.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        let first = (!self.is_failing_over(), self.first.carried, self.first.losses);
        let all = std::iter::once(first).chain(self.further.iter().map(|r| (r.is_up(), r.carried, r.losses)));
        for (number, (is_up, (out, come), losses)) in all.enumerate() {
            let state = if is_up { "up" } else { "down" };
            let _ = writeln!(text, "  {}: {state}, {out} bytes out, {come} in, lost {losses} times", self.name(number));
        }
        if self.min_striped != usize::MAX {
            let _ = writeln!(text, "  rails: reads and writes of {} bytes and more use several", self.min_striped);
        }
        text
    }

    /// The time at which one of the first `count` rails is to be advanced; 0: no time is set.
    pub fn due(&self, count: u8) -> u64 {
        let all = self.further.iter().take(usize::from(count).saturating_sub(1)).map(Rail::due);
        let first = self.outage.iter().flat_map(|outage| [outage.until, outage.alive_check_at, self.first.due()]);
        all.chain(first).filter(|due| *due != 0).min().unwrap_or(0)
    }

    /// Destroys the queue pairs of all further rails, and a replacement of the first rail, because the connection ends.
    pub fn end(&mut self) {
        for rail in self.further.iter_mut().chain([&mut self.first]) {
            rail.destroy();
            rail.stage = RailStage::Down { again: u64::MAX };
        }
        self.min_striped = usize::MAX;
    }
}
