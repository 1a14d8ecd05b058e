// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection beside its queue pairs: how far an attempt is, and what holds the two ends together.

use crate::error::Result;
use crate::prov::verbs::queue::qp::{Qp, RemoteQp};
use crate::prov::verbs::sys::cm_channel::Channel;
use crate::prov::verbs::sys::cm_id::Id;
use crate::prov::verbs::wire::address::{Address, QpAddress};
use crate::sys::epoll::Poller;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// What a connection attempt waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectStep {
    Address,
    Route,
    /// The peer's answer.
    Answer,
    /// The peer's word that it has seen ours.
    Establish,
    /// The caller's first parcel, over iWARP.
    First,
    /// The acknowledgement of a first message by the peer's service queue pair.
    Hello,
}

pub struct Connecting {
    pub(in crate::prov::verbs) step: ConnectStep,
    pub(in crate::prov::verbs) deadline: u64,
    pub(in crate::prov::verbs) data: Vec<u8>,
}

/// What holds the two ends together beside the queue pairs.
#[derive(Default)]
pub struct Link {
    /// The identifier before its channel: it is destroyed first.
    pub(in crate::prov::verbs) id: Option<Id>,
    pub(in crate::prov::verbs) channel: Option<Arc<Channel>>,
    /// The queue pair whose number the identifier knows, after the loss of the first rail: no other connection may get the number,
    /// which the connection manager would end instead.
    pub(in crate::prov::verbs) stopped_qp: Option<Qp>,
    /// Exchanged out of band.
    pub(in crate::prov::verbs) by_address: Option<QpAddress>,
    pub(in crate::prov::verbs) peer: Option<SocketAddr>,
    /// The peer's service queue pair.
    pub(in crate::prov::verbs) service: Option<RemoteQp>,
    /// How many rails the peer may have.
    pub(in crate::prov::verbs) rails: u8,
    /// The peer has said goodbye, so it needs none.
    pub(in crate::prov::verbs) bye_received: bool,
    /// The service queue pair found nobody and begins anew.
    pub(in crate::prov::verbs) hello_unanswered: bool,
    /// When the peer was last asked for a sign of life.
    pub(in crate::prov::verbs) alive_asked_at: u64,
    /// When the first parcel is said again (`mpa.rs`), 0: it is not; and how often it was.
    pub(in crate::prov::verbs) repeat_first_at: u64,
    pub(in crate::prov::verbs) first_repeats: u32,
}

impl Link {
    /// Says goodbye, if there is a way to.
    pub fn disconnect(&mut self) {
        if let Some(id) = &self.id
            && let Err(e) = id.disconnect()
        {
            // Not connected yet, or not any more.
            crate::log!(Debug, "{e}");
        }
    }

    pub fn set_bye_received(&mut self) {
        self.bye_received = true;
    }

    pub fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    pub fn watch(&self, poller: &Poller) -> Result<()> {
        self.channel.as_ref().map_or(Ok(()), |c| poller.add(c.as_fd()))
    }

    pub fn peer(&self) -> Option<Address> {
        self.by_address.map(Address::Qp).or(self.peer.map(Address::Cm))
    }
}
