// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bringing further rails up and down, and the messages about rails and keys between the two sides. The messages go
//! over the service queue pair, or as parcels of a lane. Every message is input from the peer and is checked.
//! `state/rail.rs` describes the stages of a rail.

use super::join::rail_message;
use crate::error::{Code, Error, Result, errno};
use crate::prov::event::EventKind;
use crate::prov::report::no_rail;
use crate::prov::verbs::device::rail_names::RAILS_MAX;
use crate::prov::verbs::domain::Domain;
use crate::prov::verbs::memory::keys::Keys;
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::service::{Message, Service, kind};
use crate::prov::verbs::shared::Shared;
use crate::prov::verbs::state::lane::{self, MAX_ANSWERS};
use crate::prov::verbs::state::rail::{RailOffer, RailStage};
use crate::prov::verbs::state::rails::Rails;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::async_event::AsyncEvent;
use crate::prov::verbs::wire::address::Address;
use crate::sys::time::now_ns;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn lost(message: &'static str) -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, message)
}

impl State {
    /// Sends a message about rails or keys. A failure is only logged, because losing the message costs a rail at most.
    pub(in crate::prov::verbs) fn send_rail_message(&mut self, message: Message) {
        if !matches!(self.phase, Phase::Connected) {
            return;
        }
        let sent = match (&mut self.service, self.lane.is_some()) {
            (_, true) => self.queue_message(lane::kind::RAIL, &message),
            (Some(service), _) => service.send(message),
            _ => Ok(()),
        };
        if let Err(e) = sent {
            crate::log!(Warn, "{e}");
        }
    }

    /// Answers a message about rails or keys. The answer also goes out while this side is still connecting, because the
    /// peer may learn first that both sides are connected. An error: the peer asks more than it may.
    fn answer_rail_message(&mut self, message: Message) -> Result<()> {
        let is_there = matches!(self.phase, Phase::Connected | Phase::Connecting(_));
        match &mut self.service {
            _ if self.lane.is_some() => self.queue_answer(lane::kind::RAIL, &message, &[]),
            Some(service) if is_there && service.up => service.answer(message),
            _ => Ok(()),
        }
    }

    /// True if so many messages are queued that further ones should wait, because the peer takes them too slowly.
    pub(in crate::prov::verbs) fn is_behind(&self) -> bool {
        match &self.lane {
            Some(lane) => lane.outbox.len() >= MAX_ANSWERS / 2,
            None => self.service.as_ref().is_some_and(Service::is_behind),
        }
    }

    /// Advances the rails whose next step is due.
    pub(in crate::prov::verbs) fn rails_turn(&mut self, domain: &Domain) {
        let Some(rails) = &self.rails else { return };
        let now = now_ns();
        let due = rails.due(self.link.rails);
        let can = self.lane.is_some() || self.service.as_ref().is_some_and(|s| s.up);
        if due == 0 || now < due || !can || !matches!(self.phase, Phase::Connected) {
            return;
        }
        for number in 1..=rails.further.len().min(usize::from(self.link.rails).saturating_sub(1)) {
            if let Err(e) = self.rail_turn(domain, number, now) {
                self.lose_rail(number, e);
            }
        }
    }

    fn rail_turn(&mut self, domain: &Domain, number: usize, now: u64) -> Result<()> {
        let (patience, Some(rails)) = (self.retry_policy, &mut self.rails) else { return Ok(()) };
        let pieces = rails.pieces;
        let Some(rail) = rails.rail(number) else { return Ok(()) };
        match rail.stage {
            RailStage::Down { again } if again <= now && !rail.port.context().is_active(rail.port.number) => {
                rail.stage = rail.back_off(now)
            }
            RailStage::Down { again } if again <= now => {
                match domain.rail_cqs().get(number - 1).ok_or_else(no_rail).and_then(|cq| rail.create_qp(cq, number, pieces)) {
                    Ok(offer) => self.send_rail_message(offer),
                    Err(e) => {
                        crate::log!(Info, "rail {number}: {e}");
                        rail.stage = rail.back_off(now);
                    }
                }
            }
            RailStage::Offered => {
                if let Some(cq) = domain.rail_cqs().get(number - 1).filter(|_| rail.peer.is_some()) {
                    rail.connect([cq.clone(), cq.clone()], patience)?;
                }
            }
            RailStage::Connecting => {
                let (Some(joined), Some(peer)) = (rail.connect_result(), rail.peer) else { return Ok(()) };
                joined?;
                rail.stage = RailStage::Ready;
                let mut message = rail_message(kind::RAIL_READY, number, rail.generation);
                message[1] = u64::from(peer.generation);
                self.send_rail_message(message);
                self.probe_rail(number);
            }
            _ => {}
        }
        Ok(())
    }

    fn probe_rail(&mut self, number: usize) {
        let Some(rail) = self.rails.as_mut().and_then(|r| r.rail(number)) else { return };
        if rail.peer_ready
            && rail.stage == RailStage::Ready
            && let Err(e) = rail.probe()
        {
            self.lose_rail(number, e);
        }
    }

    /// The probe of a rail has succeeded.
    pub(in crate::prov::verbs) fn rail_came_up(&mut self, number: usize) {
        let Some(rails) = &mut self.rails else { return };
        let Some(rail) = rails.rail(number) else { return };
        rail.came_up(now_ns());
        let is_back = std::mem::replace(&mut rail.was_up, true);
        self.report_up(number, is_back);
        self.repeat_announcements(number);
        self.close_fast();
        self.dispatch_parts();
    }

    pub(in crate::prov::verbs) fn report_up(&mut self, number: usize, is_back: bool) {
        let Some(rails) = &mut self.rails else { return };
        rails.update_threshold();
        let message = format!("{}: up{}", rails.name(number), if is_back { " again" } else { "" });
        crate::log!(Debug, "{message}");
        if is_back {
            self.event(EventKind::Notify, message.into_bytes(), None);
        }
    }

    /// This side has lost a rail, or could not bring it up. The queue pair of the rail is destroyed at once, and the
    /// peer is told.
    #[cold]
    pub(in crate::prov::verbs) fn lose_rail(&mut self, number: usize, why: Error) {
        let Some(was_up) = self.drop_rail(number, &why) else { return };
        if let Some(rail) = self.rails.as_mut().and_then(|r| r.rail(number)) {
            rail.stage = match rail.peer {
                Some(peer) if was_up => RailStage::Lost { peer: peer.generation },
                _ => rail.back_off(now_ns()),
            };
        }
    }

    /// Destroys the queue pair of a rail and tells the peer. Returns whether the rail was up. `None`: the rail had no
    /// queue pair.
    fn drop_rail(&mut self, number: usize, why: &Error) -> Option<bool> {
        let rails = self.rails.as_mut()?;
        let name = rails.name(number);
        let rail = rails.rail(number).filter(|r| r.has_pair())?;
        let (was_up, generation) = (rail.is_up(), rail.generation);
        rail.destroy();
        rail.losses += u64::from(was_up);
        // A placeholder: the caller sets the stage.
        rail.stage = RailStage::Down { again: u64::MAX };
        rails.update_threshold();
        crate::log!(Debug, "{name}: {why}");
        self.send_rail_message(rail_message(kind::RAIL_GONE, number, generation));
        if was_up {
            self.stats.rails_lost += 1;
            self.event(EventKind::Notify, Vec::new(), Some(Error::coded(why.errno, why.code, format!("{name}: {}", why.words))));
            self.close_fast();
            self.check_failover(why);
        }
        Some(was_up)
    }

    /// The peer's queue pair is gone, and no packet of it can arrive any more. So the parts that the rail had not
    /// finished go over other rails.
    fn peer_lost_rail(&mut self, number: usize) {
        self.drop_rail(number, &lost("the peer reports the loss of this rail"));
        let Some(rails) = &mut self.rails else { return };
        let Some(rail) = rails.rail(number) else { return };
        rail.stage = rail.back_off(now_ns());
        rail.peer = None;
        for (id, part) in std::mem::take(&mut rail.lost) {
            if let Some(stripe) = rails.stripe(id) {
                stripe.todo.push_front(part);
            }
        }
        self.dispatch_parts();
    }

    /// Handles a message about rails or keys. A message that names no current rail, queue pair or key is late or a lie,
    /// and changes nothing.
    pub(in crate::prov::verbs) fn on_rail_message(&mut self, memory: &Registered, message: &Message) -> Result<()> {
        let Some(rails) = &mut self.rails else { return Ok(()) };
        let (number, generation) = ((message[0] >> 8 & 0xff) as usize, (message[0] >> 32) as u32);
        let key = message[1] as u32;
        match message[0] as u8 {
            kind::RAIL_OFFER => self.on_offer(number, generation, message),
            kind::RAIL_READY => {
                let Some(rail) = rails.rail(number) else { return Ok(()) };
                if rail.has_pair()
                    && u64::from(rail.generation) == message[1]
                    && rail.peer.is_some_and(|peer| peer.generation == generation)
                {
                    rail.peer_ready = true;
                    self.probe_rail(number);
                }
            }
            kind::RAIL_GONE => {
                let Some(rail) = rails.rail(number) else { return Ok(()) };
                match (rail.stage, rail.peer) {
                    (RailStage::Lost { peer }, _) if peer == generation => self.peer_lost_rail(number),
                    (RailStage::Connecting | RailStage::Ready | RailStage::Probing | RailStage::Up, Some(peer))
                        if peer.generation == generation =>
                    {
                        self.peer_lost_rail(number)
                    }
                    (RailStage::Down { .. } | RailStage::Offered, Some(peer)) if peer.generation == generation => rail.peer = None,
                    _ => {}
                }
            }
            kind::KEYS_ASK => {
                let keys = memory.regions.lock().rail_keys_by_rkey(key).cloned();
                let mut reply = [u64::from(kind::KEYS_TOLD), u64::from(key), 0, 0, 0, 0, 0, 0];
                if let Some(keys) = keys {
                    rails.rail_keys.record_shown(&keys);
                    reply[0] |= u64::from(keys.mask) << 8;
                    for (i, rkey) in keys.rkeys.into_iter().enumerate() {
                        reply[2 + i / 2] |= u64::from(rkey) << (32 * (i % 2));
                    }
                }
                self.answer_rail_message(reply)?;
            }
            kind::KEYS_TOLD => {
                let mut rkeys = [0; RAILS_MAX];
                for (i, rkey) in rkeys.iter_mut().enumerate() {
                    *rkey = (message[2 + i / 2] >> (32 * (i % 2))) as u32;
                }
                rkeys[0] = key;
                rails.rail_keys.learn(key, (message[0] >> 8) as u8, rkeys);
            }
            kind::KEYS_GONE => {
                rails.rail_keys.forget(key);
                self.answer_rail_message([u64::from(kind::KEYS_FORGOT), u64::from(key), 0, 0, 0, 0, 0, 0])?;
            }
            kind::KEYS_FORGOT => rails.rail_keys.on_forgotten(key),
            _ => {}
        }
        Ok(())
    }

    fn on_offer(&mut self, number: usize, generation: u32, message: &Message) {
        let offer = RailOffer::parse(generation, message);
        let Some(rail) = self.rails.as_mut().and_then(|r| r.rail(number)) else { return };
        // An offer of a new generation also means that the peer's earlier queue pair is gone.
        match rail.stage {
            RailStage::Connecting | RailStage::Ready | RailStage::Probing | RailStage::Up | RailStage::Lost { .. } => {
                self.peer_lost_rail(number)
            }
            _ => {}
        }
        let Some(rail) = self.rails.as_mut().and_then(|r| r.rail(number)) else { return };
        (rail.peer, rail.peer_ready) = (Some(offer), false);
    }

    /// Handles an asynchronous event about the port or the queue pair of a further rail.
    pub(in crate::prov::verbs) fn on_rail_event(&mut self, number: usize, device: &str, event: &AsyncEvent) {
        use crate::prov::verbs::sys::abi::ibv_event_type::{IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
        let Some(rail) = self.rails.as_mut().and_then(|r| r.rail(number)) else { return };
        match *event {
            AsyncEvent { port: Some(port), .. } if port != rail.port.number => {}
            AsyncEvent { port: Some(port), kind: IBV_EVENT_PORT_ERR, .. } => {
                self.lose_rail(number, Error::new(errno::ENETDOWN, format!("port {port} of {device} went down")));
            }
            AsyncEvent { port: Some(_), kind: IBV_EVENT_PORT_ACTIVE, .. } => rail.retry_now(now_ns()),
            AsyncEvent { qpn: Some(qpn), fatal: true, .. } if rail.qp.as_ref().is_some_and(|qp| qp.number == qpn) => {
                self.lose_rail(number, Error::new(errno::EIO, event.words));
            }
            // The completion queue of this rail has failed: the domain has no other completion queue on that device.
            AsyncEvent { cq: Some(_), fatal: true, .. } => self.lose_rail(number, Error::new(errno::EIO, event.words)),
            AsyncEvent { qpn: None, cq: None, port: None, fatal: true, .. } => {
                self.lose_rail(number, Error::new(errno::ENODEV, event.words));
            }
            _ => {}
        }
    }

    /// The time at which a rail is next to be advanced; 0: no time is set.
    pub(in crate::prov::verbs) fn rails_due(&self) -> u64 {
        match self.phase {
            Phase::Connected => self.rails.as_ref().map_or(0, |r| r.due(self.link.rails)),
            _ => 0,
        }
    }

    /// The address of the peer's port of the first rail.
    pub(in crate::prov::verbs) fn peer_ip(&self) -> Option<IpAddr> {
        match self.link.peer()? {
            Address::Cm(at) => Some(at.ip()),
            Address::Qp(qp) => {
                let v6 = Ipv6Addr::from(qp.gid);
                Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4))
            }
        }
    }

    /// A line for each rail; empty if the connection has one rail.
    pub(in crate::prov::verbs) fn describe_rails(&self) -> String {
        self.rails.as_deref().map_or(String::new(), Rails::lines)
    }
}

impl Domain {
    /// Tells the peers that may have stored the region's keys that these keys name nothing any more.
    pub(in crate::prov::verbs) fn revoke_rails(&self, keys: &Arc<Keys>) {
        for ep in self.watch.endpoints() {
            let mut s = ep.state.lock();
            match s.rails.as_mut().map(|rails| rails.rail_keys.revoke(keys)) {
                Some(Ok(true)) => s.send_rail_message([u64::from(kind::KEYS_GONE), u64::from(keys.rkeys[0]), 0, 0, 0, 0, 0, 0]),
                Some(Err(e)) => s.begin_teardown(e, false),
                _ => {}
            }
        }
    }

    /// True if a peer may still take one of these keys for a key of a closed region.
    pub(in crate::prov::verbs) fn may_be_confused(&self, keys: &Keys) -> bool {
        let mistakes = |ep: Arc<Shared>| ep.state.lock().rails.as_ref().is_some_and(|rails| rails.rail_keys.may_confuse(keys));
        self.stale.load(Ordering::Relaxed) > 0 && self.watch.endpoints().into_iter().any(mistakes)
    }
}
