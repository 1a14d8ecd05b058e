// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The short ways of messages: a send of one line, or of one piece beside the ring, its arrival in a receive that waits, and the
//! posting of that receive.
//! Whatever is not as usual is found before anything is done, and left to the longer ways of `msg.rs` and `progress.rs`.

use super::arrivals::Recv;
use super::conn::Conn;
use super::limits::{MAX_MSG, RX_SIZE, WINDOW};
use super::link::Link;
use super::state::State;
use super::wire::kind;
use crate::hmem::Site;
use crate::prov::flags;
use crate::prov::op::{Iov, Pieces};
use crate::prov::queue::{Completion, Queue, Waiter};
use crate::sync::aside::FROM;
use crate::sync::line::LINE_BYTES;
use crate::sys::copy::copy_any;

/// Turns of progress by the short way before one by the long way, which looks after the rest.
const LONG_TURN: u32 = 15;

impl State {
    /// From what is bound, which nothing changes any more: who may go the short ways.
    pub fn settle_short(&mut self) {
        let b = &self.bind;
        let usual = self.faults.is_none();
        let sends = usual && b.tx.is_some() && !b.tx_selective && b.counters.send.is_none() && !self.deliver;
        self.line_end = if sends { self.eager_end.min(LINE_BYTES + 1) } else { 0 };
        self.far_end = if sends { self.eager_end } else { 0 };
        self.plain_receives = usual && b.rx.is_some() && !b.rx_selective && b.counters.recv.is_none();
    }

    /// Sends one line. `ENTRY`: gives an entry. False: nothing was done.
    ///
    /// # Safety
    /// State and queue are `Promised`; `buf` is as the caller of the C API promised.
    #[inline(always)]
    pub unsafe fn send_short<const ENTRY: bool>(&mut self, buf: usize, len: usize, context: usize) -> bool {
        if len >= self.line_end || (buf == 0 && len != 0) {
            return false;
        }
        let Some(conn) = self.conn.as_deref_mut() else { return false };
        let Some(queue) = self.bind.tx.as_deref() else { return false };
        if !may_send(conn) {
            return false;
        }
        // SAFETY: the caller's promise.
        let mut entries = unsafe { queue.promised_unchecked() };
        if ENTRY && !entries.is_open() {
            return false;
        }
        // SAFETY: the caller's bytes; line_end keeps them to a line, and may_send has looked for one.
        unsafe { conn.tx.write_line(kind::SEND, buf as *const u8, len) };
        let asleep = conn.link.must_wake();
        conn.sent += 1;
        self.stats.sends += 1;
        if ENTRY {
            entries.put(Completion { context, flags: flags::SEND | flags::MSG, len, buf, data: 0 });
        }
        if asleep || (ENTRY && queue.waiter.is_armed()) {
            wake_both(&conn.link, asleep, &queue.waiter);
        }
        true
    }

    /// Sends what goes beside the ring in one piece, and gives an entry. False: nothing was done. One body for this and
    /// `send_short` would cost the latter 15 instructions, for registers that it has to keep.
    ///
    /// # Safety
    /// As for `send_short`.
    #[inline(always)]
    pub unsafe fn send_far(&mut self, buf: usize, len: usize, context: usize) -> bool {
        if len < FROM || len >= self.far_end || buf == 0 {
            return false;
        }
        let (Some(conn), Some(queue)) = (self.conn.as_deref_mut(), self.bind.tx.as_deref()) else { return false };
        // SAFETY: the caller's promise.
        let mut entries = unsafe { queue.promised_unchecked() };
        // SAFETY: the caller's bytes; may_send has looked for a line.
        if !may_send(conn) || !entries.is_open() || !unsafe { conn.tx.write_far(kind::SEND, buf as *const u8, len) } {
            return false;
        }
        let asleep = conn.link.must_wake();
        conn.sent += 1;
        self.stats.sends += 1;
        entries.put(Completion { context, flags: flags::SEND | flags::MSG, len, buf, data: 0 });
        if asleep || queue.waiter.is_armed() {
            wake_both(&conn.link, asleep, &queue.waiter);
        }
        true
    }

    /// Posts a receive of one piece of host memory. False: nothing was done.
    #[inline(always)]
    pub fn recv_short(&mut self, buf: usize, len: usize, context: usize) -> bool {
        let room = self.recvs.len() < self.recvs.capacity().min(RX_SIZE);
        let usual = self.plain_receives & self.conn.is_some() & self.unexpected.is_empty() & (self.options.recv_deadline_ns == 0);
        if !usual || !room || len > MAX_MSG || (buf == 0 && len != 0) {
            return false;
        }
        let pieces = Pieces::One(Iov { addr: buf, len });
        self.recvs.push_back(Recv { pieces, site: Site::HOST, room: len, context, wanted: true, deadline: 0, ticket: None });
        true
    }

    /// Whether messages may go straight to the reader of the empty `queue`, and whether there are any. `None`: something wants
    /// the long way.
    #[inline(always)]
    pub fn may_arrive(&mut self, queue: &Queue) -> Option<bool> {
        let conn = self.conn.as_deref()?;
        let waits = conn.slots.active.len() | conn.devices.len() | conn.reads_out.len() | conn.backlog.len();
        let usual = waits == 0 && self.takes_plain() && self.polls & LONG_TURN != LONG_TURN;
        if !usual || !self.bind.rx.as_deref().is_some_and(|rx| std::ptr::eq(rx, queue)) {
            return None;
        }
        let some = !self.rx.as_mut()?.cursor().is_empty();
        self.polls = self.polls.wrapping_add(u32::from(!some));
        Some(some)
    }

    /// After `may_arrive` found some: a turn of progress that hands up to `most` of them to `each`. `None`: something wants the
    /// long way, and nothing was done.
    #[inline(always)]
    pub fn arrive(&mut self, most: usize, each: impl FnMut(usize, &Completion)) -> Option<usize> {
        let n = self.take_plain(most, each)?;
        self.polls = self.polls.wrapping_add(1);
        Some(n)
    }

    /// Whether a message may go straight into the first receive.
    #[inline(always)]
    pub fn takes_plain(&self) -> bool {
        self.plain_receives && self.unexpected.is_empty() && self.bind.none_arriving()
    }

    /// Puts messages into their receives, as long as they are short and there is nothing else to it. `None`: the first is
    /// not of that sort, or has no receive.
    #[inline(always)]
    pub fn take_plain(&mut self, most: usize, mut each: impl FnMut(usize, &Completion)) -> Option<usize> {
        let rx = self.rx.as_mut()?;
        let mut cursor = rx.cursor();
        if cursor.is_empty() {
            return Some(0);
        }
        let (mut n, mut aside) = (0, None);
        for recv in self.recvs.as_slices().0.iter().take(most) {
            let (len, far) = match cursor.plain(kind::SEND) {
                Some(len) => (len, None),
                None => match rx.far(&cursor, kind::SEND) {
                    Some(far) => (far.len, Some(far)),
                    None => break,
                },
            };
            let Recv { pieces: Pieces::One(one), site, wanted: true, context, .. } = recv else { break };
            if len > one.len || !site.is_host() {
                break;
            }
            // SAFETY: the receive's piece is the caller's promise, and takes `len`; so many bytes lie aside, where the peer may
            // scribble over what is its own message.
            unsafe {
                match far {
                    None => cursor.take(one.addr as *mut u8, len),
                    Some(far) => {
                        copy_any(one.addr as *mut u8, far.from, len);
                        cursor.skip();
                        aside = Some(far.end);
                    }
                }
            }
            each(n, &Completion { context: *context, flags: flags::RECV | flags::MSG, len, buf: one.addr, data: 0 });
            n += 1;
        }
        let head = cursor.head();
        match n {
            0 => return None,
            1 => drop(self.recvs.pop_front()),
            _ => drop(self.recvs.drain(..n)),
        }
        rx.pass(head);
        if let Some(end) = aside {
            rx.pass_aside(end);
        }
        self.stats.recvs += n as u64;
        self.matched += n as u64;
        if self.matched - self.published >= WINDOW / 4 {
            self.publish_matches();
        }
        Some(n)
    }

    /// As `take_plain` into the queue that is bound, where the reader is somebody else.
    pub fn queue_plain(&mut self, most: usize) {
        let Some(queue) = self.bind.rx.take() else { return };
        let most = most.min(queue.free());
        self.take_plain(most, |_, entry| queue.push(*entry));
        self.bind.rx = Some(queue);
    }
}

/// Whether a message may go out at once, in the line that the ring has free.
#[inline(always)]
fn may_send(conn: &Conn) -> bool {
    conn.is_clear() && conn.sent - conn.credited < WINDOW && conn.tx.is_open()
}

/// Apart, so that whoever sends keeps nothing for calls that are hardly ever made.
#[cold]
#[inline(never)]
fn wake_both(link: &Link, asleep: bool, waiter: &Waiter) {
    if asleep {
        link.wake();
    }
    waiter.notify();
}
