// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asynchronous events of a device: a port goes down, a queue pair fails, the device is removed.

use super::abi::ibv_event_type::*;
use super::abi::{ibv_async_event, ibv_context, ibv_cq, ibv_qp};
use super::library::{last_errno, verbs};
use super::status::call_error;
use crate::error::{Result, errno};

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Device,
    Port,
    Qp,
    Cq,
    Other,
}

/// An event that was copied and acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// `enum ibv_event_type`.
    pub kind: i32,
    pub words: &'static str,
    /// The number of the queue pair that the event concerns.
    pub qpn: Option<u32>,
    /// The address of the completion queue that the event concerns, for comparison only.
    pub cq: Option<usize>,
    pub port: Option<u8>,
    /// The subject of the event cannot be used any more: the queue pair, the completion queue, or the whole device if
    /// the event names neither.
    pub fatal: bool,
}

/// The text for an event of this number, the subject of the event, and true if the subject cannot be used any more.
fn meaning(kind: i32) -> (&'static str, About, bool) {
    match kind {
        IBV_EVENT_CQ_ERR => ("a completion queue overran or failed", About::Cq, true),
        IBV_EVENT_QP_FATAL => ("a queue pair failed: its completions cannot be reported", About::Qp, true),
        IBV_EVENT_QP_REQ_ERR => ("a queue pair got an invalid request from its peer", About::Qp, true),
        IBV_EVENT_QP_ACCESS_ERR => ("a queue pair got a request that its access rights forbid", About::Qp, true),
        IBV_EVENT_COMM_EST => ("a queue pair got its first message before it was told of the connection", About::Qp, false),
        IBV_EVENT_SQ_DRAINED => ("a send queue is drained", About::Qp, false),
        IBV_EVENT_PATH_MIG => ("a connection moved to its other path", About::Qp, false),
        IBV_EVENT_PATH_MIG_ERR => ("a connection failed to move to its other path", About::Qp, false),
        IBV_EVENT_DEVICE_FATAL => ("the device failed or was removed", About::Device, true),
        IBV_EVENT_PORT_ACTIVE => ("a port became active", About::Port, false),
        IBV_EVENT_PORT_ERR => ("a port went down", About::Port, false),
        IBV_EVENT_LID_CHANGE => ("a port's local identifier changed", About::Port, false),
        IBV_EVENT_PKEY_CHANGE => ("a port's table of partition keys changed", About::Port, false),
        IBV_EVENT_SM_CHANGE => ("the subnet manager of a port changed", About::Port, false),
        IBV_EVENT_SRQ_ERR => ("a shared receive queue failed", About::Other, true),
        IBV_EVENT_SRQ_LIMIT_REACHED => ("a shared receive queue is nearly empty", About::Other, false),
        IBV_EVENT_QP_LAST_WQE_REACHED => ("a queue pair took its last receive from a shared queue", About::Qp, false),
        IBV_EVENT_CLIENT_REREGISTER => ("the subnet manager asks a port's clients to register anew", About::Port, false),
        IBV_EVENT_GID_CHANGE => ("a port's table of addresses changed", About::Port, false),
        IBV_EVENT_WQ_FATAL => ("a work queue failed", About::Other, true),
        _ => ("an event that this version does not know", About::Other, false),
    }
}

impl AsyncEvent {
    /// The event that is reported when events can no longer be read, because a removed device may report nothing else.
    pub fn gone() -> AsyncEvent {
        AsyncEvent { kind: IBV_EVENT_DEVICE_FATAL, words: "the device was removed", qpn: None, cq: None, port: None, fatal: true }
    }

    /// Takes the next event, if there is one.
    ///
    /// # Safety
    /// `context` is an open device whose event descriptor does not block.
    pub unsafe fn next(context: *mut ibv_context) -> Result<Option<AsyncEvent>> {
        let verbs = verbs()?;
        let mut raw = ibv_async_event { element: 0, event_type: -1 };
        // SAFETY: there is room for an event; the caller has the device open.
        if unsafe { verbs.ibv_get_async_event(context, &mut raw)? } != 0 {
            return match last_errno() {
                errno::EAGAIN | errno::EINTR => Ok(None),
                err => Err(call_error("reading the device's events", err)),
            };
        }
        let (words, about, fatal) = meaning(raw.event_type);
        let mut event = AsyncEvent { kind: raw.event_type, words, qpn: None, cq: None, port: None, fatal };
        match about {
            // SAFETY: destroying a queue pair waits until its events are acknowledged, which is below.
            About::Qp => event.qpn = unsafe { (raw.element as *const ibv_qp).as_ref() }.map(|qp| qp.qp_num),
            About::Cq => event.cq = Some((raw.element as *const ibv_cq).addr()),
            // The low half of the union, into which the library writes an int. Port numbers are at most 255.
            About::Port => event.port = Some(raw.element as u8),
            About::Device | About::Other => {}
        }
        // SAFETY: taken above, and acknowledged once.
        unsafe { verbs.ibv_ack_async_event(&mut raw)? };
        Ok(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_event_has_words_and_unknown_ones_are_harmless() {
        for number in 0..=19 {
            assert!(!meaning(number).0.contains("does not know"), "{number}");
        }
        for number in [-1, 20, i32::MAX] {
            assert_eq!(meaning(number), ("an event that this version does not know", About::Other, false));
        }
        assert_eq!((meaning(IBV_EVENT_DEVICE_FATAL).1, meaning(IBV_EVENT_DEVICE_FATAL).2), (About::Device, true));
        assert_eq!((meaning(IBV_EVENT_PORT_ERR).1, meaning(IBV_EVENT_PORT_ERR).2), (About::Port, false));
    }
}
