// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events of the lanes: a lane is connected, was refused, has ended, or its rails have changed.

use crate::error::{Code, Error, errno};
use crate::prov::event::{Event, EventKind};
use crate::rdm::connect::wireup::{REDIAL_MIN_NS, no_room_for_callers};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::credit::Credit;
use crate::rdm::peers::peer::{Id, Phase};
use crate::rdm::state::State;
use crate::rdm::wire::hello::{Intro, Refusal};

/// Time for which this side waits for the peer's own call after both sides called each other, before this side dials
/// again.
const CROSSED_WAIT_NS: u64 = 500_000_000;

impl State {
    /// Handles the events of all lanes.
    pub fn take_events(&mut self, domain: &Domain) {
        while let Some((id, event)) = self.lanes.next_event() {
            self.on_event(domain, id, event);
        }
    }

    /// Passes a lane's event about its rails or ports on to the program, if the event queue has room. On a connectionless
    /// endpoint the event names no object.
    fn forward_event(&self, event: Event) {
        let Some(eq) = self.bind.eq.as_ref().filter(|_| self.bind.has_event_room()) else { return };
        let (object, context) = self.connection.as_ref().map_or((0, 0), |connection| (connection.object, connection.context));
        eq.push(Event { object, context, ..event });
    }

    /// Handles an event of a peer's lane: the lane is connected, was refused or has ended, or its rails have changed.
    fn on_event(&mut self, domain: &Domain, id: Id, event: Event) {
        // A notice about rails or ports does not end the connection.
        if event.kind == EventKind::Notify as u32 {
            return self.forward_event(event);
        }
        // The lane has ended. Parcels that arrived before its end are handled first.
        if event.kind != EventKind::Connected as u32
            && let Some(link) = self.peers.get_mut(id).and_then(|p| p.ready().cloned())
        {
            self.drain_lane(id, &link);
        }
        if self.connection.is_some() {
            return self.on_connection_event(domain, event);
        }
        let Some(peer) = self.peers.get_mut(id) else { return };
        if event.kind != EventKind::Connected as u32 {
            let gone = || Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection or died");
            return self.lane_lost(id, event.error.unwrap_or_else(gone));
        }
        match (&peer.phase, event.error) {
            (Phase::Dialing(link), None) => {
                let link = link.clone();
                match Intro::decode(&event.data) {
                    Ok(intro) if peer.name.means(&intro.name) && (peer.expected_nonce == 0 || peer.expected_nonce == intro.name.nonce) => {
                        peer.name = intro.name;
                        peer.credit = Credit::new(intro.grant);
                        self.update_source(id);
                        self.lane_ready(domain, id, link);
                    }
                    Ok(_) => self.lane_lost(id, wrong_incarnation()),
                    Err(e) => self.lane_lost(id, e),
                }
            }
            (Phase::Accepting(link), None) => {
                let link = link.clone();
                self.lane_ready(domain, id, link);
            }
            (Phase::Dialing(link), Some(why)) => {
                let link = link.clone();
                let next = link.lane_index + 1;
                self.note_why_not(domain, id, link.lane_index, &why);
                self.lanes.end(&link);
                match Refusal::decode(&event.data) {
                    Some(Refusal::Crossed) => self.peers.await_peer(id, CROSSED_WAIT_NS),
                    Some(Refusal::Stale) => self.lane_lost(id, wrong_incarnation()),
                    Some(Refusal::Full) if self.connect_time_left(id) > 0 => self.await_room(id),
                    Some(Refusal::Full) => self.lane_lost(id, no_room_for_callers()),
                    Some(Refusal::Unnamed) => self.lane_lost(id, unnamed()),
                    // The peer is alive, so this lane is the right one and only the moment was wrong. Another lane is not
                    // tried, because the peer itself would choose this one.
                    _ if matches!(why.code, Code::Busy | Code::PeerGone) && self.connect_time_left(id) > 0 => {
                        self.peers.await_peer(id, REDIAL_MIN_NS)
                    }
                    _ if why.code == Code::Rejected || next >= domain.lanes.len() || self.connect_time_left(id) == 0 => {
                        self.lane_lost(id, why)
                    }
                    _ => self.dial(domain, id, next),
                }
            }
            (Phase::Accepting(link), Some(_)) => {
                let link = link.clone();
                self.lanes.end(&link);
                self.redial(id);
            }
            (_, Some(why)) => self.lane_lost(id, why),
            _ => {}
        }
    }
}

fn unnamed() -> Error {
    Error::coded(errno::ECONNREFUSED, Code::Rejected, "the peer lets only those in that know its whole name (gdrfab_ep_getname)")
}

/// The error if another endpoint listens at the address of the wanted endpoint.
fn wrong_incarnation() -> Error {
    let words = "the endpoint that was meant is gone: another one listens at its address now";
    Error::coded(errno::ECONNREFUSED, Code::PeerGone, words)
}
