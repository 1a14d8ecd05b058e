// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asynchronous events of a device: ports that go down, queue pairs that fail, the device that is removed.

use super::library::{last_errno, verbs};
use super::status::call_error;
use crate::error::{Result, errno};
use rdma_sys::{ibv_async_event, ibv_context, ibv_cq, ibv_qp};

/// The event as libibverbs writes it, with a number where rdma-sys has a Rust enum: a newer kernel may send
/// numbers that the enum does not know.
#[repr(C)]
struct Raw {
    element: usize,
    kind: i32,
}

const _: () = assert!(size_of::<Raw>() == size_of::<ibv_async_event>() && align_of::<Raw>() == align_of::<ibv_async_event>());

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Device,
    Port,
    Qp,
    Cq,
    Other,
}

/// An event, copied out and acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// `enum ibv_event_type`.
    pub kind: i32,
    pub words: &'static str,
    /// Number of the queue pair that it is about.
    pub qpn: Option<u32>,
    /// Address of the completion queue that it is about, to be compared only.
    pub cq: Option<usize>,
    pub port: Option<u8>,
    /// The queue pair, completion queue, or without either the whole device, can be used no more.
    pub fatal: bool,
}

pub mod kind {
    pub const CQ_ERR: i32 = 0;
    pub const QP_FATAL: i32 = 1;
    pub const QP_REQ_ERR: i32 = 2;
    pub const QP_ACCESS_ERR: i32 = 3;
    pub const COMM_EST: i32 = 4;
    pub const SQ_DRAINED: i32 = 5;
    pub const DEVICE_FATAL: i32 = 8;
    pub const PORT_ACTIVE: i32 = 9;
    pub const PORT_ERR: i32 = 10;
    pub const LID_CHANGE: i32 = 11;
    pub const GID_CHANGE: i32 = 18;
}

/// What an event of this number means, what it is about, and whether that is the end of it.
fn meaning(kind: i32) -> (&'static str, About, bool) {
    match kind {
        0 => ("a completion queue overran or failed", About::Cq, true),
        1 => ("a queue pair failed: its completions cannot be reported", About::Qp, true),
        2 => ("a queue pair got an invalid request from its peer", About::Qp, true),
        3 => ("a queue pair got a request that its access rights forbid", About::Qp, true),
        4 => ("a queue pair got its first message before it was told of the connection", About::Qp, false),
        5 => ("a send queue is drained", About::Qp, false),
        6 => ("a connection moved to its other path", About::Qp, false),
        7 => ("a connection failed to move to its other path", About::Qp, false),
        8 => ("the device failed or was removed", About::Device, true),
        9 => ("a port became active", About::Port, false),
        10 => ("a port went down", About::Port, false),
        11 => ("a port's local identifier changed", About::Port, false),
        12 => ("a port's table of partition keys changed", About::Port, false),
        13 => ("the subnet manager of a port changed", About::Port, false),
        14 => ("a shared receive queue failed", About::Other, true),
        15 => ("a shared receive queue is nearly empty", About::Other, false),
        16 => ("a queue pair took its last receive from a shared queue", About::Qp, false),
        17 => ("the subnet manager asks a port's clients to register anew", About::Port, false),
        18 => ("a port's table of addresses changed", About::Port, false),
        19 => ("a work queue failed", About::Other, true),
        _ => ("an event that this version does not know", About::Other, false),
    }
}

impl AsyncEvent {
    /// What is reported when events can no longer be read: a device that was removed may leave nothing else.
    pub fn gone() -> AsyncEvent {
        AsyncEvent { kind: kind::DEVICE_FATAL, words: "the device was removed", qpn: None, cq: None, port: None, fatal: true }
    }

    /// Takes the next event, if there is one.
    ///
    /// # Safety
    /// `context` is an open device whose event descriptor does not block.
    pub unsafe fn next(context: *mut ibv_context) -> Result<Option<AsyncEvent>> {
        let verbs = verbs()?;
        let mut raw = Raw { element: 0, kind: -1 };
        let at = (&raw mut raw).cast::<ibv_async_event>();
        // SAFETY: same size and alignment as the library's structure; the context is the caller's promise.
        if unsafe { verbs.ibv_get_async_event(context, at)? } != 0 {
            return match last_errno() {
                errno::EAGAIN | errno::EINTR => Ok(None),
                err => Err(call_error("reading the device's events", err)),
            };
        }
        let (words, about, fatal) = meaning(raw.kind);
        let mut event = AsyncEvent { kind: raw.kind, words, qpn: None, cq: None, port: None, fatal };
        match about {
            // SAFETY: destroying a queue pair waits until its events are acknowledged, which is below.
            About::Qp => event.qpn = unsafe { (raw.element as *const ibv_qp).as_ref() }.map(|qp| qp.qp_num),
            About::Cq => event.cq = Some((raw.element as *const ibv_cq).addr()),
            // The low half of the union, as the library writes an int; ports count to 255.
            About::Port => event.port = Some(raw.element as u8),
            About::Device | About::Other => {}
        }
        // SAFETY: taken above, and acknowledged once.
        unsafe { verbs.ibv_ack_async_event(at)? };
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
        assert_eq!((meaning(kind::DEVICE_FATAL).1, meaning(kind::DEVICE_FATAL).2), (About::Device, true));
        assert_eq!((meaning(kind::PORT_ERR).1, meaning(kind::PORT_ERR).2), (About::Port, false));
    }
}
