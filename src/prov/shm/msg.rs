// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages. Short ones travel in the ring; for long ones the sender offers its buffer and the
//! receiver, once it has a receive for it, fetches the bytes itself (from a mapping or by
//! cross-memory attach) or asks for them in fragments.

use super::conn::{
    Conn, FRAGMENT_BYTES, Flight, Job, STATUS_SEND_FRAGMENTS, Step, broken, kind, mark, protocol, slot_word, status_of, unpack_slot,
};
use super::device;
use super::domain::Domain;
use super::layout::SegmentRef;
use super::region::DEVICE_DESC;
use super::rma::{attach_error, check_alive, gone};
use super::state::{Ending, Phase, Recv, State, TX_SIZE, Unexpected, WINDOW, measure};
use super::{INJECT_SIZE, MAX_MSG, RX_SIZE};
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Site};
use crate::prov::flags;
use crate::prov::op::{Common, IOV_LIMIT, Iov, Pieces, parts};
use crate::prov::queue::Completion;
use crate::sync::primitive::Ordering;
use crate::sync::ring::{Broken, Header, Message};
use crate::sys::copy;
use crate::sys::process::{Attach, Piece, attach_copy, piece};

/// A send that could not start at once.
pub struct SendJob {
    pieces: Pieces,
    site: Site,
    /// The caller's stream to wait for, 0: none.
    stream_after: u64,
    total: usize,
    flags: u64,
    data: u64,
    desc: u64,
    pub end: Ending,
    owned: Option<Box<[u8]>>,
}

/// A long message that the peer offers.
pub struct Offered {
    slot: u16,
    generation: u16,
    total: usize,
    data: Option<u64>,
    file: u64,
    file_offset: u64,
    /// The buffer is device memory: only a mapping of `file` reaches it.
    on_device: bool,
    pieces: Vec<(u64, usize)>,
}

/// A long message that arrives in fragments.
pub struct RendezvousIn {
    pub generation: u16,
    pub recv: Recv,
    total: usize,
    got: usize,
    data: Option<u64>,
}

const OFFER_WORDS: usize = 6;

/// Bytes up to which a message travels in the ring if the receiver cannot map where it lies: the other way is a
/// system call, which costs as much as two copies of some 4 KiB.
fn copied_max(eager_max: usize) -> usize {
    (3 * eager_max).min(FRAGMENT_BYTES)
}

impl State {
    /// Posts a message.
    pub fn send(&mut self, domain: &Domain, local: &[Iov], c: &Common) -> Result<()> {
        if let [one] = local {
            match self.send_short(one, c) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Broken) => return Err(self.broke_down(domain)),
            }
        }
        let wanted = self.wants_entry(c.flags);
        let total = measure(local)?;
        if c.flags & flags::INJECT != 0 && total > INJECT_SIZE {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {total} bytes, an inject call takes up to inject_size {INJECT_SIZE}")));
        }
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count"))?;
        let deadline = self.deadline(c);
        let Some(conn) = self.conn.as_deref_mut() else { return Err(self.not_connected()) };
        let queued = !conn.backlog.is_empty();
        if conn.outstanding() >= TX_SIZE || !self.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let end = Ending { context: c.context, kind: flags::SEND | flags::MSG, len: total, buf: pieces.first(), wanted, deadline };
        let site = if c.desc & DEVICE_DESC == 0 { Site::HOST } else { domain.regions.lock().local_site(c.desc, local)? };
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
        };
        let step = if queued { Step::Blocked } else { self.start_send(domain, &mut job) };
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
        Ok(())
    }

    /// The way of most messages: one short piece, room in the ring, nothing to wait for. False:
    /// something about it is not ordinary.
    #[inline]
    fn send_short(&mut self, one: &Iov, c: &Common) -> std::result::Result<bool, Broken> {
        let wanted = self.wants_entry(c.flags);
        let limit = if c.flags & flags::INJECT != 0 { self.eager_max.min(INJECT_SIZE) } else { self.eager_max };
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
        let special =
            c.flags & (flags::DELIVERY_COMPLETE | flags::FENCE) != 0 || c.desc & DEVICE_DESC != 0 || (one.addr == 0 && one.len > 0);
        if one.len > limit
            || special
            || !conn.backlog.is_empty()
            || conn.coop > 0
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
        let words = [c.data];
        // SAFETY: the caller's piece, readable for its length.
        unsafe { conn.tx.write(header, &words[..usize::from(has_data)], &[(one.addr as *const u8, one.len)]) };
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
    fn broke_down(&mut self, domain: &Domain) -> Error {
        self.down(domain, broken(Broken));
        self.not_connected()
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
        let room = measure(local)?;
        if self.recvs.len() >= RX_SIZE {
            return Err(Error::AGAIN);
        }
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count"))?;
        let wanted = !self.bind.rx_selective || c.flags & flags::COMPLETION != 0;
        let deadline = self.deadline(c);
        if deadline != 0 && (self.recv_deadline == 0 || deadline < self.recv_deadline) {
            self.recv_deadline = deadline;
        }
        let site = if c.desc & DEVICE_DESC == 0 { Site::HOST } else { domain.regions.lock().local_site(c.desc, local)? };
        self.recvs.push_back(Recv { pieces, site, room, context: c.context, wanted, deadline });
        if !self.unexpected.is_empty() {
            self.match_unexpected(domain)?;
        }
        Ok(())
    }

    /// Joins messages that came early with receives, as far as the queue has room.
    pub fn match_unexpected(&mut self, _domain: &Domain) -> Result<()> {
        while !self.recvs.is_empty() && self.bind.rx.as_ref().is_none_or(|q| q.has_room()) {
            let Some(message) = self.unexpected.pop_front() else { break };
            let Some(recv) = self.recvs.pop_front() else { break };
            match message {
                Unexpected::Eager { bytes, data, ack } => {
                    let n = bytes.len().min(recv.room);
                    let placed = device::store_pieces(recv.site, recv.pieces.as_slice(), 0, &bytes[..n]);
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
            && let Some(recv) = self.recvs.pop_front()
        {
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

    /// A peer that keeps to the window can have this many unmatched messages here, and no more.
    fn check_window(&self) -> Result<()> {
        if self.unexpected.len() as u64 > WINDOW {
            return Err(protocol("the peer sent more messages than its window allows"));
        }
        Ok(())
    }

    /// A long message was offered.
    pub fn on_offer(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (slot, generation) = unpack_slot(message.word(0))?;
        let (total, count) = (message.word(1), message.word(2) as usize);
        let sane = total <= MAX_MSG as u64 && (1..=IOV_LIMIT).contains(&count) && message.header.words as usize == OFFER_WORDS + 2 * count;
        if !sane {
            return Err(protocol("the peer offered a message that makes no sense"));
        }
        let pieces: Vec<(u64, usize)> =
            (0..count).map(|k| (message.word(OFFER_WORDS + 2 * k), message.word(OFFER_WORDS + 2 * k + 1) as usize)).collect();
        if pieces.iter().try_fold(0usize, |s, p| s.checked_add(p.1)) != Some(total as usize) {
            return Err(protocol("the pieces of an offered message do not sum to its length"));
        }
        let offered = Offered {
            slot,
            generation,
            total: total as usize,
            data: (message.header.flags & mark::DATA != 0).then(|| message.word(3)),
            file: message.word(4),
            file_offset: message.word(5),
            on_device: message.header.flags & mark::DEVICE != 0,
            pieces,
        };
        if self.unexpected.is_empty()
            && let Some(recv) = self.recvs.pop_front()
        {
            return self.accept_offer(offered, recv);
        }
        self.check_window()?;
        self.unexpected.push_back(Unexpected::Rendezvous(offered));
        self.stats.unexpected += 1;
        Ok(())
    }

    /// Fetches an offered message into a receive, or asks for it in fragments.
    fn accept_offer(&mut self, offered: Offered, recv: Recv) -> Result<()> {
        self.count_match();
        let Some(conn) = self.conn.as_deref_mut() else {
            self.recvs.push_front(recv);
            return Ok(());
        };
        let peer = conn.link.peer.clone();
        let slot = peer.slot(offered.slot as usize);
        if slot.take_back(offered.generation).is_none() {
            // The sender cancelled it: as if it had never come.
            self.recvs.push_front(recv);
            return Ok(());
        }
        let n = offered.total.min(recv.room);
        match fetch(conn, &offered, &recv, n) {
            Fetched::Done => {
                slot.report(offered.generation, 0, 1);
                conn.link.nudge();
                self.received(&recv, n, offered.total - n, offered.data);
            }
            Fetched::Failed(e) => {
                slot.report(offered.generation, status_of(Code::Fault), 1);
                conn.link.nudge();
                self.abandon(&recv, e);
            }
            Fetched::Impossible => {
                let incoming = RendezvousIn { generation: offered.generation, recv, total: offered.total, got: 0, data: offered.data };
                conn.rendezvous_in[offered.slot as usize] = Some(incoming);
                slot.report(offered.generation, STATUS_SEND_FRAGMENTS, 0);
                conn.link.nudge();
            }
        }
        Ok(())
    }

    /// A part of a long message arrived.
    pub fn on_fragment(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (index, generation) = unpack_slot(message.word(0))?;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let place = &mut conn.rendezvous_in[index as usize];
        let Some(incoming) = place.as_mut().filter(|r| r.generation == generation) else { return Ok(()) };
        if message.header.flags & mark::LAST != 0 {
            if let Some(ended) = place.take() {
                self.abandon(
                    &ended.recv,
                    Error::coded(errno::ECANCELED, Code::Canceled, "the sender gave the message up before it was complete"),
                );
            }
            return Ok(());
        }
        let (at, len) = (message.word(1), message.header.bytes as usize);
        if at != incoming.got as u64 || incoming.total - incoming.got < len {
            return Err(protocol("a fragment of a message does not follow the one before"));
        }
        let take = incoming.recv.room.saturating_sub(incoming.got).min(len);
        // SAFETY: the receive's pieces are the caller's promise.
        let placed = unsafe { deliver(message, incoming.recv.site, incoming.recv.pieces.as_slice(), incoming.got, take) };
        incoming.got += len;
        let complete = incoming.got == incoming.total;
        if let Err(e) = placed {
            let Some(ended) = place.take() else { return Ok(()) };
            conn.link.peer.slot(index as usize).report(generation, status_of(Code::Fault), 1);
            conn.link.nudge();
            self.abandon(&ended.recv, Error::coded(e.errno, Code::Fault, e.words));
            return Ok(());
        }
        if complete && let Some(done) = place.take() {
            conn.link.peer.slot(index as usize).report(generation, 0, 1);
            conn.link.nudge();
            let n = done.total.min(done.recv.room);
            self.received(&done.recv, n, done.total - n, done.data);
        }
        Ok(())
    }
}

impl SendJob {
    fn own_bytes(&mut self) -> Result<()> {
        if self.flags & flags::INJECT == 0 || self.owned.is_some() {
            return Ok(());
        }
        self.hold_copy()
    }

    /// Works on a copy of the caller's bytes from now on.
    fn hold_copy(&mut self) -> Result<()> {
        let bytes = device::gather(self.site, self.pieces.as_slice(), self.total)?;
        (self.site, self.desc) = (Site::HOST, 0);
        self.pieces = Pieces::One(Iov { addr: bytes.as_ptr() as usize, len: bytes.len() });
        self.owned = Some(bytes);
        Ok(())
    }
}

/// Puts bytes of a ring message into pieces of memory at `site`, from byte `skip` of them on.
///
/// # Safety
/// The pieces are memory that may be written.
pub unsafe fn deliver(message: &Message<'_, SegmentRef>, site: Site, pieces: &[Iov], skip: usize, len: usize) -> Result<()> {
    if site.is_host() {
        let mut at = 0;
        parts(pieces, skip, len, |addr, run| {
            // SAFETY: the caller's promise.
            unsafe { message.copy_out(at, addr as *mut u8, run) };
            at += run;
        });
        return Ok(());
    }
    let mut bytes = vec![0u8; len];
    // SAFETY: `bytes` holds `len`.
    unsafe { message.copy_out(0, bytes.as_mut_ptr(), len) };
    device::store_pieces(site, pieces, skip, &bytes)
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
    device::settle(job.site, &mut job.stream_after)?;
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
        if place.is_some() || job.total > copied_max(eager_max) {
            return offer(conn, job, has_data, place.unwrap_or((0, 0)));
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

/// Offers a long message.
fn offer(conn: &mut Conn, job: &mut SendJob, has_data: bool, place: (u64, u64)) -> Result<Step> {
    let count = job.pieces.as_slice().len();
    let header =
        Header { kind: kind::RENDEZVOUS, flags: if has_data { mark::DATA } else { 0 }, words: (OFFER_WORDS + 2 * count) as u8, bytes: 0 };
    if !conn.room(header)? {
        return Ok(Step::Blocked);
    }
    let Some((slot, generation)) = conn.slots.take() else { return Ok(Step::Blocked) };
    if let Err(e) = job.own_bytes() {
        conn.slots.give_back(slot);
        return Err(e);
    }
    let iov = job.pieces.as_slice();
    let (file, file_offset) = place;
    conn.link.mine.slot(slot as usize).open(generation, 1);
    let mut words = vec![slot_word(slot, generation), job.total as u64, iov.len() as u64, job.data, file, file_offset];
    words.extend(iov.iter().flat_map(|v| [v.addr as u64, v.len as u64]));
    let device = if job.site.is_host() { 0 } else { mark::DEVICE };
    conn.put_words(kind::RENDEZVOUS, header.flags | device, &words);
    conn.sent += 1;
    conn.slots.launch(
        slot,
        Flight::Rendezvous { end: job.end, pieces: job.pieces.clone(), site: job.site, _owned: job.owned.take(), sent: None },
    );
    Ok(Step::Flying)
}

enum Fetched {
    Done,
    Failed(Error),
    Impossible,
}

fn fetch(conn: &mut Conn, offered: &Offered, recv: &Recv, n: usize) -> Fetched {
    let path = if offered.on_device { crate::mr::Paths::IPC } else { crate::mr::Paths::DIRECT };
    conn.remotes.near = (!recv.site.is_host()).then_some(recv.site.device);
    if offered.file != 0
        && conn.remotes.allowed.contains(path)
        && let Some((from, site)) = conn.remotes.mapped(&conn.link, offered.file, offered.file_offset, offered.total as u64)
    {
        if !site.is_host() || !recv.site.is_host() {
            return fetch_by_driver(recv, n, from as u64, site);
        }
        let mut at = 0;
        parts(recv.pieces.as_slice(), 0, n, |addr, run| {
            // SAFETY: the mapping covers the offered bytes; the receive is the caller's promise.
            unsafe { copy::copy(addr as *mut u8, (from + at) as *const u8, run, config::get().nt_threshold) };
            at += run;
        });
        return Fetched::Done;
    }
    if offered.on_device || !recv.site.is_host() || conn.link.cma.is_err() || !conn.remotes.allowed.contains(crate::mr::Paths::CMA) {
        return Fetched::Impossible;
    }
    if n == 0 {
        return Fetched::Done;
    }
    if let Err(e) = check_alive(conn) {
        return Fetched::Failed(e);
    }
    let mut near: Vec<Piece> = Vec::with_capacity(1);
    parts(recv.pieces.as_slice(), 0, n, |addr, run| near.push(piece(addr as u64, run)));
    let mut far: Vec<Piece> = Vec::with_capacity(1);
    let mut left = n;
    for (addr, len) in &offered.pieces {
        let take = left.min(*len);
        if take > 0 {
            far.push(piece(*addr, take));
        }
        left -= take;
    }
    // SAFETY: the receive's pieces are the caller's promise.
    match unsafe { attach_copy(conn.link.pid, Attach::Read, &near, &far) } {
        Ok(()) => Fetched::Done,
        Err(e) if matches!(e.errno, errno::EPERM | errno::ENOSYS) => Fetched::Impossible,
        Err(e) => Fetched::Failed(attach_error(e)),
    }
}

/// Device memory on one side or both, mapped: one blocking copy per piece.
fn fetch_by_driver(recv: &Recv, n: usize, from: u64, site: Site) -> Fetched {
    // What is mapped here for one device can be reached by the others; the receive's memory need not be.
    let of = if recv.site.is_host() { site } else { recv.site };
    if !site.is_host() && !recv.site.is_host() && site.iface != recv.site.iface {
        return Fetched::Impossible;
    }
    let dir = match (site.is_host(), recv.site.is_host()) {
        (true, _) => hmem::Dir::ToDevice,
        (_, true) => hmem::Dir::FromDevice,
        _ => hmem::Dir::Within,
    };
    let up = match hmem::get(of.iface) {
        Ok(up) => up,
        Err(e) => return Fetched::Failed(e),
    };
    let (mut outcome, mut at) = (Ok(()), 0u64);
    parts(recv.pieces.as_slice(), 0, n, |addr, run| {
        if outcome.is_ok() {
            // SAFETY: the mapping covers the offered bytes; the receive is the caller's promise.
            outcome = unsafe { up.copy(of.device, dir, addr as u64, from + at, run) };
        }
        at += run as u64;
    });
    match outcome {
        Ok(()) => Fetched::Done,
        Err(e) => Fetched::Failed(Error::coded(e.errno, Code::Fault, e.words)),
    }
}

/// Puts fragments of an offered message into the ring, from byte `sent`; gives the new count.
pub fn send_fragments(conn: &mut Conn, slot: u16, pieces: &Pieces, total: usize, mut sent: usize) -> Result<usize> {
    let word = slot_word(slot, conn.slots.generation[slot as usize]);
    while sent < total || total == 0 {
        let n = (total - sent).min(FRAGMENT_BYTES);
        let header = Header { kind: kind::FRAGMENT, words: 2, bytes: n as u16, flags: 0 };
        if !conn.tx.room(header.lines()).map_err(broken)? {
            break;
        }
        let mut list = [(std::ptr::null::<u8>(), 0usize); IOV_LIMIT];
        let mut used = 0;
        parts(pieces.as_slice(), sent, n, |addr, len| {
            list[used] = (addr as *const u8, len);
            used += 1;
        });
        // SAFETY: parts of the caller's (or owned) bytes that sum to n.
        unsafe { conn.tx.write(header, &[word, sent as u64], &list[..used]) };
        sent += n;
        if total == 0 {
            break;
        }
    }
    conn.link.nudge();
    Ok(sent)
}

/// Tells the receiver that no more fragments of a message come; false if the ring has no room.
pub fn give_up(conn: &mut Conn, slot: u16) -> bool {
    let header = Header { kind: kind::FRAGMENT, flags: mark::LAST, words: 2, bytes: 0 };
    if !matches!(conn.tx.room(header.lines()), Ok(true)) {
        return false;
    }
    let word = slot_word(slot, conn.slots.generation[slot as usize]);
    conn.put_words(kind::FRAGMENT, mark::LAST, &[word, 0]);
    true
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
