// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connects peers. When the program first uses a peer, this side dials the peer over one lane after another
//! until one leads to it, and stays with that lane. A caller introduces itself: it sends its name and the nonce of the
//! endpoint that it wants, because a later endpoint (another incarnation) may listen at the same address. If two
//! endpoints call each other at once, the call of the endpoint with the greater name counts.

use crate::error::{Code, Error, Result, errno};
use crate::prov::bind::Options;
use crate::prov::ops::OpFlags;
use crate::prov::{Reach, Request};
use crate::rdm::limits::{FIRST_GRANT, UNLISTED_MAX};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::credit::Credit;
use crate::rdm::peers::link::Link;
use crate::rdm::peers::peer::{Id, Phase};
use crate::rdm::state::State;
use crate::rdm::wire::hello::{Intro, Refusal};
use crate::sys::time;
use std::sync::Arc;

/// Pause before this side dials a peer again that had no room: at first, and at most.
pub const REDIAL_MIN_NS: u64 = 20_000_000;
const REDIAL_MAX_NS: u64 = 1_000_000_000;
/// Time limit for dialing over a device that the peer may not have, before the next lane is tried.
const DEVICE_DIAL_NS: u64 = 3_000_000_000;

impl State {
    /// Opens and enables an endpoint of a lane.
    fn open_link(&mut self, domain: &Domain, lane_index: usize, connect_timeout_ns: u64) -> Result<Arc<Link>> {
        let link = self.lanes.open(domain, lane_index)?;
        link.set_options(Options { connect_timeout_ns, ..self.options });
        link.ep.enable(OpFlags::default())?;
        Ok(link)
    }

    /// This endpoint's introduction.
    fn intro(&self, expected_nonce: u64) -> Result<Vec<u8>> {
        let name = self.name.ok_or_else(|| Error::new(errno::EOPBADSTATE, "ep: not enabled"))?;
        Ok(Intro { name, expected_nonce, grant: FIRST_GRANT }.encode())
    }

    /// Dials a peer over the first lane, from index `from` on, that may lead to the peer.
    pub fn dial(&mut self, domain: &Domain, id: Id, from: usize) {
        let (Some(own), Some((name, expected_nonce))) =
            (self.name, self.peers.get_mut(id).map(|p| (p.name, p.name.nonce.max(p.expected_nonce))))
        else {
            return;
        };
        // The connect timeout covers all attempts together.
        let left = match (self.options.connect_timeout_ns, self.connect_time_left(id)) {
            (0, _) => 0,
            (_, 0) if self.peers.get_mut(id).is_some_and(|p| p.refusals > 0) => return self.lane_lost(id, no_room_for_callers()),
            (_, 0) => {
                return self.lane_lost(id, Error::new(errno::ETIMEDOUT, format!("{name}: not reached within GDRFAB_OPT_CONNECT_TIMEOUT")));
            }
            (_, left) => left,
        };
        let mut last = Error::new(errno::EHOSTUNREACH, format!("{name}: on another host, and no lane of this endpoint leads there"));
        for (lane_index, lane) in domain.lanes.iter().enumerate().skip(from) {
            let (reach, loopback) = (lane.provider.reach(), name.socket().ip().is_loopback());
            if reach == Reach::Host && name.host != 0 && name.host != own.host {
                continue;
            }
            let more = lane_index + 1 < domain.lanes.len();
            if reach == Reach::Devices && more && loopback {
                last = Error::new(errno::EHOSTUNREACH, format!("{}: has no loopback", lane.provider.name()));
                continue;
            }
            if reach != Reach::Host && name.host != 0 && name.host != own.host && loopback {
                let words = format!("{name}: an address that only its own host reaches; GDRFAB_TCP_IFACE there chooses another");
                last = Error::new(errno::EHOSTUNREACH, words);
                continue;
            }
            let address = lane.provider.lane_address(&lane.info, name.socket());
            // A peer without such a device may never answer, so other lanes keep a part of the time.
            let limit =
                if reach == Reach::Devices && more { DEVICE_DIAL_NS.min(if left == 0 { DEVICE_DIAL_NS } else { left / 2 }) } else { left };
            let called = self.open_link(domain, lane_index, limit).and_then(|link| {
                link.ep.connect(&address, &self.intro(expected_nonce)?)?;
                Ok(link)
            });
            match called {
                Ok(link) => {
                    self.lanes.connecting(id, &link);
                    if let Some(peer) = self.peers.get_mut(id) {
                        peer.phase = Phase::Dialing(link);
                    }
                    return self.wake();
                }
                Err(e) => {
                    self.note_why_not(domain, id, lane_index, &e);
                    last = e;
                }
            }
        }
        self.lane_lost(id, last);
    }

    /// Accepts or refuses the callers that have arrived. True if there were any.
    pub fn accept_callers(&mut self, domain: &Domain) -> bool {
        let callers = self.listeners.poll();
        let called = !callers.is_empty();
        for (lane_index, request) in callers {
            if let Err(e) = self.answer_caller(domain, lane_index, request) {
                crate::log!(Info, "a caller was sent away: {e}");
            }
        }
        called
    }

    /// Accepts or refuses one caller.
    fn answer_caller(&mut self, domain: &Domain, lane_index: usize, request: Box<dyn Request>) -> Result<()> {
        // The address vector may have changed, and with it the index of the caller.
        self.refresh_av();
        let Some(own) = self.name else { return request.reject(&Refusal::Closing.encode()) };
        // On an error the request is dropped, and the drop rejects the caller.
        let intro = Intro::decode(request.data())?;
        if intro.expected_nonce != 0 && intro.expected_nonce != own.nonce {
            return request.reject(&Refusal::Stale.encode());
        }
        if intro.expected_nonce == 0 && self.options.whole_name {
            crate::log!(Warn, "{} is refused: it does not know this endpoint's whole name", intro.name);
            return request.reject(&Refusal::Unnamed.encode());
        }
        if intro.name.means(&own) {
            return request.reject(&Refusal::Closing.encode());
        }
        let unlisted = !self.peers.is_named(&intro.name);
        if unlisted && !self.has_room_for_unlisted() {
            crate::log!(Warn, "{} is refused: {UNLISTED_MAX} callers that the address vector does not name are connected", intro.name);
            return request.reject(&Refusal::Full.encode());
        }
        if unlisted && !self.peers.has_room_for_ended() {
            crate::log!(Warn, "{} is refused: {} bytes of peers that have ended wait for receives", intro.name, self.peers.ended_bytes());
            return request.reject(&Refusal::Full.encode());
        }
        let id = match self.peers.find(&intro.name) {
            Some(id) => id,
            None => self.peers.add(intro.name, self.name),
        };
        match self.peers.get_mut(id).map(|p| &p.phase) {
            Some(Phase::Dialing(_)) if own.encode() > intro.name.encode() => return request.reject(&Refusal::Crossed.encode()),
            Some(Phase::Dialing(link)) => {
                let link = link.clone();
                self.lanes.end(&link);
            }
            // Either both sides called each other, and the peer has accepted this side's call meanwhile; or the peer has
            // lost its end of the lane. In both cases the peer calls again if it has to, after this side has noticed.
            Some(Phase::Accepting(_) | Phase::Ready(_)) => return request.reject(&Refusal::Crossed.encode()),
            Some(Phase::Loopback) => return request.reject(&Refusal::Closing.encode()),
            _ => {}
        }
        let accepted = self.open_link(domain, lane_index, self.options.connect_timeout_ns).and_then(|link| {
            match link.ep.accept(request, &self.intro(0)?) {
                Ok(()) => Ok(link),
                Err(e) => {
                    self.lanes.end(&link);
                    Err(e)
                }
            }
        });
        let link = match accepted {
            Ok(link) => link,
            Err(e) => {
                self.redial(id);
                return Err(e);
            }
        };
        if unlisted {
            self.lanes.count_unlisted(&link);
        }
        self.lanes.connecting(id, &link);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.name = intro.name;
            peer.credit = Credit::new(intro.grant);
            peer.phase = Phase::Accepting(link);
        }
        self.update_source(id);
        self.wake();
        Ok(())
    }

    /// True if one more caller that the address vector does not name may connect. At the limit, one caller that has been
    /// connecting for too long is dropped.
    fn has_room_for_unlisted(&mut self) -> bool {
        let peers = &self.peers;
        let is_inserted = |id| peers.get(id).is_some_and(|peer| peers.is_named(&peer.name));
        if self.lanes.has_room_for_unlisted(peers.av_changes(), is_inserted) {
            return true;
        }
        let Some((id, link)) = self.lanes.slow_caller() else { return false };
        self.lanes.end(&link);
        self.redial(id);
        true
    }

    /// Handles a failed attempt to connect a peer. If anything waits for the peer, this side dials it again.
    pub fn redial(&mut self, id: Id) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.phase = Phase::Unconnected;
            if !peer.waiting.is_empty() {
                return self.peers.mark_busy(id);
            }
            (peer.connect_until, peer.refusals) = (0, 0);
            self.reap(id);
        }
    }

    /// Keeps the reason why a lane does not lead to a peer, for reports of the path to the peer.
    pub fn note_why_not(&mut self, domain: &Domain, id: Id, lane_index: usize, why: &Error) {
        let (Some(lane), Some(peer)) = (domain.lanes.get(lane_index), self.peers.get_mut(id)) else { return };
        let why = || Some(format!("{}: {}", lane.provider.name(), why.words).into());
        match lane.provider.reach() {
            Reach::Host => peer.why_not_local = why(),
            Reach::Devices => peer.why_no_device = why(),
            Reach::Ports => {}
        }
    }

    /// Handles a refusal for lack of room: this side dials the peer again after a pause that grows each time.
    pub fn await_room(&mut self, id: Id) {
        let left = self.connect_time_left(id);
        let Some(peer) = self.peers.get_mut(id) else { return };
        if peer.refusals == 0 {
            crate::log!(Warn, "{}: {}; it is called again until it has room", peer.name, no_room_for_callers().words);
        }
        let pause = (REDIAL_MIN_NS << peer.refusals).min(REDIAL_MAX_NS).min(left);
        peer.refusals = (peer.refusals + 1).min(6);
        self.peers.await_peer(id, pause);
    }

    /// Time left for dialing a peer, in nanoseconds; 0 if it is used up.
    pub fn connect_time_left(&mut self, id: Id) -> u64 {
        let (now, limit) = (time::now_ns(), self.options.connect_timeout_ns);
        let Some(peer) = self.peers.get_mut(id) else { return 0 };
        if peer.connect_until == 0 {
            peer.connect_until = now.saturating_add(if limit == 0 { u64::MAX } else { limit });
        }
        peer.connect_until.saturating_sub(now)
    }

    /// Takes a connected lane into use, and has progress send everything that waits for the peer.
    pub fn lane_ready(&mut self, domain: &Domain, id: Id, link: Arc<Link>) {
        self.lanes.connected(id, &link);
        if let Some(peer) = self.peers.get_mut(id) {
            crate::log!(Debug, "rdm: {} by {}", peer.name, domain.lanes.get(link.lane_index).map_or("?", |l| l.provider.name()));
            peer.phase = Phase::Ready(link);
            (peer.connect_until, peer.refusals) = (0, 0);
        }
        if self.faults.is_some() && !self.begin_faults(domain, id) {
            return self.inject_loss(id);
        }
        self.peers.mark_busy(id);
        self.wake();
    }

    /// Dials peers again whose pause is over and that have not called.
    pub fn expire_awaiting(&mut self, now: u64) {
        if self.peers.is_awaiting() {
            for id in self.peers.take_overdue(now) {
                self.redial(id);
            }
        }
    }
}

/// The error of a peer that refuses callers which its address vector does not name.
pub(in crate::rdm) fn no_room_for_callers() -> Error {
    let words = "the peer has as many callers that its address vector does not name as it takes";
    Error::coded(errno::ECONNREFUSED, Code::Busy, words)
}
