// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asynchronous events of a device, its ports and its queues, and the endpoints that they concern.
//!
//! Every domain opens the device anew, so a domain gets all events of the device and its ports, but of queues only the
//! events of its own queues. The events have two sources: the device's asynchronous events, and the connection manager,
//! which reports the removal of a device to the owner of an identifier that is bound to the device. The second source
//! is needed because the drivers of soft devices send no event when they are removed.
//!
//! Lock order: no lock of this file is held while an endpoint is locked.

use super::domain::{Domain, RemovalWatch};
use crate::error::{Code, Error, Result, errno};
use crate::prov::event::EventKind;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::abi::ibv_event_type;
use crate::prov::verbs::sys::async_event::AsyncEvent;
use crate::prov::verbs::sys::cm_channel::Channel;
use crate::prov::verbs::sys::cm_event::CmEventKind;
use crate::prov::verbs::sys::cm_id::Id;
use crate::sys::epoll::Poller;
use crate::sys::time::now_ns;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// Shortest time between two looks at the descriptors: each look is a system call, and the endpoints of a domain share
/// the descriptors.
const LOOK_NS: u64 = 50_000;

/// The consequence of an event for one endpoint.
enum Impact {
    None,
    /// The connection is over.
    End(Error),
    /// The connection is over; a failed operation may still give a better reason than the device.
    Fault(Error),
    /// The connection goes on as far as it can.
    Warning(Error),
    /// Information only.
    Notice(String),
}

impl Domain {
    /// For a connection that the connection manager does not know: asks the connection manager to report the removal of
    /// the device. Where the connection manager cannot, failed operations are the first sign of a removal.
    pub fn expect_removal(&self) {
        let Some(ip) = self.gid.ip else { return };
        {
            let mut inner = self.watch.inner.lock();
            if std::mem::replace(&mut inner.tried, true) {
                return;
            }
        }
        let at = match SocketAddr::new(ip, 0) {
            SocketAddr::V6(mut v6) if v6.ip().is_unicast_link_local() => {
                v6.set_scope_id(self.gid.scope);
                SocketAddr::V6(v6)
            }
            other => other,
        };
        let bind = || {
            let channel = Channel::new()?;
            let id = Id::new(&channel)?;
            id.bind(at)?;
            Ok(RemovalWatch { _id: id, channel })
        };
        match bind() {
            Ok(bound) => self.watch.inner.lock().bound = Some(bound),
            Err(e) => {
                let e: Error = e;
                crate::log!(Info, "removal of {} will not be noticed at once: {e}", self.context().name);
            }
        }
    }

    /// Reads the device's events and tells the endpoints. The caller has no endpoint locked.
    pub fn poll_async(&self) {
        let now = now_ns();
        // Relaxed: two threads may look at the same time.
        let last = self.watch.looked.load(Ordering::Relaxed);
        if now.wrapping_sub(last) < LOOK_NS {
            return;
        }
        self.watch.looked.store(now, Ordering::Relaxed);
        while !self.context().is_gone() {
            match self.context().poll_async() {
                Some(event) => self.tell(&event),
                None => break,
            }
        }
        if self.removed() {
            self.tell(&AsyncEvent::gone());
        }
        for (i, card) in self.rail_ports.iter().enumerate().skip(1) {
            while !card.context().is_gone()
                && let Some(event) = card.context().poll_async()
            {
                crate::log!(Info, "{}: {} ({event:?})", card.name, event.words);
                for ep in self.watch.endpoints() {
                    let mut s = ep.state.lock();
                    s.on_rail_event(i, &card.context().name, &event);
                    s.finish_if_drained();
                }
            }
        }
    }

    /// True if the connection manager reports that the device is being removed. The kernel delays the removal until the
    /// device is closed.
    fn removed(&self) -> bool {
        let mut inner = self.watch.inner.lock();
        let Some(bound) = &inner.bound else { return false };
        loop {
            match bound.channel.next() {
                Ok(Some(event)) if matches!(event.kind, CmEventKind::DeviceRemoval) => break,
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(e) => {
                    crate::log!(Warn, "{e}");
                    return false;
                }
            }
        }
        // The identifier is bound to the device and would delay its removal.
        inner.bound = None;
        true
    }

    fn tell(&self, event: &AsyncEvent) {
        crate::log!(Info, "{}: {} ({event:?})", self.context().name, event.words);
        for ep in self.watch.endpoints() {
            let mut s = ep.state.lock();
            match self.impact_on(&s, event) {
                Impact::None => {}
                Impact::End(why) => s.end_by_device(why),
                Impact::Fault(why) => s.on_device_fault(why),
                Impact::Warning(why) => s.event(EventKind::Notify, Vec::new(), Some(why)),
                Impact::Notice(words) => {
                    s.event(EventKind::Notify, words.into_bytes(), None);
                    s.retry_first_now();
                }
            }
        }
    }

    fn impact_on(&self, s: &State, event: &AsyncEvent) -> Impact {
        let name = &self.context().name;
        match *event {
            AsyncEvent { qpn: Some(qpn), fatal, .. } => match &s.qp {
                // Soft-iWARP reports this when it cannot answer a read because the peer is gone.
                Some(qp) if qp.number == qpn && s.unordered && s.lane.is_some() && event.kind == ibv_event_type::IBV_EVENT_QP_REQ_ERR => {
                    let words = "the peer closed the connection or died, and did not receive the answer to its read";
                    Impact::Fault(Error::coded(errno::ECONNRESET, Code::PeerGone, words))
                }
                Some(qp) if qp.number == qpn && fatal => {
                    let number = match event.kind {
                        ibv_event_type::IBV_EVENT_QP_ACCESS_ERR => errno::EACCES,
                        ibv_event_type::IBV_EVENT_QP_REQ_ERR => errno::EREMOTEIO,
                        // A lost port does not cause the two errors above. A lost port may cause this error, and
                        // failover handles the loss.
                        _ if s.is_failing_over() => return Impact::None,
                        _ => errno::EIO,
                    };
                    Impact::Fault(Error::new(number, format!("{name}, queue pair {qpn:#x}: {}", event.words)))
                }
                _ => Impact::None,
            },
            AsyncEvent { cq: Some(cq), .. } => match s.cqs.contains(&cq) || self.is_service(s, cq) {
                true => Impact::End(Error::new(errno::EIO, format!("{name}: {}", event.words))),
                false => Impact::None,
            },
            AsyncEvent { port: Some(port), .. } if port != self.port => Impact::None,
            AsyncEvent { port: Some(port), .. } => match event.kind {
                ibv_event_type::IBV_EVENT_PORT_ERR => {
                    let words = "operations are retried until it is back or their retries are used up";
                    Impact::Warning(Error::new(errno::ENETDOWN, format!("port {port} of {name} went down; {words}")))
                }
                ibv_event_type::IBV_EVENT_PORT_ACTIVE => Impact::Notice(format!("port {port} of {name} is active")),
                ibv_event_type::IBV_EVENT_LID_CHANGE => match self.context().port(port) {
                    Ok(now) if now.lid != self.lid => Impact::Warning(Error::new(
                        errno::EADDRNOTAVAIL,
                        format!(
                            "the LID of port {port} of {name} is {:#x} now, not {:#x}: peers cannot reach the old one; connect again",
                            now.lid, self.lid
                        ),
                    )),
                    _ => Impact::None,
                },
                ibv_event_type::IBV_EVENT_GID_CHANGE => match self.context().port(port) {
                    Ok(now) if !now.gids.iter().any(|g| g.index == self.gid.index && g.raw == self.gid.raw) => Impact::Warning(Error::new(
                        errno::EADDRNOTAVAIL,
                        format!(
                            "the address (GID index {}) of port {port} of {name}, which this domain uses, was removed; open another domain",
                            self.gid.index
                        ),
                    )),
                    _ => Impact::None,
                },
                _ => Impact::None,
            },
            AsyncEvent { fatal: true, .. } if event.kind == ibv_event_type::IBV_EVENT_DEVICE_FATAL => {
                Impact::End(Error::coded(errno::ENODEV, Code::PeerGone, format!("{name}: {}", event.words)))
            }
            _ => Impact::None,
        }
    }

    /// True if the service queue pair of this endpoint completes in the queue with this address.
    fn is_service(&self, s: &State, cq: usize) -> bool {
        s.service.is_some() && self.service_cq().is_some_and(|service| service.raw.raw().addr() == cq)
    }

    /// Lets events of the device end a sleep on `poller`.
    pub fn watch_async(&self, poller: &Poller) -> Result<()> {
        if self.context().is_gone() {
            // The descriptor of a removed device stays readable forever.
            poller.remove(self.context().async_fd());
        } else {
            poller.add(self.context().async_fd())?;
        }
        for context in self.rail_ports.iter().skip(1).map(|card| card.context()) {
            match context.is_gone() {
                true => poller.remove(context.async_fd()),
                false => poller.add(context.async_fd())?,
            }
        }
        let channel = self.watch.inner.lock().bound.as_ref().map(|b| b.channel.clone());
        channel.map_or(Ok(()), |c| poller.add(c.as_fd()))
    }
}

impl State {
    /// The device has given up the queue pair. Events and completions are delivered separately: the completion of the
    /// operation that was the cause may follow and tells more. So `why` is reported only if no operation has given a
    /// better reason by the time the device has returned all operations.
    fn on_device_fault(&mut self, why: Error) {
        if !matches!(self.phase, Phase::Connected) {
            return self.end_by_device(why);
        }
        self.device_fault = Some(why.clone());
        self.begin_teardown(why, false);
        self.finish_if_drained();
    }

    /// The connection is over for a reason of this side's device: reports the reason, and then the end.
    fn end_by_device(&mut self, why: Error) {
        if matches!(self.phase, Phase::Connected | Phase::Connecting(_)) {
            self.event(EventKind::Shutdown, Vec::new(), Some(why.clone()));
        }
        self.begin_teardown(why, false);
        self.finish_if_drained();
    }
}
