// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connected endpoints (type MSG) with tags: one endpoint of a provider is the only lane. There are no names and no
//! address vector. While the two sides connect, each announces its grant in front of its private data.

use crate::error::{Code, Error, Result, errno};
use crate::prov::bind::Stage;
use crate::prov::event::{Event, EventKind};
use crate::prov::ops::OpFlags;
use crate::prov::request::own_request;
use crate::prov::{Request, name};
use crate::rdm::connect::matching_listener::MatchingRequest;
use crate::rdm::limits::FIRST_GRANT;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::credit::Credit;
use crate::rdm::peers::link::Link;
use crate::rdm::peers::peer::{Connection, ONLY_PEER, Phase};
use crate::rdm::state::State;
use crate::rdm::wire::hello::{VERSION, decode_matched, encode_matched};
use std::sync::Arc;

impl State {
    /// Makes this state the state of a connected endpoint: opens the only lane and the record of the only peer.
    pub fn open_connection(&mut self, domain: &Domain, context: usize) -> Result<()> {
        let link = self.lanes.open(domain, 0)?;
        self.lanes.connecting(ONLY_PEER, &link);
        self.peers.add_only();
        self.connection = Some(Box::new(Connection { link, object: 0, context, exchanged: false, ended_by: None }));
        Ok(())
    }

    pub fn enable_connection(&mut self) -> Result<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        connection.link.set_options(self.options);
        connection.link.ep.enable(OpFlags::default())
    }

    /// The lane; an error if the endpoint may not begin to connect now.
    fn lane_to_connect(&self) -> Result<Arc<Link>> {
        let Some(connection) = &self.connection else { return Err(connectionless()) };
        self.bind.check_can_connect(match self.peers.get(ONLY_PEER).map(|p| &p.phase) {
            _ if self.closed => Stage::Over,
            _ if !self.bind.enabled => Stage::Fresh,
            Some(Phase::Unconnected) | None => Stage::Enabled,
            Some(_) => Stage::Connected,
        })?;
        Ok(connection.link.clone())
    }

    pub fn connect(&mut self, address: &str, data: &[u8]) -> Result<()> {
        let link = self.lane_to_connect()?;
        link.ep.connect(address, &encode_matched(FIRST_GRANT, data))?;
        self.set_phase(Phase::Dialing(link), Credit::default());
        Ok(())
    }

    pub fn connect_addr(&mut self, address: &str) -> Result<()> {
        let link = self.lane_to_connect()?;
        link.ep.connect_addr(name::unmatched(address, VERSION)?)?;
        // This way of connecting exchanges no private data, so both sides assume the first grant.
        self.set_phase(Phase::Exchanged(link), Credit::new(FIRST_GRANT));
        if let Some(connection) = &mut self.connection {
            connection.exchanged = true;
        }
        Ok(())
    }

    pub fn accept(&mut self, domain: &Domain, request: Box<dyn Request>, data: &[u8]) -> Result<()> {
        let link = self.lane_to_connect()?;
        let MatchingRequest { request, grant } = own_request(request)?;
        let accepted = link.ep.accept(request, &encode_matched(FIRST_GRANT, data));
        match &accepted {
            Ok(()) => self.set_phase(Phase::Accepting(link), Credit::new(grant)),
            Err(_) => self.end_all(domain),
        }
        accepted
    }

    fn set_phase(&mut self, phase: Phase, credit: Credit) {
        if let Some(peer) = self.peers.get_mut(ONLY_PEER) {
            (peer.phase, peer.credit) = (phase, credit);
        }
    }

    /// The lane; an error if there is no connection that this side can end.
    pub fn lane_to_end(&self) -> Result<Arc<Link>> {
        let Some(connection) = &self.connection else { return Err(connectionless()) };
        match self.peers.get(ONLY_PEER).map(|p| &p.phase) {
            _ if self.closed => Err(self.shut_error()),
            Some(Phase::Unconnected) | None => Err(Error::fixed(errno::ENOTCONN, "ep: not connected")),
            _ => Ok(connection.link.clone()),
        }
    }

    /// Handles an event of the lane.
    pub fn on_connection_event(&mut self, domain: &Domain, event: Event) {
        let gone = || Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection or died");
        if event.kind != EventKind::Connected as u32 {
            return self.lane_lost(ONLY_PEER, event.error.unwrap_or_else(gone));
        }
        let heard = match (event.error, self.peers.get_mut(ONLY_PEER).map(|p| &p.phase)) {
            (None, Some(Phase::Dialing(link))) => {
                let link = link.clone();
                decode_matched(&event.data).map(|(grant, data)| (link, Some(grant), data.to_vec()))
            }
            (None, Some(Phase::Accepting(link) | Phase::Exchanged(link))) => Ok((link.clone(), None, event.data)),
            (None, _) => return,
            // The data of a rejection comes from the peer's program.
            (Some(why), _) => return self.connect_failed(why, event.data),
        };
        match heard {
            Ok((link, grant, data)) => {
                if let (Some(grant), Some(peer)) = (grant, self.peers.get_mut(ONLY_PEER)) {
                    peer.credit = Credit::new(grant);
                }
                self.lane_ready(domain, ONLY_PEER, link);
                if let (Some(connection), Some(eq)) = (&self.connection, &self.bind.eq) {
                    eq.push(Event { data, ..connection.event(EventKind::Connected) });
                }
            }
            Err(why) => self.connect_failed(why, Vec::new()),
        }
    }

    /// Reports by an event that the endpoint could not be connected, and ends it.
    fn connect_failed(&mut self, why: Error, data: Vec<u8>) {
        if let (Some(connection), Some(eq)) = (&mut self.connection, &self.bind.eq) {
            connection.ended_by = Some(why.clone());
            eq.push(Event { data, error: Some(why.clone()), ..connection.event(EventKind::Connected) });
        }
        self.lane_lost(ONLY_PEER, why);
    }
}

/// The error of connection calls on a connectionless endpoint.
pub fn connectionless() -> Error {
    Error::fixed(errno::EOPNOTSUPP, "ep: connectionless; its peers are indexes of an address vector, and connecting is its own affair")
}
