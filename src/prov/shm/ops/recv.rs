// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receiving messages: posts receives, and matches them with messages that arrive in the ring. Messages that arrive before their
//! receive wait among the unexpected messages.

use super::msg::site_of_message;
use crate::error::{Code, Error, Result, errno};
use crate::fallible::granted;
use crate::hmem::Site;
use crate::mr::piece::store;
use crate::prov::fault::{FaultOp, Plan, Verdict};
use crate::prov::flags;
use crate::prov::op::{Common, Iov, Pieces, measure};
use crate::prov::queue::{Completion, Queue};
use crate::prov::shm::copy::direct::deliver;
use crate::prov::shm::domain::Domain;
use crate::prov::shm::limits::{FETCH_BYTES, MAX_MSG, RX_SIZE, WINDOW};
use crate::prov::shm::state::arrivals::{Recv, Unexpected};
use crate::prov::shm::state::{Phase, State};
use crate::prov::shm::wire::layout::SegmentRef;
use crate::prov::shm::wire::message::{kind, mark, status_of, unpack_slot};
use crate::sync::consumer::Message;
use crate::sys::copy::copy_any;

/// Most turns in a row that only receive messages, before a full turn of progress.
const FULL_TURN: u32 = 15;

impl State {
    /// Posts a receive.
    pub fn recv(&mut self, domain: &Domain, local: &[Iov], c: &Common) -> Result<()> {
        if self.bind.rx.is_none() && self.bind.counters.recv.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: no completion queue or counter is bound for receives"));
        }
        match &self.phase {
            Phase::Fresh => return Err(Error::new(errno::EOPBADSTATE, "ep: call ep_enable before posting receives")),
            Phase::Down(_) if self.unexpected.is_empty() => return Err(self.not_connected()),
            _ => {}
        }
        let room = measure(local, MAX_MSG)?;
        if self.recvs.len() >= RX_SIZE {
            return Err(Error::AGAIN);
        }
        self.recvs.room()?;
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count: too many pieces"))?;
        let wanted = self.bind.wants_receive(c.flags);
        let deadline = self.recv_deadline_of(c);
        if deadline != 0 && (self.recv_deadline == 0 || deadline < self.recv_deadline) {
            self.recv_deadline = deadline;
        }
        let site = site_of_message(domain, self.options.driver_calls, local, c)?;
        let recv = Recv { pieces, site, room, context: c.context, wanted, deadline, ticket: None };
        if self.faults.is_some() {
            return self.recv_faulty(domain, recv);
        }
        self.recvs.push_back(recv);
        if !self.unexpected.is_empty() {
            self.match_posted(domain);
        }
        Ok(())
    }

    /// Matches unexpected messages after a receive was accepted. A peer's error ends the connection and does not fail
    /// the call.
    pub fn match_posted(&mut self, domain: &Domain) {
        if let Err(e) = self.match_unexpected(domain) {
            self.down(domain, e);
        }
    }

    /// Matches unexpected messages with receives, as far as the completion queue has room.
    pub fn match_unexpected(&mut self, _domain: &Domain) -> Result<()> {
        self.fetched = 0;
        while !self.recvs.is_empty() && self.fetched < FETCH_BYTES && self.bind.rx.as_ref().is_none_or(|q| q.has_room()) {
            let Some(message) = self.unexpected.pop_front() else { break };
            match message {
                Unexpected::Eager { bytes, data, ack } => {
                    let Some(mut recv) = self.recvs.pop_front() else { break };
                    recv.ticket = self.bind.matched(false);
                    let n = bytes.len().min(recv.room);
                    let placed = store(recv.site, recv.pieces.as_slice(), 0, &bytes[..n]);
                    self.placed(&recv, placed, n, bytes.len() - n, data, ack);
                    self.count_match();
                }
                Unexpected::Rendezvous(offered) => {
                    self.accept_offer(offered)?;
                    if self.conn.as_ref().is_some_and(|conn| conn.offer_waits) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Completes a receive after the copy of its short message, by the copy's `outcome`.
    fn placed(&mut self, recv: &Recv, outcome: Result<()>, n: usize, lost: usize, data: Option<u64>, ack: Option<(u16, u16)>) {
        match outcome {
            Ok(()) => {
                self.received(recv, n, lost, data);
                self.acknowledge(ack, 0);
            }
            Err(e) => {
                self.abandon(recv, Error::coded(e.errno, Code::Fault, e.words));
                self.acknowledge(ack, status_of(Code::Fault));
            }
        }
    }

    /// Reports a message to its sender, if the sender waits for a report (`ack`).
    fn acknowledge(&self, ack: Option<(u16, u16)>, status: u16) {
        if let (Some((index, generation)), Some(conn)) = (ack, &self.conn) {
            conn.link.peer.slot(index as usize).report(generation, status, 1);
            conn.link.nudge();
        }
    }

    /// Takes a short message from the ring.
    pub fn on_send(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        let header = message.header;
        let data = (header.flags & mark::DATA != 0).then(|| message.word(0));
        let ack = match header.flags & mark::ACK {
            0 => None,
            _ => Some(unpack_slot(message.word(usize::from(data.is_some())))?),
        };
        let len = header.bytes as usize;
        if self.unexpected.is_empty()
            && let Some(mut recv) = self.recvs.pop_front()
        {
            recv.ticket = self.bind.matched(false);
            let n = len.min(recv.room);
            let placed = deliver(message, recv.site, recv.pieces.as_slice(), 0, n);
            self.placed(&recv, placed, n, len - n, data, ack);
            self.count_match();
            return Ok(());
        }
        self.check_window()?;
        let mut bytes = granted(len)?;
        bytes.resize(len, 0);
        message.copy_into(0, &mut bytes);
        self.unexpected.push_back(Unexpected::Eager { bytes: bytes.into(), data, ack });
        self.stats.unexpected += 1;
        Ok(())
    }

    /// Posts a receive of an endpoint with fault injection.
    #[cold]
    pub fn recv_faulty(&mut self, domain: &Domain, recv: Recv) -> Result<()> {
        if self.recvs.len() + self.faults.as_ref().map_or(0, |f| f.held.len()) >= RX_SIZE {
            return Err(Error::AGAIN);
        }
        match (self.judge(FaultOp::Recv), &mut self.faults) {
            (Verdict::Hold(until), Some(faults)) => {
                faults.held.push_back((until, recv));
                Ok(())
            }
            (verdict, _) => {
                self.recvs.push_back(recv);
                if verdict == Verdict::Lose {
                    self.down(domain, Plan::gone());
                    return Ok(());
                }
                self.match_posted(domain);
                Ok(())
            }
        }
    }

    /// Posts a receive of one piece of host memory by the fast path. False: nothing was done.
    #[inline(always)]
    pub fn recv_fast(&mut self, local: Iov, context: usize) -> bool {
        let fast = self.fast_receives & self.conn.is_some() & self.unexpected.is_empty() & (self.options.recv_deadline_ns == 0);
        if !fast || local.len() > MAX_MSG || local.is_missing() {
            return false;
        }
        let room = local.len();
        let one = move || Recv { pieces: Pieces::One(local), site: Site::HOST, room, context, wanted: true, deadline: 0, ticket: None };
        self.recvs.post(one)
    }

    /// True if messages are in the ring whose completions can go straight to the reader of `queue`, which is empty.
    /// `None`: a full turn of progress is needed.
    #[inline(always)]
    pub fn may_arrive(&mut self, queue: &Queue) -> Option<bool> {
        let conn = self.conn.as_deref()?;
        let waits = conn.slots.active.len() | conn.devices.len() | conn.reads_out.len() | conn.backlog.len();
        let fast = waits == 0 && self.is_fast_receiver() && self.polls & FULL_TURN != FULL_TURN;
        if !fast || !self.bind.rx.as_deref().is_some_and(|rx| std::ptr::eq(rx, queue)) {
            return None;
        }
        let some = !self.rx.as_mut()?.cursor().is_empty();
        self.polls = self.polls.wrapping_add(u32::from(!some));
        Some(some)
    }

    /// A turn of progress after `may_arrive` has found messages: receives up to `most` messages and hands their
    /// completions to `each`. `None`: nothing was done, and a full turn is needed.
    #[inline(always)]
    pub fn arrive(&mut self, most: usize, each: impl FnMut(usize, &Completion)) -> Option<usize> {
        let n = self.receive_fast(most, each)?;
        self.polls = self.polls.wrapping_add(1);
        Some(n)
    }

    /// True if messages may be copied straight into the posted receives (`receive_fast`).
    #[inline(always)]
    pub fn is_fast_receiver(&self) -> bool {
        self.fast_receives && self.unexpected.is_empty() && self.bind.none_arriving()
    }

    /// Copies messages into their receives, up to the first message that is more than plain bytes or has no fitting
    /// receive. `None`: that is the first message.
    #[inline(always)]
    pub fn receive_fast(&mut self, most: usize, mut each: impl FnMut(usize, &Completion)) -> Option<usize> {
        let rx = self.rx.as_mut()?;
        let mut cursor = rx.cursor();
        if cursor.is_empty() {
            return Some(0);
        }
        let (mut n, mut area_end) = (0, None);
        for place in self.recvs.first(most) {
            let (len, there) = match cursor.bytes_only(kind::SEND) {
                Some(len) => (len, None),
                None => match rx.out_of_line(&cursor, kind::SEND) {
                    Some(there) => (there.len, Some(there)),
                    None => break,
                },
            };
            let Some(Recv { pieces: Pieces::One(one), site, wanted: true, context, .. }) = place else { break };
            if len > one.len() || !site.is_host() {
                break;
            }
            // SAFETY: the receive's caller promised by `Iov::new` that its piece is memory, and the piece holds `len`
            // bytes. The message has as many bytes in the ring. The peer may overwrite these bytes, and then spoils
            // only its own message.
            unsafe {
                match there {
                    None => cursor.copy_out(one.addr() as *mut u8, len),
                    Some(there) => {
                        copy_any(one.addr() as *mut u8, there.from, len);
                        cursor.skip();
                        area_end = Some(there.end);
                    }
                }
            }
            each(n, &Completion { context: *context, flags: flags::RECV | flags::MSG, len, buf: one.addr(), data: 0 });
            n += 1;
        }
        let head = cursor.head();
        if n == 0 {
            return None;
        }
        self.recvs.pass(n);
        rx.pass(head);
        if let Some(end) = area_end {
            rx.pass_area(end);
        }
        self.stats.recvs += n as u64;
        self.matched += n as u64;
        if self.matched - self.published >= WINDOW / 4 {
            self.publish_matches();
        }
        Some(n)
    }

    /// As `receive_fast`, but puts the completions into the bound queue.
    pub fn queue_fast(&mut self, most: usize) {
        let Some(queue) = self.bind.rx.take() else { return };
        let most = most.min(queue.free());
        self.receive_fast(most, |_, entry| queue.push(*entry));
        self.bind.rx = Some(queue);
    }
}

/// Ends receives whose deadline has passed, and stores the next deadline in `recv_deadline`.
pub fn expire_receives(state: &mut State, now: u64) {
    if state.recv_deadline == 0 || now < state.recv_deadline {
        return;
    }
    let late = || Error::coded(errno::ETIMEDOUT, Code::Deadline, "no message arrived before the receive's deadline");
    let mut next = 0;
    for _ in 0..state.recvs.len() {
        let Some(recv) = state.recvs.pop_front() else { break };
        if recv.deadline != 0 && recv.deadline <= now {
            state.abandon(&recv, late());
        } else {
            if recv.deadline != 0 && (next == 0 || recv.deadline < next) {
                next = recv.deadline;
            }
            state.recvs.push_back(recv);
        }
    }
    let mut ended = Vec::new();
    if let Some(conn) = &mut state.conn {
        for index in 0..conn.rendezvous_in.len() {
            let over = conn.rendezvous_in[index].as_ref().map(|r| r.recv.deadline).filter(|d| *d != 0);
            match over {
                Some(d) if d <= now => {
                    if let Some(r) = conn.rendezvous_in[index].take() {
                        conn.link.peer.slot(index).report(r.generation, status_of(Code::Canceled), 1);
                        conn.link.nudge();
                        ended.push(r.recv);
                    }
                }
                Some(d) if next == 0 || d < next => next = d,
                _ => {}
            }
        }
    }
    for recv in ended {
        state.abandon(&recv, late());
    }
    state.recv_deadline = next;
}
