// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The work requests of the fast path (`ops/fast.rs`), which fills them in and posts them over and over. Each has one
//! piece.

use crate::error::errno;
use crate::prov::verbs::sys::abi::*;
use std::mem::zeroed;
use std::ptr::null_mut;

/// A number that no work request has, because `Cq::add` leaves the last member unused.
pub const NO_REQUEST: u64 = u64::MAX;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32;

/// The work requests of the fast path, one for operations and one for receives, and the functions that post them.
pub struct Template {
    pub(in crate::prov::verbs) wr: ibv_send_wr,
    pub(in crate::prov::verbs) piece: ibv_sge,
    pub(in crate::prov::verbs) bad: *mut ibv_send_wr,
    pub(in crate::prov::verbs) qp: *mut ibv_qp,
    pub(in crate::prov::verbs) post: PostSend,
    /// Most bytes that can travel inside the work request.
    pub(in crate::prov::verbs) inline: usize,
    /// Operations of more bytes take the slow path.
    pub(in crate::prov::verbs) longest: usize,
    /// True while operations may take the fast path. The code that changes a property which rules out the fast path
    /// clears this flag. The next operation on the slow path checks whether the flag can be set again.
    pub(in crate::prov::verbs) open: bool,
    /// The fast path is open, and operations without flags want an entry, so the flags of an operation need not be
    /// checked.
    pub(in crate::prov::verbs) default_wants_entry: bool,
    pub(in crate::prov::verbs) recv_wr: ibv_recv_wr,
    pub(in crate::prov::verbs) recv_piece: ibv_sge,
    pub(in crate::prov::verbs) recv_bad: *mut ibv_recv_wr,
    pub(in crate::prov::verbs) post_recv: PostRecv,
    /// Like `open`, for receives.
    pub(in crate::prov::verbs) recv_open: bool,
    /// The number of the oldest operation; `NO_REQUEST` while completions of operations take the slow path.
    pub next_sent: u64,
    /// The number of the oldest receive; `NO_REQUEST` while completions of receives take the slow path.
    pub next_received: u64,
}

// SAFETY: the pointers lead into the endpoint itself and to its queue pair, and are used under the endpoint's lock.
unsafe impl Send for Template {}

/// The post function while the fast path is closed.
unsafe extern "C" fn refuse_send(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> i32 {
    errno::EINVAL
}

unsafe extern "C" fn refuse_recv(_: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> i32 {
    errno::EINVAL
}

impl Default for Template {
    fn default() -> Template {
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        let (wr, piece, recv_wr, recv_piece) = unsafe { zeroed() };
        Template {
            wr,
            piece,
            bad: null_mut(),
            qp: null_mut(),
            post: refuse_send,
            inline: 0,
            longest: 0,
            open: false,
            default_wants_entry: false,
            recv_wr,
            recv_piece,
            recv_bad: null_mut(),
            post_recv: refuse_recv,
            recv_open: false,
            next_sent: NO_REQUEST,
            next_received: NO_REQUEST,
        }
    }
}
