// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work requests of one piece, made once and posted over and over (`fast.rs`).

use crate::error::errno;
use crate::prov::verbs::sys::abi::*;
use std::mem::zeroed;
use std::ptr::null_mut;

/// No work request has this number: `Tag` keeps the last member free.
pub const NEVER: u64 = u64::MAX;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32;

/// Work requests of one piece, made once, and what posts them.
pub struct Template {
    pub(in crate::prov::verbs) wr: ibv_send_wr,
    pub(in crate::prov::verbs) piece: ibv_sge,
    pub(in crate::prov::verbs) bad: *mut ibv_send_wr,
    pub(in crate::prov::verbs) qp: *mut ibv_qp,
    pub(in crate::prov::verbs) post: PostSend,
    /// Bytes that travel in it.
    pub(in crate::prov::verbs) inline: usize,
    /// Operations of more bytes go another way.
    pub(in crate::prov::verbs) longest: usize,
    /// False: something about the endpoint keeps operations from the fast path. Whoever changes that closes it; the next
    /// operation of the slow path looks anew.
    pub(in crate::prov::verbs) open: bool,
    /// And operations without flags want entries, so that nobody need ask.
    pub(in crate::prov::verbs) default_wants_entry: bool,
    pub(in crate::prov::verbs) recv_wr: ibv_recv_wr,
    pub(in crate::prov::verbs) recv_piece: ibv_sge,
    pub(in crate::prov::verbs) recv_bad: *mut ibv_recv_wr,
    pub(in crate::prov::verbs) post_recv: PostRecv,
    /// As `open`, for receives.
    pub(in crate::prov::verbs) recv_open: bool,
    /// The number of the oldest operation and of the oldest receive, as long as their ends may be short as well.
    pub next_sent: u64,
    pub next_received: u64,
}

// SAFETY: the pointers lead into the endpoint itself and to its queue pair, and are used under its serialisation.
unsafe impl Send for Template {}

/// What posts while the path is closed.
unsafe extern "C" fn refuse_send(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> i32 {
    errno::EINVAL
}

unsafe extern "C" fn refuse_recv(_: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> i32 {
    errno::EINVAL
}

impl Default for Template {
    fn default() -> Template {
        // SAFETY: plain numbers and pointers.
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
            next_sent: NEVER,
            next_received: NEVER,
        }
    }
}
