// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work requests with one piece that the fast path (`ops/fast.rs`) fills in and posts over and over.

use crate::error::errno;
use crate::prov::verbs::sys::abi::*;
use std::mem::zeroed;
use std::ptr::null_mut;

/// No work request has this number, because `Tag` leaves the last member unused.
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
    /// False: some property of the endpoint keeps operations off the fast path. The code that changes such a property closes the path;
    /// the next operation of the slow path checks whether it can be opened.
    pub(in crate::prov::verbs) open: bool,
    /// The path is open, and operations without flags want an entry, so the flags need not be looked at.
    pub(in crate::prov::verbs) default_wants_entry: bool,
    pub(in crate::prov::verbs) recv_wr: ibv_recv_wr,
    pub(in crate::prov::verbs) recv_piece: ibv_sge,
    pub(in crate::prov::verbs) recv_bad: *mut ibv_recv_wr,
    pub(in crate::prov::verbs) post_recv: PostRecv,
    /// As `open`, for receives.
    pub(in crate::prov::verbs) recv_open: bool,
    /// The numbers of the oldest operation and of the oldest receive, while their completions may take the fast path too.
    pub next_sent: u64,
    pub next_received: u64,
}

// SAFETY: the pointers lead into the endpoint itself and to its queue pair, and are used under the endpoint's lock.
unsafe impl Send for Template {}

/// The post function while the path is closed.
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
