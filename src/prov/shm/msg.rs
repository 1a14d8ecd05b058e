// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages. Short ones travel in the ring, some longer ones too, from memory that the receiver cannot
//! map; the others are offered (`rendezvous.rs`).

use super::arrivals::{Recv, Unexpected};
use super::conn::Conn;
use super::copy::deliver;
use super::domain::Domain;
use super::flight::Flight;
use super::job::{Job, SendJob, Step, needs_driver, settle};
use super::layout::SegmentRef;
use super::limits::{FETCH_BYTES, INJECT_SIZE, MAX_MSG, RX_SIZE, TX_SIZE, WINDOW};
use super::rendezvous;
use super::state::{Phase, State};
use super::wire::{broken, gone, kind, mark, protocol, slot_word, status_of, unpack_slot};
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::DEVICE_DESC;
use crate::mr::piece::store;
use crate::prov::bind::{Ending, Quick, SILENT};
use crate::prov::fault::{Op, Plan, Verdict};
use crate::prov::flags;
use crate::prov::op::{Common, IOV_LIMIT, Iov, Pieces, measure};
use crate::prov::queue::Completion;
use crate::sync::line::LINE_BYTES;
use crate::sync::primitive::Ordering;
use crate::sync::ring::{Broken, Header, Message};

impl State {
    /// Where the memory of a message lies.
    fn site_of_message(&self, domain: &Domain, local: &[Iov], c: &Common) -> Result<Site> {
        match (c.desc & DEVICE_DESC != 0, self.options.driver_calls) {
            (false, _) => Ok(Site::HOST),
            (true, true) => domain.local_site(c.desc, local, true),
            (true, false) => Err(needs_driver("messages in device memory go through the host")),
        }
    }

    /// Posts a message.
    pub fn send(&mut self, domain: &Domain, local: &[Iov], c: &Common) -> Result<()> {
        if let [one] = local
            && c.desc & DEVICE_DESC == 0
            && self.send_quick(domain, one, c) == Quick::Done
        {
            return Ok(());
        }
        let wanted = self.wants_entry(c.flags);
        let total = measure(local, MAX_MSG)?;
        if c.flags & flags::INJECT != 0 && total > INJECT_SIZE {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {total} bytes, an inject call takes up to inject_size {INJECT_SIZE}")));
        }
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count"))?;
        let deadline = self.deadline(c);
        if self.conn.is_none() {
            return Err(self.not_connected());
        }
        let site = self.site_of_message(domain, local, c)?;
        let Some(conn) = self.conn.as_deref_mut() else { return Err(self.not_connected()) };
        let queued = !conn.backlog.is_empty();
        if conn.outstanding() >= TX_SIZE || !self.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let kind = flags::SEND | flags::MSG;
        let end = self.place(Ending {
            context: c.context,
            kind,
            len: total,
            buf: pieces.first(),
            wanted,
            deadline,
            silent: c.flags & SILENT != 0,
            ticket: None,
        });
        let mut job = SendJob {
            pieces,
            site,
            stream_after: self.options.stream,
            total,
            flags: c.flags,
            data: c.data,
            desc: c.desc,
            end,
            owned: None,
            held: 0,
        };
        let verdict = self.judge(Op::Send);
        if let Verdict::Hold(until) = verdict {
            job.held = until;
        }
        let step = if queued || verdict != Verdict::Go { Step::Blocked } else { self.start_send(domain, &mut job) };
        match step {
            Step::Done(result) => self.end(&job.end, result),
            Step::Flying => {}
            Step::Blocked => {
                if let Err(e) = job.own_bytes() {
                    self.end(&job.end, Err(e));
                    return Ok(());
                }
                if let Some(conn) = &mut self.conn {
                    conn.backlog.push_back(Job::Send(Box::new(job)));
                }
            }
        }
        if verdict == Verdict::Lose {
            self.down(domain, Plan::gone());
        }
        Ok(())
    }

    /// The way of most messages: one short piece of host memory, room in the ring, nothing to wait for.
    #[inline(always)]
    pub fn send_quick(&mut self, domain: &Domain, one: &Iov, c: &Common) -> Quick {
        match self.try_quick(one, c) {
            Ok(true) => Quick::Done,
            Ok(false) => Quick::NotOrdinary,
            Err(Broken) => self.broke_down(domain),
        }
    }

    #[inline(always)]
    fn try_quick(&mut self, one: &Iov, c: &Common) -> std::result::Result<bool, Broken> {
        let wanted = self.wants_entry(c.flags);
        let end = if c.desc == 0 { self.private_end } else { self.eager_end };
        let end = if c.flags & flags::INJECT != 0 { end.min(INJECT_SIZE + 1) } else { end };
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
        let special = c.flags & (flags::DELIVERY_COMPLETE | flags::FENCE) != 0 || (one.addr == 0 && one.len > 0);
        if one.len >= end
            || special
            || !conn.backlog.is_empty()
            || conn.coop > 0
            || conn.late > 0
            || !conn.devices.is_idle()
            || conn.sent - conn.credited >= WINDOW
        {
            return Ok(false);
        }
        let has_data = c.flags & flags::REMOTE_CQ_DATA != 0;
        let header =
            Header { kind: kind::SEND, flags: if has_data { mark::DATA } else { 0 }, words: u8::from(has_data), bytes: one.len as u16 };
        if !conn.tx.room(header.lines())? {
            return Ok(false);
        }
        let queue = self.bind.tx.as_deref().filter(|_| wanted);
        if queue.is_some_and(|q| !q.has_room()) {
            return Ok(false);
        }
        let (from, words) = (one.addr as *const u8, [c.data]);
        // SAFETY: the caller's piece, readable for its length.
        unsafe {
            match has_data || one.len > LINE_BYTES {
                false => conn.tx.write_line(kind::SEND, from, one.len),
                true => conn.tx.write(header, &words[..usize::from(has_data)], &[(from, one.len)]),
            }
        }
        conn.link.nudge();
        conn.sent += 1;
        self.stats.sends += 1;
        if let Some(q) = queue {
            q.push(Completion { context: c.context, flags: flags::SEND | flags::MSG, len: one.len, buf: one.addr, data: 0 });
        }
        if let Some(counter) = &self.bind.counters.send {
            counter.add(1);
        }
        Ok(true)
    }

    /// The peer broke the ring's rules while this side was posting.
    #[cold]
    fn broke_down(&mut self, domain: &Domain) -> Quick {
        self.down(domain, broken(Broken));
        Quick::NotOrdinary
    }

    pub fn start_send(&mut self, domain: &Domain, job: &mut SendJob) -> Step {
        let Some(conn) = self.conn.as_deref_mut() else { return Step::Done(Err(gone())) };
        let step = match try_send(conn, domain, job) {
            Ok(step) => step,
            Err(e) => Step::Done(Err(e)),
        };
        if !matches!(step, Step::Blocked) {
            self.stats.sends += 1;
        }
        step
    }

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
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count"))?;
        let wanted = !self.bind.rx_selective || c.flags & flags::COMPLETION != 0;
        let deadline = self.recv_deadline_of(c);
        if deadline != 0 && (self.recv_deadline == 0 || deadline < self.recv_deadline) {
            self.recv_deadline = deadline;
        }
        let site = self.site_of_message(domain, local, c)?;
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

    /// As `match_unexpected` for a receive that was accepted: a broken peer ends the connection, and not the call.
    pub fn match_posted(&mut self, domain: &Domain) {
        if let Err(e) = self.match_unexpected(domain) {
            self.down(domain, e);
        }
    }

    /// Joins messages that came early with receives, as far as the queue has room.
    pub fn match_unexpected(&mut self, _domain: &Domain) -> Result<()> {
        self.fetched = 0;
        while !self.recvs.is_empty() && self.fetched < FETCH_BYTES && self.bind.rx.as_ref().is_none_or(|q| q.has_room()) {
            let Some(message) = self.unexpected.pop_front() else { break };
            let Some(mut recv) = self.recvs.pop_front() else { break };
            match message {
                Unexpected::Eager { bytes, data, ack } => {
                    recv.ticket = self.bind.matched(false);
                    let n = bytes.len().min(recv.room);
                    // SAFETY: the receive's pieces are its caller's promise.
                    let placed = unsafe { store(recv.site, recv.pieces.as_slice(), 0, &bytes[..n]) };
                    self.placed(&recv, placed, n, bytes.len() - n, data, ack);
                    self.count_match();
                }
                Unexpected::Rendezvous(offered) => self.accept_offer(offered, recv)?,
            }
        }
        Ok(())
    }

    /// A short message was put into its receive, or could not be.
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

    fn acknowledge(&self, ack: Option<(u16, u16)>, status: u16) {
        if let (Some((index, generation)), Some(conn)) = (ack, &self.conn) {
            conn.link.peer.slot(index as usize).report(generation, status, 1);
            conn.link.nudge();
        }
    }

    /// A short message arrived.
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
            // SAFETY: the receive's pieces are the caller's promise.
            let placed = unsafe { deliver(message, recv.site, recv.pieces.as_slice(), 0, n) };
            self.placed(&recv, placed, n, len - n, data, ack);
            self.count_match();
            return Ok(());
        }
        self.check_window()?;
        let mut bytes = vec![0u8; len];
        // SAFETY: `bytes` holds `len`.
        unsafe { message.copy_out(0, bytes.as_mut_ptr(), len) };
        self.unexpected.push_back(Unexpected::Eager { bytes: bytes.into(), data, ack });
        self.stats.unexpected += 1;
        Ok(())
    }

    /// Posts a receive with faults.
    #[cold]
    pub fn recv_faulty(&mut self, domain: &Domain, recv: Recv) -> Result<()> {
        if self.recvs.len() + self.faults.as_ref().map_or(0, |f| f.held.len()) >= RX_SIZE {
            return Err(Error::AGAIN);
        }
        match (self.judge(Op::Recv), &mut self.faults) {
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
}

/// Whether the receiver can take another message unmatched.
fn credit(conn: &mut Conn) -> Result<bool> {
    if conn.sent - conn.credited < WINDOW {
        return Ok(true);
    }
    let seen = conn.link.peer.matched().load(Ordering::Acquire);
    if seen < conn.credited || seen > conn.sent {
        return Err(protocol("the peer counts more matched messages than were sent"));
    }
    conn.credited = seen;
    Ok(conn.sent - seen < WINDOW)
}

#[inline]
fn try_send(conn: &mut Conn, domain: &Domain, job: &mut SendJob) -> Result<Step> {
    if conn.coop > 0 || !conn.devices.is_idle() || !credit(conn)? || (job.flags & flags::FENCE != 0 && !conn.slots.active.is_empty()) {
        return Ok(Step::Blocked);
    }
    let has_data = job.flags & flags::REMOTE_CQ_DATA != 0;
    let eager_max = config::get().eager_max;
    settle(job.site, &mut job.stream_after)?;
    if !job.site.is_host() && job.total <= eager_max {
        job.hold_copy()?;
    }
    if job.total > eager_max {
        let place = match job.pieces.as_slice() {
            [one] if job.desc != 0 => domain.regions.lock().shared_place(job.desc, *one),
            _ => None,
        };
        // Memory of a device that the peer cannot map itself travels as a copy.
        if !job.site.is_host() && place.is_none() {
            job.hold_copy()?;
        }
        if place.is_some() || job.total > config::get().ring_max(true) {
            return rendezvous::offer(conn, job, has_data, place.unwrap_or((0, 0)));
        }
    }
    let acked = job.flags & flags::DELIVERY_COMPLETE != 0;
    let count = usize::from(has_data) + usize::from(acked);
    let marks = if has_data { mark::DATA } else { 0 } | if acked { mark::ACK } else { 0 };
    let header = Header { kind: kind::SEND, flags: marks, words: count as u8, bytes: job.total as u16 };
    if !conn.room(header)? {
        return Ok(Step::Blocked);
    }
    let slot = match acked {
        false => None,
        true => match conn.slots.take() {
            None => return Ok(Step::Blocked),
            taken => taken,
        },
    };
    let mut words = [0u64; 2];
    if has_data {
        words[0] = job.data;
    }
    if let Some((index, generation)) = slot {
        conn.link.mine.slot(index as usize).open(generation, 1);
        words[count - 1] = slot_word(index, generation);
    }
    let mut pieces = [(std::ptr::null::<u8>(), 0usize); IOV_LIMIT];
    let iov = job.pieces.as_slice();
    for (to, from) in pieces.iter_mut().zip(iov) {
        *to = (from.addr as *const u8, from.len);
    }
    // SAFETY: the caller's pieces (or owned bytes), which sum to `total`.
    unsafe { conn.tx.write(header, &words[..count], &pieces[..iov.len()]) };
    conn.link.nudge();
    conn.sent += 1;
    let Some((index, _)) = slot else { return Ok(Step::Done(Ok(()))) };
    conn.slots.launch(index, Flight::Ack { end: job.end, staged: None });
    Ok(Step::Flying)
}

/// Ends receives whose deadline passed; gives the next deadline, 0 = none.
pub fn expire_receives(state: &mut State, now: u64) {
    if state.recv_deadline == 0 || now < state.recv_deadline {
        return;
    }
    let late = || Error::coded(errno::ETIMEDOUT, Code::Deadline, "no message came before the receive's deadline");
    let mut kept = std::collections::VecDeque::with_capacity(state.recvs.len());
    let mut next = 0;
    for recv in std::mem::take(&mut state.recvs) {
        if recv.deadline != 0 && recv.deadline <= now {
            state.abandon(&recv, late());
        } else {
            if recv.deadline != 0 && (next == 0 || recv.deadline < next) {
                next = recv.deadline;
            }
            kept.push_back(recv);
        }
    }
    state.recvs = kept;
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
