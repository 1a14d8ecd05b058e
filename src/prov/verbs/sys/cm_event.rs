// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading events from the event channels of rdma_cm.
//!
//! An event is copied and acknowledged before it is handed on, because `rdma_destroy_id` waits for the acknowledgement.

use super::abi::{rdma_cm_event, rdma_cm_event_type as ev};
use super::cm_channel::Channel;
use super::cm_id::Id;
use super::library::{cm, last_errno};
use super::status::{call_error, returned};
use crate::error::{Code, Error, Result, errno};
use crate::sys::socket;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The kind of an event of an identifier.
#[derive(Debug)]
pub enum CmEventKind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    /// At a listener: a peer wants to connect. Dropping `id` rejects the peer.
    ConnectRequest {
        id: Id,
    },
    /// The peer has accepted and its queue pair is ready. This side's queue pair has to follow.
    ConnectResponse,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    Other(i32),
}

/// An event that was copied and acknowledged.
#[derive(Debug)]
pub struct CmEvent {
    /// The identifier's [`Id::number`]; for a connection request, the number of the listener.
    pub id: usize,
    pub kind: CmEventKind,
    /// A negative errno, or the reason for which the peer's connection manager has rejected the connection.
    pub status: i32,
    /// The peer's private data. Over InfiniBand and RoCE, zeros fill the data up to the size of the message.
    pub private_data: Vec<u8>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    /// The number of the peer's queue pair; 0 where the transport does not give it.
    pub qpn: u32,
}

impl CmEvent {
    /// The error that the event reports, if any.
    pub fn error(&self) -> Option<Error> {
        let (usual, code, words) = match self.kind {
            CmEventKind::AddrError => (errno::EADDRNOTAVAIL, Code::None, "no RDMA device reaches this address"),
            CmEventKind::RouteError => (errno::ENETUNREACH, Code::None, "no route to the peer"),
            CmEventKind::ConnectError => (errno::ECONNABORTED, Code::None, "the connection could not be established"),
            CmEventKind::Unreachable => (errno::ETIMEDOUT, Code::None, "the peer does not answer"),
            CmEventKind::Rejected => return Some(self.rejected()),
            CmEventKind::DeviceRemoval => (errno::ENODEV, Code::None, "the RDMA device was removed"),
            CmEventKind::AddrChange => (errno::EADDRNOTAVAIL, Code::None, "the network address moved to another device"),
            _ => return None,
        };
        match self.status {
            0 => Some(Error::coded(usual, code, words)),
            n if (-4095..0).contains(&n) => Some(Error::coded(-n, code, format!("{words}: {}", errno::words(-n)))),
            n => Some(Error::coded(usual, code, format!("{words} (status {n})"))),
        }
    }

    fn rejected(&self) -> Error {
        match self.status {
            // These are reasons of InfiniBand's connection manager.
            4 => Error::fixed(errno::ETIMEDOUT, "the peer gave up: its handshake timed out"),
            8 => Error::fixed(errno::ECONNREFUSED, "nothing listens at the peer's port"),
            28 => Error::coded(errno::ECONNREFUSED, Code::Rejected, "the peer rejected the connection"),
            n if n < 0 => Error::coded(
                errno::ECONNREFUSED,
                Code::Rejected,
                format!("the peer rejected the connection: {}", errno::words(n.saturating_abs())),
            ),
            n => Error::coded(errno::ECONNREFUSED, Code::Rejected, format!("the peer's CM rejected the connection (reason {n})")),
        }
    }
}

impl Channel {
    /// The next event, if there is one.
    pub fn next(self: &Arc<Channel>) -> Result<Option<CmEvent>> {
        let cm = cm()?;
        let mut raw: *mut rdma_cm_event = null_mut();
        // `rdma_get_cm_event` also reserves free standard descriptors (`hold_standard`), which would be wasted if there
        // is no event.
        if !socket::readable(self) {
            return Ok(None);
        }
        loop {
            // SAFETY: the channel lives; the call writes the event on success.
            if unsafe { cm.rdma_get_cm_event(self.raw(), &mut raw)? } == 0 {
                break;
            }
            match last_errno() {
                errno::EAGAIN => return Ok(None),
                errno::EINTR => continue,
                err => return Err(call_error("reading an rdma_cm event", err)),
            }
        }
        // SAFETY: the event was taken above and is not acknowledged yet.
        let event = unsafe { self.copied(raw) };
        // SAFETY: the event was taken above, is acknowledged once, and is not used again.
        let acked = unsafe { cm.rdma_ack_cm_event(raw)? };
        returned(acked, "acknowledging an rdma_cm event")?;
        Ok(Some(event))
    }

    /// Copies an event.
    ///
    /// # Safety
    /// `raw` was taken from this channel and is not acknowledged.
    unsafe fn copied(self: &Arc<Channel>, raw: *const rdma_cm_event) -> CmEvent {
        // SAFETY: the caller has taken the event and not acknowledged it; integers and pointers are copied, nothing is borrowed.
        let (id, listener, number, status) = unsafe { ((*raw).id, (*raw).listen_id, (*raw).event, (*raw).status) };
        let mut event = CmEvent {
            id: id.addr(),
            kind: CmEventKind::Other(number as i32),
            status,
            private_data: Vec::new(),
            responder_resources: 0,
            initiator_depth: 0,
            qpn: 0,
        };
        event.kind = match number {
            ev::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddrResolved,
            ev::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::AddrError,
            ev::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            ev::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::RouteError,
            ev::RDMA_CM_EVENT_CONNECT_REQUEST => match NonNull::new(id) {
                Some(raw) => {
                    event.id = listener.addr();
                    // SAFETY: the identifier is new with this event, so no other object owns it.
                    CmEventKind::ConnectRequest { id: unsafe { Id::adopt(raw, self) } }
                }
                None => return event,
            },
            ev::RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::ConnectResponse,
            ev::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError,
            ev::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable,
            ev::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
            ev::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            ev::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            ev::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
            ev::RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddrChange,
            ev::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
            _ => return event,
        };
        use CmEventKind as Kind;
        if matches!(event.kind, Kind::ConnectRequest { .. } | Kind::ConnectResponse | Kind::Established | Kind::Rejected) {
            // SAFETY: events about connections have this part; its data lives until the acknowledgement.
            unsafe {
                let conn = (*raw).conn;
                if !conn.private_data.is_null() {
                    let data = std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into());
                    event.private_data = data.to_vec();
                }
                event.responder_resources = conn.responder_resources;
                event.initiator_depth = conn.initiator_depth;
                event.qpn = conn.qp_num;
            }
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_errors_with_the_kernels_errno_or_a_usual_one() {
        let event =
            |kind, status| CmEvent { id: 1, kind, status, private_data: vec![], responder_resources: 0, initiator_depth: 0, qpn: 0 };
        let errno = |kind, status| event(kind, status).error().map(|e| (e.errno, e.code));
        assert_eq!(errno(CmEventKind::Rejected, 28), Some((errno::ECONNREFUSED, Code::Rejected)));
        assert_eq!(errno(CmEventKind::Rejected, 8), Some((errno::ECONNREFUSED, Code::None)));
        assert_eq!(errno(CmEventKind::Rejected, -errno::ECONNREFUSED), Some((errno::ECONNREFUSED, Code::Rejected)));
        assert_eq!(errno(CmEventKind::AddrError, -errno::ENODEV), Some((errno::ENODEV, Code::None)));
        assert_eq!(errno(CmEventKind::Unreachable, 0), Some((errno::ETIMEDOUT, Code::None)));
        assert_eq!(errno(CmEventKind::ConnectError, 7), Some((errno::ECONNABORTED, Code::None)));
        assert_eq!(errno(CmEventKind::Established, 0), None);
        assert_eq!(errno(CmEventKind::Other(99), -1), None);
    }
}
