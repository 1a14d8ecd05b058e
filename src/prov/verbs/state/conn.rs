// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connection of an endpoint apart from its queue pairs: the progress of an attempt, and the objects that tie both sides together.

use crate::error::Result;
use crate::prov::verbs::queue::qp::{Qp, RemoteQp};
use crate::prov::verbs::sys::cm_channel::Channel;
use crate::prov::verbs::sys::cm_id::Id;
use crate::prov::verbs::wire::address::{Address, QpAddress};
use crate::sys::epoll::Poller;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The event that a connection attempt waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectStep {
    Address,
    Route,
    /// The peer's answer to the request.
    Answer,
    /// The peer's confirmation that it has this side's answer.
    Establish,
    /// The first parcel of the side that connects (iWARP).
    First,
    /// The peer's service queue pair acknowledges the first message.
    Hello,
}

pub struct Connecting {
    pub(in crate::prov::verbs) step: ConnectStep,
    pub(in crate::prov::verbs) deadline: u64,
    pub(in crate::prov::verbs) data: Vec<u8>,
}

/// The objects and facts that tie both sides together, apart from queue pairs.
#[derive(Default)]
pub struct Link {
    /// Declared before `channel`, so that the identifier is dropped first.
    pub(in crate::prov::verbs) id: Option<Id>,
    pub(in crate::prov::verbs) channel: Option<Arc<Channel>>,
    /// After a failover: the first queue pair of the first rail, whose number the identifier still has. The queue pair
    /// is kept so that no other connection gets the number: the connection manager would end that connection.
    pub(in crate::prov::verbs) stopped_qp: Option<Qp>,
    /// The peer's address, where addresses were exchanged out of band.
    pub(in crate::prov::verbs) by_address: Option<QpAddress>,
    pub(in crate::prov::verbs) peer: Option<SocketAddr>,
    /// The peer's service queue pair.
    pub(in crate::prov::verbs) service: Option<RemoteQp>,
    /// The number of rails that the peer may have.
    pub(in crate::prov::verbs) rails: u8,
    /// The peer has said goodbye, so this side does not have to.
    pub(in crate::prov::verbs) bye_received: bool,
    /// The peer's service queue pair did not answer; the attempt starts again.
    pub(in crate::prov::verbs) hello_unanswered: bool,
    /// The time at which this side last asked the peer for a sign of life.
    pub(in crate::prov::verbs) alive_asked_at: u64,
    /// The time at which the first parcel is sent again (`connect/mpa.rs`); 0: no time is set.
    pub(in crate::prov::verbs) repeat_first_at: u64,
    /// Number of times that the first parcel was sent again.
    pub(in crate::prov::verbs) first_repeats: u32,
}

impl Link {
    /// Tells the peer that this side ends the connection, if the connection manager can.
    pub fn disconnect(&mut self) {
        if let Some(id) = &self.id
            && let Err(e) = id.disconnect()
        {
            // A failure only means that the connection does not exist yet, or not any more.
            crate::log!(Debug, "{e}");
        }
    }

    pub fn set_bye_received(&mut self) {
        self.bye_received = true;
    }

    pub fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    pub fn add_to_poller(&self, poller: &Poller) -> Result<()> {
        self.channel.as_ref().map_or(Ok(()), |c| poller.add(c.as_fd()))
    }

    pub fn peer(&self) -> Option<Address> {
        self.by_address.map(Address::Qp).or(self.peer.map(Address::Cm))
    }
}
