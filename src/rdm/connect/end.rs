// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a lane, and of the endpoint: ends everything that concerns a peer, or all peers.

use crate::error::{Code, Error, errno};
use crate::prov::av::Name;
use crate::prov::event::{Event, EventKind};
use crate::prov::fault::Plan;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::parts::exposed::RevokedOffer;
use crate::rdm::parts::peers::LostPeer;
use crate::rdm::peers::outstanding::OutstandingOp;
use crate::rdm::peers::peer::{Id, UNKNOWN};
use crate::rdm::state::State;
use std::collections::HashSet;

impl State {
    /// Ends everything that concerns a peer whose lane is lost or was not found. Operations, offers and reads end with
    /// `why`. The next message to the peer dials it again.
    #[cold]
    pub fn lane_lost(&mut self, id: Id, why: Error) {
        let Some((link, was_ready)) = self.peers.get_mut(id).map(|p| (p.link().cloned(), p.ready().is_some())) else { return };
        if let Some(link) = link {
            // Results name the link, so they are taken while the link still stands for this peer.
            self.take_results();
            self.lanes.end(&link);
            self.reports.past_stats().add(&link.ep.stats());
            let _ = link.ep.shutdown();
            self.take_results();
            self.matching.remove_offers_of(link.number);
        }
        let Some(LostPeer { name, source, waiting, reads }) = self.peers.reset_lost(id) else { return };
        let is_gone = was_ready || is_gone_for_good(&name, &why);
        for w in waiting {
            self.fail_pending(w, why.clone());
        }
        // A lane ends the operations that it has, once it no longer touches their buffers. Offers end here.
        let offered = self
            .ops
            .each()
            .filter(|(_, op)| matches!(op, OutstandingOp::Offered { peer, .. } | OutstandingOp::Withdrawn { peer } if *peer == id));
        let offered: HashSet<u64> = offered.map(|(number, _)| number).collect();
        let open = offered.iter().filter_map(|number| match self.ops.take(*number) {
            Some(OutstandingOp::Offered { completion, exposed, _owned, .. }) => {
                Some(RevokedOffer { completion, number: 0, exposed, needs_answer: false, why: why.clone(), _owned })
            }
            _ => None,
        });
        self.exposed.peer_gone(&offered, open);
        for number in reads {
            self.read_ended(number, Err(why.clone()));
        }
        if was_ready && !self.closed {
            self.post_delayed_for(id, source);
        }
        // Receives for a peer that was never reached stay, because the peer may still start. Such receives fail only if
        // nobody listens at the peer's address, or if another endpoint does.
        if is_gone {
            for recv in self.matching.take_receives_for(source) {
                self.fail_recv(recv, why.clone(), source);
            }
            self.end_delayed(&why, usize::MAX, |held| held.from == Some(id));
        }
        self.reap(id);
        self.connection_lost(why);
    }

    /// Ends the peer's lane as if the peer had died, because fault injection says so. The operations that the lane has end before the operations that
    /// wait.
    pub fn inject_loss(&mut self, id: Id) {
        if let Some(lane) = self.peers.get_mut(id).and_then(|p| p.ready()).and_then(|link| link.lane()) {
            lane.lose(Plan::gone());
        }
        self.lane_lost(id, Plan::gone());
    }

    /// Fails all receives after the connection was lost, and reports the loss by events.
    pub fn connection_lost(&mut self, why: Error) {
        let Some(connection) = &mut self.connection else { return };
        let told = connection.ended_by.replace(why.clone()).is_some();
        // If this side closed the endpoint, the call that closed it reports the end.
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.reports.set_polls_lanes(false);
        self.settle_fast();
        self.end_receives(&why);
        let (Some(connection), Some(eq), false) = (&self.connection, &self.bind.eq, told) else { return };
        if !matches!(why.code, Code::PeerGone | Code::Canceled) {
            eq.push(Event { error: Some(why), ..connection.event(EventKind::Shutdown) });
        }
        eq.push(connection.event(EventKind::Shutdown));
    }

    /// Ends everything because this side closes the endpoint or shuts it down.
    pub fn end_all(&mut self, domain: &Domain) {
        self.closed = true;
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "this side shut the endpoint down");
        for id in self.peers.ids() {
            self.lane_lost(id, why.clone());
        }
        self.end_receives(&why);
        // A lane ends the operations that it has; messages of this endpoint to itself have no lane.
        let own: Vec<u64> =
            self.ops.each().filter(|(_, op)| matches!(op, OutstandingOp::Loopback { .. })).map(|(number, _)| number).collect();
        for number in own {
            if let Some(OutstandingOp::Loopback { completion, .. }) = self.ops.take(number) {
                self.reports.fail(&self.bind, &completion, why.clone());
            }
        }
        self.listeners.close();
        self.matching.drop_claimed();
        self.reports.set_polls_lanes(false);
        self.settle_fast();
        self.exposed.close_returned(domain);
    }

    /// Fails all posted receives, in the order of posting.
    pub fn end_receives(&mut self, why: &Error) {
        for recv in self.matching.take_receives(usize::MAX, |_| true) {
            self.fail_recv(recv, why.clone(), UNKNOWN);
        }
        self.end_delayed(why, usize::MAX, |_| true);
    }
}

/// True if an attempt failed because the endpoint of this whole name is gone: nobody listens there, or another endpoint does.
fn is_gone_for_good(name: &Name, why: &Error) -> bool {
    name.nonce != 0 && (why.code == Code::PeerGone || (why.errno == errno::ECONNREFUSED && why.code == Code::None))
}
